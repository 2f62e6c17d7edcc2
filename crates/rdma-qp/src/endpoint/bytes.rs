//! Endpoints as bytes of a fixed format.
//!
//! Numbers are in network order. What a count does not cover, and what is reserved, is zero.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `RDQP` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | link layer |
//! | 6 | 1 | MTU code |
//! | 7 | 1 | how many GIDs, at most 16 |
//! | 8 | 4 | QPN |
//! | 12 | 4 | PSN; of UD the Q_Key |
//! | 16 | 2 | LID |
//! | 18 | 1 | reads and atomics that it starts at a time |
//! | 19 | 1 | reads and atomics that it answers at a time |
//! | 20 | 1 | flags: bit 0, a global route header is required |
//! | 21 | 1 | type: 0 for RC, 3 for UC, 4 for UD |
//! | 22 | 2 | reserved |
//! | 24 | 272 | 16 GIDs, each its type (1 byte) and its 16 bytes |

use rdma_mem::{Gid, GidType, Lid, LinkLayer, Mtu};
use rdma_types::{Psn, QpType, Qpn};

use crate::endpoint::{EndpointGid, QueuePairEndpoint};

const MAGIC: [u8; 4] = *b"RDQP";
const HEADER: usize = 24;
const GID: usize = 17;

/// Bytes that are no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Too few or too many.
    #[error("an endpoint has {} bytes, not {found}", QueuePairEndpoint::BYTES)]
    Length {
        /// How many there are.
        found: usize,
    },
    /// The bytes are something else.
    #[error("these bytes are no endpoint: they do not begin with `RDQP`")]
    Magic,
    /// The peer runs another version of this format.
    #[error("the endpoint has version {found}, this program knows {}", QueuePairEndpoint::VERSION)]
    Version {
        /// The version of the bytes.
        found: u8,
    },
    /// A field has a value that it cannot have.
    #[error("the endpoint's {field} cannot be {value:#x}")]
    Field {
        /// Which field.
        field: &'static str,
        /// The value of the field.
        value: u32,
    },
}

impl QueuePairEndpoint {
    /// How many bytes [`to_bytes`](Self::to_bytes) gives.
    pub const BYTES: usize = HEADER + GID * Self::MAX_GIDS;

    /// The endpoint as bytes, the same on every machine.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut rest = bytes.as_mut_slice();
        let mut put = |field: &[u8]| {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = after;
        };
        put(&MAGIC);
        put(&[Self::VERSION, self.link_layer.raw(), self.mtu.code(), self.gid_count]);
        put(&self.qpn.get().to_be_bytes());
        let datagrams = self.qp_type == QpType::UD;
        put(&if datagrams { self.qkey } else { self.psn.get() }.to_be_bytes());
        put(&self.lid.get().to_be_bytes());
        put(&[self.max_rd_atomic, self.max_dest_rd_atomic, u8::from(self.grh_required)]);
        put(&[type_byte(self.qp_type), 0, 0]);
        for EndpointGid { gid, gid_type } in self.gids() {
            // The types that there are have a byte; what `with_gid` was given beyond has no form.
            put(&[u8::try_from(gid_type.raw()).unwrap_or(u8::MAX)]);
            put(gid.as_bytes());
        }
        bytes
    }

    /// The endpoint that these bytes are.
    ///
    /// # Errors
    /// If they are none, of another version, or malformed: the error says in which field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let bytes: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| EndpointError::Length { found: bytes.len() })?;
        let mut reader = Reader(bytes);
        if reader.take() != MAGIC {
            return Err(EndpointError::Magic);
        }
        let [version, link_layer, mtu, gid_count] = reader.take();
        if version != Self::VERSION {
            return Err(EndpointError::Version { found: version });
        }
        let field = |field, value| EndpointError::Field { field, value };
        let qpn = u32::from_be_bytes(reader.take());
        let psn_or_qkey = u32::from_be_bytes(reader.take());
        let lid = Lid::new(u16::from_be_bytes(reader.take()));
        let [max_rd_atomic, max_dest_rd_atomic, flags] = reader.take();
        let [qp_type, a, b] = reader.take();
        if flags > 1 {
            return Err(field("flags", flags.into()));
        }
        if [a, b] != [0; 2] {
            return Err(field("reserved bytes", u32::from_be_bytes([0, 0, a, b])));
        }
        let qp_type = [QpType::RC, QpType::UC, QpType::UD]
            .into_iter()
            .find(|&known| type_byte(known) == qp_type)
            .ok_or(field("type", qp_type.into()))?;
        let datagrams = qp_type == QpType::UD;
        let (psn, qkey) = if datagrams { (0, psn_or_qkey) } else { (psn_or_qkey, 0) };
        let mut endpoint = Self {
            qp_type,
            qkey,
            qpn: Qpn::new(qpn).ok_or(field("QPN", qpn))?,
            psn: Psn::new(psn).ok_or(field("PSN", psn))?,
            lid,
            link_layer: LinkLayer::from_raw(link_layer),
            grh_required: flags == 1,
            mtu: Mtu::from_code(mtu).ok_or(field("MTU code", mtu.into()))?,
            max_rd_atomic,
            max_dest_rd_atomic,
            gids: [EndpointGid::NONE; Self::MAX_GIDS],
            gid_count,
        };
        if usize::from(gid_count) > Self::MAX_GIDS {
            return Err(field("number of GIDs", gid_count.into()));
        }
        for (index, place) in endpoint.gids.iter_mut().enumerate() {
            let [gid_type] = reader.take();
            let gid_type = GidType::from_raw(gid_type.into());
            *place = EndpointGid { gid: Gid::from_bytes(reader.take()), gid_type };
            if index >= usize::from(gid_count) && *place != EndpointGid::NONE {
                return Err(field("unused GID", gid_type.raw()));
            }
        }
        Ok(endpoint)
    }
}

/// Reliable connections were there first.
fn type_byte(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::RC => 0,
        other => u8::try_from(other.raw()).unwrap_or(u8::MAX),
    }
}

/// What is left to read of bytes whose length was checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> QueuePairEndpoint {
        QueuePairEndpoint::new(Qpn::masked(0x01_02_03), Psn::masked(0x0a_0b_0c))
            .with_lid(Lid::new(0x1122))
            .with_gid("::ffff:192.0.2.1".parse().unwrap(), GidType::ROCE_V2)
            .with_gid("fe80::1".parse().unwrap(), GidType::ROCE_V1)
            .with_mtu(Mtu::MTU4096)
            .with_rd_atomic(16, 8)
            .with_grh_required(true)
    }

    /// Version 1, in every release.
    fn golden() -> [u8; QueuePairEndpoint::BYTES] {
        let mut golden = [0; QueuePairEndpoint::BYTES];
        golden[..24].copy_from_slice(&[
            b'R', b'D', b'Q', b'P', 1, 2, 5, 2, 0, 1, 2, 3, 0, 0x0a, 0x0b, 0x0c, 0x11, 0x22, 16, 8,
            1, 0, 0, 0,
        ]);
        golden[24] = 2;
        golden[35..41].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        golden[41..44].copy_from_slice(&[1, 0xfe, 0x80]);
        golden[57] = 1;
        golden
    }

    #[test]
    fn the_format_of_version_1() {
        assert_eq!(QueuePairEndpoint::BYTES, 296);
        assert_eq!(endpoint().to_bytes(), golden());
        assert_eq!(QueuePairEndpoint::from_bytes(&golden()), Ok(endpoint()));
    }

    #[test]
    fn types_without_acknowledgements_differ_in_a_byte_and_datagrams_have_a_key() {
        let mut bytes = golden();
        bytes[21] = 3;
        let connection = endpoint().with_unreliable_connection();
        assert_eq!(connection.to_bytes(), bytes);
        assert_eq!(QueuePairEndpoint::from_bytes(&bytes), Ok(connection));
        bytes[21] = 4;
        bytes[12..16].copy_from_slice(&[0x81, 0x22, 0x33, 0x44]);
        let datagrams = endpoint().with_qkey(0x8122_3344);
        assert_eq!(datagrams.to_bytes(), bytes);
        assert_eq!(QueuePairEndpoint::from_bytes(&bytes), Ok(datagrams));
        assert_eq!((datagrams.psn().get(), datagrams.qkey()), (0, 0x8122_3344));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |at: usize, value: u8| {
            let mut bytes = golden();
            bytes[at] = value;
            QueuePairEndpoint::from_bytes(&bytes).unwrap_err()
        };
        let field = |field, value| EndpointError::Field { field, value };
        assert_eq!(wrong(0, b'x'), EndpointError::Magic);
        assert_eq!(wrong(4, 2), EndpointError::Version { found: 2 });
        assert_eq!(wrong(6, 0), field("MTU code", 0));
        assert_eq!(wrong(7, 17), field("number of GIDs", 17));
        assert_eq!(wrong(8, 1), field("QPN", 0x0101_0203));
        assert_eq!(wrong(12, 1), field("PSN", 0x010a_0b0c));
        assert_eq!(wrong(20, 2), field("flags", 2));
        assert_eq!(wrong(23, 9), field("reserved bytes", 9));
        for no_type in [1, 2, 5, 255] {
            assert_eq!(wrong(21, no_type), field("type", no_type.into()));
        }
        assert_eq!(wrong(295, 1), field("unused GID", 0));
        for found in [0, 295, 297] {
            let error = QueuePairEndpoint::from_bytes(&vec![0; found]).unwrap_err();
            assert_eq!(error, EndpointError::Length { found });
        }
    }

    #[test]
    fn the_seventeenth_gid_is_dropped() {
        let gid = |n: u8| Gid::from_bytes([n; 16]);
        let full = (1..=17).fold(endpoint(), |e, n| e.with_gid(gid(n), GidType::IB));
        assert_eq!(full.gids().len(), QueuePairEndpoint::MAX_GIDS);
        assert_eq!(QueuePairEndpoint::from_bytes(&full.to_bytes()), Ok(full));
    }
}
