//! The quiet device and the loops in C, loaded, and how their instructions are counted.
#![allow(unsafe_code)]
#![allow(clippy::expect_used)] // A bench that fails says so.

use std::hint::black_box;
use std::mem::{offset_of, size_of};
use std::path::Path;

use libloading::{Library, Symbol};
use rdma_sys::{
    ibv_context, ibv_context_ops, ibv_cq, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

use crate::callgrind::Profile;

/// How many requests are outstanding, and how many a batch has.
pub const DEPTH: usize = 16;
/// In how many places the data of the requests is, in turn.
pub const PLACES: usize = 64;
/// How long it is, in bytes.
pub const LENGTH: usize = 8;
/// Each loop runs with so many operations, and with twice as many.
pub const OPERATIONS: u64 = 1024;

/// What the loops work with: `struct end` of `loops.c`.
#[derive(Debug)]
#[repr(C)]
pub struct End {
    qp: *mut ibv_qp,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    region: Region,
    remote: Remote,
    limits: Limits,
    send_credits: u32,
    recv_credits: u32,
    elements: [ibv_sge; PLACES],
}

#[derive(Debug)]
#[repr(C)]
struct Region {
    address: u64,
    length: u64,
    lkey: u32,
    pd: *mut ibv_pd,
}

/// Memory of a peer.
#[allow(clippy::exhaustive_structs)] // as in C
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Remote {
    /// Where it begins.
    pub address: u64,
    /// How many bytes it has.
    pub length: u64,
    /// Its key.
    pub rkey: u32,
}

/// What the queues of a queue pair take.
#[allow(clippy::exhaustive_structs)] // as in C
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Limits {
    /// Elements of a request of the send queue.
    pub max_send_sge: u32,
    /// Elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of an inline request.
    pub max_inline_data: u32,
}

/// What was called, as `struct quiet_device_calls` has it.
#[allow(clippy::exhaustive_structs)] // as in C
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Calls {
    /// Calls of `ibv_post_send`.
    pub post_send: u64,
    /// Calls of `ibv_post_recv`.
    pub post_recv: u64,
    /// Calls of `ibv_poll_cq`.
    pub poll_cq: u64,
    /// How many requests there were.
    pub requests: u64,
    /// How many completions there were.
    pub completions: u64,
}

impl Calls {
    /// Those of writes, in so many posts, and taken by so many polls.
    pub const fn writes(requests: u64, post_send: u64, poll_cq: u64) -> Self {
        Self { post_send, post_recv: 0, poll_cq, requests, completions: requests }
    }

    /// Those of messages, one at a time: a receive and a send each, and a poll for either.
    pub const fn messages(n: u64) -> Self {
        let twice = 2 * n;
        Self { post_send: n, post_recv: n, poll_cq: twice, requests: twice, completions: twice }
    }
}

type Loop = unsafe extern "C" fn(*mut End, u64) -> u64;

/// As `quiet_device_layout` has it.
const LAYOUT: [usize; 14] = [
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, poll_cq),
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_send),
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_recv),
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
];

/// What [`compile`](crate::quiet_device::compile) has made, loaded.
#[derive(Debug)]
pub struct CObject(Library);

impl CObject {
    /// Loads it.
    ///
    /// # Panics
    /// If it cannot be loaded, or was made for other structs than those of rdma-sys.
    pub fn load(object: &Path) -> Self {
        // SAFETY: it has no initialisers.
        let library = unsafe { Library::new(object) }.expect("what gcc made can be loaded");
        // SAFETY: the type that the C file has.
        let layout = unsafe { library.get::<*const [usize; 14]>(b"quiet_device_layout") };
        // SAFETY: a constant of the object, which stays loaded.
        let layout = unsafe { **layout.expect("it is there") };
        assert_eq!(layout, LAYOUT, "verbs.h of the quiet device is not what rdma-sys has");
        Self(library)
    }

    /// # Safety
    /// The type is that of the C file.
    unsafe fn symbol<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the same contract.
        unsafe { self.0.get(name.as_bytes()) }.expect("it is in the object")
    }

    /// From now on, what is posted to queue pairs of this one's context goes to the quiet device, and is
    /// polled from their completion queues.
    ///
    /// # Safety
    /// The queue pair is live, and nobody uses an object of its context meanwhile. Every queue pair of it
    /// that is used from now on either completes its receives in the completion queue that this one's do,
    /// or in that of its sends, and they are used in turn.
    pub unsafe fn attach(&self, qp: *mut ibv_qp) {
        type Attach = unsafe extern "C" fn(*mut ibv_qp);
        // SAFETY: the type that the C file has.
        let attach = unsafe { self.symbol::<Attach>("quiet_device_attach") };
        // SAFETY: the same contract.
        unsafe { attach(qp) };
    }

    /// What was called since the last time that it was asked.
    pub fn calls(&self) -> Calls {
        // SAFETY: the type that the C file has.
        let calls = unsafe { self.symbol::<unsafe extern "C" fn() -> Calls>("quiet_device_calls") };
        // SAFETY: it copies a struct.
        unsafe { calls() }
    }

    /// Runs a loop of `loops.c` with so many operations; what it returns.
    pub fn run(&self, name: &str, end: &mut End, n: u64) -> u64 {
        // SAFETY: the type of all loops.
        let function = unsafe { self.symbol::<Loop>(name) };
        // SAFETY: `end` is as `End::new` was promised.
        unsafe { function(end, n) }
    }
}

impl End {
    /// What the loops work with: this queue pair, whose completion queues differ, and [`PLACES`] places of
    /// memory of its domain from `data` on.
    ///
    /// # Safety
    /// The queue pair is live as long as loops run with this.
    pub unsafe fn new(qp: *mut ibv_qp, data: ibv_sge, remote: Remote, limits: Limits) -> Self {
        // SAFETY: live, and these fields do not change.
        let &ibv_qp { pd, send_cq, recv_cq, .. } = unsafe { &*qp };
        let ibv_sge { addr: address, length, lkey } = data;
        let region = Region { address, length: u64::from(length), lkey, pd };
        let element = |place: usize| ibv_sge {
            addr: address + (place * LENGTH) as u64,
            length: u32::try_from(LENGTH).unwrap_or(0),
            lkey,
        };
        let elements = std::array::from_fn(element);
        let (send_credits, recv_credits) = (16, 16);
        Self { qp, send_cq, recv_cq, region, remote, limits, send_credits, recv_credits, elements }
    }
}

/// What callgrind counts. It finds the function by its name.
#[inline(never)]
pub fn counted(work: &mut dyn FnMut(u64) -> u64, n: u64) -> u64 {
    black_box(work(black_box(n)))
}

/// What an operation costs beside the device, from a run of [`OPERATIONS`] and one of twice as many.
#[allow(clippy::cast_precision_loss)] // a few thousand
pub fn cost(once: &Profile, twice: &Profile) -> f64 {
    let own = |profile: &Profile| profile.of(|function| !function.starts_with("quiet_"));
    (own(twice) - own(once)) as f64 / OPERATIONS as f64
}
