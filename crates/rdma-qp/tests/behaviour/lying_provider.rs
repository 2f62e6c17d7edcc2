//! Results of a provider are checked before they are used: the software device, with functions that
//! return invalid results.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

use crate::common::{HANG, parts};
use rdma_mem::{Context, DeviceList, Errno, RemoteMemoryRegion};
use rdma_qp::{
    CompletionQueue, Error, PollSlot, PostError, PostErrorKind, QpState, QueuePairBuilder,
    QueuePairType, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WcOpcode, WorkCompletion,
    WorkErrorClass, WriteWorkRequest, prelude::*,
};
use rdma_sys::{
    Verbs, ibv_cq, ibv_gid_entry, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr,
    ibv_send_wr, ibv_wc, ibv_wc__bindgen_ty_1, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
};

thread_local! {
    /// The result of the next poll: a number, and a completion for each entry of the array.
    static LIE: Cell<Option<(c_int, ibv_wc)>> = const { Cell::new(None) };
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, out: *mut ibv_wc) -> c_int {
    let Some((returned, completion)) = LIE.take() else {
        // SAFETY: SAFETY.md F1: the caller's own contract; the context is that of the queue.
        return unsafe { HONEST.get().unwrap()(cq, count, out) };
    };
    for n in 0..usize::try_from(count).unwrap() {
        // SAFETY: SAFETY.md F12: the array has `count` entries.
        let place = unsafe { out.add(n) };
        // SAFETY: SAFETY.md F12: as above.
        unsafe { place.write(completion) };
    }
    returned
}

/// The device's own function, for polls without an invalid result.
static HONEST: OnceLock<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int> =
    OnceLock::new();

/// Returns a queue whose context polls by the function above.
fn queue() -> CompletionQueue {
    let (_, cq) = parts("soft0");
    let ops = {
        // SAFETY: SAFETY.md F1: a live context, which is not used elsewhere yet.
        unsafe { &mut (*cq.context().as_raw()).ops }
    };
    let honest = ops.poll_cq.replace(poll_cq).unwrap();
    let _ = HONEST.set(honest);
    cq
}

fn completion(status: u32, opcode: u32, flags: u32) -> ibv_wc {
    ibv_wc {
        wr_id: 7,
        status: ibv_wc_status(status),
        opcode: ibv_wc_opcode(opcode),
        byte_len: 99,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: 0x0102_0304_u32.to_be() },
        wc_flags: flags,
        ..Default::default()
    }
}

/// Returns the completion that a poll reads from this one.
fn polled(cq: &CompletionQueue, completion: ibv_wc) -> WorkCompletion {
    LIE.set(Some((1, completion)));
    cq.poll(&mut [PollSlot::default()]).unwrap().next().unwrap()
}

/// H5, H6, H23: the error is not a completion, not "not permitted", and not an empty poll.
#[test]
fn a_poll_that_fails_is_an_error_and_no_completion() {
    let cq = queue();
    for returned in [-1, -2, -Errno::ENOMEM.raw(), c_int::MIN] {
        LIE.set(Some((returned, completion(0, 0, 0))));
        let error = cq.poll(&mut [PollSlot::default(); 4]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("ibv_poll_cq failed") && !text.contains("permitted"), "{text}");
        assert!(!text.contains("EPERM") && !text.contains("EAGAIN"), "{text}");
    }
    assert!(cq.poll(&mut [PollSlot::default(); 4]).unwrap().is_empty(), "it looks each time");
}

/// H5: draining a queue pair does not mistake the error for the completions that it waits for.
#[test]
fn a_poll_that_fails_ends_no_request() {
    let cq = queue();
    let pd = cq.context().allocate_pd().unwrap();
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
    let qp = prepare().handshake(prepare().endpoint()).unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_receive(ReceiveWorkRequest::only_immediate(), 5) }.unwrap();
    LIE.set(Some((-1, ibv_wc::default())));
    let mut seen = Vec::new();
    let error = qp.drain(HANG, |completion| seen.push(completion.wr_id())).unwrap_err();
    assert!(matches!(error, Error::Poll(_)) && seen.is_empty(), "{error}, {seen:?}");
    qp.drain(HANG, |completion| seen.push(completion.wr_id())).unwrap();
    assert!(seen.contains(&5), "{seen:?}");
}

#[test]
fn more_completions_than_there_was_room_for_are_not_read() {
    let cq = queue();
    for returned in [3, c_int::MAX] {
        LIE.set(Some((returned, completion(0, 0, 0))));
        assert_eq!(cq.poll(&mut [PollSlot::default(); 2]).unwrap().count(), 2);
    }
}

/// H28, and panics of other crates on new codes.
#[test]
fn unknown_codes_are_data_and_never_a_panic() {
    let cq = queue();
    for code in (0..400).chain([u32::MAX - 1, u32::MAX]) {
        let failed = polled(&cq, completion(code.max(1), code, code));
        let error = failed.result().unwrap_err();
        assert_eq!(error.raw_status(), code.max(1));
        assert!(!error.hint().is_empty() && !format!("{failed:?} {error}").is_empty());
        let unknown = code > 23;
        assert_eq!(error.class() == WorkErrorClass::Unknown, unknown || code == 21, "{error}");
        let done = polled(&cq, completion(0, code, code)).result().unwrap();
        assert_eq!(done.opcode(), WcOpcode::from_raw(code));
        assert!(!format!("{done:?} {}", done.opcode()).is_empty());
    }
}

/// H24.
#[test]
fn a_number_is_found_among_other_flags_and_is_in_host_order() {
    let cq = queue();
    let imm = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    for others in [0, ibv_wc_flags::IBV_WC_GRH.0, !imm] {
        let opcode = WcOpcode::RECV.raw();
        let with = polled(&cq, completion(0, opcode, others | imm)).result().unwrap();
        assert_eq!(with.immediate_data(), Some(0x0102_0304));
        let without = polled(&cq, completion(0, opcode, others)).result().unwrap();
        assert_eq!(without.immediate_data(), None);
        let sent = polled(&cq, completion(0, WcOpcode::SEND.raw(), others | imm)).result().unwrap();
        assert_eq!((sent.immediate_data(), sent.scattered_bytes()), (None, None), "H14");
    }
}

unsafe extern "C" fn post_send(
    _qp: *mut ibv_qp,
    _list: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    Errno::EIO.raw()
}

unsafe extern "C" fn post_recv(
    _qp: *mut ibv_qp,
    _list: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    Errno::EIO.raw()
}

/// A provider need not accept an empty list, nor the pointer of an empty slice.
#[test]
fn posting_nothing_does_not_reach_the_device() {
    let cq = queue();
    let pd = cq.context().allocate_pd().unwrap();
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
    let qp = prepare().handshake(prepare().endpoint()).unwrap();
    let ops = {
        // SAFETY: SAFETY.md F1: a live context, whose functions are not being called.
        unsafe { &mut (*cq.context().as_raw()).ops }
    };
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_batch(&mut []) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_batch_raw(&mut []) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_receive_batch(&mut []) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_receive_batch_raw(&mut []) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    let error = unsafe { qp.post_receive(ReceiveWorkRequest::only_immediate(), 1) }.unwrap_err();
    assert_eq!(
        (error.posted(), error.errno()),
        (1, Some(Errno::EIO)),
        "the refused request is unknown"
    );
}

thread_local! {
    /// Queue pairs that this thread has created and not destroyed.
    static LIVE: Cell<i32> = const { Cell::new(0) };
    /// The number of verbs that succeed before one fails.
    static LUCK: Cell<u32> = const { Cell::new(u32::MAX) };
}

fn fails() -> bool {
    let left = LUCK.get();
    LUCK.set(left.saturating_sub(1));
    left == 0
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if fails() {
        Errno::ENOMEM.set();
        return std::ptr::null_mut();
    }
    LIVE.set(LIVE.get() + 1);
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().create_qp)(pd, init) }
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    if fails() {
        return Errno::EINVAL.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().modify_qp)(qp, attr, mask) }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    LIVE.set(LIVE.get() - 1);
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().destroy_qp)(qp) }
}

unsafe extern "C" fn query_gid_table(
    context: *mut rdma_sys::ibv_context,
    entries: *mut ibv_gid_entry,
    count: usize,
    flags: u32,
    size: usize,
) -> isize {
    if fails() {
        return -5;
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { rdma_soft::verbs().query_gid_table.unwrap()(context, entries, count, flags, size) }
}

fn unlucky() -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.create_qp = create_qp;
        verbs.modify_qp = modify_qp;
        verbs.destroy_qp = destroy_qp;
        verbs.query_gid_table = Some(query_gid_table);
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().next().unwrap().open().unwrap()
}

/// Its queue pairs could be created, but would not work: they need other attributes for a connection.
#[test]
fn a_device_that_speaks_something_else_is_refused_by_name() {
    use rdma_sys::ibv_transport_type as Transport;
    rdma_soft::install();
    let name = "softforeign0";
    rdma_soft::Builder::new(name).install().unwrap();
    for (transport, speaks) in [
        (Transport::IBV_TRANSPORT_USNIC_UDP, "usNIC"),
        (Transport::IBV_TRANSPORT_UNSPECIFIED, "unspecified"),
        (Transport::IBV_TRANSPORT_IB, ""),
    ] {
        let context = rdma_mem::open_device(name).unwrap();
        // SAFETY: SAFETY.md F1: a live context.
        let device = unsafe { (*context.as_raw()).device };
        // SAFETY: SAFETY.md F1: its device, which no other test uses.
        unsafe { (*device).transport_type = transport };
        let cq = CompletionQueue::create(&context, 64).unwrap();
        let pd = context.allocate_pd().unwrap();
        let built = pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
        if transport == Transport::IBV_TRANSPORT_IB {
            built.unwrap();
            continue;
        }
        let error = built.unwrap_err();
        assert!(matches!(error, Error::UnsupportedTransport { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(speaks), "{text}");
    }
}

/// A device that speaks iWARP, whose queue pairs are connected here as those of the software device that it is.
#[test]
fn iwarp_lacks_types_immediates_and_exchanged_endpoints_by_name() {
    use rdma_sys::ibv_transport_type as Transport;
    rdma_soft::install();
    let name = "softiwarp0";
    rdma_soft::Builder::new(name).install().unwrap();
    let context = rdma_mem::open_device(name).unwrap();
    // SAFETY: SAFETY.md F1: a live context.
    let device = unsafe { (*context.as_raw()).device };
    // SAFETY: SAFETY.md F1: its device, which no other test uses.
    unsafe { (*device).transport_type = Transport::IBV_TRANSPORT_IWARP };
    let cq = CompletionQueue::create(&context, 64).unwrap();
    let pd = context.allocate_pd().unwrap();
    let builder = || pd.create_qp().send_cq(&cq).recv_cq(&cq);
    for qp_type in [QueuePairType::UC, QueuePairType::UD] {
        let error = builder().qp_type(qp_type).build().unwrap_err();
        assert!(matches!(error, Error::LackedByIwarp { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("no {qp_type} queue pairs")), "{error}");
    }
    let endpoint = builder().build().unwrap().endpoint();
    let error = builder().build().unwrap().handshake(endpoint).unwrap_err();
    assert!(matches!(&error, Error::OnlyByAddress { device } if device == name), "{error:?}");

    let qp = builder().build().unwrap().initialize().unwrap();
    assert_eq!((qp.state().unwrap(), qp.peer()), (QpState::INIT, None));
    let mut region = pd.allocate_region(16).unwrap();
    let remote = RemoteMemoryRegion::new(0x1000, 16, 1);
    let refused = |posted: Result<(), PostError>, kind| {
        let error = posted.unwrap_err();
        assert_eq!((error.kind(), error.posted()), (kind, 0));
        assert!(error.to_string().contains("iWARP"), "{error}");
    };
    // SAFETY: the requests are refused, and have no memory.
    let posted = unsafe { qp.post_send(SendWorkRequest::only_immediate(1), 1) };
    refused(posted, PostErrorKind::NoImmediates);
    let write = WriteWorkRequest::new(&[], remote).with_immediate(1);
    // SAFETY: as above.
    refused(unsafe { qp.post_write(write, 1) }, PostErrorKind::NoImmediates);
    let (mut one, mut other) = region.get_mut(0, 16).unwrap().split_at(8);
    let mut elements = [one.scatter_element(), other.scatter_element()];
    // SAFETY: the request is refused, so the region stays unused.
    let posted = unsafe { qp.post_read(ReadWorkRequest::new(&mut elements, remote), 1) };
    refused(posted, PostErrorKind::TooManyElements);
}

/// H13: if any verb fails during the connection, no queue pair is left.
#[test]
fn a_queue_pair_that_failed_to_connect_is_destroyed() {
    let context = unlucky();
    let (pd, cq) = (context.allocate_pd().unwrap(), CompletionQueue::create(&context, 64).unwrap());
    let builder = || pd.create_qp().send_cq(&cq).recv_cq(&cq);
    let peer = builder().build().unwrap();
    let connect = |builder: QueuePairBuilder<'_>| builder.build()?.handshake(peer.endpoint());
    let mut luck = 0;
    let connected = loop {
        LUCK.set(luck);
        match connect(builder()) {
            Ok(connected) => break connected,
            Err(error) => assert_eq!(LIVE.get(), 1, "after {luck} verbs: {error}"),
        }
        luck += 1;
    };
    LUCK.set(u32::MAX);
    assert_eq!((luck, LIVE.get()), (5, 2), "a table of GIDs, a creation and three transitions");
    let too_many = builder().max_send_wr(100).strict_cq(true);
    for wrong in [builder().port(9), builder().gid_index(200), too_many] {
        connect(wrong).unwrap_err();
        assert_eq!(LIVE.get(), 2);
    }
    connected.close().unwrap();
    drop(peer);
    assert_eq!(LIVE.get(), 0);
}
