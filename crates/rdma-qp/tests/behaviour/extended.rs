//! Queue pairs that post by function calls. The tests of traffic also run all kinds of requests on
//! such queue pairs.
#![allow(unsafe_code)]

use crate::common::{CALLS, LATE_CALLS, TestPeer, open, pair, pair_with, parts, try_connect};
use rdma_mem::{Context, GatherElement, ScatterElement};
use rdma_qp::{
    AtomicWorkRequest, CompletionQueue, PostErrorKind, QueuePair, QueuedRequest, WriteWorkRequest,
    prelude::*,
};

/// Returns `count` writes of one byte.
fn batch<'wr, 'data>(
    data: &'wr [GatherElement<'data>; 1],
    to: &TestPeer,
    count: u64,
) -> Vec<QueuedRequest<'wr, 'data>> {
    let write = |id| WriteWorkRequest::new(data, to.board.remote()).with_id(id);
    (0..count).map(write).collect()
}

fn byte(end: &TestPeer) -> [GatherElement<'_>; 1] {
    [end.board.element(0..1).unwrap().into()]
}

#[test]
fn a_batch_is_posted_as_a_whole_or_not_at_all() {
    for device in [CALLS, LATE_CALLS] {
        for extended in [true, false] {
            let (a, b) = pair_with(device, |builder| builder.max_send_wr(8).extended(extended));
            assert_eq!((a.qp.is_extended(), b.qp.is_extended()), (extended, extended));
            let room = u64::from(a.qp.capabilities().max_send_wr);
            let data = byte(&a);
            // SAFETY: SAFETY.md F8: shared regions, which outlive the completions below.
            let error = unsafe { a.qp.post_batch(&mut batch(&data, &b, room + 1)) }.unwrap_err();
            assert_eq!(error.kind(), PostErrorKind::WouldBlock);
            let posted = if extended { 0 } else { room };
            assert_eq!(error.posted() as u64, posted, "{error}");
            (0..posted).for_each(|id| assert_eq!(a.next().wr_id(), id));
            // SAFETY: SAFETY.md F8: as above.
            unsafe { a.qp.post_batch(&mut batch(&data, &b, room)) }.unwrap();
            (0..room).for_each(|id| assert_eq!(a.next().wr_id(), id));
            assert!(a.is_idle());
        }
    }
}

/// Creates two queue pairs of one context with the option to post by calls, and writes from one to
/// the other.
fn write_on(context: &Context) -> QueuePair {
    let parts = || {
        let cq = CompletionQueue::create(context, 64).unwrap();
        (context.allocate_pd().unwrap(), cq)
    };
    let (a, b) = try_connect(parts(), parts(), |builder| builder.extended(true)).unwrap();
    let data = byte(&a);
    // SAFETY: SAFETY.md F8: shared regions, which outlive the completion below.
    unsafe { a.qp.post_write(WriteWorkRequest::new(&data, b.board.remote()), 1) }.unwrap();
    a.next().result().unwrap();
    a.qp
}

#[test]
fn a_device_that_has_no_extended_queue_pairs_posts_by_lists() {
    let _ = rdma_soft::Builder::new("softlists0").without_extended().install();
    let context = open("softlists0");
    assert!(!write_on(&context).is_extended());
}

#[test]
fn a_device_without_atomics_posts_the_rest_by_calls_and_refuses_them() {
    let _ = rdma_soft::Builder::new("softplain0").without_atomics().install();
    let context = open("softplain0");
    let qp = write_on(&context);
    assert!(qp.is_extended());
    let (pd, cq) = (context.allocate_pd().unwrap(), CompletionQueue::create(&context, 64).unwrap());
    let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).extended(true).build().unwrap();
    let own = prepared.endpoint();
    let qp = prepared.handshake(own).unwrap();
    let board = pd.allocate_shared_region(64, crate::common::all_of(&pd)).unwrap();
    let mut result = ScatterElement::from(board.element(0..8).unwrap());
    let add = AtomicWorkRequest::fetch_and_add(&mut result, board.remote(), 1);
    // SAFETY: SAFETY.md F8: a shared region, and nothing is posted.
    let refused = unsafe { qp.post_atomic(add, 1) }.unwrap_err();
    assert_eq!(refused.posted(), 0, "{refused}");
}

#[test]
fn sizes_that_no_device_has_are_refused_as_without_calls() {
    let (pd, cq) = parts("soft0");
    let errors = [true, false].map(|extended| {
        let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq).extended(extended);
        builder.max_send_sge(1000).build().unwrap_err().to_string()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(!pair("soft0").0.qp.is_extended(), "not asked for");
}
