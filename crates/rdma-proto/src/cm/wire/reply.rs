//! REP and RTU: the answer of the passive end, and its confirmation.

use rdma_types::{Guid, Psn, Qpn};

use super::error::{TooLong, fits};
use super::timeout::Timeout;
use crate::cm::address::CommId;
use crate::wire::bytes::{Reader, Writer};

/// A reply to a REQ (IBTA table 110).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rep<'a> {
    /// The sender's communication ID.
    pub local_id: CommId,
    /// The receiver's communication ID.
    pub remote_id: CommId,
    /// The GUID of the sender's adapter.
    pub ca_guid: Guid,
    /// Whether the alternate path of the REQ was accepted, as a 2-bit code: 0 if it was, or if the
    /// REQ has none; 1 if alternate paths are not supported.
    pub failover: u8,
    /// The passive end's parameters.
    pub answer: Answer<'a>,
}

/// The parameters of the passive end in a REP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Answer<'a> {
    /// The passive end's queue pair.
    pub qpn: Qpn,
    /// The PSN of the first packet that the active end sends (IBTA section 12.7.31).
    pub psn: Psn,
    /// The number of READs and atomics that the passive end executes at a time.
    pub responder_resources: u8,
    /// The number of READs and atomics that the passive end has in flight.
    pub initiator_depth: u8,
    /// The longest time between the arrival of a packet at the passive end and its acknowledgement.
    pub target_ack_delay: Timeout,
    /// Whether the passive end implements end-to-end flow control.
    pub flow_control: bool,
    /// The number of RNR retries of the active end, 0 to 7.
    pub rnr_retry_count: u8,
    /// Whether the passive end's queue pair has a shared receive queue.
    pub srq: bool,
    /// At most 196 bytes.
    pub private_data: &'a [u8],
}

impl<'a> Rep<'a> {
    pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
        let (local_id, remote_id) = (CommId::new(fields.u32()), CommId::new(fields.u32()));
        let _qkey_of_reliable_datagrams = fields.u32();
        let qpn = fields.qpn();
        let _reserved = fields.u8();
        let _ee_context_of_reliable_datagrams = fields.u32();
        let psn = fields.psn();
        let _reserved = fields.u8();
        let (responder_resources, initiator_depth) = (fields.u8(), fields.u8());
        let (delay, retries) = (fields.u8(), fields.u8());
        let ca_guid = Guid::from_bytes(fields.array());
        let answer = Answer {
            qpn,
            psn,
            responder_resources,
            initiator_depth,
            target_ack_delay: Timeout::upper(delay),
            flow_control: delay & 1 != 0,
            rnr_retry_count: retries >> 5,
            srq: retries & 0x10 != 0,
            private_data: fields.rest(),
        };
        Self { local_id, remote_id, ca_guid, failover: delay >> 1 & 3, answer }
    }

    pub(super) fn check(&self) -> Result<(), TooLong> {
        fits(self.answer.private_data, 196)
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        let answer = &self.answer;
        let delay = answer.target_ack_delay.code() << 3
            | (self.failover & 3) << 1
            | u8::from(answer.flow_control);
        out.u32(self.local_id.get())
            .u32(self.remote_id.get())
            .u32(0)
            .u24(answer.qpn.get())
            .u8(0)
            .u32(0)
            .u24(answer.psn.get())
            .u8(0)
            .u8(answer.responder_resources)
            .u8(answer.initiator_depth)
            .u8(delay)
            .u8(answer.rnr_retry_count << 5 | u8::from(answer.srq) << 4)
            .array(self.ca_guid.to_bytes())
            .padded(answer.private_data, 196);
    }
}
