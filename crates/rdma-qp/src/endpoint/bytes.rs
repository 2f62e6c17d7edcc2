//! A fixed byte format for endpoints.
//!
//! Numbers are in network byte order. Reserved bytes, and GIDs after the last one, are zero.
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 0 | 4 | `RDQP` |
//! | 4 | 1 | version, 2 |
//! | 5 | 1 | link layer |
//! | 6 | 1 | MTU code |
//! | 7 | 1 | number of GIDs, at most 16 |
//! | 8 | 4 | QPN |
//! | 12 | 4 | PSN; for UD the Q_Key |
//! | 16 | 2 | LID |
//! | 18 | 1 | maximum number of reads and atomics that this end starts at a time |
//! | 19 | 1 | maximum number of reads and atomics that this end serves at a time |
//! | 20 | 1 | flags: bit 0, a global route header is required; bit 1, the addresses of a stream follow the GIDs |
//! | 21 | 1 | type: 0 for RC, 3 for UC, 4 for UD |
//! | 22 | 2 | reserved |
//! | 24 | 288 | 16 GIDs, each with its type (1 byte), its prefix length (1 byte, 0 if unknown), and its 16 bytes |
//! | 312 | 32 | the addresses of the stream over which the endpoints are exchanged, as GIDs: this end's, then the peer's |
//!
//! Version 1 can also be read. It has no prefix lengths and no stream addresses. Its GIDs have 17 bytes, and the whole
//! endpoint has 296.

use rdma_mem::{Gid, GidType, Lid, LinkLayer, Mtu};
use rdma_types::{Psn, QpType, Qpn};

use crate::endpoint::{EndpointGid, QueuePairEndpoint};

const MAGIC: [u8; 4] = *b"RDQP";
const HEADER: usize = 24;
const GID: usize = 18;
const STREAM: usize = 32;

const GRH_REQUIRED: u8 = 1;
const HAS_STREAM: u8 = 2;

/// The length of an endpoint in version 1.
const BYTES_OF_VERSION_1: usize = HEADER + 17 * QueuePairEndpoint::MAX_GIDS;

/// The reason that bytes do not encode an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The length of the input is wrong.
    #[error(
        "an endpoint has {} bytes (in version 1, {BYTES_OF_VERSION_1}), not {found}",
        QueuePairEndpoint::BYTES
    )]
    Length {
        /// The length of the input.
        found: usize,
    },
    /// The bytes do not begin with the magic number.
    #[error("these bytes are not an endpoint: they do not begin with `RDQP`")]
    Magic,
    /// The peer uses another version of this format.
    #[error(
        "the endpoint has version {found}, but this program supports 1 to {}",
        QueuePairEndpoint::VERSION
    )]
    Version {
        /// The version of the bytes.
        found: u8,
    },
    /// A field has an invalid value.
    #[error("the endpoint's {field} cannot be {value:#x}")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// The value of the field.
        value: u32,
    },
}

rdma_types::debug_messages!(enum EndpointError {
    Length { found }, Magic, Version { found }, Field { field, value },
});

impl QueuePairEndpoint {
    /// The length of the bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = HEADER + GID * Self::MAX_GIDS + STREAM;

    /// Encodes the endpoint as bytes, which are the same on every machine.
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
        let required = if self.grh_required { GRH_REQUIRED } else { 0 };
        let has_stream = if self.stream.is_some() { HAS_STREAM } else { 0 };
        put(&[self.max_rd_atomic, self.max_dest_rd_atomic, required | has_stream]);
        put(&[type_byte(self.qp_type), 0, 0]);
        let unused = Self::MAX_GIDS - self.gids().len();
        for EndpointGid { gid, gid_type, prefix_length } in self.gids() {
            // The known types fit into a byte; an unknown one from `with_gid` cannot be encoded.
            put(&[u8::try_from(gid_type.raw()).unwrap_or(u8::MAX), *prefix_length]);
            put(gid.as_bytes());
        }
        (0..unused).for_each(|_| put(&[0; GID]));
        let (own, peer) = self.stream.unwrap_or_default();
        put(own.as_bytes());
        put(peer.as_bytes());
        bytes
    }

    /// Decodes an endpoint in this version or in version 1.
    ///
    /// # Errors
    /// Returns an error if the bytes are not an endpoint, have another version, or contain an invalid field, which the
    /// error names.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let found = bytes.len();
        if ![Self::BYTES, BYTES_OF_VERSION_1].contains(&found) {
            return Err(EndpointError::Length { found });
        }
        let mut reader = Reader(bytes);
        if reader.take() != MAGIC {
            return Err(EndpointError::Magic);
        }
        let [version, link_layer, mtu, gid_count] = reader.take();
        match (version, found) {
            (1, BYTES_OF_VERSION_1) | (Self::VERSION, Self::BYTES) => {}
            (1 | Self::VERSION, _) => return Err(EndpointError::Length { found }),
            _ => return Err(EndpointError::Version { found: version }),
        }
        let qpn = u32::from_be_bytes(reader.take());
        let psn_or_qkey = u32::from_be_bytes(reader.take());
        let lid = Lid::new(u16::from_be_bytes(reader.take()));
        let [max_rd_atomic, max_dest_rd_atomic, flags] = reader.take();
        let [qp_type, a, b] = reader.take();
        let known_flags = if version == 1 { GRH_REQUIRED } else { GRH_REQUIRED | HAS_STREAM };
        if flags & !known_flags != 0 {
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
        Ok(Self {
            qp_type,
            qkey,
            qpn: Qpn::new(qpn).ok_or(field("QPN", qpn))?,
            psn: Psn::new(psn).ok_or(field("PSN", psn))?,
            lid,
            link_layer: LinkLayer::from_raw(link_layer),
            grh_required: flags & GRH_REQUIRED != 0,
            mtu: Mtu::from_code(mtu).ok_or(field("MTU code", mtu.into()))?,
            max_rd_atomic,
            max_dest_rd_atomic,
            gids: read_gids(&mut reader, version, gid_count)?,
            gid_count,
            stream: read_stream(&mut reader, version, flags & HAS_STREAM != 0)?,
        })
    }
}

const fn field(field: &'static str, value: u32) -> EndpointError {
    EndpointError::Field { field, value }
}

fn read_gids(
    reader: &mut Reader<'_>,
    version: u8,
    count: u8,
) -> Result<[EndpointGid; QueuePairEndpoint::MAX_GIDS], EndpointError> {
    if usize::from(count) > QueuePairEndpoint::MAX_GIDS {
        return Err(field("number of GIDs", count.into()));
    }
    let mut gids = [EndpointGid::NONE; QueuePairEndpoint::MAX_GIDS];
    for (index, place) in gids.iter_mut().enumerate() {
        let [gid_type] = reader.take();
        let [prefix_length] = if version == 1 { [0] } else { reader.take() };
        let gid =
            EndpointGid::new(Gid::from_bytes(reader.take()), GidType::from_raw(gid_type.into()));
        *place = gid.with_prefix_length(prefix_length);
        if prefix_length > 128 {
            return Err(field("prefix length", prefix_length.into()));
        }
        if index >= usize::from(count) && *place != EndpointGid::NONE {
            return Err(field("unused GID", gid_type.into()));
        }
    }
    Ok(gids)
}

fn read_stream(
    reader: &mut Reader<'_>,
    version: u8,
    has_stream: bool,
) -> Result<Option<(Gid, Gid)>, EndpointError> {
    if version == 1 {
        return Ok(None);
    }
    let [own, peer] = [reader.take(), reader.take()].map(Gid::from_bytes);
    match (has_stream, own.is_zero() && peer.is_zero()) {
        (true, _) => Ok(Some((own, peer))),
        (false, true) => Ok(None),
        (false, false) => Err(field("addresses of no stream", 1)),
    }
}

/// Returns the code of a queue pair type. Reliable connections have code 0, because they were supported first.
fn type_byte(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::RC => 0,
        other => u8::try_from(other.raw()).unwrap_or(u8::MAX),
    }
}

/// The bytes that have not been read yet. Their length has been checked.
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
        let gid: Gid = "::ffff:192.0.2.1".parse().unwrap();
        QueuePairEndpoint::new(Qpn::masked(0x01_02_03), Psn::masked(0x0a_0b_0c))
            .with_lid(Lid::new(0x1122))
            .with_endpoint_gid(EndpointGid::new(gid, GidType::ROCE_V2).with_prefix_length(120))
            .with_gid("fe80::1".parse().unwrap(), GidType::ROCE_V1)
            .with_mtu(Mtu::MTU4096)
            .with_rd_atomic(16, 8)
            .with_grh_required(true)
            .with_stream_addresses("192.0.2.1".parse().unwrap(), "fd00::2".parse().unwrap())
    }

    /// Returns the bytes of `endpoint()` in version 2, which every release must read.
    fn golden() -> [u8; QueuePairEndpoint::BYTES] {
        let mut golden = [0; QueuePairEndpoint::BYTES];
        golden[..24].copy_from_slice(&[
            b'R', b'D', b'Q', b'P', 2, 2, 5, 2, 0, 1, 2, 3, 0, 0x0a, 0x0b, 0x0c, 0x11, 0x22, 16, 8,
            3, 0, 0, 0,
        ]);
        golden[24..26].copy_from_slice(&[2, 120]);
        golden[36..42].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        golden[42..46].copy_from_slice(&[1, 0, 0xfe, 0x80]);
        golden[59] = 1;
        golden[322..328].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        golden[328] = 0xfd;
        golden[343] = 2;
        golden
    }

    /// Returns the bytes of `endpoint()` in version 1, without its prefix length and its stream addresses.
    fn golden_of_version_1() -> [u8; BYTES_OF_VERSION_1] {
        let mut golden = [0; BYTES_OF_VERSION_1];
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
    fn the_format_of_version_2() {
        assert_eq!(QueuePairEndpoint::BYTES, 344);
        assert_eq!(endpoint().to_bytes(), golden());
        assert_eq!(QueuePairEndpoint::from_bytes(&golden()), Ok(endpoint()));
    }

    #[test]
    fn version_1_is_read() {
        assert_eq!(BYTES_OF_VERSION_1, 296);
        let mut expected = QueuePairEndpoint { stream: None, ..endpoint() };
        expected.gids[0].prefix_length = 0;
        assert_eq!(QueuePairEndpoint::from_bytes(&golden_of_version_1()), Ok(expected));
        let mut with_stream = golden_of_version_1();
        with_stream[20] = 3;
        let error = QueuePairEndpoint::from_bytes(&with_stream).unwrap_err();
        assert_eq!(error, field("flags", 3));
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
    fn the_error_names_the_invalid_field() {
        let wrong = |at: usize, value: u8| {
            let mut bytes = golden();
            bytes[at] = value;
            QueuePairEndpoint::from_bytes(&bytes).unwrap_err()
        };
        assert_eq!(wrong(0, b'x'), EndpointError::Magic);
        assert_eq!(wrong(4, 3), EndpointError::Version { found: 3 });
        assert_eq!(wrong(4, 1), EndpointError::Length { found: 344 });
        assert_eq!(wrong(6, 0), field("MTU code", 0));
        assert_eq!(wrong(7, 17), field("number of GIDs", 17));
        assert_eq!(wrong(8, 1), field("QPN", 0x0101_0203));
        assert_eq!(wrong(12, 1), field("PSN", 0x010a_0b0c));
        assert_eq!(wrong(20, 4), field("flags", 4));
        assert_eq!(wrong(20, 1), field("addresses of no stream", 1));
        assert_eq!(wrong(25, 129), field("prefix length", 129));
        assert_eq!(wrong(23, 9), field("reserved bytes", 9));
        for no_type in [1, 2, 5, 255] {
            assert_eq!(wrong(21, no_type), field("type", no_type.into()));
        }
        assert_eq!(wrong(311, 1), field("unused GID", 0));
        for found in [0, 295, 297, 343, 345] {
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
