//! Completions, as they are polled.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::iter::FusedIterator;
use std::slice;

use rdma_sys::{ibv_wc, ibv_wc_flags};
use rdma_types::{Qpn, Rkey, WcOpcode, WcStatus};

use crate::work_success::Number;
use crate::{WorkError, WorkSuccess, timestamp};

/// How a work request ended.
pub type WorkResult = Result<WorkSuccess, WorkError>;

/// Room for one completion, which [`CompletionQueue::poll`](crate::CompletionQueue::poll) fills.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct PollSlot(pub(crate) ibv_wc);

impl fmt::Debug for PollSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollSlot").finish_non_exhaustive()
    }
}

/// A slot that [`CompletionQueue::poll_into`](crate::CompletionQueue::poll_into) has filled.
#[derive(Clone, Copy, Debug)]
pub struct FilledSlot<'s>(&'s Cell<PollSlot>);

impl<'s> FilledSlot<'s> {
    #[inline(always)]
    pub(crate) const fn new(slot: &'s Cell<PollSlot>) -> Self {
        Self(slot)
    }

    /// The completion in it: the last one that was polled into this slot.
    #[inline(always)]
    #[must_use]
    pub fn completion(self) -> WorkCompletion {
        WorkCompletion(self.0.get().0)
    }
}

/// The completions of one poll: an iterator, in the order in which they happened.
#[derive(Clone, Debug)]
pub struct PolledCompletions<'s> {
    slots: slice::Iter<'s, PollSlot>,
}

impl<'s> PolledCompletions<'s> {
    #[inline]
    pub(crate) fn new(slots: &'s [PollSlot]) -> Self {
        Self { slots: slots.iter() }
    }

    /// How many are left.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether none is left.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Iterator for PolledCompletions<'_> {
    type Item = WorkCompletion;

    #[inline]
    fn next(&mut self) -> Option<WorkCompletion> {
        self.slots.next().map(|slot| WorkCompletion(slot.0))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.slots.size_hint()
    }
}

impl ExactSizeIterator for PolledCompletions<'_> {}
impl FusedIterator for PolledCompletions<'_> {}

/// The completion of one work request.
///
/// Of a failed one the specification defines the id, the status, the queue pair and the vendor's code,
/// and nothing else can be read here: what it was, the program knows from the id.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy)]
pub struct WorkCompletion(ibv_wc);

impl WorkCompletion {
    pub(crate) const fn raw(&self) -> &ibv_wc {
        &self.0
    }

    /// The number that the request was posted with.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// The queue pair that it was posted to.
    #[inline]
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        Qpn::masked(self.0.qp_num)
    }

    /// As [`result`](Self::result), of a request that is known to be of the send queue: nothing is read that
    /// only receives have.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub const fn result_of_send(&self) -> WorkResult {
        let status = WcStatus::from_raw(self.0.status.0);
        if !status.is_success() {
            return Err(WorkError::new(status, self.0.vendor_err));
        }
        Ok(WorkSuccess::of_send(WcOpcode::from_raw(self.0.opcode.0)))
    }

    /// Whether it was posted to that queue pair.
    #[inline(always)]
    #[must_use]
    pub const fn is_of(&self, qpn: Qpn) -> bool {
        self.0.qp_num == qpn.get()
    }

    /// When it completed, in ticks of the device's clock, if the queue was made with
    /// [timestamps](crate::CompletionQueueBuilder::timestamps).
    ///
    /// The clock starts anywhere and belongs to one device.
    /// [`Context::raw_clock`](rdma_mem::Context::raw_clock) is its present time, and
    /// [`core_clock_khz`](rdma_mem::ExtendedAttributes::core_clock_khz) says how fast it ticks.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    #[inline]
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        timestamp::of(&self.0)
    }

    /// How the request ended.
    ///
    /// # Errors
    /// If it failed: the connection has ended then, and what else was posted is flushed.
    #[inline]
    pub fn result(&self) -> WorkResult {
        let success = self.result_of_send()?;
        let opcode = success.opcode();
        if !opcode.is_receive() {
            return Ok(success);
        }
        // SAFETY: SAFETY.md F4: both variants of the union are plain numbers of the same size.
        let number = unsafe { self.0.__bindgen_anon_1.imm_data };
        let number = if self.0.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0 {
            Number::Immediate(u32::from_be(number))
        } else if self.0.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0 {
            // A key is in host order.
            Number::Invalidated(Rkey::new(number))
        } else {
            Number::None
        };
        Ok(WorkSuccess::of_receive(opcode, self.0.byte_len, number))
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkCompletion")
            .field("wr_id", &self.wr_id())
            .field("qpn", &self.qpn())
            .field("result", &self.result())
            .field("timestamp", &self.timestamp())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use rdma_sys::{ibv_wc__bindgen_ty_1, ibv_wc_opcode, ibv_wc_status};

    use super::*;

    /// A completion whose undefined fields are junk.
    fn junk(status: u32, opcode: u32, flags: u32) -> WorkCompletion {
        WorkCompletion(ibv_wc {
            wr_id: 7,
            status: ibv_wc_status(status),
            opcode: ibv_wc_opcode(opcode),
            vendor_err: 3,
            byte_len: 99,
            __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: 0x0102_0304_u32.to_be() },
            qp_num: 0x11,
            wc_flags: flags,
            ..Default::default()
        })
    }

    const IMM: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0;

    #[test]
    fn what_is_undefined_cannot_be_read() {
        let sent = junk(0, WcOpcode::SEND.raw(), IMM).result().unwrap();
        assert_eq!((sent.immediate_data(), sent.scattered_bytes()), (None, None));
        let error = junk(10, WcOpcode::RECV.raw(), IMM).result().unwrap_err();
        assert_eq!((error.raw_status(), error.vendor_code()), (10, 3));
        let text = format!("{:?}", junk(10, 128, IMM));
        assert!(!text.contains("99") && !text.contains("RECV"), "{text}");
    }

    #[test]
    fn immediates_are_in_host_order_and_only_where_there_is_one() {
        for opcode in [WcOpcode::RECV, WcOpcode::RECV_RDMA_WITH_IMM] {
            let arrived = junk(0, opcode.raw(), IMM).result().unwrap();
            assert_eq!(arrived.immediate_data(), Some(0x0102_0304));
            assert_eq!((arrived.opcode(), arrived.scattered_bytes()), (opcode, Some(99)));
            assert_eq!(junk(0, opcode.raw(), 0).result().unwrap().immediate_data(), None);
        }
    }

    #[test]
    fn the_key_of_an_invalidation_is_no_immediate() {
        const INV: u32 = ibv_wc_flags::IBV_WC_WITH_INV.0;
        let arrived = junk(0, WcOpcode::RECV.raw(), INV).result().unwrap();
        assert_eq!(arrived.immediate_data(), None);
        assert_eq!(arrived.invalidated_rkey(), Some(Rkey::new(0x0102_0304_u32.to_be())));
        for (opcode, flags) in [(WcOpcode::RECV, 0), (WcOpcode::RECV, IMM), (WcOpcode::SEND, INV)] {
            assert_eq!(junk(0, opcode.raw(), flags).result().unwrap().invalidated_rkey(), None);
        }
    }

    #[test]
    fn unknown_codes_are_data() {
        let error = junk(99, 0, 0).result().unwrap_err();
        assert_eq!(error.raw_status(), 99);
        let success = junk(0, 77, 0).result().unwrap();
        assert_eq!(success.opcode(), WcOpcode::from_raw(77));
    }
}
