//! The quiet device and the loops in C, loaded from a shared object.
#![allow(unsafe_code)]
#![allow(clippy::expect_used)] // A bench that fails panics.

use std::hint::black_box;
use std::mem::{ManuallyDrop, offset_of, size_of};
use std::path::Path;
use std::ptr::null_mut;

use libloading::{Library, Symbol};
use rdma_sys::{
    ibv_context, ibv_context_ops, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_wc,
};

use crate::rig::{Context, Cq, LOCAL_WRITE, Mr, Pd, Qp, REMOTE_WRITE, Size};

/// The number of requests that a loop keeps outstanding, and the number in a batch.
pub const DEPTH: usize = 16;
/// The number of places in memory that the requests use in turn for their data.
pub const PLACES: usize = 64;
/// The length of each request's data, in bytes.
pub const LENGTH: usize = 8;
/// The number of operations in a run of a loop. Each loop also runs with twice as many.
pub const OPERATIONS: u64 = 1024;

/// The numbers of calls of the quiet device's functions, and of requests and completions. Same
/// layout as `struct quiet_device_calls`.
#[allow(clippy::exhaustive_structs)] // as in C
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Calls {
    /// Calls to `ibv_post_send`.
    pub post_send: u64,
    /// Calls to `ibv_post_recv`.
    pub post_recv: u64,
    /// Calls to `ibv_poll_cq`.
    pub poll_cq: u64,
    /// The number of requests that were posted.
    pub requests: u64,
    /// The number of completions that were polled.
    pub completions: u64,
}

impl Calls {
    /// Returns the calls that `requests` writes cause, if they take this many posts and polls.
    pub const fn writes(requests: u64, post_send: u64, poll_cq: u64) -> Self {
        Self { post_send, post_recv: 0, poll_cq, requests, completions: requests }
    }

    /// Returns the calls that `n` writes cause if one in [`DEPTH`] of them is signaled, and each
    /// completion is polled alone.
    pub const fn unsignaled(n: u64) -> Self {
        let polled = n / DEPTH as u64;
        Self { completions: polled, ..Self::writes(n, n, polled) }
    }

    /// Returns the calls that `n` messages cause, one after the other. Each message takes a
    /// receive, a send, and a poll for each of the two.
    pub const fn messages(n: u64) -> Self {
        let twice = 2 * n;
        Self { post_send: n, post_recv: n, poll_cq: twice, requests: twice, completions: twice }
    }

    /// Returns the calls that `n` empty polls cause.
    pub const fn empty_polls(n: u64) -> Self {
        Self::writes(0, 0, n)
    }
}

/// A loop in `loops.c`. It exists in three versions, whose names begin with `bare_`, `checked_` and
/// `credited_`.
#[derive(Clone, Copy, Debug)]
pub struct CLoop {
    name: &'static str,
    /// Returns the calls that `n` operations cause.
    pub calls: fn(u64) -> Calls,
    /// Returns the sum that the loop computes over `n` operations: that of the polled IDs and
    /// message lengths.
    pub sum: fn(u64) -> u64,
}

impl CLoop {
    /// Posts a write, and polls its completion.
    pub const ONE: Self = Self { name: "one", calls: |n| Calls::writes(n, n, n), sum: ids };
    /// Posts [`DEPTH`] writes, and polls all their completions at once.
    pub const OUTSTANDING: Self =
        Self { name: "outstanding", calls: |n| Calls::writes(n, n, n / DEPTH as u64), sum: ids };
    /// Posts [`DEPTH`] writes. Only the last one is signaled, and its completion is polled.
    pub const UNSIGNALED: Self = Self {
        name: "unsignaled",
        calls: Calls::unsignaled,
        sum: |n| (0..n / DEPTH as u64).map(|run| (run + 1) * DEPTH as u64 - 1).sum(),
    };
    /// Posts [`DEPTH`] writes in one call, and polls all their completions at once.
    pub const BATCHES: Self = Self {
        name: "batches",
        calls: |n| Calls::writes(n, n / DEPTH as u64, n / DEPTH as u64),
        sum: ids,
    };
    /// Posts a receive and a send, and polls the completion of each.
    pub const MESSAGES: Self =
        Self { name: "messages", calls: Calls::messages, sum: |n| 2 * ids(n) + n * LENGTH as u64 };
}

/// Returns the sum of the IDs of `n` operations.
pub const fn ids(n: u64) -> u64 {
    n * (n - 1) / 2
}

/// Runs loops, each with [`OPERATIONS`] operations and with twice as many, so that callgrind can
/// count both runs.
#[allow(missing_debug_implementations)] // like the rig
pub struct Loops {
    object: CObject,
    end: End,
    // `end` points to the objects in the fields below, which are dropped in their order.
    _queues: (Qp, Cq, Cq),
    _memory: Mr,
    _pd: Pd,
}

impl Loops {
    /// Creates the objects for the loops in this context. Redirects the posts and polls on the
    /// context's objects to the quiet device in this object file.
    ///
    /// # Panics
    /// Panics if the object cannot be loaded, or was compiled for structs that differ from those in
    /// rdma-sys.
    ///
    /// # Safety
    /// The object was built by [`compile`](crate::quiet_device::compile). The context outlives this
    /// value. Its objects are used only in the loops, which post to one queue pair.
    pub unsafe fn new(object: &Path, context: *mut ibv_context) -> Self {
        // SAFETY: the caller upholds the same contract.
        let object = unsafe { CObject::load(object) };
        // The context's owner closes it.
        let owned = ManuallyDrop::new(Context(context));
        let pd = owned.pd();
        let (send_cq, recv_cq) = (owned.cq(64), owned.cq(64));
        // The queue pair is never connected. The quiet device does not check that.
        let qp = pd.qp(&send_cq, &recv_cq, &Size::default());
        let memory = pd.register(PLACES * LENGTH, LOCAL_WRITE | REMOTE_WRITE);
        let end = End::new(&qp, &send_cq, &recv_cq, &pd, &memory);
        // SAFETY: the context is live, as the caller promises.
        unsafe { object.attach(context) };
        Self { object, end, _queues: (qp, send_cq, recv_cq), _memory: memory, _pd: pd }
    }

    /// Runs a loop in C. `kind` is `bare`, `checked` or `credited`.
    ///
    /// # Panics
    /// Panics if the loop's calls or its sum differ from the expected ones.
    pub fn c(&mut self, kind: &str, work: CLoop) {
        self.run_c(&format!("{kind}_{}", work.name), work.calls, work.sum);
    }

    /// Runs `work`, a loop in Rust that is expected to cause these calls and to compute this sum.
    ///
    /// # Panics
    /// Panics if the calls or the sum differ from the expected ones.
    pub fn rust(
        &mut self,
        name: &str,
        calls: fn(u64) -> Calls,
        sum: fn(u64) -> u64,
        work: &mut dyn FnMut(u64) -> u64,
    ) {
        both(&self.object, name, calls, sum, work);
    }

    /// Runs empty polls in C.
    ///
    /// # Panics
    /// Panics if a poll returns a completion.
    pub fn empty_polls(&mut self) {
        self.run_c("empty_polls", Calls::empty_polls, |_| 0);
    }

    /// Redirects the `ibv_wr_*` functions of this queue pair to the quiet device. The loop of
    /// [`extended`](Self::extended) then uses the queue pair.
    ///
    /// # Safety
    /// The queue pair outlives this value, was created for posts with `ibv_wr_*`, and belongs to
    /// the context.
    pub unsafe fn attach_extended(&mut self, qp: *mut ibv_qp_ex) {
        type Attach = unsafe extern "C" fn(*mut ibv_qp_ex);
        // SAFETY: the C file declares the symbol with this type.
        let attach = unsafe { self.object.symbol::<Attach>("quiet_device_attach_extended") };
        // SAFETY: the caller upholds the same contract.
        unsafe { attach(qp) };
        self.end.extended = qp;
    }

    /// Runs a loop in C that posts each write with `ibv_wr_*`, and polls its completion.
    ///
    /// # Panics
    /// Panics if [`attach_extended`](Self::attach_extended) was not called, or if the calls or the
    /// sum differ from the expected ones.
    pub fn extended(&mut self) {
        assert!(!self.end.extended.is_null(), "no queue pair: call `attach_extended` first");
        self.run_c("extended_one", CLoop::ONE.calls, CLoop::ONE.sum);
    }

    fn run_c(&mut self, name: &str, calls: fn(u64) -> Calls, sum: fn(u64) -> u64) {
        type Loop = unsafe extern "C" fn(*mut End, u64) -> u64;
        let Self { object, end, .. } = self;
        // SAFETY: all loops have this type.
        let function = unsafe { object.symbol::<Loop>(name) };
        // SAFETY: the objects to which `end` points outlive this call.
        both(object, name, calls, sum, &mut |n| unsafe { function(end, n) });
    }

    /// Returns the calls since the last loop ended or, if later, since this function was last
    /// called.
    pub fn calls(&self) -> Calls {
        self.object.calls()
    }
}

fn both(
    object: &CObject,
    name: &str,
    calls: fn(u64) -> Calls,
    sum: fn(u64) -> u64,
    work: &mut dyn FnMut(u64) -> u64,
) {
    for n in [OPERATIONS, 2 * OPERATIONS] {
        let found = counted(work, n);
        assert_eq!((object.calls(), found), (calls(n), sum(n)), "{name}");
    }
}

/// The function whose instructions callgrind counts. Callgrind finds it by its name.
#[inline(never)]
pub fn counted(work: &mut dyn FnMut(u64) -> u64, n: u64) -> u64 {
    black_box(work(black_box(n)))
}

/// Same layout as `struct end` in `loops.c`.
#[repr(C)]
struct End {
    qp: *mut ibv_qp,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    region: Region,
    remote: Remote,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    send_credits: u32,
    recv_credits: u32,
    elements: [ibv_sge; PLACES],
    extended: *mut ibv_qp_ex,
}

#[repr(C)]
struct Region {
    address: u64,
    length: u64,
    lkey: u32,
    pd: *mut ibv_pd,
}

#[repr(C)]
struct Remote {
    address: u64,
    length: u64,
    rkey: u32,
}

/// The number of requests that the loops may post at the beginning, before they poll a completion.
const CREDITS: u32 = 16;

impl End {
    fn new(qp: &Qp, send_cq: &Cq, recv_cq: &Cq, pd: &Pd, memory: &Mr) -> Self {
        let (address, length) = (memory.address(), (PLACES * LENGTH) as u64);
        let ibv_qp_cap { max_send_sge, max_recv_sge, max_inline_data, .. } = qp.capacity();
        Self {
            qp: qp.0,
            send_cq: send_cq.0,
            recv_cq: recv_cq.0,
            region: Region { address, length, lkey: memory.key(), pd: pd.0 },
            remote: Remote { address, length, rkey: memory.rkey() },
            max_send_sge,
            max_recv_sge,
            max_inline_data,
            send_credits: CREDITS,
            recv_credits: CREDITS,
            elements: std::array::from_fn(|place| memory.sge(place * LENGTH, LENGTH)),
            extended: null_mut(),
        }
    }
}

/// The offsets that `quiet_device_layout` in the object must contain too.
const LAYOUT: [usize; 21] = [
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, poll_cq),
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_send),
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_recv),
    offset_of!(ibv_qp, send_cq),
    offset_of!(ibv_qp, recv_cq),
    offset_of!(ibv_qp, qp_num),
    size_of::<ibv_send_wr>(),
    offset_of!(ibv_send_wr, send_flags),
    offset_of!(ibv_send_wr, wr),
    size_of::<ibv_recv_wr>(),
    offset_of!(ibv_recv_wr, num_sge),
    size_of::<ibv_wc>(),
    offset_of!(ibv_wc, byte_len),
    offset_of!(ibv_wc, qp_num),
    offset_of!(ibv_wc, wc_flags),
    offset_of!(ibv_qp_ex, wr_id),
    offset_of!(ibv_qp_ex, wr_flags),
    offset_of!(ibv_qp_ex, wr_rdma_write),
    offset_of!(ibv_qp_ex, wr_set_sge),
    offset_of!(ibv_qp_ex, wr_start),
    offset_of!(ibv_qp_ex, wr_complete),
];

/// The loaded shared object, which [`compile`](crate::quiet_device::compile) has built.
struct CObject(Library);

impl CObject {
    /// # Safety
    /// The object was built by [`compile`](crate::quiet_device::compile).
    unsafe fn load(object: &Path) -> Self {
        // SAFETY: the object has no initialisers.
        let library = unsafe { Library::new(object) }.expect("what gcc made can be loaded");
        // SAFETY: the C file declares the symbol with this type.
        let layout = unsafe { library.get::<*const [usize; 21]>(b"quiet_device_layout") };
        // SAFETY: the symbol's value points to a constant in the object, which stays loaded.
        let layout = unsafe { **layout.expect("the layout is in the object") };
        assert_eq!(layout, LAYOUT, "verbs.h of the quiet device is not what rdma-sys has");
        Self(library)
    }

    /// # Safety
    /// `T` is the type with which the C file declares the symbol.
    unsafe fn symbol<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.get(name.as_bytes()) }.expect("it is in the object")
    }

    /// # Safety
    /// The contract of [`Loops::new`] applies.
    unsafe fn attach(&self, context: *mut ibv_context) {
        type Attach = unsafe extern "C" fn(*mut ibv_context);
        // SAFETY: the C file declares the symbol with this type.
        let attach = unsafe { self.symbol::<Attach>("quiet_device_attach") };
        // SAFETY: the caller upholds the same contract.
        unsafe { attach(context) };
    }

    /// Returns the calls since this function was last called.
    fn calls(&self) -> Calls {
        // SAFETY: the C file declares the symbol with this type.
        let calls = unsafe { self.symbol::<unsafe extern "C" fn() -> Calls>("quiet_device_calls") };
        // SAFETY: the function only copies a struct.
        unsafe { calls() }
    }
}
