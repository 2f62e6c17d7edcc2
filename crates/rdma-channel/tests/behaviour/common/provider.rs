//! A provider with faults: the software device, with functions that fail or lie when this thread requests it.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use rdma_mem::{Context, DeviceList, Errno};
use rdma_sys::{
    Verbs, ibv_context, ibv_cq, ibv_mr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_qp_state, ibv_recv_wr, ibv_send_wr, ibv_wc,
};

/// The result that a post reports, and whether it was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// The true result.
    Honest,
    /// An error without `bad_wr`, for a request that was posted.
    Doubtful,
    /// An error without `bad_wr`, for a request that was not posted.
    DoubtfulAndRefused,
    /// An error with `bad_wr`.
    Refused(Errno),
    /// This number of requests of a longer list is posted, at least one; then an error with `bad_wr`.
    Partly(usize),
}

/// Replaces a completion by others.
type Edit = Box<dyn FnMut(ibv_wc) -> Vec<ibv_wc>>;

thread_local! {
    /// The result of all polls, which then do nothing else.
    pub(crate) static POLL: Cell<Option<c_int>> = const { Cell::new(None) };
    /// The number of polls that [`POLL`] applies to.
    pub(crate) static POLLS: Cell<u32> = const { Cell::new(0) };
    pub(crate) static POST: Cell<Post> = const { Cell::new(Post::Honest) };
    /// Number of honest posts before [`POST`] applies.
    pub(crate) static HONEST_POSTS: Cell<u32> = const { Cell::new(0) };
    /// Number of calls to post, of one request or of many.
    pub(crate) static DOORBELLS: Cell<u32> = const { Cell::new(0) };
    /// Whether queue pairs refuse to be destroyed.
    pub(crate) static KEEP: Cell<bool> = const { Cell::new(false) };
    /// The number of the only queue pair that refuses to be destroyed.
    pub(crate) static KEPT: Cell<Option<u32>> = const { Cell::new(None) };
    /// Whether queue pairs refuse to enter the error state.
    pub(crate) static STAY: Cell<bool> = const { Cell::new(false) };
    /// Whether regions refuse to be deregistered.
    pub(crate) static KEEP_REGIONS: Cell<bool> = const { Cell::new(false) };
    /// Whether queue pairs only pretend to enter the error state.
    pub(crate) static PRETEND: Cell<bool> = const { Cell::new(false) };
    /// Number of destroyed queue pairs.
    pub(crate) static DESTROYED: Cell<u32> = const { Cell::new(0) };
    /// Whether polls find nothing until a queue pair is queried.
    pub(crate) static UNTIL_QUERY: Cell<bool> = const { Cell::new(false) };
    /// A completion that each poll returns.
    pub(crate) static ENDLESS: Cell<Option<ibv_wc>> = const { Cell::new(None) };
    static AT_POLL: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static EDIT: RefCell<Option<Edit>> = const { RefCell::new(None) };
    static EDITED: RefCell<VecDeque<ibv_wc>> = const { RefCell::new(VecDeque::new()) };
}

/// Runs a closure at the beginning of the next poll, when requests are posted and being waited for. If it panics, the
/// process aborts.
pub(crate) fn at_next_poll<T>(run: impl FnOnce() -> T + 'static) {
    AT_POLL.set(Some(Box::new(|| drop(run()))));
}

/// Replaces each completion by the ones that `with` returns.
pub(crate) fn edit(with: impl FnMut(ibv_wc) -> Vec<ibv_wc> + 'static) {
    EDIT.set(Some(Box::new(with)));
}

/// Adds an invented completion.
pub(crate) fn invent(completion: ibv_wc) {
    EDITED.with_borrow_mut(|waiting| waiting.push_back(completion));
}

/// The WR ID that a completion for this handle has.
pub(crate) fn wr_id(id: impl ToString) -> u64 {
    let text = id.to_string();
    let (index, generation) = text.strip_prefix("work ").unwrap().split_once('.').unwrap();
    generation.parse::<u64>().unwrap() << 30 | index.parse::<u64>().unwrap()
}

/// Resets all faults.
pub(crate) fn honest() {
    POLL.set(None);
    POST.set(Post::Honest);
    EDIT.set(None);
    POLLS.set(0);
    HONEST_POSTS.set(0);
    ENDLESS.set(None);
    KEEP.set(false);
    KEEP_REGIONS.set(false);
    KEPT.set(None);
    STAY.set(false);
    PRETEND.set(false);
    UNTIL_QUERY.set(false);
}

struct Ops {
    poll: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    receive: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

static OPS: OnceLock<Ops> = OnceLock::new();

fn ops() -> &'static Ops {
    OPS.get().unwrap()
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, out: *mut ibv_wc) -> c_int {
    if let Some(run) = AT_POLL.take() {
        run();
    }
    if UNTIL_QUERY.get() {
        return 0;
    }
    if POLLS.get() > 0 {
        POLLS.set(POLLS.get() - 1);
        return -1;
    }
    if let Some(failed) = POLL.get() {
        return failed;
    }
    if let Some(completion) = ENDLESS.get() {
        // SAFETY: SAFETY.md F12: there is room for at least one completion.
        unsafe { out.write(completion) };
        return 1;
    }
    let mut waiting = EDITED.take();
    EDIT.with_borrow_mut(|edit| {
        let Some(edit) = edit else { return };
        let mut completion = ibv_wc::default();
        // SAFETY: SAFETY.md F1: the caller upholds the same contract, and there is room for one completion.
        while unsafe { (ops().poll)(cq, 1, &raw mut completion) } == 1 {
            waiting.extend(edit(completion));
        }
    });
    let mut returned = 0;
    while returned < count
        && let Some(completion) = waiting.pop_front()
    {
        // SAFETY: SAFETY.md F12: the array has more places than `returned`.
        let place = unsafe { out.add(usize::try_from(returned).unwrap()) };
        // SAFETY: SAFETY.md F12: as above.
        unsafe { place.write(completion) };
        returned += 1;
    }
    EDITED.set(waiting);
    if returned == 0 && EDIT.with_borrow(Option::is_none) {
        // SAFETY: SAFETY.md F1: the caller upholds the same contract.
        return unsafe { (ops().poll)(cq, count, out) };
    }
    returned
}

/// The fault of this post.
fn post() -> Post {
    DOORBELLS.set(DOORBELLS.get() + 1);
    match HONEST_POSTS.get() {
        0 => POST.get(),
        left => {
            HONEST_POSTS.set(left - 1);
            Post::Honest
        }
    }
}

macro_rules! posts {
    ($($name:ident: $request:ident => $honest:ident;)+) => {$(
        unsafe extern "C" fn $name(
            qp: *mut ibv_qp,
            list: *mut $request,
            bad: *mut *mut $request,
        ) -> c_int {
            match post() {
                Post::Honest => {
                    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
                    unsafe { (ops().$honest)(qp, list, bad) }
                }
                Post::Doubtful => {
                    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
                    assert_eq!(unsafe { (ops().$honest)(qp, list, bad) }, 0);
                    Errno::EIO.raw()
                }
                Post::DoubtfulAndRefused => Errno::EIO.raw(),
                Post::Refused(errno) => {
                    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
                    unsafe { bad.write(list) };
                    errno.raw()
                }
                Post::Partly(count) => {
                    let mut last = list;
                    for _ in 1..count {
                        // SAFETY: SAFETY.md F1: the caller upholds the same contract: it is a list, and it is longer
                        // than `count`.
                        last = unsafe { (*last).next };
                    }
                    // SAFETY: SAFETY.md F1: as above.
                    let rest = unsafe { mem::replace(&mut (*last).next, ptr::null_mut()) };
                    // SAFETY: SAFETY.md F1: the caller upholds the same contract, for a part of the list.
                    assert_eq!(unsafe { (ops().$honest)(qp, list, bad) }, 0);
                    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
                    unsafe { (*last).next = rest };
                    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
                    unsafe { bad.write(rest) };
                    Errno::EIO.raw()
                }
            }
        }
    )+};
}

posts! {
    post_send: ibv_send_wr => send;
    post_recv: ibv_recv_wr => receive;
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let state = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
    let to = unsafe { (*attr).qp_state };
    if mask & state != 0 && to == ibv_qp_state::IBV_QPS_ERR {
        if STAY.get() {
            return Errno::EINVAL.raw();
        }
        if PRETEND.get() {
            return 0;
        }
    }
    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
    unsafe { (rdma_soft::verbs().modify_qp)(qp, attr, mask) }
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    UNTIL_QUERY.set(false);
    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
    unsafe { (rdma_soft::verbs().query_qp)(qp, attr, mask, init) }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
    let number = unsafe { (*qp).qp_num };
    if KEEP.get() || KEPT.get() == Some(number) {
        return Errno::EBUSY.raw();
    }
    DESTROYED.set(DESTROYED.get() + 1);
    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
    unsafe { (rdma_soft::verbs().destroy_qp)(qp) }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    if KEEP_REGIONS.get() {
        return Errno::EBUSY.raw();
    }
    // SAFETY: SAFETY.md F1: the caller upholds the same contract.
    unsafe { (rdma_soft::verbs().dereg_mr)(mr) }
}

/// A context of this device with these faults.
pub(crate) fn faulty(device: &str) -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    super::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.modify_qp = modify_qp;
        verbs.query_qp = query_qp;
        verbs.destroy_qp = destroy_qp;
        verbs.dereg_mr = dereg_mr;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are those of the software device, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    let context = list.iter().find(|found| found.name() == device).unwrap().open().unwrap();
    plant(context.as_raw());
    context
}

fn plant(context: *mut ibv_context) {
    // SAFETY: SAFETY.md F1: the context is live, and no other code knows it yet.
    let ops = unsafe { &mut (*context).ops };
    let poll = ops.poll_cq.replace(poll_cq).unwrap();
    let send = ops.post_send.replace(post_send).unwrap();
    let receive = ops.post_recv.replace(post_recv).unwrap();
    let _ = OPS.set(Ops { poll, send, receive });
}
