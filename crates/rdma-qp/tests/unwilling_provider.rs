//! A provider that refuses to destroy a completion queue: the software device, with one function that
//! fails.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use common::must_end;
use rdma_mem::{Context, DeviceList, Errno};
use rdma_qp::{CompletionChannel, CompletionQueue, Error, PollSlot, SendWorkRequest, prelude::*};
use rdma_sys::{Verbs, ibv_cq};

static REFUSE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    if REFUSE.load(Ordering::Relaxed) {
        return Errno::EBUSY.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().destroy_cq)(cq) }
}

fn open() -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.destroy_cq = destroy_cq;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().next().unwrap().open().unwrap()
}

/// Has the queue send an event, and takes it.
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
    REFUSE.store(true, Ordering::Relaxed);
    let (cq, error) = cq.close().unwrap_err();
    assert!(matches!(error, Error::Memory(rdma_mem::Error::Verb(_))), "{error}");
    event(&channel, &cq);
    REFUSE.store(false, Ordering::Relaxed);
    must_end(move || {
        cq.close().unwrap();
        channel.close().unwrap();
    });
}
