//! Measures the cost of an 8 B SEND, from the queue to its completion: requester, responder, the packet and its
//! acknowledgement, without the ICRC. Instruction counts are the same in every run, so they are checked. Nanoseconds
//! are only printed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench that fails panics.
#![allow(clippy::cast_precision_loss)]

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use rdma_proto::requester::{self, Requester};
use rdma_proto::responder::{self, Responder};
use rdma_proto::wire::Headers;
use rdma_proto::{
    Burst, Connection, Delivered, Host, MessageEnd, MessageStart, Nak, Source, Stop, Time, Work,
    Wqe,
};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Mtu, Psn, Qpn, WcStatus};
use test_support::callgrind::{bench, per_operation};

/// The most instructions that the state machines alone may need for the two packets of one SEND.
const MOST: f64 = 800.0;
/// The same limit when each packet is also written as bytes and parsed.
const MOST_BYTES: f64 = 1_427.0;
const MESSAGES: u32 = 10_000;

/// The environment variable that names the scenario of a run under callgrind.
const SCENARIO: &str = "RDMA_PROTO_SCENARIO";

/// A name, whether packets become bytes between the ends, and the limit.
const SCENARIOS: [(&str, bool, Option<f64>); 2] =
    [("state machines", false, Some(MOST)), ("with the bytes of headers", true, Some(MOST_BYTES))];

/// An endless queue, and memory for one message.
#[derive(Default)]
struct End8 {
    admitted: u32,
    done: u32,
    memory: [u8; 8],
    received: u64,
}

impl Work for End8 {
    fn admitted(&self) -> u32 {
        self.admitted
    }
    fn request(&self, _: u32) -> Wqe {
        Wqe::Remote {
            start: MessageStart::send(),
            end: MessageEnd { length: 8, ..MessageEnd::default() },
            fence: false,
        }
    }
    fn gather(&mut self, n: u32, _: u32, out: &mut [u8]) -> Result<(), WcStatus> {
        out.copy_from_slice(&u64::from(n).to_ne_bytes());
        Ok(())
    }
    fn deliver(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), WcStatus> {
        Ok(())
    }
    fn execute_local(&mut self, _: u32) -> Result<(), WcStatus> {
        Ok(())
    }
    fn done(&mut self, _: u32) {
        self.done = self.done.wrapping_add(1);
    }
    fn failed(&mut self, n: u32, status: WcStatus) {
        panic!("{n}: {status:?}");
    }
}

impl Host for End8 {
    fn begin(&mut self, _: &MessageStart) -> Result<(), Stop> {
        Ok(())
    }
    fn place(&mut self, _: &MessageStart, _: u32, payload: &[u8]) -> Result<(), Stop> {
        self.memory.copy_from_slice(payload);
        Ok(())
    }
    fn fetch(&mut self, _: &MessageStart, _: u32, _: &mut [u8]) -> Result<(), Stop> {
        Ok(())
    }
    fn atomic(&mut self, _: &MessageStart) -> Result<u64, Stop> {
        Ok(0)
    }
    fn take_receive(&mut self, _: &MessageStart) -> Result<(), Stop> {
        Ok(())
    }
    fn finish(&mut self, _: &MessageStart, _: &MessageEnd) -> Result<(), Stop> {
        self.received = self.received.wrapping_add(1);
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

struct Ends {
    requester: Requester,
    responder: Responder,
    queue: End8,
    host: End8,
    bytes: bool,
}

impl Ends {
    fn new(bytes: bool) -> Self {
        let connection = Connection::new(Qpn::masked(0x11), Mtu::MTU1024);
        let psn = Psn::masked(0);
        Self {
            requester: Requester::new(&requester::Settings {
                connection,
                psn,
                timeout: AckTimeout::default(),
                retries: MaxAckRetries::default(),
                rnr_retries: MaxRnrRetries::default(),
                max_rd_atomic: 16,
            }),
            responder: Responder::new(&responder::Settings {
                connection,
                psn,
                min_rnr_timer: MinRnrTimer::default(),
                max_dest_rd_atomic: 16,
            }),
            queue: End8::default(),
            host: End8::default(),
            bytes,
        }
    }

    fn message(&mut self) {
        let now = black_box(Time::from_nanos(1));
        let mut room = [0; 8];
        self.queue.admitted = self.queue.admitted.wrapping_add(1);
        let send = self.requester.poll_transmit(now, &mut self.queue, &mut room).unwrap();
        let mut place = None;
        let send = self.carried(&send, &mut place);
        self.responder.receive(send, &room, &mut self.host);
        let ack = self.responder.poll_transmit(&mut self.host, &mut room).unwrap();
        let mut place = None;
        let ack = self.carried(&ack, &mut place);
        self.requester.receive(now, ack, &[], &mut self.queue);
    }

    /// Returns the burst that arrives at the other end.
    fn carried<'a>(&self, burst: &'a Burst, place: &'a mut Option<Burst>) -> &'a Burst {
        if !self.bytes {
            return black_box(burst);
        }
        let mut bytes = [0; 64];
        let left = burst.header.emit(&mut bytes).unwrap().len();
        let (headers, _) = Headers::parse(black_box(&bytes[..64 - left])).unwrap();
        place.insert(Burst { header: headers, ..*burst })
    }
}

#[inline(never)]
fn messages_counted(ends: &mut Ends, messages: u32) {
    for _ in 0..messages {
        black_box(&mut *ends).message();
    }
}

fn main() -> ExitCode {
    if let Ok(scenario) = env::var(SCENARIO) {
        let (_, bytes, _) = SCENARIOS.into_iter().find(|known| known.0 == scenario).unwrap();
        let mut ends = Ends::new(bytes);
        (0..MESSAGES).for_each(|_| ends.message());
        [1, 2].into_iter().for_each(|times| messages_counted(&mut ends, times * MESSAGES));
        assert_eq!(u64::from(ends.queue.done), ends.host.received);
        return ExitCode::SUCCESS;
    }
    bench(compare)
}

fn compare() -> Result<bool, String> {
    let mut all_within = true;
    println!("a SEND of 8 B and its ACK        instructions  ns");
    for (name, bytes, most) in SCENARIOS {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let each = per_operation(&[(SCENARIO, name)], folder, MESSAGES.into())?;
        println!("{name:32} {each:12.0}  {:.0}", nanoseconds(bytes));
        if let Some(most) = most.filter(|&most| each > most) {
            println!("  {most} are allowed");
            all_within = false;
        }
    }
    Ok(all_within)
}

/// The fastest of several rounds.
fn nanoseconds(bytes: bool) -> f64 {
    let mut ends = Ends::new(bytes);
    let round = |_| {
        let before = Instant::now();
        messages_counted(&mut ends, 10 * MESSAGES);
        before.elapsed().as_nanos() as f64 / f64::from(10 * MESSAGES)
    };
    (0..20).map(round).fold(f64::INFINITY, f64::min)
}
