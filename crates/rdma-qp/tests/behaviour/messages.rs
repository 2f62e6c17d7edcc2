//! Error messages name the verb, any error number, and the remedy.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use rdma_mem::{Context, DeviceList, Errno};
use rdma_qp::{CompletionQueue, Error, WcStatus, WorkErrorClass, WorkErrorCode, prelude::*};
use rdma_sys::{
    Verbs, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

thread_local! {
    /// The verb that fails, and its error number.
    static FAILURE: Cell<(&'static str, c_int)> = const { Cell::new(("", 0)) };
}

/// Returns the number with which this verb fails, if it is the failing one.
fn failure(verb: &str) -> Option<Errno> {
    let (failing, errno) = FAILURE.get();
    (failing == verb).then(|| Errno::from_raw(errno))
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    name: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    if let Some(errno) = failure("ibv_create_cq") {
        errno.set();
        return null_mut();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().create_cq)(context, cqe, name, channel, vector) }
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if let Some(errno) = failure("ibv_create_qp") {
        errno.set();
        return null_mut();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().create_qp)(pd, init) }
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    if let Some(errno) = failure("ibv_modify_qp") {
        return errno.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().modify_qp)(qp, attr, mask) }
}

fn open() -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.create_cq = create_cq;
        verbs.create_qp = create_qp;
        verbs.modify_qp = modify_qp;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().next().unwrap().open().unwrap()
}

/// H14: unexpected numbers are not lost.
#[test]
fn every_error_number_is_in_the_message_with_its_verb() {
    let context = open();
    let (pd, cq) = (context.allocate_pd().unwrap(), CompletionQueue::create(&context, 64).unwrap());
    let builder = || pd.create_qp().send_cq(&cq).recv_cq(&cq);
    let peer = builder().build().unwrap().endpoint();
    let attempts: [(&str, &dyn Fn() -> Error); 3] = [
        ("ibv_create_cq", &|| CompletionQueue::create(&context, 64).unwrap_err()),
        ("ibv_create_qp", &|| builder().build().unwrap_err()),
        ("ibv_modify_qp", &|| builder().build().unwrap().handshake(peer).unwrap_err()),
    ];
    for (verb, attempt) in attempts {
        // All numbers of Linux, some that only its kernel should use, and invalid ones.
        for number in (1..=133).chain([512, 524, 4095, 123_456, c_int::MAX]) {
            FAILURE.set((verb, number));
            let error = attempt();
            FAILURE.set(("", 0));
            let (text, errno) = (error.to_string(), Errno::from_raw(number));
            assert!(text.contains(verb), "{text}");
            assert!(text.contains(&errno.to_string()), "{text}");
            let named = errno.name().map_or(number.to_string(), str::to_owned);
            assert!(text.contains(&named), "{named} in {text}");
        }
    }
}

/// H14: status 15 belongs to reliable datagrams, and does not concern RDMA reads.
#[test]
fn the_status_of_reliable_datagrams_is_not_taken_for_one_of_reads() {
    let code = WorkErrorCode::from_status(WcStatus::from_raw(15));
    assert_eq!(code, WorkErrorCode::RemoteInvalidRdRequestError);
    assert!(!code.hint().to_lowercase().contains("read"), "{}", code.hint());
    let text = WcStatus::from_raw(15).to_string();
    assert!(!text.to_lowercase().contains("read"), "{text}");
}

#[test]
fn every_status_has_a_hint() {
    for raw in 1..=24 {
        let code = WorkErrorCode::from_status(WcStatus::from_raw(raw));
        assert!(code.hint().len() > 10, "{code:?}");
        assert_eq!(code.class() == WorkErrorClass::Flushed, raw == 5, "{code:?}");
    }
    // The most frequent one.
    let hint = WorkErrorCode::RetryExceededError.hint();
    for part in ["QPN", "PSN", "GID", "MTU", "4791", "ack_timeout"] {
        assert!(hint.contains(part), "{part} in {hint}");
    }
}
