//! The moderation of events: its arguments, and the error of a device without it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;

use crate::common::parts;
use rdma_mem::Errno;
use rdma_qp::{CompletionQueue, Error};
use rdma_sys::{ibv_cq, ibv_cq_attr_mask, ibv_modify_cq_attr, verbs_get_ctx};

thread_local! {
    static ASKED: Cell<Option<ibv_modify_cq_attr>> = const { Cell::new(None) };
    static RETURNED: Cell<c_int> = const { Cell::new(0) };
}

unsafe extern "C" fn modify_cq(_cq: *mut ibv_cq, attributes: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    ASKED.set(Some(unsafe { attributes.read() }));
    RETURNED.get()
}

/// Returns a queue of a context that moderates events.
fn moderated_queue() -> CompletionQueue {
    let (_, cq) = parts("soft0");
    // SAFETY: SAFETY.md F1: a live context.
    let context = unsafe { verbs_get_ctx(cq.context().as_raw()) };
    // SAFETY: SAFETY.md F1: the software device's extended context, which no other code uses yet.
    unsafe { (*context).modify_cq = Some(modify_cq) };
    cq
}

fn refusal(cq: &CompletionQueue) -> (Errno, String) {
    let error = cq.moderate(16, 100).unwrap_err();
    let Error::Verb(verb) = &error else { panic!("{error}") };
    (verb.errno, error.to_string())
}

#[test]
fn a_device_without_moderation_is_named() {
    for device in ["soft0", "softib0"] {
        let (errno, text) = refusal(&parts(device).1);
        assert_eq!(errno, Errno::EOPNOTSUPP);
        assert!(text.contains(&format!("`{device}` does not moderate events")), "{text}");
    }
}

#[test]
fn count_and_period_reach_the_device() {
    let cq = moderated_queue();
    cq.moderate(16, 100).unwrap();
    let asked = ASKED.take().unwrap();
    assert_eq!(asked.attr_mask, ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0);
    assert_eq!((asked.moderate.cq_count, asked.moderate.cq_period), (16, 100));
}

#[test]
fn refused_values_are_named_with_the_limits_of_the_device() {
    let cq = moderated_queue();
    RETURNED.set(Errno::EINVAL.raw());
    let (errno, text) = refusal(&cq);
    assert_eq!(errno, Errno::EINVAL);
    assert!(text.contains("16 completions and 100 us; `soft0` allows 0 and 0 us"), "{text}");
}
