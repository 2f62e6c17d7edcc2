//! Extended completion queues and queue pairs.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // As the rig.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::time::Instant;

use rdma_sys::*;

use super::connect::Side;
use super::{Context, Cq, PATIENCE, Size, errno};

/// What `IBV_WC_STANDARD_FLAGS` is in C.
pub(crate) const STANDARD: u64 = 0x7f;
pub(crate) const TIMESTAMP: u64 =
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
pub(crate) const WALLCLOCK: u64 =
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;

impl Context {
    pub(crate) fn try_cq_ex(&self, attr: &ibv_cq_init_attr_ex) -> Result<Cq, Errno> {
        let mut attr = *attr;
        let cq = unsafe { ibv_create_cq_ex(self.0, &raw mut attr) };
        if cq.is_null() { Err(errno()) } else { Ok(Cq(ibv_cq_ex_to_cq(cq))) }
    }

    pub(crate) fn cq_ex(&self, cqe: u32, wc_flags: u64) -> Cq {
        self.try_cq_ex(&ibv_cq_init_attr_ex { cqe, wc_flags, ..Default::default() }).unwrap()
    }

    /// What the device's clock says.
    pub(crate) fn clock(&self) -> u64 {
        let (refused, values) = self.query_rt_values(1);
        assert_eq!((refused, values.comp_mask, values.raw_clock.tv_sec), (0, 1, 0));
        values.raw_clock.tv_nsec.cast_unsigned()
    }

    pub(crate) fn query_rt_values(&self, comp_mask: u32) -> (i32, ibv_values_ex) {
        let mut values = ibv_values_ex { comp_mask, ..Default::default() };
        (unsafe { ibv_query_rt_values_ex(self.0, &raw mut values) }, values)
    }
}

impl Side {
    /// A side whose two queues are extended and have these fields.
    pub(crate) fn with_fields(device: &str, capacity: u32, wc_flags: u64) -> Self {
        let context = Context::open(device);
        let (send_cq, receive_cq) =
            (context.cq_ex(capacity, wc_flags), context.cq_ex(capacity, wc_flags));
        let pd = context.pd();
        let qp = pd.qp(&send_cq, &receive_cq, &Size::default());
        Self { qp, send_cq, receive_cq, pd, context }
    }
}

/// For queues that were created by [`Context::cq_ex`].
impl Cq {
    pub(crate) fn ex(&self) -> *mut ibv_cq_ex {
        self.0.cast()
    }

    /// Begins to poll; 0 or an error number.
    pub(crate) fn start(&self) -> i32 {
        self.start_with(0)
    }

    pub(crate) fn start_with(&self, comp_mask: u32) -> i32 {
        let mut attr = ibv_poll_cq_attr { comp_mask };
        unsafe { ibv_start_poll(self.ex(), &raw mut attr) }
    }

    /// Comes to the next completion; 0 or an error number.
    pub(crate) fn advance(&self) -> i32 {
        unsafe { ibv_next_poll(self.ex()) }
    }

    pub(crate) fn end(&self) {
        unsafe { ibv_end_poll(self.ex()) }
    }

    /// Begins to poll once there is a completion.
    #[track_caller]
    pub(crate) fn start_at_next(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            match Errno::from_raw(self.start()) {
                Errno::ENOENT => assert!(Instant::now() < end, "no completion in {PATIENCE:?}"),
                started => return assert_eq!(started.raw(), 0, "{started}"),
            }
            std::thread::yield_now();
        }
    }

    /// The request that the poll has come to, and how it ended.
    pub(crate) fn at(&self) -> (u64, ibv_wc_status) {
        unsafe { ((*self.ex()).wr_id, (*self.ex()).status) }
    }

    /// All that the queue says of the completion that the poll has come to.
    pub(crate) fn read(&self) -> Read {
        let cq = self.ex();
        unsafe {
            Read {
                opcode: ibv_wc_read_opcode(cq),
                vendor_err: ibv_wc_read_vendor_err(cq),
                wc_flags: ibv_wc_read_wc_flags(cq),
                byte_len: ibv_wc_read_byte_len(cq),
                imm_data: ibv_wc_read_imm_data(cq),
                qp_num: ibv_wc_read_qp_num(cq),
                src_qp: ibv_wc_read_src_qp(cq),
                slid: ibv_wc_read_slid(cq),
                sl: ibv_wc_read_sl(cq),
                dlid_path_bits: ibv_wc_read_dlid_path_bits(cq),
                timestamp: ibv_wc_read_completion_ts(cq),
                wallclock: ibv_wc_read_completion_wallclock_ns(cq),
                flow_tag: ibv_wc_read_flow_tag(cq),
                cvlan: ibv_wc_read_cvlan(cq),
            }
        }
    }
}

/// The fields of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) vendor_err: u32,
    pub(crate) wc_flags: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) slid: u32,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
    pub(crate) timestamp: u64,
    pub(crate) wallclock: u64,
    pub(crate) flow_tag: u32,
    pub(crate) cvlan: u16,
}

/// What all fields of a completion hold that nobody asked for.
pub(crate) const JUNK: Read = Read {
    opcode: ibv_wc_opcode(0xdead_c0de),
    vendor_err: 0xdead_c0de,
    wc_flags: 0xdead_c0de,
    byte_len: 0xdead_c0de,
    imm_data: 0xdead_c0de,
    qp_num: 0xdead_c0de,
    src_qp: 0xdead_c0de,
    slid: 0xdead_c0de,
    sl: 0xde,
    dlid_path_bits: 0xde,
    timestamp: 0xdead_c0de,
    wallclock: 0xdead_c0de,
    flow_tag: 0xdead_c0de,
    cvlan: 0xc0de,
};
