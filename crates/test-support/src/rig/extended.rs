//! Extended completion queues and queue pairs.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys::*;

use super::connect::Side;
use super::post::Wr;
use super::{Context, Cq, Pd, Qp, Size, errno, until, verbs};

/// The value of C's `IBV_WC_STANDARD_FLAGS`.
pub const STANDARD: u64 = 0x7f;
pub const TIMESTAMP: u64 = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
pub const WALLCLOCK: u64 =
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;

impl Context {
    pub fn try_cq_ex(&self, attr: &ibv_cq_init_attr_ex) -> Result<Cq, Errno> {
        let mut attr = *attr;
        let cq = unsafe { ibv_create_cq_ex(self.0, &raw mut attr) };
        if cq.is_null() { Err(errno()) } else { Ok(Cq(ibv_cq_ex_to_cq(cq))) }
    }

    pub fn cq_ex(&self, cqe: u32, wc_flags: u64) -> Cq {
        self.try_cq_ex(&ibv_cq_init_attr_ex { cqe, wc_flags, ..Default::default() }).unwrap()
    }

    /// Returns the current time of the device's clock.
    pub fn clock(&self) -> u64 {
        let (refused, values) = self.query_rt_values(1);
        assert_eq!((refused, values.comp_mask, values.raw_clock.tv_sec), (0, 1, 0));
        values.raw_clock.tv_nsec.cast_unsigned()
    }

    pub fn query_rt_values(&self, comp_mask: u32) -> (i32, ibv_values_ex) {
        let mut values = ibv_values_ex { comp_mask, ..Default::default() };
        (unsafe { ibv_query_rt_values_ex(self.0, &raw mut values) }, values)
    }
}

impl Side {
    /// Creates a side whose two completion queues are extended and have these fields.
    pub fn with_fields(device: &str, capacity: u32, wc_flags: u64) -> Self {
        let context = Context::open(device);
        let (send_cq, receive_cq) =
            (context.cq_ex(capacity, wc_flags), context.cq_ex(capacity, wc_flags));
        let pd = context.pd();
        let qp = pd.qp(&send_cq, &receive_cq, &Size::default());
        Self { qp, send_cq, receive_cq, pd, context }
    }
}

/// Methods for completion queues that were created by [`Context::cq_ex`].
impl Cq {
    pub fn ex(&self) -> *mut ibv_cq_ex {
        self.0.cast()
    }

    /// Begins to poll. Returns 0 or an error number.
    pub fn start(&self) -> i32 {
        self.start_with(0)
    }

    pub fn start_with(&self, comp_mask: u32) -> i32 {
        let mut attr = ibv_poll_cq_attr { comp_mask };
        unsafe { ibv_start_poll(self.ex(), &raw mut attr) }
    }

    /// Advances to the next completion. Returns 0 or an error number.
    pub fn advance(&self) -> i32 {
        unsafe { ibv_next_poll(self.ex()) }
    }

    pub fn end(&self) {
        unsafe { ibv_end_poll(self.ex()) }
    }

    /// Waits until there is a completion, and begins to poll.
    #[track_caller]
    pub fn start_at_next(&self) {
        until("a completion", || match Errno::from_raw(self.start()) {
            Errno::ENOENT => false,
            started => {
                assert_eq!(started.raw(), 0, "{started}");
                true
            }
        });
    }

    /// Returns the ID and the status of the current completion.
    pub fn at(&self) -> (u64, ibv_wc_status) {
        unsafe { ((*self.ex()).wr_id, (*self.ex()).status) }
    }

    /// Returns all fields of the current completion. A field has the value in [`JUNK`] if the
    /// provider has no function for it. A provider may lack the functions for fields that were not
    /// requested.
    pub fn read(&self) -> Read {
        let cq = self.ex();
        macro_rules! read {
            ($field:ident, $op:ident, $read:ident) => {
                if unsafe { (*cq).$op }.is_some() { unsafe { $read(cq) } } else { JUNK.$field }
            };
        }
        Read {
            opcode: unsafe { ibv_wc_read_opcode(cq) },
            vendor_err: unsafe { ibv_wc_read_vendor_err(cq) },
            wc_flags: unsafe { ibv_wc_read_wc_flags(cq) },
            byte_len: read!(byte_len, read_byte_len, ibv_wc_read_byte_len),
            imm_data: read!(imm_data, read_imm_data, ibv_wc_read_imm_data),
            qp_num: read!(qp_num, read_qp_num, ibv_wc_read_qp_num),
            src_qp: read!(src_qp, read_src_qp, ibv_wc_read_src_qp),
            slid: read!(slid, read_slid, ibv_wc_read_slid),
            sl: read!(sl, read_sl, ibv_wc_read_sl),
            dlid_path_bits: read!(dlid_path_bits, read_dlid_path_bits, ibv_wc_read_dlid_path_bits),
            timestamp: read!(timestamp, read_completion_ts, ibv_wc_read_completion_ts),
            wallclock: read!(
                wallclock,
                read_completion_wallclock_ns,
                ibv_wc_read_completion_wallclock_ns
            ),
            flow_tag: read!(flow_tag, read_flow_tag, ibv_wc_read_flow_tag),
            cvlan: read!(cvlan, read_cvlan, ibv_wc_read_cvlan),
        }
    }
}

/// The fields of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub wc_flags: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub slid: u32,
    pub sl: u8,
    pub dlid_path_bits: u8,
    pub timestamp: u64,
    pub wallclock: u64,
    pub flow_tag: u32,
    pub cvlan: u16,
}

/// The values that [`Cq::read`] returns for fields that the provider cannot read.
pub const JUNK: Read = Read {
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

/// The flags of all operations that can be posted on a reliable connection.
pub const OPERATIONS: u64 = {
    use ibv_qp_create_send_ops_flags as Op;
    (Op::IBV_QP_EX_WITH_RDMA_WRITE.0
        | Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0
        | Op::IBV_QP_EX_WITH_SEND.0
        | Op::IBV_QP_EX_WITH_SEND_WITH_IMM.0
        | Op::IBV_QP_EX_WITH_RDMA_READ.0
        | Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
        | Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0
        | Op::IBV_QP_EX_WITH_LOCAL_INV.0
        | Op::IBV_QP_EX_WITH_BIND_MW.0
        | Op::IBV_QP_EX_WITH_SEND_WITH_INV.0) as u64
};

/// The flags of the [`OPERATIONS`] that the tested device lacks.
static LACKING: AtomicU64 = AtomicU64::new(0);

/// Sets the operations that [`operations`] excludes because the tested device lacks them.
pub fn limit_operations(lacking: u64) {
    LACKING.store(lacking, Ordering::Relaxed);
}

/// Returns the flags of all operations that the tested device can post on a reliable connection.
pub fn operations() -> u64 {
    OPERATIONS & !LACKING.load(Ordering::Relaxed)
}

/// Returns the attributes for creating an extended queue pair that can post `operations`.
pub fn init(pd: &Pd, send: &Cq, receive: &Cq, size: &Size, operations: u64) -> ibv_qp_init_attr_ex {
    use ibv_qp_init_attr_mask as Mask;
    let mut init =
        ibv_qp_init_attr_ex { pd: pd.0, send_ops_flags: operations, ..Default::default() };
    init.comp_mask = (Mask::IBV_QP_INIT_ATTR_PD | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).0;
    (init.send_cq, init.recv_cq) = (send.0, receive.0);
    init.cap = size.cap();
    init.qp_type = size.qp_type;
    init.sq_sig_all = size.signal_all.into();
    init
}

impl Context {
    pub fn try_qp_ex(&self, init: &ibv_qp_init_attr_ex) -> Result<Qp, Errno> {
        let mut init = *init;
        let qp = unsafe { ibv_create_qp_ex(verbs(), self.0, &raw mut init) };
        if qp.is_null() { Err(errno()) } else { Ok(Qp(qp)) }
    }
}

impl Side {
    /// Creates a side whose queue pair can post `operations` with function calls.
    pub fn extended(device: &str, size: &Size, operations: u64) -> Self {
        let context = Context::open(device);
        let (send_cq, receive_cq) = (context.cq(256), context.cq(256));
        let pd = context.pd();
        let qp = context.try_qp_ex(&init(&pd, &send_cq, &receive_cq, size, operations)).unwrap();
        Self { qp, send_cq, receive_cq, pd, context }
    }
}

/// Methods for queue pairs that were created by [`Context::try_qp_ex`].
impl Qp {
    /// Returns the extended queue pair, or NULL if this one was not created to post with function
    /// calls.
    pub fn as_ex(&self) -> *mut ibv_qp_ex {
        unsafe { verbs().qp_to_qp_ex.unwrap()(self.0) }
    }

    pub fn start(&self) {
        unsafe { ibv_wr_start(self.as_ex()) };
    }

    pub fn complete(&self) -> i32 {
        unsafe { ibv_wr_complete(self.as_ex()) }
    }

    pub fn abort(&self) {
        unsafe { ibv_wr_abort(self.as_ex()) };
    }

    /// Begins a request. Its data must be set with a further call.
    pub fn begin(&self, wr: &Wr) {
        let (qp, wr) = (self.as_ex(), &wr.wr);
        unsafe {
            (*qp).wr_id = wr.wr_id;
            (*qp).wr_flags = wr.send_flags;
            let (imm, remote, atomic) = (wr.__bindgen_anon_1.imm_data, wr.wr.rdma, wr.wr.atomic);
            let (rkey, address) = (remote.rkey, remote.remote_addr);
            match wr.opcode {
                ibv_wr_opcode::IBV_WR_SEND => ibv_wr_send(qp),
                ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => ibv_wr_send_imm(qp, imm),
                ibv_wr_opcode::IBV_WR_RDMA_WRITE => ibv_wr_rdma_write(qp, rkey, address),
                ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                    ibv_wr_rdma_write_imm(qp, rkey, address, imm);
                }
                ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wr_rdma_read(qp, rkey, address),
                ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
                    let (compare, swap) = (atomic.compare_add, atomic.swap);
                    ibv_wr_atomic_cmp_swp(qp, atomic.rkey, atomic.remote_addr, compare, swap);
                }
                ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let add = atomic.compare_add;
                    ibv_wr_atomic_fetch_add(qp, atomic.rkey, atomic.remote_addr, add);
                }
                ibv_wr_opcode::IBV_WR_SEND_WITH_INV => {
                    ibv_wr_send_inv(qp, wr.__bindgen_anon_1.invalidate_rkey);
                }
                ibv_wr_opcode::IBV_WR_LOCAL_INV => {
                    ibv_wr_local_inv(qp, wr.__bindgen_anon_1.invalidate_rkey);
                }
                ibv_wr_opcode::IBV_WR_BIND_MW => {
                    let bind = wr.__bindgen_anon_2.bind_mw;
                    ibv_wr_bind_mw(qp, bind.mw, bind.rkey, &raw const bind.bind_info);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sets the elements of the request that was begun.
    pub fn set(&self, sges: &[ibv_sge]) {
        match sges {
            [one] => unsafe { ibv_wr_set_sge(self.as_ex(), one.lkey, one.addr, one.length) },
            _ => unsafe { ibv_wr_set_sge_list(self.as_ex(), sges.len(), sges.as_ptr()) },
        }
    }

    /// Sets the destination of the datagram that was begun.
    pub fn set_address(&self, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
        unsafe { ibv_wr_set_ud_addr(self.as_ex(), ah, qpn, qkey) };
    }

    /// Sets the inline data of the request that was begun.
    pub fn set_inline(&self, pieces: &[&[u8]]) {
        let buffer = |bytes: &[u8]| ibv_data_buf {
            addr: bytes.as_ptr().cast_mut().cast(),
            length: bytes.len(),
        };
        if let [one] = pieces {
            let one = buffer(one);
            return unsafe { ibv_wr_set_inline_data(self.as_ex(), one.addr, one.length) };
        }
        let list: Vec<_> = pieces.iter().map(|piece| buffer(piece)).collect();
        unsafe { ibv_wr_set_inline_data_list(self.as_ex(), list.len(), list.as_ptr()) };
    }

    /// Builds the request that `wr` describes, which could also be posted in a list.
    pub fn build(&self, wr: &Wr) {
        self.begin(wr);
        if !matches!(wr.wr.opcode, ibv_wr_opcode::IBV_WR_BIND_MW | ibv_wr_opcode::IBV_WR_LOCAL_INV)
        {
            self.set(&wr.sges);
        }
    }

    /// Posts requests with function calls. Returns 0 or an error number.
    pub fn try_call(&self, wrs: &[Wr]) -> i32 {
        self.start();
        wrs.iter().for_each(|wr| self.build(wr));
        self.complete()
    }
}
