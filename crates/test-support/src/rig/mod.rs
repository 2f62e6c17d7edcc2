//! The base of the device tests: the verbs, called as C calls them, with no layer of this workspace
//! in between.
//!
//! Tests create objects, check them, and destroy them in the opposite order. Each destruction must
//! succeed. Memory is a `Vec` that the test owns until after it is deregistered.
//!
//! A process tests the devices of one provider, which it selects with `use_provider` before any
//! other call.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block)]
#![allow(clippy::undocumented_unsafe_blocks)] // Tests call C as C does; what makes this sound is the rig's order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.
#![allow(clippy::cast_possible_truncation)] // All numbers are small, and devices are 64-bit only.
#![allow(missing_docs, missing_debug_implementations)] // Most items are named after the verbs they call.
#![allow(clippy::exhaustive_enums, unnameable_types, clippy::not_unsafe_ptr_arg_deref)]

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdma_sys::*;

pub mod batch;
pub mod connect;
pub mod datagram;
pub mod device;
pub mod dmabuf;
pub mod events;
pub mod extended;
pub mod fork;
pub mod map;
pub mod memory;
pub mod post;
pub mod scene;
pub mod srq;
pub mod transition;
pub mod trap;
pub mod window;

pub use memory::Mr;

pub const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
pub const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
pub const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
pub const REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub const MW_BIND: u32 = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
pub const ZERO_BASED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
/// All rights that a region or a queue pair can grant.
pub const ALL_ACCESS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// The time limit for every wait, far longer than any successful wait takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true, which an effect of the device should cause.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let (end, mut turns) = (Instant::now() + PATIENCE, 0);
    while !holds() {
        assert!(Instant::now() < end, "not in time, {PATIENCE:?}: {what}");
        pause(&mut turns);
    }
}

/// Pauses after an empty poll. `turns` counts such polls.
///
/// Usually, this only spins. It sleeps occasionally: when many processes did nothing but yield,
/// some of them, and some kernel threads (Linux 6.18), waited for a processor for minutes. It
/// yields rarely, because on a busy machine each yield lasts until all other threads have had a
/// turn. Pauses are also short because a poll may advance virtual time by only one event, so a test
/// may need many polls.
pub fn pause(turns: &mut u32) {
    *turns = turns.wrapping_add(1);
    match *turns % 1024 {
        0 => std::thread::sleep(Duration::from_micros(50)),
        turn if turn % 32 == 0 => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}

/// Returns the immediate data of a completion, in network order as in C.
pub fn imm_of(wc: &ibv_wc) -> u32 {
    unsafe { wc.__bindgen_anon_1.imm_data }
}

/// The provider whose devices this process tests.
#[derive(Clone, Copy)]
pub struct Provider {
    pub verbs: &'static Verbs,
    /// Whether an answer may be delayed for long although nothing is wrong. If so, connections wait
    /// longer and retry more often by default.
    pub slow: bool,
}

static PROVIDER: OnceLock<Provider> = OnceLock::new();
static RELEASE: OnceLock<fn(&str)> = OnceLock::new();

/// Selects the provider. Without this call, it is the first registered one that is not the
/// system's.
pub fn use_provider(provider: Provider) {
    assert!(PROVIDER.set(provider).is_ok(), "a process tests the devices of one provider");
}

/// The number of inline bytes that queue pairs support by default.
static INLINE: AtomicU32 = AtomicU32::new(64);

/// Sets the default number of inline bytes, for a device that supports fewer than usual.
pub fn limit_inline(bytes: u32) {
    INLINE.store(bytes, Ordering::Relaxed);
}

/// Returns the number of inline bytes in [`Size::default`].
pub fn usual_inline() -> u32 {
    INLINE.load(Ordering::Relaxed)
}

/// Sets the function that makes a device continue with the requests it holds back. Its argument is
/// the device's name.
pub fn release_by(release: fn(&str)) {
    RELEASE.get_or_init(|| release);
}

fn release(device: &str) {
    if let Some(release) = RELEASE.get() {
        release(device);
    }
}

fn provider() -> &'static Provider {
    PROVIDER.get_or_init(|| {
        let mut known = providers().unwrap().into_iter().filter(|known| known.name != "system");
        let verbs = known.next().and_then(|known| known.verbs.ok());
        Provider { verbs: verbs.expect("register a provider first"), slow: false }
    })
}

pub fn verbs() -> &'static Verbs {
    provider().verbs
}

/// Returns `errno` after a call that returned NULL or -1.
pub fn errno() -> Errno {
    Errno::last()
}

pub struct Context(pub *mut ibv_context);

unsafe impl Send for Context {}
unsafe impl Sync for Context {}

impl Context {
    pub fn open(name: &str) -> Self {
        Self::try_open(name).unwrap()
    }

    pub fn try_open(name: &str) -> Result<Self, Errno> {
        device::List::new().open(name)
    }

    /// Closes the device, even if objects that were created from it still exist. Returns the result
    /// of the call.
    pub fn close(self) -> i32 {
        unsafe { (verbs().close_device)(std::mem::ManuallyDrop::new(self).0) }
    }

    pub fn pd(&self) -> Pd {
        self.try_pd().unwrap()
    }

    pub fn try_pd(&self) -> Result<Pd, Errno> {
        let pd = unsafe { (verbs().alloc_pd)(self.0) };
        if pd.is_null() { Err(errno()) } else { Ok(Pd(pd)) }
    }

    pub fn cq(&self, capacity: i32) -> Cq {
        self.try_cq(capacity, 0).unwrap()
    }

    pub fn try_cq(&self, capacity: i32, vector: i32) -> Result<Cq, Errno> {
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

pub struct Pd(pub *mut ibv_pd);

unsafe impl Send for Pd {}
unsafe impl Sync for Pd {}

impl Pd {
    /// Checks that deallocating the domain is refused. Returns the error number.
    pub fn try_dealloc(&self) -> i32 {
        let refused = unsafe { (verbs().dealloc_pd)(self.0) };
        assert_ne!(refused, 0);
        refused
    }

    pub fn try_qp(&self, send: &Cq, receive: &Cq, size: &Size) -> Result<Qp, Errno> {
        self.try_qp_of(&mut Self::qp_init(send, receive, size))
    }

    pub fn qp_init(send: &Cq, receive: &Cq, size: &Size) -> ibv_qp_init_attr {
        let mut init = ibv_qp_init_attr::default();
        init.send_cq = send.0;
        init.recv_cq = receive.0;
        init.cap = size.cap();
        init.qp_type = size.qp_type;
        init.sq_sig_all = size.signal_all.into();
        init
    }

    pub fn try_qp_of(&self, init: &mut ibv_qp_init_attr) -> Result<Qp, Errno> {
        let qp = unsafe { (verbs().create_qp)(self.0, init) };
        if qp.is_null() { Err(errno()) } else { Ok(Qp(qp)) }
    }

    pub fn qp(&self, send: &Cq, receive: &Cq, size: &Size) -> Qp {
        self.try_qp(send, receive, size).unwrap()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        assert_eq!(unsafe { (verbs().dealloc_pd)(self.0) }, 0);
    }
}

/// The type of a queue pair and its sizes.
#[derive(Clone, Copy)]
pub struct Size {
    pub qp_type: ibv_qp_type,
    pub send_wr: u32,
    pub receive_wr: u32,
    pub sge: u32,
    pub inline: u32,
    pub signal_all: bool,
}

impl Size {
    pub fn cap(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.send_wr,
            max_recv_wr: self.receive_wr,
            max_send_sge: self.sge,
            max_recv_sge: self.sge,
            max_inline_data: self.inline,
        }
    }
}

impl Default for Size {
    fn default() -> Self {
        let qp_type = ibv_qp_type::IBV_QPT_RC;
        Self {
            qp_type,
            send_wr: 64,
            receive_wr: 64,
            sge: 4,
            inline: usual_inline(),
            signal_all: false,
        }
    }
}

pub struct Cq(pub *mut ibv_cq);

unsafe impl Send for Cq {}
unsafe impl Sync for Cq {}

impl Cq {
    /// Polls once for up to `N` completions.
    pub fn try_poll<const N: usize>(&self) -> Result<Vec<ibv_wc>, i32> {
        let mut wcs = [ibv_wc::default(); N];
        let polled = unsafe { ibv_poll_cq(self.0, i32::try_from(N).unwrap(), wcs.as_mut_ptr()) };
        usize::try_from(polled).map(|count| wcs[..count].to_vec()).map_err(|_| polled)
    }

    /// Polls into memory of the caller, and returns the number of completions.
    pub fn poll_into(&self, wcs: &mut [ibv_wc]) -> usize {
        let length = i32::try_from(wcs.len()).unwrap();
        let polled = unsafe { ibv_poll_cq(self.0, length, wcs.as_mut_ptr()) };
        usize::try_from(polled).expect("a poll failed")
    }

    /// Checks that destroying the queue is refused. Returns the error number.
    pub fn try_destroy(&self) -> i32 {
        let refused = unsafe { (verbs().destroy_cq)(self.0) };
        assert_ne!(refused, 0);
        refused
    }

    /// Returns true if the queue has no completion now. On a device with a deferred schedule, the
    /// poll itself may cause the next one.
    pub fn is_empty(&self) -> bool {
        self.try_poll::<1>().unwrap().is_empty()
    }

    /// Waits for the next completion and returns it.
    #[track_caller]
    pub fn next(&self) -> ibv_wc {
        let mut polled = None;
        until("a completion", || {
            polled = self.try_poll::<1>().expect("poll failed").pop();
            polled.is_some()
        });
        polled.expect("a completion was polled")
    }

    /// Waits for the next completion, and checks that it has this ID and status.
    #[track_caller]
    pub fn expect(&self, wr_id: u64, status: ibv_wc_status) -> ibv_wc {
        let wc = self.next();
        assert_eq!((wc.wr_id, wc.status), (wr_id, status));
        wc
    }

    #[track_caller]
    pub fn expect_success(&self, wr_id: u64) -> ibv_wc {
        self.expect(wr_id, ibv_wc_status::IBV_WC_SUCCESS)
    }

    /// Waits for the next completions, and checks that these requests were flushed, in this order.
    #[track_caller]
    pub fn expect_flushed(&self, wr_ids: impl IntoIterator<Item = u64>) {
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

pub struct Qp(pub *mut ibv_qp);

unsafe impl Send for Qp {}
unsafe impl Sync for Qp {}

impl Qp {
    pub fn number(&self) -> u32 {
        unsafe { (*self.0).qp_num }
    }

    pub fn qpn(&self) -> rdma_types::Qpn {
        rdma_types::Qpn::masked(self.number())
    }

    pub fn service(&self) -> ibv_qp_type {
        unsafe { (*self.0).qp_type }
    }

    /// Destroys the queue pair before the value is dropped. It must not be used after that.
    pub fn destroy(&mut self) {
        assert_eq!(unsafe { (verbs().destroy_qp)(self.0) }, 0);
        self.0 = ptr::null_mut();
    }

    /// Checks that destroying the queue pair is refused. Returns the error number.
    pub fn try_destroy(&self) -> i32 {
        let refused = unsafe { (verbs().destroy_qp)(self.0) };
        assert_ne!(refused, 0);
        refused
    }

    pub fn query(&self) -> ibv_qp_attr {
        self.query_both().0
    }

    /// Returns the sizes that the device has chosen.
    pub fn capacity(&self) -> ibv_qp_cap {
        self.query_init().cap
    }

    /// Returns the attributes with which the queue pair was created.
    pub fn query_init(&self) -> ibv_qp_init_attr {
        self.query_both().1
    }

    fn query_both(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let (attr_place, init_place) = (&raw mut attr, &raw mut init);
        let mask = (ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_CAP).0.cast_signed();
        assert_eq!(unsafe { (verbs().query_qp)(self.0, attr_place, mask, init_place) }, 0);
        (attr, init)
    }

    pub fn state(&self) -> ibv_qp_state {
        self.query().qp_state
    }

    /// Returns the state that is recorded in the struct of the C interface.
    pub fn noted_state(&self) -> ibv_qp_state {
        unsafe { (*self.0).state }
    }

    /// Modifies the queue pair. Returns 0 or an error number.
    pub fn modify(&self, mut attr: ibv_qp_attr, mask: u32) -> i32 {
        unsafe { (verbs().modify_qp)(self.0, &raw mut attr, mask.cast_signed()) }
    }

    pub fn to_state(&self, state: ibv_qp_state) -> i32 {
        let mut attr = ibv_qp_attr::default();
        attr.qp_state = state;
        self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    #[track_caller]
    pub fn to_error(&self) {
        assert_eq!(self.to_state(ibv_qp_state::IBV_QPS_ERR), 0);
    }

    #[track_caller]
    pub fn to_reset(&self) {
        assert_eq!(self.to_state(ibv_qp_state::IBV_QPS_RESET), 0);
    }

    /// Waits until the device has moved the queue pair to the error state.
    #[track_caller]
    pub fn wait_for_error(&self) {
        until("the error state", || self.state() == ibv_qp_state::IBV_QPS_ERR);
    }

    #[track_caller]
    pub fn assert_ready(&self) {
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
