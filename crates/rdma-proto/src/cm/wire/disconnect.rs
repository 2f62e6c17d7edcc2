//! DREQ: the request to end a connection.

use rdma_types::Qpn;

use super::error::{TooLong, fits};
use crate::cm::address::CommId;
use crate::wire::bytes::{Reader, Writer};

/// A disconnection request (IBTA table 112).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dreq<'a> {
    /// The sender's communication ID.
    pub local_id: CommId,
    /// The receiver's communication ID.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// At most 220 bytes.
    pub private_data: &'a [u8],
}

impl<'a> Dreq<'a> {
    pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
        let (local_id, remote_id) = (CommId::new(fields.u32()), CommId::new(fields.u32()));
        let remote_qpn = fields.qpn();
        let _reserved = fields.u8();
        Self { local_id, remote_id, remote_qpn, private_data: fields.rest() }
    }

    pub(super) fn check(&self) -> Result<(), TooLong> {
        fits(self.private_data, 220)
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u32(self.local_id.get())
            .u32(self.remote_id.get())
            .u24(self.remote_qpn.get())
            .u8(0)
            .padded(self.private_data, 220);
    }
}
