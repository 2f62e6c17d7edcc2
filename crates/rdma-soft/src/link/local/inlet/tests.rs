//! Tests of messages that the other process has composed.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::os::fd::{AsFd as _, OwnedFd};

use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
use rdma_types::Qpn;

use super::super::head::encode;
use super::super::shared::RingSender;
use super::super::tests::{World, connection};
use super::*;
use crate::address::{Address, Path};
use crate::device::arrivals::tests::queue_pair;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::service::Service;
use crate::link::memory::BURSTS;

/// A connection whose other end has written messages of [`MOST`] bursts until the ring was full.
struct Written {
    inlet: Arc<Inlet>,
    receiver: Arc<QueuePair>,
    messages: usize,
    _far: OwnedFd,
}

impl Written {
    /// The first burst of each message is for the number of a receiver xor `first`, the others are for the receiver.
    fn new(world: &'static World, first: u32) -> Self {
        let (device, driver) = world.get();
        let receiver = queue_pair(device, Service::ReliableConnection);
        let [first, other] = [receiver.qpn ^ first, receiver.qpn].map(|number| {
            let opcode = Opcode::reliable(Operation::SendOnly);
            let header = Headers::new(Bth::new(opcode, Qpn::masked(number), Psn::masked(0)));
            let address = Address::Gid(device.identity.gids[0]);
            let path = Path { local: address, remote: address };
            let letter = Letter::new(path, Burst::single(header, 0), None, Box::default());
            encode(device, &letter).unwrap()
        });
        let (sender, file) = RingSender::new().unwrap();
        let (near, far) = connection();
        let guest = Guest::of(None).unwrap();
        let inlet =
            driver.add(|token| Inlet::new(driver, device, guest, near, token, None)).unwrap();
        inlet.ring.set(RingReceiver::open(file.as_fd()).unwrap()).unwrap();
        let parts: Vec<&[u8]> = std::iter::once(&first[..]).chain([&other[..]; MOST - 1]).collect();
        let write = || sender.write(parts.iter().copied()).unwrap().map(drop);
        let messages = std::iter::from_fn(write).count();
        Self { inlet, receiver, messages, _far: far }
    }
}

/// Each message begins with a burst for an inbox that has space. Its other bursts are for another inbox. No thread
/// executes them, so messages are read only until that inbox is full.
#[test]
fn the_later_bursts_of_messages_do_not_overfill_an_inbox() {
    static WORLD: World = World::new();
    let Written { inlet, receiver, messages, _far } = Written::new(&WORLD, 1);
    let inbox = |number| receiver.device.inbox(number);
    assert!(!Arc::ptr_eq(inbox(receiver.qpn ^ 1), inbox(receiver.qpn)));
    let reading = &mut *locked_for_calls(&inlet.reading);
    let mut read = 0;
    let end = loop {
        match inlet.read(reading) {
            RingRead::Message => read += 1,
            end => break end,
        }
    };
    assert!(matches!(end, RingRead::NoRoom), "{read} of {messages} messages, {end:?}");
    let bursts = read * (MOST - 1);
    assert!((BURSTS..BURSTS + MOST).contains(&bursts), "{bursts} bursts");
    receiver.destroy();
}

/// An inbox that is full, because packets of an earlier message wait there, does not end the call. The call executes
/// them.
#[test]
fn everything_that_has_arrived_is_read_before_an_end_is_handled() {
    static WORLD: World = World::new();
    let Written { inlet, receiver, messages, _far } = Written::new(&WORLD, 0);
    assert!(messages * MOST > 2 * BURSTS);
    assert!(inlet.handle_one(&mut locked_for_calls(&inlet.reading)));
    Arc::clone(&inlet).read_all();
    assert!(!inlet.has_message() && !inlet.waits.load(Ordering::Relaxed));
    let executed = receiver.device.tally.counters().wrong_state;
    assert_eq!(executed, (messages * MOST) as u64);
    receiver.destroy();
}
