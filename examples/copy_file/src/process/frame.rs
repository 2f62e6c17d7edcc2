//! The frames that two processes exchange over TCP. A frame consists of a kind, a length, and that
//! number of bytes.

use rdma::memory::RemoteMemoryRegion;
use rdma::qp::QueuePairEndpoint;

use crate::error::Error;
use crate::settings::Settings;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A sign of life.
    Alive = 1,
    /// The [`Offer`] of the process with the source.
    Offer,
    /// The [`Answer`] of the process that creates the file.
    Answer,
    /// This process has posted its receives.
    Begin,
    /// This process no longer needs the other end of the RDMA connection.
    End,
    /// From the process that creates the file: the file is on disk.
    Done,
    /// This process gives up, for the reason that the bytes state as text.
    Failed,
}

impl Kind {
    pub(crate) const COUNT: usize = 8;
    /// The size of a frame's header, which consists of the kind and the length.
    const HEAD: usize = 3;

    /// Returns a frame of this kind with these bytes. Bytes that do not fit into a frame are
    /// omitted.
    pub(crate) fn frame(self, bytes: &[u8]) -> Vec<u8> {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let mut frame = vec![self as u8];
        frame.extend(length.to_be_bytes());
        frame.extend(bytes.iter().take(length.into()));
        frame
    }

    /// Removes the first frame from the received bytes and returns it. Returns `None` if the frame
    /// is not complete yet.
    pub(crate) fn take(came: &mut Vec<u8>) -> Result<Option<(Self, Vec<u8>)>, Error> {
        let Some(&first) = came.first() else { return Ok(None) };
        let kinds = [
            Self::Alive,
            Self::Offer,
            Self::Answer,
            Self::Begin,
            Self::End,
            Self::Done,
            Self::Failed,
        ];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == first);
        let kind = kind.ok_or_else(|| foreign("its first byte is not a valid kind"))?;
        let &[_, high, low, ..] = came.as_slice() else { return Ok(None) };
        let end = Self::HEAD + usize::from(u16::from_be_bytes([high, low]));
        if came.len() < end {
            return Ok(None);
        }
        let rest = came.split_off(end);
        let frame = std::mem::replace(came, rest);
        Ok(Some((kind, frame.get(Self::HEAD..).unwrap_or_default().to_vec())))
    }
}

/// The contents of an offer. The process with the source sends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) settings: Settings,
    /// The permissions of the source file.
    pub(crate) mode: u32,
    pub(crate) endpoint: QueuePairEndpoint,
}

/// The first bytes of an offer: a name, and the version of all frames and messages.
const MAGIC: [u8; 8] = *b"RDCOPY\0\x01";

impl Offer {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self { settings, mode, endpoint } = self;
        let mut bytes = MAGIC.to_vec();
        bytes.extend((settings.chunk() as u64).to_be_bytes());
        bytes.extend((settings.depth() as u64).to_be_bytes());
        bytes.extend(mode.to_be_bytes());
        bytes.extend(endpoint.to_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields(bytes);
        if fields.take()? != MAGIC {
            return Err(foreign("its offer is from another version"));
        }
        let [chunk, depth] = [fields.number()?, fields.number()?];
        let settings = Settings::new(chunk, depth)?;
        let mode = u32::from_be_bytes(fields.take()?);
        Ok(Self { settings, mode, endpoint: fields.endpoint()? })
    }
}

/// The contents of an answer. The process that creates the file sends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// The receiver's slots, to which the sender writes.
    pub(crate) slots: RemoteMemoryRegion,
    pub(crate) endpoint: QueuePairEndpoint,
}

impl Answer {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self { slots, endpoint } = self;
        let mut bytes = slots.address().to_be_bytes().to_vec();
        bytes.extend((slots.length() as u64).to_be_bytes());
        bytes.extend(slots.rkey().get().to_be_bytes());
        bytes.extend(endpoint.to_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields(bytes);
        let address = u64::from_be_bytes(fields.take()?);
        let length = fields.number()?;
        let rkey = u32::from_be_bytes(fields.take()?);
        let slots = RemoteMemoryRegion::new(address, length, rkey);
        Ok(Self { slots, endpoint: fields.endpoint()? })
    }
}

/// The bytes of a frame that have not been parsed yet.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (field, rest) =
            self.0.split_first_chunk().ok_or_else(|| foreign("its frame is too short"))?;
        self.0 = rest;
        Ok(*field)
    }

    fn number(&mut self) -> Result<usize, Error> {
        let number = u64::from_be_bytes(self.take()?);
        usize::try_from(number).map_err(|_| foreign("a size is too large"))
    }

    fn endpoint(&mut self) -> Result<QueuePairEndpoint, Error> {
        QueuePairEndpoint::from_bytes(self.0).map_err(|error| foreign(&error.to_string()))
    }
}

fn foreign(what: &str) -> Error {
    Error::Protocol(format!("{what}; is it `copy_file` of the same version?"))
}

#[cfg(test)]
mod tests {
    use rdma::device::{Gid, GidType};
    use rdma::qp::{Psn, Qpn};

    use super::*;

    #[test]
    fn frames_are_received_whole_and_in_order() {
        let mut sent = Kind::Failed.frame(b"no space");
        sent.extend(Kind::Alive.frame(b""));
        let (mut came, mut taken) = (Vec::new(), Vec::new());
        for byte in sent {
            came.push(byte);
            taken.extend(Kind::take(&mut came).unwrap());
        }
        assert_eq!(taken, [(Kind::Failed, b"no space".to_vec()), (Kind::Alive, Vec::new())]);
        let error = Kind::take(&mut b"RDEX".to_vec()).unwrap_err().to_string();
        assert!(error.contains("is it `copy_file`"), "{error}");
    }

    #[test]
    fn offers_and_answers_round_trip_through_bytes() {
        let endpoint = QueuePairEndpoint::new(Qpn::masked(7), Psn::masked(9));
        let endpoint = endpoint.with_gid(Gid::from_bytes([3; 16]), GidType::ROCE_V2);
        let settings = Settings::new(4096, 3).unwrap();
        let offer = Offer { settings, mode: 0o640, endpoint };
        let same = Offer::from_bytes(&offer.to_bytes()).unwrap();
        assert_eq!((same.settings, same.mode, same.endpoint), (settings, 0o640, endpoint));
        let slots = RemoteMemoryRegion::new(0x1234_5678_9abc, 12288, 77);
        let same = Answer::from_bytes(&Answer { slots, endpoint }.to_bytes()).unwrap();
        assert_eq!((same.slots, same.endpoint), (slots, endpoint));
        let bytes = offer.to_bytes();
        for cut in [0, 7, 20, bytes.len() - 1] {
            assert!(Offer::from_bytes(&bytes[..cut]).is_err());
            assert!(Answer::from_bytes(&bytes[..cut]).is_err());
        }
    }
}
