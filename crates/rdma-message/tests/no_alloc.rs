//! Messages, calls and streams allocate nothing after their tables have grown, and an idle
//! connection is small.
//!
//! The test has its own `main`, since the threads of the default harness allocate too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

use rdma_message::frame::Remote;
use rdma_message::{Delivery, Incoming, Messages, Options, Output, Payload, Stream, Transmit};
use rdma_types::Rkey;
use test_support::alloc_counter::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The most bytes that a machine with the default options may have.
const MOST_BYTES: u64 = 16 << 10;

/// A frame whose payload is zeros.
struct Frame {
    bytes: [u8; 4096],
    len: usize,
}

impl Frame {
    fn new(transmit: &Transmit) -> Self {
        let mut bytes = [0; 4096];
        let header = transmit.header.as_bytes();
        bytes[..header.len()].copy_from_slice(header);
        let payload = match transmit.payload {
            Payload::Message { len, .. } | Payload::Stream { len } => len as usize,
            _ => 0,
        };
        Self { bytes, len: header.len() + payload }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The receives of an end, which are a ring of slots.
struct Receives {
    posted: u32,
    slots: u32,
}

impl Receives {
    fn new(options: &Options) -> Self {
        Self { posted: 0, slots: options.receive_slots() }
    }

    fn next(&mut self) -> u32 {
        self.posted += 1;
        self.posted % self.slots
    }
}

/// Runs both ends until they are idle. Each request gets a reply of the same length.
fn run(ends: &mut [Messages; 2], receives: &mut [Receives; 2]) -> u32 {
    let mut delivered = 0;
    loop {
        let mut is_idle = true;
        for at in 0..2 {
            while let Some(output) = ends[at].poll_output() {
                is_idle = false;
                match output {
                    Output::Send(transmit) => {
                        let frame = Frame::new(&transmit);
                        ends[1 - at].received(receives[1 - at].next(), frame.as_bytes());
                        ends[at].sent(transmit.slot);
                    }
                    Output::Fetch { message, .. } => ends[at].fetched(message),
                    Output::Lend { operation, .. } => {
                        ends[at].lent(operation, Some(Remote { va: 1, rkey: Rkey::new(2) }));
                    }
                    Output::Part { chunk, .. } => ends[at].release(chunk),
                    Output::Deliver { message, length, delivery } => {
                        delivered += 1;
                        deliver(&mut ends[at], message, length, delivery);
                    }
                    Output::Completed { result, .. } => assert_eq!(result, Ok(())),
                    _ => {}
                }
            }
        }
        if is_idle {
            return delivered;
        }
    }
}

fn deliver(end: &mut Messages, message: Incoming, length: u32, delivery: Delivery) {
    match delivery {
        Delivery::Message => end.taken(message),
        Delivery::Request(id) => {
            end.taken(message);
            end.reply(id, length as usize).unwrap();
        }
        _ => {}
    }
}

fn messages_do_not_allocate() {
    let options = Options::default();
    let before = ALLOCATOR.in_use();
    let first = Messages::new(&options).unwrap();
    let size = ALLOCATOR.in_use() - before + size_of::<Messages>() as u64;
    println!("{size} bytes for an end with messages");
    assert!(size <= MOST_BYTES);
    let mut ends = [first, Messages::new(&options).unwrap()];
    let mut receives = [Receives::new(&options), Receives::new(&options)];
    run(&mut ends, &mut receives);
    let mut delivered = 0;
    let mut round = |n: u32| {
        for length in [0, 8, 4_000, 5_000, 20_000 + n as usize % 1_000] {
            for end in &mut ends {
                end.send(length).unwrap();
                end.call(length).unwrap();
            }
        }
        delivered += run(&mut ends, &mut receives);
    };
    (0..100).for_each(&mut round);
    let before = ALLOCATOR.allocations();
    (0..1_000).for_each(&mut round);
    assert_eq!(ALLOCATOR.allocations(), before);
    assert_eq!(delivered, 1_100 * 30);
    println!("{delivered} messages, no allocation");
}

fn streams_do_not_allocate() {
    let options = Options::default();
    let before = ALLOCATOR.in_use();
    let first = Stream::new(&options).unwrap();
    let size = ALLOCATOR.in_use() - before + size_of::<Stream>() as u64;
    println!("{size} bytes for an end with a stream");
    assert!(size <= MOST_BYTES);
    let mut ends = [first, Stream::new(&options).unwrap()];
    let mut receives = [Receives::new(&options), Receives::new(&options)];
    let mut read = 0_u64;
    let mut round = |length: usize| {
        for at in 0..2 {
            let written = ends[at].write(length).ok().flatten();
            let mut next = written.map(Output::Send).or_else(|| ends[at].poll_output());
            while let Some(output) = next {
                match output {
                    Output::Send(transmit) => {
                        ends[at].posted();
                        let frame = Frame::new(&transmit);
                        ends[1 - at].received(receives[1 - at].next(), frame.as_bytes());
                        ends[at].sent(transmit.slot);
                    }
                    Output::Data(chunk) => {
                        read += u64::from(chunk.len());
                        ends[at].release(chunk);
                    }
                    _ => {}
                }
                next = ends[at].poll_output();
            }
        }
    };
    (0..1_000).for_each(&mut round);
    let before = ALLOCATOR.allocations();
    (0..5_000).for_each(&mut round);
    assert_eq!(ALLOCATOR.allocations(), before);
    assert!(read > 20_000_000, "{read}");
    println!("{read} bytes of streams, no allocation");
}

fn main() {
    messages_do_not_allocate();
    streams_do_not_allocate();
}
