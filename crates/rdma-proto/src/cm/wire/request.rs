//! REQ: the request for a connection.

use rdma_types::{Gid, Guid, Lid, Mtu, Pkey, Psn, Qpn};

use super::error::{TooLong, fits};
use super::timeout::Timeout;
use crate::cm::address::CommId;
use crate::cm::service::ServiceId;
use crate::wire::bytes::{Reader, Writer};

/// A request for communication (IBTA table 106).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Req<'a> {
    /// The sender's communication ID.
    pub local_id: CommId,
    /// The GUID of the sender's adapter.
    pub ca_guid: Guid,
    /// The active end's parameters.
    pub offer: Offer<'a>,
}

/// The parameters of the active end in a REQ.
///
/// The default is all zeros: the shortest timeouts, no repetitions, and no valid MTU. A program
/// sets at least these, the path, the service and the queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offer<'a> {
    /// The service to which the active end connects.
    pub service_id: ServiceId,
    /// The active end's queue pair.
    pub qpn: Qpn,
    /// The PSN of the first packet that the passive end sends (IBTA section 12.7.31).
    pub psn: Psn,
    /// The number of READs and atomics that the active end executes at a time.
    pub responder_resources: u8,
    /// The number of READs and atomics that the active end has in flight.
    pub initiator_depth: u8,
    /// The time within which the passive end should answer the REQ.
    pub remote_response_timeout: Timeout,
    /// The time within which the active end will answer the REP.
    pub local_response_timeout: Timeout,
    /// The number of times that either end repeats an unanswered message, 0 to 15.
    pub max_cm_retries: u8,
    /// The type of the queue pairs.
    pub transport: Transport,
    /// Whether the active end implements end-to-end flow control.
    pub flow_control: bool,
    /// The number of retries of unacknowledged packets, 0 to 7.
    pub retry_count: u8,
    /// The number of RNR retries of the passive end, 0 to 7.
    pub rnr_retry_count: u8,
    /// Whether the active end's queue pair has a shared receive queue.
    pub srq: bool,
    /// The partition.
    pub p_key: Pkey,
    /// The code of the path's MTU; see [`mtu`](Self::mtu).
    pub mtu_code: u8,
    /// The path.
    pub primary: Path,
    /// The path after a failure. A path whose local LID is 0 is absent.
    pub alternate: Path,
    /// At most 92 bytes. In the TCP port space, these begin with an
    /// [`IpCmHeader`](crate::cm::IpCmHeader).
    pub private_data: &'a [u8],
}

impl Offer<'_> {
    /// Returns the path's MTU, or `None` if the code is reserved.
    #[must_use]
    pub fn mtu(&self) -> Option<Mtu> {
        Mtu::from_code(self.mtu_code)
    }
}

/// The type of the queue pairs in a REQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram, which [`Manager`](crate::cm::Manager) rejects.
    Rd = 2,
    /// A type in another field, such as XRC. [`Manager`](crate::cm::Manager) rejects it.
    Extended = 3,
}

impl Transport {
    const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            _ => Self::Extended,
        }
    }
}

/// A path in a REQ, as its sender sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// The LID of the sender's port. RoCE has none: 0xffff.
    pub local_lid: Lid,
    /// The LID of the receiver's port. RoCE has none: 0xffff.
    pub remote_lid: Lid,
    /// The GID of the sender's port.
    pub local_gid: Gid,
    /// The GID of the receiver's port.
    pub remote_gid: Gid,
    /// The flow label, of 20 bits.
    pub flow_label: u32,
    /// The code of the static rate, of 6 bits.
    pub packet_rate: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// Whether the path leads through no router.
    pub subnet_local: bool,
    /// The local ACK timeout, which covers a round trip and the peer's delay.
    pub ack_timeout: Timeout,
}

impl Path {
    fn parse(fields: &mut Reader<'_>) -> Self {
        let (local_lid, remote_lid) = (Lid::new(fields.u16()), Lid::new(fields.u16()));
        let local_gid = Gid::from_bytes(fields.array());
        let remote_gid = Gid::from_bytes(fields.array());
        let flow_label = fields.u24() >> 4;
        let packet_rate = fields.u8() & 0x3f;
        let (traffic_class, hop_limit, level) = (fields.u8(), fields.u8(), fields.u8());
        Self {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label,
            packet_rate,
            traffic_class,
            hop_limit,
            service_level: level >> 4,
            subnet_local: level & 0x08 != 0,
            ack_timeout: Timeout::upper(fields.u8()),
        }
    }

    fn emit(&self, out: &mut Writer<'_>) {
        out.u16(self.local_lid.get())
            .u16(self.remote_lid.get())
            .array(self.local_gid.to_bytes())
            .array(self.remote_gid.to_bytes())
            .u24(self.flow_label << 4)
            .u8(self.packet_rate & 0x3f)
            .u8(self.traffic_class)
            .u8(self.hop_limit)
            .u8(self.service_level << 4 | u8::from(self.subnet_local) << 3)
            .u8(self.ack_timeout.code() << 3);
    }
}

impl<'a> Req<'a> {
    pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
        let local_id = CommId::new(fields.u32());
        let _reserved = fields.u32();
        let service_id = ServiceId::new(fields.u64());
        let ca_guid = Guid::from_bytes(fields.array());
        let _reserved = fields.u32();
        let _qkey_of_reliable_datagrams = fields.u32();
        let (qpn, responder_resources) = (fields.qpn(), fields.u8());
        let _local_ee_context_of_reliable_datagrams = fields.u24();
        let initiator_depth = fields.u8();
        let _remote_ee_context_of_reliable_datagrams = fields.u24();
        let remote = fields.u8();
        let (psn, local) = (fields.psn(), fields.u8());
        let p_key = Pkey::new(fields.u16());
        let (mtu, retries) = (fields.u8(), fields.u8());
        let (primary, alternate) = (Path::parse(fields), Path::parse(fields));
        let offer = Offer {
            service_id,
            qpn,
            psn,
            responder_resources,
            initiator_depth,
            remote_response_timeout: Timeout::upper(remote),
            local_response_timeout: Timeout::upper(local),
            max_cm_retries: retries >> 4,
            transport: Transport::from_code(remote >> 1),
            flow_control: remote & 1 != 0,
            retry_count: local & 7,
            rnr_retry_count: mtu & 7,
            srq: retries & 0x08 != 0,
            p_key,
            mtu_code: mtu >> 4,
            primary,
            alternate,
            private_data: fields.rest(),
        };
        Self { local_id, ca_guid, offer }
    }

    pub(super) fn check(&self) -> Result<(), TooLong> {
        fits(self.offer.private_data, 92)
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        let offer = &self.offer;
        let remote = offer.remote_response_timeout.code() << 3
            | (offer.transport as u8) << 1
            | u8::from(offer.flow_control);
        out.u32(self.local_id.get())
            .u32(0)
            .u64(offer.service_id.get())
            .array(self.ca_guid.to_bytes())
            .u32(0)
            .u32(0)
            .u24(offer.qpn.get())
            .u8(offer.responder_resources)
            .u24(0)
            .u8(offer.initiator_depth)
            .u24(0)
            .u8(remote)
            .u24(offer.psn.get())
            .u8(offer.local_response_timeout.code() << 3 | offer.retry_count & 7)
            .u16(offer.p_key.get())
            .u8(offer.mtu_code << 4 | offer.rnr_retry_count & 7)
            .u8(offer.max_cm_retries << 4 | u8::from(offer.srq) << 3);
        offer.primary.emit(out);
        offer.alternate.emit(out);
        out.padded(offer.private_data, 92);
    }
}
