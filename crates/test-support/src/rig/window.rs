//! Memory windows.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.

use rdma_sys::*;

use super::connect::{Knobs, Side, connect, endpoint, pair_with};
use super::post::Wr;
use super::{
    Cq, LOCAL_WRITE, MW_BIND, Mr, Pd, Qp, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, Size, errno,
    release,
};

pub const TYPE_1: ibv_mw_type = ibv_mw_type::IBV_MW_TYPE_1;
pub const TYPE_2: ibv_mw_type = ibv_mw_type::IBV_MW_TYPE_2;

pub struct Mw(pub *mut ibv_mw);

impl Pd {
    pub fn try_mw(&self, kind: ibv_mw_type) -> Result<Mw, Errno> {
        let mw = unsafe { ibv_alloc_mw(self.0, kind) };
        if mw.is_null() { Err(errno()) } else { Ok(Mw(mw)) }
    }

    pub fn mw(&self, kind: ibv_mw_type) -> Mw {
        self.try_mw(kind).unwrap()
    }
}

impl Mw {
    /// Returns the key in the C struct. For a type 2 window, this is the key that it had after its
    /// allocation.
    pub fn key(&self) -> u32 {
        unsafe { (*self.0).rkey }
    }

    pub fn kind(&self) -> ibv_mw_type {
        unsafe { (*self.0).type_ }
    }

    /// Returns the window's key with its low byte replaced.
    pub fn key_with(&self, low: u8) -> u32 {
        self.key() & !0xff | u32::from(low)
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        assert_eq!(unsafe { ibv_dealloc_mw(self.0) }, 0);
    }
}

impl Mr {
    /// Returns the parameters for binding a window to a part of this region.
    pub fn part(&self, from: usize, length: usize, access: u32) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.mr,
            addr: self.address() + from as u64,
            length: length as u64,
            mw_access_flags: access,
        }
    }
}

impl Wr {
    /// Returns a request that binds a type 2 window.
    pub fn bind(wr_id: u64, mw: &Mw, key: u32, info: ibv_mw_bind_info) -> Self {
        let mut wr = Self::new(wr_id, ibv_wr_opcode::IBV_WR_BIND_MW, &[]);
        wr.wr.__bindgen_anon_2.bind_mw =
            ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: mw.0, rkey: key, bind_info: info };
        wr
    }

    pub fn local_invalidate(wr_id: u64, key: u32) -> Self {
        Self::new(wr_id, ibv_wr_opcode::IBV_WR_LOCAL_INV, &[]).invalidating(key)
    }

    pub fn send_with_invalidate(wr_id: u64, sges: &[ibv_sge], key: u32) -> Self {
        Self::new(wr_id, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, sges).invalidating(key)
    }

    fn invalidating(mut self, key: u32) -> Self {
        self.wr.__bindgen_anon_1.invalidate_rkey = key;
        self
    }
}

impl Qp {
    /// Binds a type 1 window. Returns 0 or an error number.
    pub fn try_bind(&self, wr_id: u64, mw: &Mw, info: ibv_mw_bind_info, flags: u32) -> i32 {
        let mut bind = ibv_mw_bind { wr_id, send_flags: flags, bind_info: info };
        unsafe { ibv_bind_mw(self.0, mw.0, &raw mut bind) }
    }

    /// Posts a request that binds a window of either type. A type 2 window gets the key that
    /// follows its first key. Returns the key that the window will have.
    #[track_caller]
    pub fn post_bind(&self, wr_id: u64, mw: &Mw, info: ibv_mw_bind_info) -> u32 {
        if mw.kind() == TYPE_1 {
            let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
            assert_eq!(self.try_bind(wr_id, mw, info, signaled), 0);
            mw.key()
        } else {
            let key = ibv_inc_rkey(mw.key());
            self.post(&Wr::bind(wr_id, mw, key, info));
            key
        }
    }
}

/// Returns the key that was invalidated, or `None` if the completion lacks the flag for it.
pub fn invalidated(wc: &ibv_wc) -> Option<u32> {
    let with_inv = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
    with_inv.then(|| invalidated_key(wc))
}

/// Returns the field that contains the invalidated key. It is valid only if the completion has the
/// flag for it.
pub fn invalidated_key(wc: &ibv_wc) -> u32 {
    unsafe { wc.__bindgen_anon_1.invalidated_rkey }
}

/// A connection on which B grants A access to 64 bytes through windows. Without a window, A has no
/// access to them.
pub struct Grant {
    pub at_a: Mr,
    pub at_b: Mr,
    pub a: Side,
    pub b: Side,
}

/// A further queue pair in B's domain. The fields are dropped in the order of their declaration.
pub struct Second {
    pub qp: Qp,
    pub send_cq: Cq,
    pub receive_cq: Cq,
}

pub const BYTES: usize = 64;
pub const AT_A: u8 = 0xaa;
pub const AT_B: u8 = 0xbb;
/// The access flags of a region to which windows with any rights can be bound.
pub const BINDABLE: u32 = LOCAL_WRITE | MW_BIND;
pub const REMOTE: u32 = REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;

impl Grant {
    pub fn new(device: &str) -> Self {
        Self::with(device, &Knobs { access: REMOTE, ..Knobs::default() })
    }

    pub fn with(device: &str, knobs: &Knobs) -> Self {
        let (a, b) = pair_with(device, &Size::default(), knobs);
        let at_a = a.pd.register_filled(vec![AT_A; BYTES], LOCAL_WRITE);
        let at_b = b.pd.register_filled(vec![AT_B; BYTES], BINDABLE);
        Self { at_a, at_b, a, b }
    }

    /// Binds a new window of this type to 32 bytes at offset 16 of B's memory. Returns the window
    /// and its key.
    #[track_caller]
    pub fn window(&self, kind: ibv_mw_type, access: u32) -> (Mw, u32) {
        let mw = self.b.pd.mw(kind);
        let key = self.bind(&mw, self.at_b.part(16, 32, access));
        (mw, key)
    }

    /// Creates another connection. Returns its client, and the client's peer, which is in B's
    /// domain. Both must be dropped before the grant.
    pub fn second_pair(&self, device: &str) -> (Side, Second) {
        let c = Side::new(device, &Size::default(), 64);
        let context = &self.b.context;
        let (send_cq, receive_cq) = (context.cq(64), context.cq(64));
        let qp = self.b.pd.qp(&send_cq, &receive_cq, &Size::default());
        let (at_c, at_d) = (c.endpoint(), endpoint(context, &qp));
        let knobs = Knobs { access: REMOTE, ..Knobs::default() };
        connect(&c.qp, &at_c, &at_d, &knobs);
        connect(&qp, &at_d, &at_c, &knobs);
        (c, Second { qp, send_cq, receive_cq })
    }

    /// Binds a window, and waits for the completion. Returns the key.
    #[track_caller]
    pub fn bind(&self, mw: &Mw, info: ibv_mw_bind_info) -> u32 {
        let key = self.b.qp.post_bind(900, mw, info);
        self.done(900, ibv_wc_opcode::IBV_WC_BIND_MW);
        key
    }

    #[track_caller]
    pub fn local_invalidate(&self, key: u32) {
        self.b.qp.post(&Wr::local_invalidate(901, key));
        self.done(901, ibv_wc_opcode::IBV_WC_LOCAL_INV);
    }

    #[track_caller]
    fn done(&self, wr_id: u64, opcode: ibv_wc_opcode) {
        let wc = until_released(&self.b, || self.b.send_cq.expect_success(wr_id));
        assert_eq!(wc.opcode, opcode);
    }

    /// Returns a request with which A writes `length` bytes through a window to offset `from` in
    /// B's memory.
    pub fn write(&self, key: u32, from: u64, length: usize) -> Wr {
        let sges = [self.at_a.sge(0, length)];
        let wr = Wr::new(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &sges);
        wr.remote(self.at_b.address().wrapping_add(from), key)
    }

    pub fn read(&self, key: u32, from: u64, length: usize) -> Wr {
        let mut wr = self.write(key, from, length);
        wr.wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        wr
    }

    pub fn add(&self, key: u32, from: u64) -> Wr {
        let sges = [self.at_a.sge(0, 8)];
        let wr = Wr::fetch_add(1, &sges, &self.at_b, 0, 1);
        wr.atomic_at(self.at_b.address() + from, key, 1, 0)
    }

    /// Posts a request at A. Returns the status of its completion.
    #[track_caller]
    pub fn try_by_a(&self, wr: &Wr) -> ibv_wc_status {
        self.a.qp.post(wr);
        until_released(&self.a, || self.a.send_cq.next()).status
    }

    /// Posts a request at A. Checks that B refuses it with a remote access error, and that B's
    /// memory does not change.
    #[track_caller]
    pub fn refuses(&self, wr: &Wr) {
        let before = self.at_b.bytes();
        assert_eq!(self.try_by_a(wr), ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(self.at_b.bytes(), before);
    }

    #[track_caller]
    pub fn allows(&self, wr: &Wr) {
        assert_eq!(self.try_by_a(wr), ibv_wc_status::IBV_WC_SUCCESS);
    }

    /// Checks that a request posted at B fails with a memory management operation error, and that
    /// it moves B's queue pair to the error state.
    #[track_caller]
    pub fn fails_at_b(&self, post: impl FnOnce(&Qp)) {
        self.fails_at_b_with(ibv_wc_status::IBV_WC_MW_BIND_ERR, post);
    }

    /// Like [`fails_at_b`](Self::fails_at_b), but expects another status.
    #[track_caller]
    pub fn fails_at_b_with(&self, status: ibv_wc_status, post: impl FnOnce(&Qp)) {
        post(&self.b.qp);
        let wc = until_released(&self.b, || self.b.send_cq.next());
        assert_eq!(wc.status, status);
        self.b.qp.wait_for_error();
    }
}

/// Makes the side's device continue with the requests it holds back, and then runs `act`.
fn until_released<T>(side: &Side, act: impl FnOnce() -> T) -> T {
    release(side.context.name());
    act()
}
