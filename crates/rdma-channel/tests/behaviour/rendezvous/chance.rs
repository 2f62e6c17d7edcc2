//! Random bytes, the same in each run.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rdma_channel::{ConnectError, prelude::*};

use crate::rendezvous::{HELLO, LATER, LOCALHOST, READY, assert_serves, domain, hello, preface};

const ROUNDS: u64 = 6;
/// Fewer than the maximum of half-open clients, so that each round ends with the limit.
const CLIENTS: u64 = 60;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// A valid beginning with some bytes changed, cut, or added; or nothing valid at all.
    fn message(&mut self, right: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = right[self.below(right.len())].clone();
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            bytes[at] = self.byte();
        }
        match self.below(4) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => bytes.extend((0..self.below(3000)).map(|_| self.0.to_le_bytes()[0])),
            2 if self.below(2) == 0 => bytes = (0..self.below(400)).map(|_| self.byte()).collect(),
            _ => {}
        }
        bytes
    }
}

#[test]
fn a_listener_survives_random_bytes_of_clients() {
    let pd = domain("soft0");
    let limit = Duration::from_secs(1);
    let mut listener = pd.create_channel().rendezvous_timeout(limit).listen(LOCALHOST).unwrap();
    let right = [
        hello(b""),
        hello(&[7; 1024]),
        [hello(b"hi"), preface(READY, 0)].concat(),
        preface(READY, 0),
        preface(HELLO, 9),
    ];
    let mut random = Random(7);
    // Some send a valid message by chance, and the program receives them.
    let mut given = 0;
    for round in 1..=ROUNDS {
        let mut kept = Vec::new();
        for _ in 0..CLIENTS {
            let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
            let bytes = random.message(&right);
            for piece in bytes.chunks(1 + random.below(bytes.len() + 1)) {
                // It may have been refused already.
                let _ = stream.write_all(piece);
            }
            if random.below(2) == 0 {
                kept.push(stream);
            }
        }
        let begin = Instant::now();
        while listener.refused() + given < round * CLIENTS {
            assert!(begin.elapsed() < LATER, "round {round}: {}", listener.refused());
            match listener.incoming(Some(Duration::from_millis(20))) {
                Ok(incoming) => {
                    given += 1;
                    incoming.reject("by chance");
                }
                Err(error) => assert!(matches!(error, ConnectError::Timeout { .. }), "{error}"),
            }
        }
    }
    assert_eq!(listener.refused() + given, ROUNDS * CLIENTS);
    assert_serves(&mut listener, "soft0");
}
