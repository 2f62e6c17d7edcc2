//! A provider with faults: the software device, with functions that fail or lie when a test requests it. It tracks live
//! objects and the memory that the device may use. Each context has its own provider, whatever thread calls.
#![allow(unsafe_code)]

mod events;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rdma_mem::{DeviceList, Errno, ProtectionDomain};
use rdma_sys::{
    Verbs, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_mw, ibv_mw_type, ibv_pd, ibv_qp,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, ibv_wr_opcode,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{HANG, install};

/// The result that a post reports.
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
}

/// Calls that can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Poll,
    RequestEvent,
    ReceiveEvent,
    DestroyQueuePair,
    RegisterRegion,
    DeregisterRegion,
    AllocateWindow,
    DeallocateWindow,
}

/// On every call.
pub(crate) const ALWAYS: u32 = u32::MAX;

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Context,
    Domain,
    Region,
    Channel,
    CompletionQueue,
    QueuePair,
    Window,
}

/// Completions to add to each honest one.
type Lies = Box<dyn FnMut(ibv_wc) -> Vec<ibv_wc> + Send>;

/// Called before a region is registered or deregistered.
type AtRegion = Box<dyn FnMut(Call) + Send>;

/// Memory that the device may use.
struct Lent {
    qp: usize,
    qpn: u32,
    wr_id: u64,
    lkey: u32,
    /// The window that it binds.
    window: usize,
    bytes: Range<u64>,
    is_written: bool,
}

#[derive(Default)]
struct ProviderState {
    posts: VecDeque<Post>,
    lies: Option<Lies>,
    /// Completions that are still to be polled, and whether they are lies.
    to_come: VecDeque<(ibv_wc, bool)>,
    lied: usize,
    at_destroy: Option<Box<dyn FnMut() + Send>>,
    at_region: Option<AtRegion>,
    /// The number of objects of each kind.
    live: [usize; 7],
    lent: Vec<Lent>,
    /// The number of posted requests.
    posted: usize,
    /// Whether windows are bound to the whole of their regions, whatever range was requested.
    is_unbounded: bool,
    /// Whether a port event is reported as an event of the device.
    is_fatal: bool,
    /// Violations of the provider's contract by its user.
    wrongs: Vec<String>,
}

/// The provider of one context.
#[derive(Default)]
pub(crate) struct Provider {
    refuses: [AtomicU32; 8],
    state: Mutex<ProviderState>,
    is_closed: Notify,
}

impl Provider {
    /// A domain of a context of that device with these faults.
    pub(crate) fn faulty(device: &str) -> (ProtectionDomain, Arc<Self>) {
        static TABLE: OnceLock<Verbs> = OnceLock::new();
        install();
        // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
        let list = unsafe { DeviceList::of(TABLE.get_or_init(table)) };
        let context = list.iter().find(|found| found.name() == device).unwrap().open().unwrap();
        let this = Arc::new(Self::default());
        this.made(Object::Context);
        contexts().insert(context.as_raw() as usize, Arc::clone(&this));
        plant(context.as_raw());
        (context.allocate_pd().unwrap(), this)
    }

    /// The call fails that many times from now on, without any effect.
    pub(crate) fn refuse(&self, call: Call, times: u32) {
        self.refuses[call as usize].store(times, Relaxed);
    }

    /// Sets the results of the next posts. Later ones are honest.
    pub(crate) fn next_posts(&self, posts: impl IntoIterator<Item = Post>) {
        self.state().posts.extend(posts);
    }

    /// These completions are polled before and after each honest one, except those with the WR ID of an outstanding
    /// request.
    pub(crate) fn lie(&self, with: impl FnMut(ibv_wc) -> Vec<ibv_wc> + Send + 'static) {
        self.state().lies = Some(Box::new(with));
    }

    /// Like [`lie`](Self::lie), for completions of the next poll.
    pub(crate) fn invent(&self, lies: impl IntoIterator<Item = ibv_wc>) {
        self.state().to_come.extend(lies.into_iter().map(|lie| (lie, true)));
    }

    /// The number of lies that were polled.
    pub(crate) fn lied(&self) -> usize {
        self.state().lied
    }

    /// Calls this whenever a queue pair is about to be destroyed.
    pub(crate) fn at_destroy(&self, run: impl FnMut() + Send + 'static) {
        self.state().at_destroy = Some(Box::new(run));
    }

    /// Calls this whenever a region is about to be registered or deregistered, on the thread that does it.
    pub(crate) fn at_region(&self, run: impl FnMut(Call) + Send + 'static) {
        self.state().at_region = Some(Box::new(run));
    }

    fn about_to(&self, call: Call) {
        let run = mem::take(&mut self.state().at_region);
        if let Some(mut run) = run {
            run(call);
            self.state().at_region.get_or_insert(run);
        }
    }

    /// The number of outstanding requests, whose memory the device may use.
    pub(crate) fn lent(&self) -> usize {
        self.state().lent.len()
    }

    /// The total number of posted requests.
    pub(crate) fn posted(&self) -> usize {
        self.state().posted
    }

    /// The number of objects of each kind: contexts, domains, regions, channels, completion queues, queue pairs,
    /// windows.
    pub(crate) fn live(&self) -> [usize; 7] {
        self.state().live
    }

    /// Records a violation.
    pub(crate) fn wrong(&self, what: String) {
        self.state().wrongs.push(what);
    }

    /// Checks that no memory was taken from the device too early.
    #[track_caller]
    pub(crate) fn assert_kept(&self) {
        assert_eq!(self.state().wrongs, [""; 0]);
    }

    /// Like [`assert_kept`](Self::assert_kept), and checks that no object is left.
    #[track_caller]
    pub(crate) fn assert_gone(&self) {
        self.assert_kept();
        assert_eq!(self.live(), [0; 7], "objects are left");
    }

    /// Like [`assert_gone`](Self::assert_gone), after the context was closed.
    pub(crate) async fn gone(&self) {
        let closed = timeout(HANG, self.is_closed.notified()).await;
        assert!(closed.is_ok(), "the context is not closed: {:?} are left", self.live());
        self.assert_gone();
    }

    fn state(&self) -> MutexGuard<'_, ProviderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuses(&self, call: Call) -> bool {
        let less = |left| match left {
            0 => None,
            ALWAYS => Some(ALWAYS),
            left => Some(left - 1),
        };
        self.refuses[call as usize].fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    fn made(&self, object: Object) {
        self.state().live[object as usize] += 1;
    }

    fn destroyed(&self, object: Object, at: usize) {
        let mut state = self.state();
        state.live[object as usize] -= 1;
        state.lent.retain(|lent| (object, at) != (Object::QueuePair, lent.qp));
    }

    /// Records memory that the device may use from now on.
    fn lend(
        &self,
        qp: *mut ibv_qp,
        wr_id: u64,
        elements: &[ibv_sge],
        bound: (usize, u32),
        is_written: bool,
    ) {
        // SAFETY: SAFETY.md F1: a live queue pair.
        let qpn = unsafe { (*qp).qp_num };
        let mut state = self.state();
        state.posted += 1;
        // A request without memory is outstanding, too.
        let nothing = [ibv_sge::default()];
        for element in if elements.is_empty() { &nothing } else { elements } {
            let bytes = element.addr..element.addr + u64::from(element.length);
            let overlaps = |lent: &&Lent| {
                let (bytes, of) = (&bytes, &lent.bytes);
                (is_written || lent.is_written) && bytes.start < of.end && of.start < bytes.end
            };
            if let Some(lent) = state.lent.iter().find(overlaps) {
                let wrong =
                    format!("{wr_id:#x} uses memory that is already lent to {:#x}", lent.wr_id);
                state.wrongs.push(wrong);
            }
            // A bind has no element.
            let (qp, window, lkey) = (qp as usize, bound.0, element.lkey.max(bound.1));
            state.lent.push(Lent { qp, qpn, wr_id, lkey, window, bytes, is_written });
        }
    }

    fn poll(&self, cq: *mut ibv_cq, room: &mut [ibv_wc]) -> c_int {
        if self.refuses(Call::Poll) {
            return -1;
        }
        let honest = |room: &mut [ibv_wc]| {
            let count = c_int::try_from(room.len()).unwrap();
            // SAFETY: SAFETY.md F1: the caller's own contract, and room for `count` entries.
            unsafe { (ops().poll)(cq, count, room.as_mut_ptr()) }
        };
        let state = &mut *self.state();
        let mut count = 0;
        if let Some(lies) = &mut state.lies {
            let mut one = [ibv_wc::default()];
            while honest(&mut one) == 1 {
                let all: Vec<_> = lies(one[0]).into_iter().map(|lie| (lie, true)).collect();
                state
                    .to_come
                    .extend(all.iter().copied().chain([(one[0], false)]).chain(all.clone()));
            }
        }
        while count < room.len()
            && let Some((completion, is_lie)) = state.to_come.pop_front()
        {
            let is_lent = state.lent.iter().any(|lent| lent.wr_id == completion.wr_id);
            if is_lie && is_lent {
                continue;
            }
            state.lied += usize::from(is_lie);
            room[count] = completion;
            count += 1;
            if !is_lie {
                state.give_back(&completion);
            }
        }
        if count < room.len() && state.lies.is_none() {
            let honest = usize::try_from(honest(&mut room[count..])).unwrap();
            room[count..count + honest].iter().for_each(|completion| state.give_back(completion));
            count += honest;
        }
        c_int::try_from(count).unwrap()
    }
}

impl ProviderState {
    fn give_back(&mut self, of: &ibv_wc) {
        self.lent.retain(|lent| (lent.qpn, lent.wr_id) != (of.qp_num, of.wr_id));
    }
}

static CONTEXTS: OnceLock<Mutex<HashMap<usize, Arc<Provider>>>> = OnceLock::new();

fn contexts() -> MutexGuard<'static, HashMap<usize, Arc<Provider>>> {
    CONTEXTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn of(context: *mut ibv_context) -> Arc<Provider> {
    Arc::clone(&contexts()[&(context as usize)])
}

/// The provider of an object.
macro_rules! of {
    ($object:expr) => {{
        // SAFETY: SAFETY.md F1: a live object.
        of(unsafe { (*$object).context })
    }};
}

struct Ops {
    poll: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    notify: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    receive: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    allocate: unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw,
    deallocate: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
}

static OPS: OnceLock<Ops> = OnceLock::new();

fn ops() -> &'static Ops {
    OPS.get().unwrap()
}

fn plant(context: *mut ibv_context) {
    // SAFETY: SAFETY.md F1: a live context, which no one else knows yet.
    let ops = unsafe { &mut (*context).ops };
    let poll = ops.poll_cq.replace(poll_cq).unwrap();
    let notify = ops.req_notify_cq.replace(req_notify_cq).unwrap();
    let send = ops.post_send.replace(post_send).unwrap();
    let receive = ops.post_recv.replace(post_recv).unwrap();
    let allocate = ops.alloc_mw.replace(windows::alloc_mw).unwrap();
    let deallocate = ops.dealloc_mw.replace(windows::dealloc_mw).unwrap();
    let _ = OPS.set(Ops { poll, notify, send, receive, allocate, deallocate });
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, out: *mut ibv_wc) -> c_int {
    let count = usize::try_from(count).unwrap();
    // SAFETY: SAFETY.md F12: `out` has `count` entries of plain data.
    let room = unsafe { slice::from_raw_parts_mut(out, count) };
    of!(cq).poll(cq, room)
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    if of!(cq).refuses(Call::RequestEvent) {
        return Errno::EIO.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (ops().notify)(cq, solicited_only) }
}

macro_rules! posts {
    ($($name:ident: $request:ident => $honest:ident, $bound:expr, $is_written:expr;)+) => {$(
        unsafe extern "C" fn $name(
            qp: *mut ibv_qp,
            list: *mut $request,
            bad: *mut *mut $request,
        ) -> c_int {
            let provider = of!(qp);
            let how = provider.state().posts.pop_front().unwrap_or(Post::Honest);
            if let Post::Refused(errno) = how {
                // SAFETY: SAFETY.md F1: the caller's own contract.
                unsafe { bad.write(list) };
                return errno.raw();
            }
            // SAFETY: SAFETY.md F1: the caller's own contract.
            let request = unsafe { &*list };
            assert!(request.next.is_null(), "one at a time");
            let elements: &[ibv_sge] = match usize::try_from(request.num_sge).unwrap() {
                0 => &[],
                // SAFETY: SAFETY.md F12: the list has that many elements.
                count => unsafe { slice::from_raw_parts(request.sg_list, count) },
            };
            let is_written: fn(&$request) -> bool = $is_written;
            let mut changed = *request;
            let bound = $bound(&mut changed, &provider);
            provider.lend(qp, request.wr_id, elements, bound, is_written(request));
            let returned = match how {
                Post::DoubtfulAndRefused => 0,
                // SAFETY: SAFETY.md F1: the caller's own contract.
                _ => unsafe { (ops().$honest)(qp, &raw mut changed, bad) },
            };
            if returned != 0 {
                // SAFETY: SAFETY.md F1: the caller's own contract.
                unsafe { bad.write(list) };
                provider.state().lent.retain(|lent| (lent.qp, lent.wr_id) != (qp as usize, request.wr_id));
                return returned;
            }
            if how == Post::Honest { 0 } else { Errno::EIO.raw() }
        }
    )+};
}

posts! {
    post_send: ibv_send_wr => send, windows::bind, |request| {
        use ibv_wr_opcode as opcode;
        [opcode::IBV_WR_RDMA_READ, opcode::IBV_WR_ATOMIC_CMP_AND_SWP, opcode::IBV_WR_ATOMIC_FETCH_AND_ADD]
            .contains(&request.opcode)
    };
    post_recv: ibv_recv_wr => receive, |_, _| (0, 0), |_| true;
}

/// Verbs that create an object, which is counted.
macro_rules! makes {
    ($($name:ident($($argument:ident: $type:ty),+) -> $raw:ty, $object:ident;)+) => {$(
        unsafe extern "C" fn $name($($argument: $type),+) -> *mut $raw {
            // SAFETY: SAFETY.md F1: the caller's own contract.
            let made = unsafe { (rdma_soft::verbs().$name)($($argument),+) };
            if !made.is_null() {
                of!(made).made(Object::$object);
            }
            made
        }
    )+};
}

makes! {
    alloc_pd(context: *mut ibv_context) -> ibv_pd, Domain;
    create_comp_channel(context: *mut ibv_context) -> ibv_comp_channel, Channel;
    create_cq(context: *mut ibv_context, cqe: c_int, of: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int)
        -> ibv_cq, CompletionQueue;
    create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> ibv_qp, QueuePair;
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let provider = of!(pd);
    provider.about_to(Call::RegisterRegion);
    if provider.refuses(Call::RegisterRegion) {
        Errno::ENOMEM.set();
        return ptr::null_mut();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let made = unsafe { (rdma_soft::verbs().reg_mr)(pd, address, length, access) };
    if !made.is_null() {
        provider.made(Object::Region);
    }
    made
}

/// The function that takes optional flags.
unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    _iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { reg_mr(pd, address, length, access.cast_signed()) }
}

/// Verbs that destroy an object, which is counted.
macro_rules! destroys {
    ($($name:ident($raw:ty), $object:ident, |$at:ident, $provider:ident| $is_refused:expr;)+) => {$(
        unsafe extern "C" fn $name($at: *mut $raw) -> c_int {
            let $provider = of!($at);
            if $is_refused {
                return Errno::EBUSY.raw();
            }
            // SAFETY: SAFETY.md F1: the caller's own contract.
            let returned = unsafe { (rdma_soft::verbs().$name)($at) };
            if returned == 0 {
                $provider.destroyed(Object::$object, $at as usize);
            }
            returned
        }
    )+};
}

destroys! {
    dealloc_pd(ibv_pd), Domain, |pd, provider| false;
    destroy_comp_channel(ibv_comp_channel), Channel, |channel, provider| false;
    destroy_cq(ibv_cq), CompletionQueue, |cq, provider| false;
    dereg_mr(ibv_mr), Region, |mr, provider| {
        // SAFETY: SAFETY.md F1: the caller's own contract.
        let lkey = unsafe { (*mr).lkey };
        let mut state = provider.state();
        if let Some(lent) = state.lent.iter().find(|lent| lent.lkey == lkey) {
            let wrong = format!("a region is deregistered while {:#x} uses its memory", lent.wr_id);
            state.wrongs.push(wrong);
        }
        drop(state);
        provider.about_to(Call::DeregisterRegion);
        provider.refuses(Call::DeregisterRegion)
    };
    destroy_qp(ibv_qp), QueuePair, |qp, provider| {
        let run = mem::take(&mut provider.state().at_destroy);
        provider.state().at_destroy = run.map(|mut run| {
            run();
            run
        });
        provider.refuses(Call::DestroyQueuePair)
    };
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // Another context may get the same address as soon as it is closed.
    let Some(provider) = contexts().remove(&(context as usize)) else { return Errno::EINVAL.raw() };
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let returned = unsafe { (rdma_soft::verbs().close_device)(context) };
    if returned == 0 {
        provider.destroyed(Object::Context, 0);
        provider.is_closed.notify_one();
    } else {
        contexts().insert(context as usize, provider);
    }
    returned
}

fn table() -> Verbs {
    let mut verbs = *rdma_soft::verbs();
    (verbs.close_device, verbs.alloc_pd, verbs.dealloc_pd) = (close_device, alloc_pd, dealloc_pd);
    (verbs.reg_mr, verbs.dereg_mr) = (reg_mr, dereg_mr);
    verbs.reg_mr_iova2 = Some(reg_mr_iova2);
    verbs.get_async_event = events::get_async_event;
    verbs.get_cq_event = events::get_cq_event;
    verbs.create_comp_channel = create_comp_channel;
    verbs.destroy_comp_channel = destroy_comp_channel;
    (verbs.create_cq, verbs.destroy_cq) = (create_cq, destroy_cq);
    (verbs.create_qp, verbs.destroy_qp) = (create_qp, destroy_qp);
    verbs
}
