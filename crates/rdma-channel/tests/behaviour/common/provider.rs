//! A provider with faults: the software device, whose functions fail or lie when this thread says so.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use rdma_mem::{Context, DeviceList, Errno};
use rdma_sys::{
    Verbs, ibv_context, ibv_cq, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_recv_wr,
    ibv_send_wr, ibv_wc,
};

/// What a post says that was executed, or was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// The truth.
    Honest,
    /// An error without `bad_wr`, of a request that was posted.
    Doubtful,
    /// An error without `bad_wr`, of a request that was not posted.
    DoubtfulAndRefused,
    /// An error with `bad_wr`.
    Refused(Errno),
    /// As many of a longer list are posted, at least one; then an error with `bad_wr`.
    Partly(usize),
}

/// What completions become.
type Edit = Box<dyn FnMut(ibv_wc) -> Vec<ibv_wc>>;

thread_local! {
    /// What all polls return, instead of polling.
    pub(crate) static POLL: Cell<Option<c_int>> = const { Cell::new(None) };
    /// As [`POLL`], as often.
    pub(crate) static POLLS: Cell<u32> = const { Cell::new(0) };
    pub(crate) static POST: Cell<Post> = const { Cell::new(Post::Honest) };
    /// Posts that are honest before [`POST`] holds.
    pub(crate) static HONEST_POSTS: Cell<u32> = const { Cell::new(0) };
    /// How many calls there were to post, of one request or of many.
    pub(crate) static DOORBELLS: Cell<u32> = const { Cell::new(0) };
    /// Whether queue pairs refuse to be destroyed.
    pub(crate) static KEEP: Cell<bool> = const { Cell::new(false) };
    /// The number of a queue pair that refuses alone to be destroyed.
    pub(crate) static KEPT: Cell<Option<u32>> = const { Cell::new(None) };
    /// Whether queue pairs refuse to go to error.
    pub(crate) static STAY: Cell<bool> = const { Cell::new(false) };
    /// How many queue pairs were destroyed.
    pub(crate) static DESTROYED: Cell<u32> = const { Cell::new(0) };
    /// A completion that comes with each poll.
    pub(crate) static ENDLESS: Cell<Option<ibv_wc>> = const { Cell::new(None) };
    static AT_POLL: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static EDIT: RefCell<Option<Edit>> = const { RefCell::new(None) };
    static EDITED: RefCell<VecDeque<ibv_wc>> = const { RefCell::new(VecDeque::new()) };
}

/// Does that at the beginning of the next poll: when requests are posted, and are waited for. A panic of
/// it aborts.
pub(crate) fn at_next_poll<T>(run: impl FnOnce() -> T + 'static) {
    AT_POLL.set(Some(Box::new(|| drop(run()))));
}

/// Each completion that comes is replaced by these.
pub(crate) fn edit(with: impl FnMut(ibv_wc) -> Vec<ibv_wc> + 'static) {
    EDIT.set(Some(Box::new(with)));
}

/// Another completion, of nobody's making.
pub(crate) fn invent(completion: ibv_wc) {
    EDITED.with_borrow_mut(|waiting| waiting.push_back(completion));
}

/// The number that a completion of this handle has.
pub(crate) fn wr_id(id: impl ToString) -> u64 {
    let text = id.to_string();
    let (index, generation) = text.strip_prefix("work ").unwrap().split_once('.').unwrap();
    generation.parse::<u64>().unwrap() << 30 | index.parse::<u64>().unwrap()
}

/// All is as it was.
pub(crate) fn honest() {
    POLL.set(None);
    POST.set(Post::Honest);
    EDIT.set(None);
    POLLS.set(0);
    HONEST_POSTS.set(0);
    ENDLESS.set(None);
    KEEP.set(false);
    KEPT.set(None);
    STAY.set(false);
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
    if POLLS.get() > 0 {
        POLLS.set(POLLS.get() - 1);
        return -1;
    }
    if let Some(failed) = POLL.get() {
        return failed;
    }
    if let Some(completion) = ENDLESS.get() {
        // SAFETY: SAFETY.md F12: room for at least one.
        unsafe { out.write(completion) };
        return 1;
    }
    let mut waiting = EDITED.take();
    EDIT.with_borrow_mut(|edit| {
        let Some(edit) = edit else { return };
        let mut completion = ibv_wc::default();
        // SAFETY: SAFETY.md F1: the caller's own contract, and room for one.
        while unsafe { (ops().poll)(cq, 1, &raw mut completion) } == 1 {
            waiting.extend(edit(completion));
        }
    });
    let mut returned = 0;
    while returned < count
        && let Some(completion) = waiting.pop_front()
    {
        // SAFETY: SAFETY.md F12: so many places there are.
        let place = unsafe { out.add(usize::try_from(returned).unwrap()) };
        // SAFETY: SAFETY.md F12: as above.
        unsafe { place.write(completion) };
        returned += 1;
    }
    EDITED.set(waiting);
    if returned == 0 && EDIT.with_borrow(Option::is_none) {
        // SAFETY: SAFETY.md F1: the caller's own contract.
        return unsafe { (ops().poll)(cq, count, out) };
    }
    returned
}

/// What this post is to say.
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
                    // SAFETY: SAFETY.md F1: the caller's own contract.
                    unsafe { (ops().$honest)(qp, list, bad) }
                }
                Post::Doubtful => {
                    // SAFETY: SAFETY.md F1: the caller's own contract.
                    assert_eq!(unsafe { (ops().$honest)(qp, list, bad) }, 0);
                    Errno::EIO.raw()
                }
                Post::DoubtfulAndRefused => Errno::EIO.raw(),
                Post::Refused(errno) => {
                    // SAFETY: SAFETY.md F1: the caller's own contract.
                    unsafe { bad.write(list) };
                    errno.raw()
                }
                Post::Partly(count) => {
                    let mut last = list;
                    for _ in 1..count {
                        // SAFETY: SAFETY.md F1: the caller's own contract: a list, which is longer.
                        last = unsafe { (*last).next };
                    }
                    // SAFETY: SAFETY.md F1: as above.
                    let rest = unsafe { mem::replace(&mut (*last).next, ptr::null_mut()) };
                    // SAFETY: SAFETY.md F1: the caller's own contract, of a part of the list.
                    assert_eq!(unsafe { (ops().$honest)(qp, list, bad) }, 0);
                    // SAFETY: SAFETY.md F1: the caller's own contract.
                    unsafe { (*last).next = rest };
                    // SAFETY: SAFETY.md F1: the caller's own contract.
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
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let to = unsafe { (*attr).qp_state };
    if STAY.get() && mask & state != 0 && to == ibv_qp_state::IBV_QPS_ERR {
        return Errno::EINVAL.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().modify_qp)(qp, attr, mask) }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let number = unsafe { (*qp).qp_num };
    if KEEP.get() || KEPT.get() == Some(number) {
        return Errno::EBUSY.raw();
    }
    DESTROYED.set(DESTROYED.get() + 1);
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().destroy_qp)(qp) }
}

/// A context of that device with these faults.
pub(crate) fn faulty(device: &str) -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    super::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.modify_qp = modify_qp;
        verbs.destroy_qp = destroy_qp;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    let context = list.iter().find(|found| found.name() == device).unwrap().open().unwrap();
    plant(context.as_raw());
    context
}

fn plant(context: *mut ibv_context) {
    // SAFETY: SAFETY.md F1: a live context, which nobody else knows yet.
    let ops = unsafe { &mut (*context).ops };
    let poll = ops.poll_cq.replace(poll_cq).unwrap();
    let send = ops.post_send.replace(post_send).unwrap();
    let receive = ops.post_recv.replace(post_recv).unwrap();
    let _ = OPS.set(Ops { poll, send, receive });
}
