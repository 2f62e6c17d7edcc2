//! SIDR_REQ and SIDR_REP: the queue pair of a datagram service.

use rdma_types::{Pkey, Qpn};

use super::error::{TooLong, fits};
use crate::cm::address::CommId;
use crate::cm::service::ServiceId;
use crate::wire::bytes::{Reader, Writer};

/// A service ID resolution request (IBTA table 119).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrReq<'a> {
    /// The sender's number of the request.
    pub request_id: CommId,
    /// The request.
    pub query: Query<'a>,
}

/// The program's part of a SIDR_REQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Query<'a> {
    /// The partition.
    pub p_key: Pkey,
    /// The service.
    pub service_id: ServiceId,
    /// At most 216 bytes. In the UDP port space, these begin with an
    /// [`IpCmHeader`](crate::cm::IpCmHeader).
    pub private_data: &'a [u8],
}

impl<'a> SidrReq<'a> {
    pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
        let request_id = CommId::new(fields.u32());
        let p_key = Pkey::new(fields.u16());
        let _reserved = fields.u16();
        let service_id = ServiceId::new(fields.u64());
        Self { request_id, query: Query { p_key, service_id, private_data: fields.rest() } }
    }

    pub(super) fn check(&self) -> Result<(), TooLong> {
        fits(self.query.private_data, 216)
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u32(self.request_id.get())
            .u16(self.query.p_key.get())
            .u16(0)
            .u64(self.query.service_id.get())
            .padded(self.query.private_data, 216);
    }
}

/// The result of a service ID resolution: 0, or the reason why there is no queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidrStatus(u8);

impl SidrStatus {
    /// The queue pair and its Q_Key are valid.
    pub const VALID: Self = Self(0);
    /// The service ID is not supported.
    pub const UNSUPPORTED: Self = Self(1);
    /// The service rejected the request.
    pub const REJECTED: Self = Self(2);
    /// No queue pair is available.
    pub const NO_QUEUE_PAIR: Self = Self(3);
    /// The request must be sent to the port in the additional information.
    pub const REDIRECT: Self = Self(4);
    /// The version of the request is not supported.
    pub const UNSUPPORTED_VERSION: Self = Self(5);

    /// Creates the status with this code.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code)
    }

    /// Returns the code.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A service ID resolution reply (IBTA table 120).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrRep<'a> {
    /// The number of the request.
    pub request_id: CommId,
    /// The service.
    pub service_id: ServiceId,
    /// The answer.
    pub resolution: Resolution<'a>,
}

/// The program's part of a SIDR_REP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resolution<'a> {
    /// The result.
    pub status: SidrStatus,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The Q_Key of that queue pair.
    pub qkey: u32,
    /// At most 72 bytes that explain the status.
    pub info: &'a [u8],
    /// At most 136 bytes.
    pub private_data: &'a [u8],
}

impl<'a> SidrRep<'a> {
    pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
        let request_id = CommId::new(fields.u32());
        let (status, info_len) = (SidrStatus(fields.u8()), fields.u8());
        let _reserved = fields.u16();
        let qpn = fields.qpn();
        let _reserved = fields.u8();
        let service_id = ServiceId::new(fields.u64());
        let qkey = fields.u32();
        let info = Reader::new(fields.slice(72)).slice(info_len.into());
        let private_data = fields.rest();
        let resolution = Resolution { status, qpn, qkey, info, private_data };
        Self { request_id, service_id, resolution }
    }

    pub(super) fn check(&self) -> Result<(), TooLong> {
        fits(self.resolution.info, 72)?;
        fits(self.resolution.private_data, 136)
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        let resolution = &self.resolution;
        let info_len = u8::try_from(resolution.info.len()).unwrap_or(72);
        out.u32(self.request_id.get())
            .u8(resolution.status.0)
            .u8(info_len)
            .u16(0)
            .u24(resolution.qpn.get())
            .u8(0)
            .u64(self.service_id.get())
            .u32(resolution.qkey)
            .padded(resolution.info, 72)
            .padded(resolution.private_data, 136);
    }
}
