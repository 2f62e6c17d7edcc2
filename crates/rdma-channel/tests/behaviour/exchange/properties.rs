//! Arbitrary bytes, in arbitrary pieces.

use std::io::{self, ErrorKind};
use std::mem::discriminant;
use std::time::Duration;

use proptest::prelude::*;
use rdma_channel::{ExchangeError, QueuePairEndpoint, TimedStream, exchange};

use crate::exchange::{LATER, MESSAGE, endpoint, message};

/// A peer that sends these bytes in pieces of these lengths, and then closes the stream or stalls.
#[derive(Debug)]
struct Peer {
    said: Vec<u8>,
    taken: usize,
    pieces: Vec<usize>,
    turn: usize,
    closes: bool,
}

impl Peer {
    /// The length of the next piece; now and then a signal comes instead.
    fn piece(&mut self) -> io::Result<usize> {
        self.turn += 1;
        match self.pieces[self.turn % self.pieces.len()] {
            0 if self.turn.is_multiple_of(2) => Err(ErrorKind::Interrupted.into()),
            length => Ok(length.max(1)),
        }
    }
}

impl TimedStream for Peer {
    fn read_within(&mut self, room: &mut [u8], _: Duration) -> io::Result<usize> {
        let rest = &self.said[self.taken..];
        if rest.is_empty() && !self.closes {
            return Err(ErrorKind::TimedOut.into());
        }
        let length = rest.len().min(room.len());
        let length = self.piece()?.min(length);
        room[..length].copy_from_slice(&self.said[self.taken..][..length]);
        self.taken += length;
        Ok(length)
    }

    fn write_within(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        Ok(self.piece()?.min(bytes.len()))
    }
}

/// The expected result for these bytes.
fn expected(said: &[u8], closes: bool) -> Result<QueuePairEndpoint, ExchangeError> {
    let (magic, version, count) = (said.get(..4), said.get(4..6), said.get(6..8));
    let number = |bytes: &[u8]| u16::from_be_bytes(bytes.try_into().unwrap());
    let (sent, received, expected) = (MESSAGE, said.len(), MESSAGE);
    if !b"RDEX".starts_with(magic.unwrap_or(said)) {
        Err(ExchangeError::Foreign { received: Vec::new(), expected: Vec::new() })
    } else if version.is_some_and(|version| version != [0, 2]) {
        Err(ExchangeError::Version { found: number(version.unwrap()) })
    } else if count.is_some_and(|count| count != [0, 1]) {
        Err(ExchangeError::Count { own: 1, peer: number(count.unwrap()) })
    } else if received < MESSAGE && closes {
        Err(ExchangeError::Closed { sent, received, expected })
    } else if received < MESSAGE {
        Err(ExchangeError::Timeout { timeout: LATER, sent, received, expected })
    } else if said[8..MESSAGE] == endpoint(0x11).to_bytes() {
        Err(ExchangeError::Echo { index: 0 })
    } else {
        QueuePairEndpoint::from_bytes(&said[8..MESSAGE])
            .map_err(|source| ExchangeError::Endpoint { index: 0, source })
    }
}

/// Bytes that are mostly valid up to some position.
fn said() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..2 * MESSAGE);
    let part = (0x11..0x13_u32, 0..=MESSAGE, noise.clone());
    let part = part.prop_map(|(qpn, right, noise)| {
        [&message(&[endpoint(qpn)])[..right], noise.as_slice()].concat()
    });
    let flipped = (0..MESSAGE, 1..=u8::MAX).prop_map(|(at, flip)| {
        let mut bytes = message(&[endpoint(0x12)]);
        bytes[at] ^= flip;
        bytes
    });
    prop_oneof![3 => part, 3 => flipped, 1 => noise]
}

proptest! {
    #[test]
    fn bytes_from_anywhere_are_an_endpoint_or_the_right_error(
        said in said(),
        pieces in prop::collection::vec(0..MESSAGE, 1..8),
        closes in any::<bool>(),
    ) {
        let mut peer = Peer { said, taken: 0, pieces, turn: 0, closes };
        let outcome = exchange(&mut peer, &endpoint(0x11), LATER);
        prop_assert!(peer.taken <= MESSAGE, "took {}", peer.taken);
        match (outcome, expected(&peer.said, closes)) {
            (Ok(found), Ok(expected)) => {
                prop_assert_eq!(found, expected);
                prop_assert_eq!(peer.taken, MESSAGE);
            }
            (Err(ExchangeError::Foreign { received, .. }), Err(ExchangeError::Foreign { .. })) => {
                prop_assert!(received.len() <= 32 && peer.said.starts_with(&received));
            }
            (Err(found), Err(expected)) => {
                prop_assert_eq!(discriminant(&found), discriminant(&expected));
                prop_assert_eq!(found.to_string(), expected.to_string());
            }
            (found, expected) => prop_assert!(false, "{found:?}, not {expected:?}"),
        }
    }
}
