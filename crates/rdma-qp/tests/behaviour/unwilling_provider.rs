//! A provider that refuses to destroy: the software device, with functions that fail.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::OnceLock;

use crate::common::{forget, must_end};
use rdma_mem::{Context, DeviceList, Errno};
use rdma_qp::{
    CompletionChannel, CompletionQueue, Error, PollSlot, QueuePair, QueuePairType, SendWorkRequest,
    prelude::*,
};
use rdma_sys::{Verbs, ibv_ah, ibv_comp_channel, ibv_cq, ibv_qp, ibv_srq};

thread_local! {
    static REFUSE: Cell<bool> = const { Cell::new(false) };
    /// Called after a shared receive queue was destroyed, and before its destruction is reported.
    static AFTER_SRQ: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Defines functions that destroy objects, unless this thread has to refuse.
macro_rules! unwilling {
    ($($destroy:ident($object:ty);)+) => {$(
        unsafe extern "C" fn $destroy(object: *mut $object) -> c_int {
            if REFUSE.get() {
                return Errno::EBUSY.raw();
            }
            // SAFETY: SAFETY.md F1: the caller's own contract.
            unsafe { (rdma_soft::verbs().$destroy)(object) }
        }
    )+};
}

unwilling! {
    destroy_comp_channel(ibv_comp_channel);
    destroy_cq(ibv_cq);
    destroy_qp(ibv_qp);
    destroy_ah(ibv_ah);
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let returned = unsafe { (rdma_soft::verbs().destroy_srq)(srq) };
    if let Some(next) = AFTER_SRQ.take() {
        next();
    }
    returned
}

fn open() -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.destroy_comp_channel = destroy_comp_channel;
        verbs.destroy_cq = destroy_cq;
        verbs.destroy_qp = destroy_qp;
        verbs.destroy_ah = destroy_ah;
        verbs.destroy_srq = destroy_srq;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().next().unwrap().open().unwrap()
}

/// Makes the queue send an event, and takes it.
fn event(channel: &CompletionChannel, cq: &CompletionQueue) {
    let pd = cq.context().allocate_pd().unwrap();
    let prepare = || pd.create_qp().send_cq(cq).recv_cq(cq).build().unwrap();
    let (a, b) = (prepare(), prepare());
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let (a, _b) = (a.handshake(b_end).unwrap(), b.handshake(a_end).unwrap());
    a.to_error().unwrap();
    cq.req_notify(false).unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { a.post_send(SendWorkRequest::only_immediate(1), 1) }.unwrap();
    assert_eq!(channel.get_event().unwrap(), cq.id());
    assert_eq!(cq.poll(&mut [PollSlot::default()]).unwrap().len(), 1);
}

#[test]
fn a_queue_that_was_not_destroyed_goes_on_counting_its_events() {
    let channel = CompletionChannel::create(&open()).unwrap();
    let cq = CompletionQueue::create_with_channel(&channel, 64, 0).unwrap();
    event(&channel, &cq);
    REFUSE.set(true);
    let (cq, error) = cq.close().unwrap_err();
    assert!(matches!(error, Error::Memory(rdma_mem::Error::Verb(_))), "{error}");
    REFUSE.set(false);
    event(&channel, &cq);
    must_end(move || {
        cq.close().unwrap();
        channel.close().unwrap();
    });
}

fn connected(cq: &CompletionQueue) -> QueuePair {
    let pd = cq.context().allocate_pd().unwrap();
    let prepare = || pd.create_qp().send_cq(cq).recv_cq(cq).build().unwrap();
    prepare().handshake(prepare().endpoint()).unwrap()
}

fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Memory(rdma_mem::Error::Verb(error)) if error.errno == Errno::EBUSY)
}

#[test]
fn a_failed_close_returns_the_unchanged_object() {
    let channel = CompletionChannel::create(&open()).unwrap();
    let cq = CompletionQueue::create_with_channel(&channel, 64, 0).unwrap();
    let qp = connected(&cq);
    REFUSE.set(true);
    let (qp, error) = qp.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    REFUSE.set(false);
    qp.to_error().unwrap();
    qp.close().unwrap();
    cq.close().unwrap();
    REFUSE.set(true);
    let (channel, error) = channel.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    REFUSE.set(false);
    assert_eq!(channel.try_get_event().unwrap(), None);
    channel.close().unwrap();
}

/// H25, and the objects that a queue pair that stays alive may still use.
#[test]
fn an_object_that_cannot_be_destroyed_keeps_what_it_needs() {
    let channel = CompletionChannel::create(&open()).unwrap();
    let cq = CompletionQueue::create_with_channel(&channel, 64, 0).unwrap();
    let qp = connected(&cq);
    let raw = qp.as_raw();
    forget(qp.pd().clone()); // it stays with the queue pair, and is visible here to a leak checker
    REFUSE.set(true);
    drop(qp);
    REFUSE.set(false);
    let (cq, error) = cq.close().unwrap_err();
    assert!(matches!(error, Error::StillUsed { .. }), "{error}");
    assert!(cq.poll(&mut [PollSlot::default()]).unwrap().is_empty());
    // SAFETY: SAFETY.md F1: the refused call did nothing, so the queue pair is live.
    assert_eq!(unsafe { destroy_qp(raw) }, 0);
    forget((cq, channel)); // as above
}

#[test]
fn an_address_handle_that_cannot_be_closed_comes_back() {
    let context = open();
    let (pd, cq) = (context.allocate_pd().unwrap(), CompletionQueue::create(&context, 64).unwrap());
    let builder = pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq);
    let prepared = builder.build().unwrap();
    let own = prepared.endpoint();
    let qp = prepared.activate().unwrap();
    let handle = qp.address_handle(&own).unwrap();
    REFUSE.set(true);
    let (handle, error) = handle.close().unwrap_err();
    REFUSE.set(false);
    assert!(error.to_string().contains("ibv_destroy_ah"), "{error}");
    let request = SendWorkRequest::only_immediate(1).to(&handle, own.qpn(), own.qkey());
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_send(request, 1) }.unwrap();
    cq.poll(&mut [PollSlot::default()]).unwrap().next().unwrap().result().unwrap();
    handle.close().unwrap();
}

/// After that, another queue can have its address, and another size.
#[test]
fn a_shared_receive_queue_that_is_gone_needs_no_room_in_a_completion_queue() {
    let pd = open().allocate_pd().unwrap();
    let cq = CompletionQueue::create(pd.context(), 48).unwrap();
    let srq = pd.create_srq().max_wr(32).build().unwrap();
    let strict = || pd.create_qp().send_cq(&cq).recv_cq(&cq).max_recv_wr(32).strict_cq(true);
    let of_srq = strict().srq(&srq).build().unwrap();
    assert!(matches!(strict().build(), Err(Error::CompletionQueueTooSmall { needed: 96, .. })));
    drop(srq);
    thread_local! {
        static BUILT: Cell<Option<bool>> = const { Cell::new(None) };
    }
    let (pd, cq) = (pd.clone(), cq.clone());
    AFTER_SRQ.set(Some(Box::new(move || {
        let strict = pd.create_qp().send_cq(&cq).recv_cq(&cq).max_recv_wr(32).strict_cq(true);
        BUILT.set(Some(strict.build().is_ok()));
    })));
    drop(of_srq);
    assert_eq!(BUILT.get(), Some(true));
}
