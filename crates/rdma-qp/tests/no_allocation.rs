//! Posting, polling and failing allocate no memory. The test has a `main` of its own, since the
//! threads of the usual harness allocate too.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod common;

use std::sync::atomic::Ordering;

use common::pair_with;
use rdma_mem::{GatherElement, GatherList, InlineElement, OwnedRegion, ScatterElement};
use rdma_qp::{
    AtomicWorkRequest, PostErrorKind, QueuePairType, ReadWorkRequest, ReceiveWorkRequest,
    SendWorkRequest, WriteWorkRequest, prelude::*,
};
use test_support::alloc_counter::CountingAllocator;
use test_support::program::await_threads;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() {
    for device in common::DEVICES {
        let (a, b) = pair_with(device, |builder| builder.max_inline_data(32));
        let source = a.pd.allocate_region(32).unwrap();
        start_timer(&a, &b);
        await_threads();
        for round in 0..1000 {
            let before = ALLOCATOR.allocations();
            work(&a, &b, &source);
            let allocated = ALLOCATOR.allocations() - before;
            // The first rounds may fill the pools of device and runtime.
            assert!(round < 10 || allocated == 0, "{allocated} allocations in round {round}");
        }
        shared(&a);
        datagrams(&a);
        a.qp.to_error().unwrap();
        let before = ALLOCATOR.allocations();
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { a.qp.post_send(SendWorkRequest::only_immediate(1), 9) }.unwrap();
        assert!(a.next().result().unwrap_err().hint().contains("error state"));
        assert_eq!(ALLOCATOR.allocations(), before, "a flush");
    }
    println!("no allocation: ok");
}

/// Posts receives to a shared queue, until it is full, and one to a queue pair without receives of
/// its own.
fn shared(end: &common::TestPeer) {
    let (cq, srq) = (&end.cq, end.pd.create_srq().max_wr(2).build().unwrap());
    let prepare = || end.pd.create_qp().send_cq(cq).recv_cq(cq);
    let (client, server) = (prepare().build().unwrap(), prepare().srq(&srq).build().unwrap());
    let (client_end, server_end) = (client.endpoint(), server.endpoint());
    let client = client.handshake(server_end).unwrap();
    let server = server.handshake(client_end).unwrap();
    for round in 0..100 {
        let before = ALLOCATOR.allocations();
        let mut batch = [3, 4].map(|id| ReceiveWorkRequest::only_immediate().with_id(id));
        // SAFETY: SAFETY.md F8: no memory, here and below.
        unsafe { srq.post_receive_batch(&mut batch) }.unwrap();
        // SAFETY: SAFETY.md F8: as above.
        let full = unsafe { srq.post_receive(ReceiveWorkRequest::only_immediate(), 5) };
        // SAFETY: SAFETY.md F8: as above.
        let own = unsafe { server.post_receive(ReceiveWorkRequest::only_immediate(), 5) };
        assert_eq!(full.unwrap_err().kind(), PostErrorKind::WouldBlock);
        assert_eq!(own.unwrap_err().kind(), PostErrorKind::SharedReceives);
        for id in [3, 4] {
            // SAFETY: SAFETY.md F8: as above.
            unsafe { client.post_send(SendWorkRequest::only_immediate(1), 9) }.unwrap();
            let mut ids = [end.next().wr_id(), end.next().wr_id()];
            ids.sort_unstable();
            assert_eq!(ids, [id, 9]);
        }
        let allocated = ALLOCATOR.allocations() - before;
        assert!(round < 10 || allocated == 0, "{allocated} allocations in round {round}");
    }
}

/// Sends datagrams to itself, and one that is refused.
fn datagrams(end: &common::TestPeer) {
    let builder = end.pd.create_qp().qp_type(QueuePairType::UD);
    let prepared = builder.send_cq(&end.cq).recv_cq(&end.cq).build().unwrap();
    let own = prepared.endpoint();
    let qp = prepared.activate().unwrap();
    let handle = qp.address_handle(&own).unwrap();
    let mut room = [ScatterElement::from(end.board.element(0..64).unwrap())];
    for round in 0..100 {
        let before = ALLOCATOR.allocations();
        // SAFETY: SAFETY.md F8: a shared region, which outlives the queue pair.
        unsafe { qp.post_receive(ReceiveWorkRequest::new(&mut room), 3) }.unwrap();
        let request = SendWorkRequest::only_immediate(1);
        // SAFETY: SAFETY.md F8: no memory.
        let refused = unsafe { qp.post_send(request, 4) }.unwrap_err();
        assert_eq!(refused.kind(), PostErrorKind::NoDestination);
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { qp.post_send(request.to(&handle, own.qpn(), own.qkey()), 4) }.unwrap();
        let arrived = [end.next(), end.next()].into_iter().filter_map(|each| qp.datagram(&each));
        assert!(arrived.map(|source| source.qpn).eq([qp.qpn()]));
        let allocated = ALLOCATOR.allocations() - before;
        assert!(round < 10 || allocated == 0, "{allocated} allocations in round {round}");
    }
}

/// Starts the thread of a device that defers its work, which allocates, and checks that it runs. This thread does not
/// poll, so only the device's thread can execute this request.
fn start_timer(a: &common::TestPeer, b: &common::TestPeer) {
    let mut result = ScatterElement::from(a.board.element(160..168).unwrap());
    let remote = b.board.remote().slice(0..8).unwrap();
    let add = AtomicWorkRequest::fetch_and_add(&mut result, remote, 1);
    // SAFETY: SAFETY.md F8: shared regions, which outlive the request.
    unsafe { a.qp.post_atomic(add, 1) }.unwrap();
    let word = b.board.atomic_u64(0).unwrap();
    while word.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    assert!(a.next().result().is_ok());
}

/// Makes one request of each kind.
fn work(a: &common::TestPeer, b: &common::TestPeer, source: &OwnedRegion) {
    let data = [GatherElement::from(a.board.element(0..32).unwrap())];
    let mut room = [ScatterElement::from(b.board.element(64..96).unwrap())];
    let remote = b.board.remote();
    // SAFETY: SAFETY.md F8: shared regions, which outlive all requests.
    unsafe { b.qp.post_receive(ReceiveWorkRequest::new(&mut room), 1) }.unwrap();
    for form in 0..3 {
        let mut receives = [ReceiveWorkRequest::only_immediate().with_id(20 + form)];
        match form {
            // SAFETY: SAFETY.md F8: no memory.
            0 => unsafe { b.qp.post_receive_batch(&mut receives) }.unwrap(),
            // SAFETY: SAFETY.md F8: no memory.
            1 => unsafe { b.qp.post_receive_batch_raw(&mut receives) }.unwrap(),
            // SAFETY: SAFETY.md F8: no memory.
            _ => unsafe { b.qp.post_raw(ReceiveWorkRequest::only_immediate(), 22) }.unwrap(),
        }
    }
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_send(SendWorkRequest::new(&data).with_immediate(3), 2) }.unwrap();
    let write = WriteWorkRequest::new(&data, remote);
    let copied = [InlineElement::new(&[3; 32])];
    let inline = WriteWorkRequest::inline(&copied, remote).fence();
    let mut batch = [write.signaled(false).with_id(3), inline.with_id(4)];
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_batch(&mut batch) }.unwrap();
    let mut answer = [ScatterElement::from(a.board.element(128..160).unwrap())];
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_read(ReadWorkRequest::new(&mut answer, remote), 5) }.unwrap();
    let mut result = ScatterElement::from(a.board.element(160..168).unwrap());
    let add = AtomicWorkRequest::fetch_and_add(&mut result, remote, 1);
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_atomic(add, 6) }.unwrap();
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_raw(write, 7) }.unwrap();
    let mut batch = [write.signaled(false).with_id(8), write.with_id(9)];
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_batch_raw(&mut batch) }.unwrap();
    let list = GatherList::from([source.as_slice()]);
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post(WriteWorkRequest::from_list(&list, remote), 10) }.unwrap();
    let short = WriteWorkRequest::new(&data, remote.slice(0..8).unwrap());
    // SAFETY: SAFETY.md F8: as above.
    assert_eq!(unsafe { a.qp.post_write(short, 11) }.unwrap_err().posted(), 0);
    let mut batch = [write.with_id(12), short.with_id(13)];
    // SAFETY: SAFETY.md F8: as above.
    assert_eq!(unsafe { a.qp.post_batch(&mut batch) }.unwrap_err().refused(), 1);
    assert_eq!(b.next().result().unwrap().immediate_data(), Some(3));
    for id in 20..23 {
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { a.qp.post(SendWorkRequest::only_immediate(1), 14) }.unwrap();
        assert_eq!(b.next().wr_id(), id);
    }
    for id in [2, 4, 5, 6, 7, 9, 10, 14, 14, 14] {
        let done = a.next();
        assert_eq!((done.wr_id(), done.result().is_ok()), (id, true));
    }
}
