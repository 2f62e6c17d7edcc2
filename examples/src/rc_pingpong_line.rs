//! The line that `ibv_rc_pingpong` and `ibv_uc_pingpong` send to their peer. It contains the LID,
//! QPN, PSN and GID of the queue pair.
//!
//! ```text
//! 0000:000013:26bfa2:00000000000000000000ffffc6120001
//! ```
//!
//! All numbers are hexadecimal, and a zero byte ends the line. The GID is written as its 16 bytes
//! in order. Without `-g`, the tool uses no GID, and sends zeros.

use std::fmt;

use rdma::device::{Gid, GidType, Lid, LinkLayer};
use rdma::qp::{Psn, QpType, Qpn, QueuePairEndpoint};

/// A line of `ibv_rc_pingpong`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// The LID of the port, which is 0 on Ethernet.
    pub lid: Lid,
    /// The QPN (queue pair number).
    pub qpn: Qpn,
    /// The PSN of the first packet that the queue pair sends.
    pub psn: Psn,
    /// The GID that the queue pair uses, or [`Gid::ZERO`].
    pub gid: Gid,
}

/// The reason why a line cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The bytes do not form a valid line.
    #[error("\"{}\" is not a line of `ibv_rc_pingpong`: wrong {field}", .bytes.escape_ascii())]
    Malformed {
        /// The bytes that were received.
        bytes: Vec<u8>,
        /// The first invalid field.
        field: &'static str,
    },
    /// The line contains no GID, without which a peer on Ethernet cannot be reached.
    #[error("the peer uses no GID: start `ibv_rc_pingpong` with `-g` and the index of one")]
    NoGid,
}

impl Line {
    /// The length of a line in bytes, including the zero byte at the end.
    pub const BYTES: usize = 52;

    /// The message with which the client confirms that it has read the server's line, including the
    /// zero byte at the end.
    pub const DONE: [u8; 5] = *b"done\0";

    /// Returns the line that describes an end. If packets need a GID, it contains the best one of
    /// this end.
    #[must_use]
    pub fn of(own: &QueuePairEndpoint) -> Self {
        let routed = own.link_layer() == LinkLayer::ETHERNET || own.grh_required();
        let gid = own.gids().first().filter(|_| routed).map_or(Gid::ZERO, |best| best.gid);
        Self { lid: own.lid(), qpn: own.qpn(), psn: own.psn(), gid }
    }

    /// Returns the peer's endpoint. The line lacks the MTU, the type of the connection, and the
    /// packet format that the GID is for. These are taken from this end.
    ///
    /// # Errors
    /// Returns [`LineError::NoGid`] if a GID is needed but the line contains none.
    pub fn endpoint(&self, own: &QueuePairEndpoint) -> Result<QueuePairEndpoint, LineError> {
        let mut peer = QueuePairEndpoint::new(self.qpn, self.psn).with_mtu(own.mtu());
        if own.qp_type() == QpType::UC {
            peer = peer.with_unreliable_connection();
        }
        let ethernet = own.link_layer() == LinkLayer::ETHERNET;
        if !ethernet {
            peer = peer.with_lid(self.lid);
        }
        let kind = own.gids().first().map_or(GidType::IB, |best| best.gid_type);
        match self.gid.is_zero() {
            true if ethernet => Err(LineError::NoGid),
            true => Ok(peer),
            false => Ok(peer.with_gid(self.gid, kind)),
        }
    }

    /// Encodes the line as the bytes to send.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, byte) in bytes.iter_mut().zip(self.to_string().bytes()) {
            *place = byte;
        }
        bytes
    }

    /// Parses the bytes of a received line.
    ///
    /// # Errors
    /// Returns an error for the first invalid field.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, LineError> {
        let wrong = |field| LineError::Malformed { bytes: bytes.to_vec(), field };
        let text = bytes.strip_suffix(&[0]).and_then(|text| std::str::from_utf8(text).ok());
        let mut fields = text.ok_or_else(|| wrong("end"))?.split(':');
        let mut number = |name, digits| {
            let field = fields.next().filter(|field| field.len() == digits);
            let field = field.filter(|field| field.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let number = field.and_then(|field| u128::from_str_radix(field, 16).ok());
            number.ok_or_else(|| wrong(name))
        };
        let small = |number: u128| u32::try_from(number).unwrap_or(u32::MAX);
        let lid = Lid::new(u16::try_from(number("LID", 4)?).map_err(|_| wrong("LID"))?);
        let qpn = Qpn::new(small(number("QPN", 6)?)).ok_or_else(|| wrong("QPN"))?;
        let psn = Psn::new(small(number("PSN", 6)?)).ok_or_else(|| wrong("PSN"))?;
        let gid = Gid::from_bytes(number("GID", 32)?.to_be_bytes());
        Ok(Self { lid, qpn, psn, gid })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
        let gid = u128::from_be_bytes(gid.to_bytes());
        write!(f, "{:04x}:{:06x}:{:06x}:{gid:032x}", lid.get(), qpn.get(), psn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that `ibv_rc_pingpong -d rxe0 -g 1` from rdma-core 44 has sent. The tool printed the
    /// numbers as `LID 0x0000, QPN 0x000013, PSN 0x26bfa2, GID ::ffff:198.18.0.1`.
    const GOLDEN: &[u8; Line::BYTES] = b"0000:000013:26bfa2:00000000000000000000ffffc6120001\0";

    fn golden() -> Line {
        let gid = "::ffff:198.18.0.1".parse().unwrap();
        Line { lid: Lid::NONE, qpn: Qpn::masked(0x13), psn: Psn::masked(0x26_bfa2), gid }
    }

    #[test]
    fn lines_equal_those_of_the_tool() {
        assert_eq!(Line::from_bytes(GOLDEN), Ok(golden()));
        assert_eq!(&golden().to_bytes(), GOLDEN);
        let largest = b"ffff:ffffff:ffffff:fe800000000000005887d8fffe3944de\0";
        let line = Line::from_bytes(largest).unwrap();
        assert_eq!((line.lid.get(), line.qpn.get(), line.psn), (0xffff, 0xff_ffff, Psn::MAX));
        assert_eq!(line.gid, "fe80::5887:d8ff:fe39:44de".parse().unwrap());
        assert_eq!(&line.to_bytes(), largest);
    }

    #[test]
    fn the_first_field_that_is_wrong_is_named() {
        let wrong = |at: usize, byte: u8| {
            let mut bytes = *GOLDEN;
            bytes[at] = byte;
            match Line::from_bytes(&bytes) {
                Err(LineError::Malformed { bytes: told, field }) if told == bytes => field,
                other => panic!("{other:?}"),
            }
        };
        for (at, field) in [(0, "LID"), (5, "QPN"), (12, "PSN"), (19, "GID"), (50, "GID")] {
            for byte in [b'g', b' ', b'+', b'-', b':', 0, 0x7f] {
                assert_eq!(wrong(at, byte), field, "{byte:#x} at {at}");
            }
        }
        for (separator, field) in [(4, "LID"), (11, "QPN"), (18, "PSN")] {
            assert_eq!(wrong(separator, b'0'), field);
        }
        assert_eq!(wrong(51, b'0'), "end");
        assert_eq!(wrong(20, 0xff), "end", "not a text");
        let error = Line::from_bytes(&[b'x'; Line::BYTES]).unwrap_err().to_string();
        assert!(error.contains("xxx") && error.contains("ibv_rc_pingpong"), "{error}");
    }

    #[test]
    fn on_ethernet_the_peer_is_at_its_gid_and_on_infiniband_at_its_lid() {
        let line = golden();
        let gid = "::ffff:198.18.0.9".parse().unwrap();
        let own = QueuePairEndpoint::new(Qpn::masked(0x20), Psn::masked(7));
        let roce = own.with_gid(gid, GidType::ROCE_V2);
        let peer = line.endpoint(&roce).unwrap();
        assert_eq!(
            (peer.qpn(), peer.psn(), peer.link_layer()),
            (line.qpn, line.psn, LinkLayer::ETHERNET)
        );
        assert_eq!((peer.gids()[0].gid, peer.gids()[0].gid_type), (line.gid, GidType::ROCE_V2));
        assert_eq!(Line::of(&roce).gid, gid);
        assert_eq!(peer.qp_type(), QpType::RC);
        let unreliable = line.endpoint(&roce.with_unreliable_connection()).unwrap();
        assert_eq!(unreliable.qp_type(), QpType::UC);
        let none = Line { gid: Gid::ZERO, ..line };
        assert_eq!(none.endpoint(&roce), Err(LineError::NoGid));

        let infiniband = own.with_lid(Lid::new(3)).with_gid(gid, GidType::IB);
        let peer = Line { lid: Lid::new(9), ..none }.endpoint(&infiniband).unwrap();
        assert_eq!((peer.lid(), peer.gids()), (Lid::new(9), &[][..]));
        assert_eq!(
            (Line::of(&infiniband).lid, Line::of(&infiniband).gid),
            (Lid::new(3), Gid::ZERO)
        );
        assert_eq!(Line::of(&infiniband.with_grh_required(true)).gid, gid);
    }
}
