//! Frames on a control connection after the handshake, and their encoding.
//!
//! A frame consists of this head and, for some kinds, further bytes. Numbers are in network byte order.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 2 | kind |
//! | 2 | 2 | the number of bytes after the head: 344 for OFFER and ANSWER, 65 for FAREWELL, 0 for the other kinds described here |
//! | 4 | 4 | the number of the connection; 0 is the one that was made by address |
//! | 8 | 4 | its epoch |
//!
//! | | kind | from | when |
//! |---|---|---|---|
//! | 1 | OFFER | client | it has a queue pair for this epoch |
//! | 2 | ANSWER | server | its queue pair is connected to the offered one |
//! | 3 | READY | client | its queue pair is connected, too |
//! | 4 | ENDED | both | the queue pair of this epoch has ended, or will not be created |
//! | 5 | FINISH | both | its send queue has completed, and nothing more is posted; the other end has to end, too |
//! | 6 | BEAT | both | requests a sign of life |
//! | 7 | ALIVE | both | answers a BEAT |
//! | 8 to 13 | | | about [lent memory](crate::lease::frame) |
//! | 14 | FAREWELL | both | its program ends the connection for this reason; FINISH or ENDED follows |

use rdma_connect::Farewell;
use rdma_qp::{EndpointError, QueuePairEndpoint};

use crate::lease::frame::{self as lease, LeaseFrame};

/// A frame about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Offer(Box<QueuePairEndpoint>),
    Answer(Box<QueuePairEndpoint>),
    Ready,
    Ended,
    Finish,
    Beat,
    Alive,
    Lease(LeaseFrame),
    Farewell(Farewell),
}

/// The length of the head, in bytes.
pub(super) const HEAD: usize = 12;

/// A decoded head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    kind: u16,
    length: u16,
    pub(super) number: u32,
    pub(super) epoch: u32,
}

/// The reason why bytes are not a valid frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("a frame of kind {kind} announced {length} bytes")]
    Head { kind: u16, length: u16 },
    #[error("a frame of kind {kind} has a value that this version does not know")]
    Value { kind: u16 },
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

const OFFER: u16 = 1;
const ANSWER: u16 = 2;
const READY: u16 = 3;
const ENDED: u16 = 4;
const FINISH: u16 = 5;
const BEAT: u16 = 6;
const ALIVE: u16 = 7;

impl Frame {
    /// Appends the encoded frame to `bytes`.
    pub(super) fn write(&self, number: u32, epoch: u32, bytes: &mut Vec<u8>) {
        let (kind, endpoint) = match self {
            Self::Offer(endpoint) => (OFFER, Some(endpoint)),
            Self::Answer(endpoint) => (ANSWER, Some(endpoint)),
            Self::Ready => (READY, None),
            Self::Ended => (ENDED, None),
            Self::Finish => (FINISH, None),
            Self::Beat => (BEAT, None),
            Self::Alive => (ALIVE, None),
            Self::Lease(lease) => {
                write_head(lease.kind(), number, epoch, bytes);
                return lease.write(bytes);
            }
            Self::Farewell(farewell) => {
                write_head(Farewell::KIND, number, epoch, bytes);
                return bytes.extend(farewell.to_bytes());
            }
        };
        write_head(kind, number, epoch, bytes);
        bytes.extend(endpoint.iter().flat_map(|endpoint| endpoint.to_bytes()));
    }
}

/// Appends the head of a frame of this kind to `bytes`.
pub(super) fn write_head(kind: u16, number: u32, epoch: u32, bytes: &mut Vec<u8>) {
    bytes.extend(kind.to_be_bytes());
    bytes.extend(length_of(kind).unwrap_or(0).to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend(epoch.to_be_bytes());
}

/// Returns the number of bytes after the head, or `None` if the kind is unknown.
#[allow(clippy::cast_possible_truncation)] // a few hundred
const fn length_of(kind: u16) -> Option<u16> {
    match kind {
        OFFER | ANSWER => Some(QueuePairEndpoint::BYTES as u16),
        READY..=ALIVE => Some(0),
        Farewell::KIND => Some(Farewell::BYTES as u16),
        kind => lease::length_of(kind),
    }
}

impl Head {
    pub(super) fn read(bytes: [u8; HEAD]) -> Result<Self, Wrong> {
        let [k0, k1, l0, l1, number @ .., e0, e1, e2, e3] = bytes;
        let (kind, length) = (u16::from_be_bytes([k0, k1]), u16::from_be_bytes([l0, l1]));
        if length_of(kind) != Some(length) {
            return Err(Wrong::Head { kind, length });
        }
        let epoch = u32::from_be_bytes([e0, e1, e2, e3]);
        Ok(Self { kind, length, number: u32::from_be_bytes(number), epoch })
    }

    /// Returns the number of bytes after the head.
    pub(super) const fn length(self) -> usize {
        self.length as usize
    }

    /// Decodes the frame from the bytes after the head.
    pub(super) fn frame(self, bytes: &[u8]) -> Result<Frame, Wrong> {
        let endpoint = || QueuePairEndpoint::from_bytes(bytes).map(Box::new);
        Ok(match self.kind {
            OFFER => Frame::Offer(endpoint()?),
            ANSWER => Frame::Answer(endpoint()?),
            READY => Frame::Ready,
            ENDED => Frame::Ended,
            FINISH => Frame::Finish,
            BEAT => Frame::Beat,
            ALIVE => Frame::Alive,
            kind => {
                let farewell = || Farewell::from_bytes(bytes).map(Frame::Farewell);
                let lease = LeaseFrame::read(kind, bytes).map(Frame::Lease);
                lease.or_else(farewell).ok_or(Wrong::Value { kind })?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use rdma_qp::{PacketSequenceNumber as Psn, Qpn};

    use super::*;

    fn read(bytes: &[u8]) -> Result<(Head, Frame), Wrong> {
        let (head, rest) = bytes.split_first_chunk().unwrap();
        let head = Head::read(*head)?;
        assert_eq!(head.length(), rest.len());
        Ok((head, head.frame(rest)?))
    }

    #[test]
    fn each_frame_survives_a_round_trip() {
        let endpoint = Box::new(QueuePairEndpoint::new(Qpn::masked(0x102), Psn::masked(7)));
        let offer = Frame::Offer(endpoint.clone());
        let lease = Frame::Lease(LeaseFrame::Lend { lease: 9 });
        let farewell = Frame::Farewell(Farewell::new(b"bye").unwrap());
        let others = [Frame::Ready, Frame::Ended, Frame::Finish, Frame::Beat, Frame::Alive];
        let others = others.into_iter().chain([lease, farewell]);
        for frame in [offer, Frame::Answer(endpoint)].into_iter().chain(others) {
            let mut bytes = Vec::new();
            frame.write(0x0102_0304, 0x0506_0708, &mut bytes);
            let (head, back) = read(&bytes).unwrap();
            assert_eq!((head.number, head.epoch, back), (0x0102_0304, 0x0506_0708, frame));
        }
    }

    /// The format is the same in every release.
    #[test]
    fn the_format_is_fixed() {
        let mut bytes = Vec::new();
        Frame::Ended.write(1, 2, &mut bytes);
        assert_eq!(bytes, b"\0\x04\0\0\0\0\0\x01\0\0\0\x02");
    }

    #[test]
    fn wrong_frames_are_described() {
        let wrong = |kind, length| Err(Wrong::Head { kind, length });
        assert_eq!(read(b"\0\x08\0\0\0\0\0\x01\0\0\0\x02"), wrong(8, 0));
        assert_eq!(read(b"\0\x0e\0\0\0\0\0\x01\0\0\0\x02"), wrong(14, 0));
        assert_eq!(read(b"\0\0\0\0\0\0\0\x01\0\0\0\x02"), wrong(0, 0));
        assert_eq!(read(b"\0\x01\0\0\0\0\0\x01\0\0\0\x02"), wrong(1, 0));
        assert_eq!(read(b"\0\x04\xff\xff\0\0\0\x01\0\0\0\x02"), wrong(4, 0xffff));
        let back = b"\0\x0c\0\x08\0\0\0\x01\0\0\0\x02\0\0\0\x01\0\0\0\x09";
        assert_eq!(read(back), Err(Wrong::Value { kind: 12 }));
        let endpoint = Box::new(QueuePairEndpoint::new(Qpn::masked(0x102), Psn::masked(7)));
        let mut bytes = Vec::new();
        Frame::Offer(endpoint).write(0, 1, &mut bytes);
        bytes[HEAD + 4] = 9;
        assert_eq!(read(&bytes), Err(EndpointError::Version { found: 9 }.into()));
    }
}
