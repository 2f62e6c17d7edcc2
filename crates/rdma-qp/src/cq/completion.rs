//! Completions, as polled from a queue.

use std::fmt;
use std::iter::FusedIterator;
use std::slice;

use rdma_sys::ibv_wc;
use rdma_types::{Qpn, WcStatus};

use crate::cq::timestamp;
use crate::cq::work_error::WorkError;
use crate::cq::work_success::WorkSuccess;

/// The outcome of a work request.
pub type WorkResult = Result<WorkSuccess, WorkError>;

/// A slot that [`CompletionQueue::poll`](crate::CompletionQueue::poll) fills with one completion.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct PollSlot(pub(crate) ibv_wc);

impl PollSlot {
    /// Returns the completion that was last polled into the slot or [stored](From) there. Before that, returns a
    /// successful send with WR ID 0.
    #[inline(always)]
    #[must_use]
    pub const fn last(self) -> WorkCompletion {
        WorkCompletion(self.0)
    }
}

/// Stores a completion in a slot, which can still be used for polling.
impl From<WorkCompletion> for PollSlot {
    #[inline]
    fn from(completion: WorkCompletion) -> Self {
        Self(completion.0)
    }
}

impl fmt::Debug for PollSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollSlot").finish_non_exhaustive()
    }
}

/// An iterator over the completions of one poll, in the order in which the requests completed.
#[derive(Clone, Debug)]
pub struct PolledCompletions<'s> {
    slots: slice::Iter<'s, PollSlot>,
}

impl<'s> PolledCompletions<'s> {
    #[inline]
    pub(crate) fn new(slots: &'s [PollSlot]) -> Self {
        Self { slots: slots.iter() }
    }

    /// Returns the number of remaining completions.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if no completions remain.
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
/// For a failed completion, the specification defines only the WR ID, the status, the QPN and the vendor's code, so
/// nothing else can be read. The program identifies the request by its WR ID.
///
/// # Examples
/// ```
/// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
/// # use rdma_qp::{CompletionQueue, PollSlot, prelude::*};
/// # use rdma_mem::{AccessFlags, GatherList, ScatterList};
/// # rdma_soft::install();
/// # let context = rdma_mem::open_device("soft0")?;
/// # let cq = CompletionQueue::create(&context, 64)?;
/// # let pd = context.allocate_pd()?;
/// # let access = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
/// # let prepare = || pd.create_qp().access(access).send_cq(&cq).recv_cq(&cq).build();
/// # let (one, other) = (prepare()?, prepare()?);
/// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
/// # let (mut one, mut other) = (one.handshake(other_end)?, other.handshake(one_end)?);
/// # let mut slots = [PollSlot::default()];
/// # let mut next = || loop {
/// #     let mut done = cq.poll(&mut slots)?;
/// #     if let Some(one) = done.next() { break Ok::<_, rdma_qp::Error>(one) }
/// # };
///
/// // SAFETY: requests without memory.
/// unsafe { other.post_receive(ReceiveWorkRequest::only_immediate(), 7) }?;
/// // SAFETY: as above.
/// unsafe { one.post_send(SendWorkRequest::only_immediate(42).signaled(false), 1) }?;
/// let completion = next()?;
/// assert_eq!(completion.wr_id(), 7);
/// match completion.result() {
///     Ok(success) => assert_eq!(success.immediate_data(), Some(42)),
///     Err(error) => println!("{}: {}", error, error.hint()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy)]
pub struct WorkCompletion(ibv_wc);

impl WorkCompletion {
    pub(crate) const fn raw(&self) -> &ibv_wc {
        &self.0
    }

    /// Returns the WR ID that the request was posted with.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns the QPN of the queue pair that the request was posted to.
    #[doc(alias = "qp_num")]
    #[inline]
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        Qpn::masked(self.0.qp_num)
    }

    /// Returns the time at which the request completed, in ticks of the device's clock, if the queue was created with
    /// [timestamps](crate::CompletionQueueBuilder::timestamps).
    ///
    /// The clock belongs to one device and starts at an arbitrary time.
    /// [`Context::raw_clock`](rdma_mem::Context::raw_clock) returns its current time, and
    /// [`core_clock_khz`](rdma_mem::ExtendedAttributes::core_clock_khz) is its frequency.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    #[inline]
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        timestamp::of(&self.0)
    }

    /// Returns the outcome of the request.
    ///
    /// # Errors
    /// Returns an error if the request failed. On a reliable connection, the failure ends the connection, and other
    /// outstanding requests are flushed.
    #[inline(always)]
    pub const fn result(&self) -> WorkResult {
        let status = WcStatus::from_raw(self.0.status.0);
        if status.is_success() {
            Ok(WorkSuccess::of(&self.0))
        } else {
            Err(WorkError::new(status, self.0.vendor_err))
        }
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
    use rdma_sys::{ibv_wc__bindgen_ty_1, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
    use rdma_types::{Rkey, WcOpcode};

    use super::*;

    /// Returns a completion with junk in its undefined fields.
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
    fn undefined_fields_cannot_be_read() {
        let sent = junk(0, WcOpcode::SEND.raw(), IMM).result().unwrap();
        assert_eq!((sent.immediate_data(), sent.scattered_bytes()), (None, None));
        assert_eq!(sent.byte_len(), None);
        assert_eq!(sent, WorkSuccess::of_send(WcOpcode::SEND));
        assert!(!format!("{sent:?}").contains("99"), "{sent:?}");
        let error = junk(10, WcOpcode::RECV.raw(), IMM).result().unwrap_err();
        assert_eq!((error.raw_status(), error.vendor_code()), (10, 3));
        let text = format!("{:?}", junk(10, 128, IMM));
        assert!(!text.contains("99") && !text.contains("RECV"), "{text}");
    }

    #[test]
    fn reads_and_atomics_have_a_length_and_sends_and_writes_have_none() {
        let bytes = |opcode: WcOpcode| junk(0, opcode.raw(), IMM).result().unwrap().byte_len();
        for opcode in [WcOpcode::RDMA_READ, WcOpcode::COMP_SWAP, WcOpcode::FETCH_ADD] {
            assert_eq!(bytes(opcode), Some(99), "{opcode}");
        }
        for raw in 128..140 {
            assert_eq!(bytes(WcOpcode::from_raw(raw)), Some(99), "{raw}");
        }
        for raw in [0, 1].into_iter().chain(5..128) {
            assert_eq!(bytes(WcOpcode::from_raw(raw)), None, "{raw}");
        }
    }

    #[test]
    fn without_a_completion_only_the_length_of_atomics_is_known() {
        let bytes = |opcode| WorkSuccess::of_send(opcode).byte_len();
        assert_eq!([WcOpcode::COMP_SWAP, WcOpcode::FETCH_ADD].map(bytes), [Some(8); 2]);
        let others = [WcOpcode::SEND, WcOpcode::RDMA_WRITE, WcOpcode::RDMA_READ];
        assert_eq!(others.map(bytes), [None; 3]);
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
    fn a_slot_returns_its_completion() {
        let slot = PollSlot::from(junk(0, WcOpcode::RECV.raw(), IMM));
        assert_eq!(slot.last().wr_id(), 7);
        assert_eq!(slot.last().result(), junk(0, WcOpcode::RECV.raw(), IMM).result());
        let before = PollSlot::default().last();
        assert_eq!((before.wr_id(), before.result().unwrap().opcode()), (0, WcOpcode::SEND));
    }

    #[test]
    fn unknown_codes_are_data() {
        let error = junk(99, 0, 0).result().unwrap_err();
        assert_eq!(error.raw_status(), 99);
        let success = junk(0, 77, 0).result().unwrap();
        assert_eq!(success.opcode(), WcOpcode::from_raw(77));
    }
}
