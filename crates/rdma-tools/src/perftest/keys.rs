//! The text in which a perftest program describes its queue pair and its memory to the peer.

use std::fmt::Write as _;

use rdma::device::{Gid, GidType, Lid, LinkLayer};
use rdma::qp::{Psn, Qpn, QueuePairEndpoint, QueuePairType};

use super::NotPerftest;

/// The Q_Key that perftest uses for all datagrams.
pub(super) const QKEY: u32 = 0x1111_1111;

/// The queue pair and the memory of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// The LID of an InfiniBand port.
    pub(super) lid: Lid,
    /// The maximum number of the peer's RDMA reads and atomics that this end executes at the same
    /// time.
    pub(super) reads: u8,
    pub(super) qpn: Qpn,
    /// The PSN of the first packet that this end sends.
    pub(super) psn: Psn,
    /// The key of the memory that is lent to the peer.
    pub(super) rkey: u32,
    /// The first address of that memory.
    pub(super) address: u64,
    /// The GID of the port, which Ethernet requires. A program that sends no GID does not expect
    /// one either.
    pub(super) gid: Option<Gid>,
}

impl Keys {
    /// The length of the text with a GID, including the final NUL.
    pub(super) const BYTES: usize = 108;
    /// The length of the text without a GID, including the final NUL.
    pub(super) const BYTES_WITHOUT_GID: usize = 59;

    /// Describes this end: its endpoint, and the memory that is lent to the peer.
    pub(super) fn of(own: &QueuePairEndpoint, reads: u8, rkey: u32, address: u64) -> Self {
        let routed = own.link_layer() == LinkLayer::ETHERNET || own.grh_required();
        let gid = own.gids().first().filter(|_| routed).map(|best| best.gid);
        Self { lid: own.lid(), reads, qpn: own.qpn(), psn: own.psn(), rkey, address, gid }
    }

    /// Returns the peer's endpoint. The text does not contain the types of its queue pair and GID,
    /// so they are assumed to be those of this end.
    pub(super) fn endpoint(&self, own: &QueuePairEndpoint) -> QueuePairEndpoint {
        let mut peer = QueuePairEndpoint::new(self.qpn, self.psn).with_mtu(own.mtu());
        // The peer is assumed to have as many reads in flight as this end accepts.
        peer = peer.with_rd_atomic(own.max_dest_rd_atomic(), self.reads);
        peer = match own.qp_type() {
            QueuePairType::UC => peer.with_unreliable_connection(),
            QueuePairType::UD => peer.with_qkey(QKEY),
            _ => peer,
        };
        if own.link_layer() != LinkLayer::ETHERNET {
            peer = peer.with_lid(self.lid);
        }
        let kind = own.gids().first().map_or(GidType::IB, |best| best.gid_type);
        self.gid.map_or(peer, |gid| peer.with_gid(gid, kind))
    }

    /// Returns the text to send: [`BYTES`](Self::BYTES) bytes with a GID, and
    /// [`BYTES_WITHOUT_GID`](Self::BYTES_WITHOUT_GID) without one. The last byte is NUL.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let Self { lid, reads, qpn, psn, rkey, address, gid } = self;
        let (lid, qpn, psn) = (lid.get(), qpn.get(), psn.get());
        let mut text =
            format!("{lid:04x}:{reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{address:016x}:");
        for byte in gid.iter().flat_map(|gid| gid.to_bytes()) {
            let _ = write!(text, "{byte:02x}:"); // writing to a string cannot fail
        }
        // The number of the shared receive queue is 0, because there is none.
        text.push_str(if gid.is_some() { "00000000:\0" } else { "00000000\0" });
        text.into_bytes()
    }

    /// Parses a text as returned by [`to_bytes`](Self::to_bytes), with or without a GID.
    ///
    /// # Errors
    /// Returns an error for the first invalid field.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, NotPerftest> {
        let wrong = |what| NotPerftest::new(what, bytes);
        let text = bytes.strip_suffix(&[0]).and_then(|text| std::str::from_utf8(text).ok());
        let mut fields = text.ok_or_else(|| wrong("a line of keys with a valid end"))?.split(':');
        let mut number = |what, digits| {
            let field = fields.next().filter(|field| field.len() == digits);
            let field = field.filter(|field| field.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let number = field.and_then(|field| u64::from_str_radix(field, 16).ok());
            number.ok_or_else(|| wrong(what))
        };
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let lid = number("a line of keys with a valid LID", 4)?;
        let lid =
            Lid::new(u16::try_from(lid).map_err(|_| wrong("a line of keys with a valid LID"))?);
        let reads =
            number("a line of keys with a valid number of READs", 4)?.clamp(1, u8::MAX.into());
        let qpn = Qpn::new(small(number("a line of keys with a valid QPN", 6)?));
        let psn = Psn::new(small(number("a line of keys with a valid PSN", 6)?));
        let rkey = small(number("a line of keys with a valid rkey", 8)?);
        let address = number("a line of keys with a valid address", 16)?;
        let mut gid = None;
        if bytes.len() == Self::BYTES {
            let mut octets = [0; 16];
            for octet in &mut octets {
                let number = number("a line of keys with a valid GID", 2)?;
                *octet =
                    u8::try_from(number).map_err(|_| wrong("a line of keys with a valid GID"))?;
            }
            gid = Some(Gid::from_bytes(octets));
        }
        number("a line of keys with a valid shared receive queue", 8)?;
        let end = if gid.is_some() { [Some(""), None] } else { [None, None] };
        if end != [fields.next(), fields.next()] {
            return Err(wrong("a line of keys with a valid end"));
        }
        let (Some(qpn), Some(psn)) = (qpn, psn) else {
            return Err(wrong("a line of keys with a valid QPN"));
        };
        let reads = u8::try_from(reads).unwrap_or(u8::MAX);
        Ok(Self { lid, reads, qpn, psn, rkey, address, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &[u8; Keys::BYTES] = b"0000:0010:000013:26bfa2:0000a1b2:00007f0123456000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:c6:12:00:01:00000000:\0";

    fn golden() -> Keys {
        Keys {
            lid: Lid::NONE,
            reads: 16,
            qpn: Qpn::masked(0x13),
            psn: Psn::masked(0x26_bfa2),
            rkey: 0xa1b2,
            address: 0x7f01_2345_6000,
            gid: Some("::ffff:198.18.0.1".parse().unwrap()),
        }
    }

    #[test]
    fn keys_of_either_length_survive_a_round_trip() {
        assert_eq!(golden().to_bytes(), GOLDEN);
        assert_eq!(Keys::from_bytes(GOLDEN), Ok(golden()));
        let without = Keys { gid: None, lid: Lid::new(7), address: u64::MAX, ..golden() };
        let bytes = without.to_bytes();
        assert_eq!(bytes.len(), Keys::BYTES_WITHOUT_GID);
        assert_eq!(Keys::from_bytes(&bytes), Ok(without));
    }

    #[test]
    fn reads_are_clamped_to_a_byte() {
        let text = String::from_utf8(GOLDEN.to_vec()).unwrap();
        let reads = |four: &str| {
            let text = text.replacen(":0010:", four, 1);
            Keys::from_bytes(text.as_bytes()).unwrap().reads
        };
        assert_eq!([reads(":0000:"), reads(":0080:"), reads(":ffff:")], [1, 128, 255]);
    }

    #[test]
    fn each_wrong_byte_is_refused() {
        for bytes in [GOLDEN.to_vec(), Keys { gid: None, ..golden() }.to_bytes()] {
            for at in 0..bytes.len() {
                for byte in [b'g', b' ', b'+', b'-', 0xff] {
                    let mut wrong = bytes.clone();
                    wrong[at] = byte;
                    let error = Keys::from_bytes(&wrong).unwrap_err().to_string();
                    assert!(error.contains("line of keys") || error.contains("GID"), "{error}");
                }
                Keys::from_bytes(&bytes[..at]).unwrap_err();
            }
        }
        for garbage in [vec![], vec![0], vec![0; Keys::BYTES], vec![b':'; Keys::BYTES]] {
            Keys::from_bytes(&garbage).unwrap_err();
        }
    }

    #[test]
    fn the_peer_has_the_type_of_this_end() {
        let keys = golden();
        let own = QueuePairEndpoint::new(Qpn::masked(0x20), Psn::masked(7)).with_rd_atomic(4, 8);
        let own = own.with_gid("::ffff:198.18.0.9".parse().unwrap(), GidType::ROCE_V2);
        let peer = keys.endpoint(&own);
        assert_eq!((peer.qpn(), peer.psn(), peer.qp_type()), (keys.qpn, keys.psn, own.qp_type()));
        assert_eq!((peer.max_rd_atomic(), peer.max_dest_rd_atomic()), (8, 16));
        let unreliable = keys.endpoint(&own.with_unreliable_connection());
        assert_eq!(unreliable.qp_type(), QueuePairType::UC);
        let datagrams = keys.endpoint(&own.with_qkey(1));
        assert_eq!((datagrams.qp_type(), datagrams.qkey()), (QueuePairType::UD, QKEY));
        assert_eq!(Keys::of(&own, 3, 4, 5).gid, Some(own.gids()[0].gid));

        let infiniband =
            QueuePairEndpoint::new(Qpn::masked(9), Psn::masked(7)).with_lid(Lid::new(3));
        let told = Keys::of(&infiniband, 1, 2, 3);
        assert_eq!((told.gid, told.lid), (None, Lid::new(3)));
        assert_eq!(told.endpoint(&infiniband).lid(), Lid::new(3));
    }
}
