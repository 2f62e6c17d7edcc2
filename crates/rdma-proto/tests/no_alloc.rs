//! A connection allocates nothing after its creation, even on a network that loses each seventh packet; and it is
//! small. A communication manager under a flood is small, too.
//!
//! The test has its own `main`, since the threads of the default harness allocate too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

use std::ops::Range;

use rdma_proto::cm::wire::{Mad, Message, Offer, Path, Req};
use rdma_proto::cm::{Address, CommId, Manager, ServiceId, Settings};
use rdma_proto::requester::{self, Requester};
use rdma_proto::responder::{self, Responder};
use rdma_proto::{
    Connection, Datagrams, Delivered, Host, Kind, MessageEnd, MessageStart, Nak, Remote, Source,
    Stop, Time, UnreliableRequester, UnreliableResponder, Work, Wqe,
};
use rdma_types::{
    AckTimeout, Gid, Guid, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Mtu, Psn, Qpn, WcStatus,
};
use test_support::alloc_counter::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const REQUESTS: u32 = 4_000;

/// SENDs, WRITEs, READs and atomics in turn, and memory that stores nothing.
struct Ends {
    done: u32,
    /// The number of begun messages; every third one finds no receive at first.
    begun: u32,
}

impl Work for Ends {
    fn admitted(&self) -> u32 {
        REQUESTS
    }
    fn request(&self, n: u32) -> Wqe {
        let remote = Remote::default();
        let (start, length) = match n % 4 {
            0 => (MessageStart::send(), 600),
            1 => (MessageStart::one_sided(Kind::Write, remote, 600), 600),
            2 => (MessageStart::one_sided(Kind::Read, remote, 600), 600),
            _ => (MessageStart::atomic(Kind::FetchAdd, remote, 1, 0), 8),
        };
        Wqe::Remote { start, end: MessageEnd { length, ..MessageEnd::default() }, fence: false }
    }
    fn gather(&mut self, _: u32, _: u32, out: &mut [u8]) -> Result<(), WcStatus> {
        out.fill(1);
        Ok(())
    }
    fn deliver(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), WcStatus> {
        Ok(())
    }
    fn execute_local(&mut self, _: u32) -> Result<(), WcStatus> {
        Ok(())
    }
    fn done(&mut self, n: u32) {
        assert_eq!(n, self.done);
        self.done += 1;
    }
    fn failed(&mut self, n: u32, status: WcStatus) {
        panic!("{n}: {status:?}");
    }
}

impl Host for Ends {
    fn begin(&mut self, _: &MessageStart) -> Result<(), Stop> {
        self.begun += 1;
        if self.begun.is_multiple_of(3) { Err(Stop::NotReady) } else { Ok(()) }
    }
    fn place(&mut self, _: &MessageStart, _: u32, _: &[u8]) -> Result<(), Stop> {
        Ok(())
    }
    fn fetch(&mut self, _: &MessageStart, _: u32, out: &mut [u8]) -> Result<(), Stop> {
        out.fill(2);
        Ok(())
    }
    fn atomic(&mut self, _: &MessageStart) -> Result<u64, Stop> {
        Ok(3)
    }
    fn take_receive(&mut self, _: &MessageStart) -> Result<(), Stop> {
        Ok(())
    }
    fn finish(&mut self, _: &MessageStart, _: &MessageEnd) -> Result<(), Stop> {
        Ok(())
    }
    fn abandon(&mut self) {}
    fn fail(&mut self, nak: Nak) {
        panic!("{nak:?}");
    }
    fn datagram(&mut self, _: &Source, _: &MessageEnd, _: &[u8]) -> Delivered {
        Delivered::Dropped
    }
}

/// The most bytes that both ends of a connected queue pair may have, without its queues.
const MOST_BYTES: usize = 64 << 10;

/// Checks the size of the ends that a queue pair needs, including their allocations.
fn connections_are_small() {
    for reads in [16, 255] {
        let before = ALLOCATOR.bytes();
        let (requester, responder) = ends(reads);
        let allocated = usize::try_from(ALLOCATOR.bytes() - before).unwrap();
        let own = size_of_val(&requester) + size_of_val(&responder);
        println!("{own} bytes and {allocated} allocated, for {reads} READs and atomics");
        assert!(own + allocated <= MOST_BYTES);
    }
    let unreliable = size_of::<UnreliableRequester>() + size_of::<UnreliableResponder>();
    println!(
        "{unreliable} bytes of an unreliable connection, {} for datagrams",
        size_of::<Datagrams>()
    );
    assert!(unreliable.max(size_of::<Datagrams>()) <= MOST_BYTES);
}

fn ends(reads: u8) -> (Requester, Responder) {
    let connection = Connection::new(Qpn::masked(0x11), Mtu::MTU256);
    let psn = Psn::masked(0);
    let requester = Requester::new(&requester::Settings {
        connection,
        psn,
        timeout: AckTimeout::default(),
        retries: MaxAckRetries::default(),
        rnr_retries: MaxRnrRetries::unlimited(),
        max_rd_atomic: reads,
    });
    let responder = Responder::new(&responder::Settings {
        connection,
        psn,
        min_rnr_timer: MinRnrTimer::default(),
        max_dest_rd_atomic: reads,
    });
    (requester, responder)
}

/// The most bytes that the half-open connections of one listener may have.
const MOST_HALF_OPEN_BYTES: u64 = 256 << 10;

/// Checks that a flood of REQs occupies little memory, and that what is dropped occupies none.
fn floods_are_small() {
    let (gid, service_id) = (Gid::from_bytes([1; 16]), ServiceId::new(1));
    let mut manager = Manager::new(&Settings::new(Guid::from_u64(1), 0, 0));
    manager.listen(service_id).unwrap();
    let mut flood = |ids: Range<u32>| {
        for n in ids {
            let primary = Path { local_gid: gid, ..Path::default() };
            let (mtu_code, qpn) = (Mtu::MTU1024.code(), Qpn::masked(n));
            let offer = Offer { service_id, mtu_code, qpn, primary, ..Offer::default() };
            let req = Req { local_id: CommId::new(n), ca_guid: Guid::default(), offer };
            let mad = Mad { tid: 0, message: Message::Req(req) }.emit().unwrap();
            let output = manager.receive(Time::default(), Address::Gid(gid), &mad);
            assert_eq!(output.event.is_some(), n < Manager::MAX_HALF_OPEN);
        }
    };
    let before = ALLOCATOR.bytes();
    flood(0..Manager::MAX_HALF_OPEN);
    let (bytes, allocations) = (ALLOCATOR.bytes() - before, ALLOCATOR.allocations());
    println!("{bytes} bytes for {} half-open connections", Manager::MAX_HALF_OPEN);
    assert!(bytes <= MOST_HALF_OPEN_BYTES);
    flood(Manager::MAX_HALF_OPEN..10_000);
    assert_eq!(ALLOCATOR.allocations(), allocations);
}

fn main() {
    connections_are_small();
    floods_are_small();
    let (mut requester, mut responder) = ends(4);
    let (mut queue, mut host) = (Ends { done: 0, begun: 0 }, Ends { done: 0, begun: 0 });
    let (mut now, mut packets, mut room) = (Time::default(), 0_u32, [0; 256]);
    let mut arrives = || {
        packets += 1;
        !packets.is_multiple_of(7)
    };
    let before = ALLOCATOR.allocations();
    while queue.done < REQUESTS {
        if let Some(burst) = requester.poll_transmit(now, &mut queue, &mut room) {
            if arrives() {
                responder.receive(&burst, &room[..burst.length as usize], &mut host);
            }
        } else if let Some(burst) = responder.poll_transmit(&mut host, &mut room) {
            if arrives() {
                let payload = &room[..burst.length as usize];
                requester.receive(now, &burst, payload, &mut queue);
            }
        } else {
            now = requester.deadline().expect("something is in flight");
            requester.expire(now, &mut queue);
        }
    }
    assert_eq!(ALLOCATOR.allocations(), before);
    println!("{packets} packets, {REQUESTS} requests, no allocation");
}
