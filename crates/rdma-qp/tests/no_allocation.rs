//! Posting, polling and failing ask for no memory. Its own `main`, since the threads of the usual
//! harness allocate too.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod common;

use common::pair_with;
use rdma_mem::{GatherElement, ScatterElement};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use test_support::alloc_counter::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() {
    for device in common::DEVICES {
        let (a, b) = pair_with(device, |builder| builder.max_inline_data(32));
        for round in 0..1000 {
            let before = ALLOCATOR.allocations();
            work(&a, &b);
            let allocated = ALLOCATOR.allocations() - before;
            // The first rounds may fill the pools of device and runtime.
            assert!(round < 10 || allocated == 0, "{allocated} allocations in round {round}");
        }
        a.qp.to_error().unwrap();
        let before = ALLOCATOR.allocations();
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { a.qp.post_send(SendWorkRequest::only_immediate(1), 9) }.unwrap();
        assert!(a.next().result().unwrap_err().hint().contains("error state"));
        assert_eq!(ALLOCATOR.allocations(), before, "a flush");
    }
    println!("no allocation: ok");
}

/// One of everything.
fn work(a: &common::End, b: &common::End) {
    let data = [GatherElement::from(a.board.element(0..32).unwrap())];
    let mut room = [ScatterElement::from(b.board.element(64..96).unwrap())];
    let remote = b.board.remote();
    // SAFETY: SAFETY.md F8: shared regions, which outlive all requests.
    unsafe { b.qp.post_receive(ReceiveWorkRequest::new(&mut room), 1) }.unwrap();
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_send(SendWorkRequest::new(&data).with_immediate(3), 2) }.unwrap();
    let write = WriteWorkRequest::new(&data, remote);
    let mut batch = [write.signaled(false).with_id(3), write.inline().fence().with_id(4)];
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_batch(&mut batch) }.unwrap();
    let mut answer = [ScatterElement::from(a.board.element(128..160).unwrap())];
    // SAFETY: SAFETY.md F8: as above.
    unsafe { a.qp.post_read(ReadWorkRequest::new(&mut answer, remote), 5) }.unwrap();
    // SAFETY: SAFETY.md F8: as above.
    let refused =
        unsafe { a.qp.post_write(WriteWorkRequest::new(&data, remote.slice(0..8).unwrap()), 6) };
    assert_eq!(refused.unwrap_err().posted(), 0);
    assert_eq!(b.next().result().unwrap().immediate_data(), Some(3));
    for id in [2, 4, 5] {
        let done = a.next();
        assert_eq!((done.wr_id(), done.result().is_ok()), (id, true));
    }
}
