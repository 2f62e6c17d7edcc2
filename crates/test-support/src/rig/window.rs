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
    /// Returns the key in the C struct; for type 2 windows, that is the initial key.
    pub fn key(&self) -> u32 {
        unsafe { (*self.0).rkey }
    }

    pub fn kind(&self) -> ibv_mw_type {
        unsafe { (*self.0).type_ }
    }

    /// Returns the key with this low byte.
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
    /// Returns the parameters for binding a window to a part of the region.
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
    /// Binds a type 2 window.
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
    /// Binds a type 1 window; returns 0 or an error number.
    pub fn try_bind(&self, wr_id: u64, mw: &Mw, info: ibv_mw_bind_info, flags: u32) -> i32 {
        let mut bind = ibv_mw_bind { wr_id, send_flags: flags, bind_info: info };
        unsafe { ibv_bind_mw(self.0, mw.0, &raw mut bind) }
    }

    /// Posts a request that binds a window of either type. For type 2, the key is the one after the
    /// window's first key. Returns the key that the window will have.
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

/// Returns the key that was invalidated, if the completion has the flag for it.
pub fn invalidated(wc: &ibv_wc) -> Option<u32> {
    let with_inv = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
    with_inv.then(|| invalidated_key(wc))
}

/// Returns the field with the invalidated key, which is valid only if the completion has the flag
/// for it.
pub fn invalidated_key(wc: &ibv_wc) -> u32 {
    unsafe { wc.__bindgen_anon_1.invalidated_rkey }
}

/// A connection on which B grants A windows onto 64 bytes that A cannot access otherwise.
pub struct Grant {
    pub at_a: Mr,
    pub at_b: Mr,
    pub a: Side,
    pub b: Side,
}

/// Another queue pair in a domain. Fields are dropped in order.
pub struct Second {
    pub qp: Qp,
    pub send_cq: Cq,
    pub receive_cq: Cq,
}

pub const BYTES: usize = 64;
pub const AT_A: u8 = 0xaa;
pub const AT_B: u8 = 0xbb;
/// The access that a region needs for windows with all rights.
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

    /// Returns a window of this type onto 32 bytes from offset 16 on, and its key.
    #[track_caller]
    pub fn window(&self, kind: ibv_mw_type, access: u32) -> (Mw, u32) {
        let mw = self.b.pd.mw(kind);
        let key = self.bind(&mw, self.at_b.part(16, 32, access));
        (mw, key)
    }

    /// Returns another connection, whose second queue pair is in B's domain. Drop it before the
    /// grant.
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

    /// Binds a window, waits for the completion, and returns the key.
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

    /// Returns a write by A of `length` bytes through a window, at offset `from` in B's memory.
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

    /// Posts a request by A, and returns its status.
    #[track_caller]
    pub fn try_by_a(&self, wr: &Wr) -> ibv_wc_status {
        self.a.qp.post(wr);
        until_released(&self.a, || self.a.send_cq.next()).status
    }

    /// Checks that a request by A is refused because of its key, and changes nothing at B.
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

    /// Checks that a request by B fails with a memory management operation error, and moves the
    /// queue pair to the error state.
    #[track_caller]
    pub fn fails_at_b(&self, post: impl FnOnce(&Qp)) {
        self.fails_at_b_with(ibv_wc_status::IBV_WC_MW_BIND_ERR, post);
    }

    /// Like [`fails_at_b`](Self::fails_at_b), but with another status.
    #[track_caller]
    pub fn fails_at_b_with(&self, status: ibv_wc_status, post: impl FnOnce(&Qp)) {
        post(&self.b.qp);
        let wc = until_released(&self.b, || self.b.send_cq.next());
        assert_eq!(wc.status, status);
        self.b.qp.wait_for_error();
    }
}

/// Runs `act` after releasing the requests of a held device.
fn until_released<T>(side: &Side, act: impl FnOnce() -> T) -> T {
    release(side.context.name());
    act()
}
