//! What the device's tests stand on: the verbs as C calls them, with no layer of ours between.
//!
//! Objects are made in order, checked, and destroyed in the opposite order; each destruction must
//! succeed. Memory is a `Vec` that the test owns for longer than its registration.
#![allow(dead_code, unsafe_code, clippy::multiple_unsafe_ops_per_block)]
#![allow(clippy::undocumented_unsafe_blocks)] // Tests call C as C does; the argument is the rig's order.

use std::ffi::CStr;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_soft::{Builder, Link, Schedule, SoftDevice};
use rdma_sys::*;

pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod device;
pub(crate) mod dmabuf;
pub(crate) mod events;
pub(crate) mod extended;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod post;
pub(crate) mod scene;
pub(crate) mod srq;
pub(crate) mod window;

pub(crate) use memory::Mr;

pub(crate) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
pub(crate) const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
pub(crate) const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
pub(crate) const REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub(crate) const MW_BIND: u32 = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
pub(crate) const ZERO_BASED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
pub(crate) const ALL_ACCESS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;

/// Runs a test on a device of each link, under each schedule that ends by itself; `name` is the
/// test's own.
pub(crate) fn on_each_device(name: &str, test: impl Fn(&str)) {
    let schedules =
        [Schedule::Immediate, Schedule::Deferred { seed: 1 }, Schedule::Deferred { seed: 2 }];
    for (link, link_name) in [(Link::Ethernet, "roce"), (Link::InfiniBand, "ib")] {
        for (n, schedule) in schedules.into_iter().enumerate() {
            let device = format!("{name}-{link_name}-{n}");
            Builder::new(&device).link(link).schedule(schedule).install().unwrap();
            test(&device);
        }
    }
}

/// Runs a test on a device of each link that executes nothing before it is told to.
pub(crate) fn on_each_held_device(name: &str, test: impl Fn(&SoftDevice)) {
    for (link, link_name) in [(Link::Ethernet, "roce"), (Link::InfiniBand, "ib")] {
        let device = format!("{name}-{link_name}-held");
        test(&Builder::new(&device).link(link).schedule(Schedule::Held).install().unwrap());
    }
}

pub(crate) fn soft(device: &str) -> SoftDevice {
    SoftDevice::find(device).unwrap()
}

/// No test waits for longer; nothing that works comes near it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that the device does by itself.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// The immediate data of a completion, in network order as in C.
pub(crate) fn imm_of(wc: &ibv_wc) -> u32 {
    unsafe { wc.__bindgen_anon_1.imm_data }
}

pub(crate) fn verbs() -> &'static Verbs {
    rdma_soft::verbs()
}

/// `errno` of the last call that returned NULL or -1.
pub(crate) fn errno() -> Errno {
    Errno::last()
}

pub(crate) struct Context(pub(crate) *mut ibv_context);

unsafe impl Send for Context {}
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn open(name: &str) -> Self {
        rdma_soft::install();
        unsafe {
            let list = (verbs().get_device_list)(ptr::null_mut());
            let mut n = 0;
            while !(*list.add(n)).is_null() {
                let device = *list.add(n);
                let found = CStr::from_ptr((verbs().get_device_name)(device));
                if found.to_str() == Ok(name) {
                    let context = (verbs().open_device)(device);
                    assert!(!context.is_null());
                    (verbs().free_device_list)(list);
                    return Self(context);
                }
                n += 1;
            }
        }
        panic!("no device named {name}");
    }

    /// Closes the device if nothing was made from it; else the error number.
    pub(crate) fn try_close(&self) -> Errno {
        assert_eq!(unsafe { (verbs().close_device)(self.0) }, -1);
        errno()
    }

    pub(crate) fn pd(&self) -> Pd {
        self.try_pd().unwrap()
    }

    pub(crate) fn try_pd(&self) -> Result<Pd, Errno> {
        let pd = unsafe { (verbs().alloc_pd)(self.0) };
        if pd.is_null() { Err(errno()) } else { Ok(Pd(pd)) }
    }

    pub(crate) fn cq(&self, capacity: i32) -> Cq {
        self.try_cq(capacity, 0).unwrap()
    }

    pub(crate) fn try_cq(&self, capacity: i32, vector: i32) -> Result<Cq, Errno> {
        let none = ptr::null_mut();
        let cq = unsafe { (verbs().create_cq)(self.0, capacity, none, ptr::null_mut(), vector) };
        if cq.is_null() { Err(errno()) } else { Ok(Cq(cq)) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        assert_eq!(unsafe { (verbs().close_device)(self.0) }, 0);
    }
}

pub(crate) struct Pd(pub(crate) *mut ibv_pd);

unsafe impl Send for Pd {}
unsafe impl Sync for Pd {}

impl Pd {
    /// Deallocates, which must be refused; the error number.
    pub(crate) fn try_dealloc(&self) -> i32 {
        let refused = unsafe { (verbs().dealloc_pd)(self.0) };
        assert_ne!(refused, 0);
        refused
    }

    pub(crate) fn try_qp(&self, send: &Cq, receive: &Cq, size: &Size) -> Result<Qp, Errno> {
        self.try_qp_of(&mut Self::qp_init(send, receive, size))
    }

    pub(crate) fn qp_init(send: &Cq, receive: &Cq, size: &Size) -> ibv_qp_init_attr {
        let mut init = ibv_qp_init_attr::default();
        init.send_cq = send.0;
        init.recv_cq = receive.0;
        init.cap.max_send_wr = size.send_wr;
        init.cap.max_recv_wr = size.receive_wr;
        init.cap.max_send_sge = size.sge;
        init.cap.max_recv_sge = size.sge;
        init.cap.max_inline_data = size.inline;
        init.qp_type = size.qp_type;
        init.sq_sig_all = size.signal_all.into();
        init
    }

    pub(crate) fn try_qp_of(&self, init: &mut ibv_qp_init_attr) -> Result<Qp, Errno> {
        let qp = unsafe { (verbs().create_qp)(self.0, init) };
        if qp.is_null() { Err(errno()) } else { Ok(Qp(qp)) }
    }

    pub(crate) fn qp(&self, send: &Cq, receive: &Cq, size: &Size) -> Qp {
        self.try_qp(send, receive, size).unwrap()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        assert_eq!(unsafe { (verbs().dealloc_pd)(self.0) }, 0);
    }
}

/// The sizes of a queue pair, and its type.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) send_wr: u32,
    pub(crate) receive_wr: u32,
    pub(crate) sge: u32,
    pub(crate) inline: u32,
    pub(crate) signal_all: bool,
}

impl Default for Size {
    fn default() -> Self {
        let qp_type = ibv_qp_type::IBV_QPT_RC;
        Self { qp_type, send_wr: 64, receive_wr: 64, sge: 4, inline: 64, signal_all: false }
    }
}

pub(crate) struct Cq(pub(crate) *mut ibv_cq);

unsafe impl Send for Cq {}
unsafe impl Sync for Cq {}

impl Cq {
    /// One poll for up to `N` completions.
    pub(crate) fn try_poll<const N: usize>(&self) -> Result<Vec<ibv_wc>, i32> {
        let mut wcs = [ibv_wc::default(); N];
        let polled = unsafe { ibv_poll_cq(self.0, i32::try_from(N).unwrap(), wcs.as_mut_ptr()) };
        usize::try_from(polled).map(|count| wcs[..count].to_vec()).map_err(|_| polled)
    }

    /// Destroys, which must be refused; the error number.
    pub(crate) fn try_destroy(&self) -> i32 {
        let refused = unsafe { (verbs().destroy_cq)(self.0) };
        assert_ne!(refused, 0);
        refused
    }

    /// Nothing is there now. On a deferred device this may make something come.
    pub(crate) fn is_empty(&self) -> bool {
        self.try_poll::<1>().unwrap().is_empty()
    }

    /// Waits for the next completion.
    #[track_caller]
    pub(crate) fn next(&self) -> ibv_wc {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.try_poll::<1>().expect("poll failed").pop() {
                return wc;
            }
            assert!(Instant::now() < end, "no completion in {PATIENCE:?}");
            std::thread::yield_now();
        }
    }

    /// Waits for the next completion, which must be this one.
    #[track_caller]
    pub(crate) fn expect(&self, wr_id: u64, status: ibv_wc_status) -> ibv_wc {
        let wc = self.next();
        assert_eq!((wc.wr_id, wc.status), (wr_id, status));
        wc
    }

    #[track_caller]
    pub(crate) fn expect_success(&self, wr_id: u64) -> ibv_wc {
        self.expect(wr_id, ibv_wc_status::IBV_WC_SUCCESS)
    }

    /// Waits for the flushes of these requests, in this order.
    #[track_caller]
    pub(crate) fn expect_flushed(&self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            self.expect(wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        assert_eq!(unsafe { (verbs().destroy_cq)(self.0) }, 0);
    }
}

pub(crate) struct Qp(pub(crate) *mut ibv_qp);

unsafe impl Send for Qp {}
unsafe impl Sync for Qp {}

impl Qp {
    pub(crate) fn number(&self) -> u32 {
        unsafe { (*self.0).qp_num }
    }

    pub(crate) fn qpn(&self) -> rdma_types::Qpn {
        rdma_types::Qpn::masked(self.number())
    }

    /// Destroys it before its time; nothing else may be done with it then.
    pub(crate) fn destroy(&mut self) {
        assert_eq!(unsafe { (verbs().destroy_qp)(self.0) }, 0);
        self.0 = ptr::null_mut();
    }

    pub(crate) fn query(&self) -> ibv_qp_attr {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let (attr_place, init_place) = (&raw mut attr, &raw mut init);
        assert_eq!(unsafe { (verbs().query_qp)(self.0, attr_place, 1, init_place) }, 0);
        attr
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        self.query().qp_state
    }

    /// Modifies; the result is 0 or an error number.
    pub(crate) fn modify(&self, mut attr: ibv_qp_attr, mask: u32) -> i32 {
        unsafe { (verbs().modify_qp)(self.0, &raw mut attr, mask.cast_signed()) }
    }

    pub(crate) fn to_state(&self, state: ibv_qp_state) -> i32 {
        let mut attr = ibv_qp_attr::default();
        attr.qp_state = state;
        self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    #[track_caller]
    pub(crate) fn to_error(&self) {
        assert_eq!(self.to_state(ibv_qp_state::IBV_QPS_ERR), 0);
    }

    #[track_caller]
    pub(crate) fn to_reset(&self) {
        assert_eq!(self.to_state(ibv_qp_state::IBV_QPS_RESET), 0);
    }

    /// Waits until the device has moved the queue pair to the error state.
    #[track_caller]
    pub(crate) fn wait_for_error(&self) {
        until("the error state", || self.state() == ibv_qp_state::IBV_QPS_ERR);
    }

    #[track_caller]
    pub(crate) fn assert_ready(&self) {
        assert_eq!(self.state(), ibv_qp_state::IBV_QPS_RTS);
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if !self.0.is_null() {
            self.destroy();
        }
    }
}
