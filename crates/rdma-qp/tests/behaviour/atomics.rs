//! Atomic requests, on each software device.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::thread;

use crate::common::{DEVICES, TestPeer, everything, pair, pair_with, parts};
use rdma_mem::{AccessFlags, RemoteMemoryRegion, ScatterElement, ScatterList};
use rdma_qp::{
    AtomicWorkRequest, CompletionQueue, Error, PollSlot, PostErrorKind, QueuePair, SendWorkRequest,
    WcOpcode, WorkErrorClass, WriteWorkRequest, prelude::*,
};

/// Posts one atomic request with the beginning of the board as its result, and returns this result.
fn word(end: &TestPeer, opcode: WcOpcode, request: AtomicWorkRequest<'_, '_>) -> u64 {
    // SAFETY: SAFETY.md F8: a shared region, which outlives the completion.
    unsafe { end.qp.post_atomic(request, 3) }.unwrap();
    let done = end.next();
    let success = done.result().unwrap();
    assert_eq!((done.wr_id(), success.opcode()), (3, opcode));
    assert_eq!(success.byte_len(), Some(8));
    u64::from_ne_bytes(end.read(0))
}

#[test]
fn the_old_word_comes_back_and_the_new_one_is_there() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let here = b.board.atomic_u64(64).unwrap();
        let there = b.board.remote().typed::<u64>(64).unwrap();
        let mut result = ScatterElement::from(a.board.element(0..8).unwrap());
        here.store(u64::MAX, Ordering::Relaxed);
        let add = AtomicWorkRequest::fetch_and_add(&mut result, there, 3);
        assert_eq!(word(&a, WcOpcode::FETCH_ADD, add), u64::MAX);
        assert_eq!(here.load(Ordering::Acquire), 2, "it wraps");
        let subtract = AtomicWorkRequest::fetch_and_add(&mut result, there, 2_u64.wrapping_neg());
        assert_eq!(word(&a, WcOpcode::FETCH_ADD, subtract), 2);
        assert_eq!(here.load(Ordering::Acquire), 0);
        for (compare, old, new) in [(1, 0, 0), (0, 0, 0x0102_0304_0506_0708)] {
            let swap = 0x0102_0304_0506_0708;
            let swap = AtomicWorkRequest::compare_and_swap(&mut result, there, compare, swap);
            assert_eq!(word(&a, WcOpcode::COMP_SWAP, swap), old);
            assert_eq!(here.load(Ordering::Acquire), new);
        }
        assert_eq!((b.read(56), b.read(72)), ([0; 8], [0; 8]), "its neighbours are as they were");
    }
}

#[test]
fn batches_mix_atomics_with_other_requests() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let mut results = a.pd.allocate_region(16).unwrap();
        let source = a.pd.allocate_region(8).unwrap();
        let counter = b.board.remote().typed::<u64>(8).unwrap();
        {
            let (one, other) = results.split_at(8);
            let (mut one, mut other) = (ScatterList::from([one]), ScatterList::from([other]));
            let data = [source.as_slice().gather_element()];
            let mut batch = [
                AtomicWorkRequest::fetch_and_add(&mut one, counter, 5).signaled(false).with_id(1),
                WriteWorkRequest::new(&data, b.board.remote()).fence().signaled(false).with_id(2),
                AtomicWorkRequest::compare_and_swap(&mut other, counter, 5, 9).with_id(3),
            ];
            // SAFETY: SAFETY.md F8: the regions are not used elsewhere until the completion below.
            unsafe { a.qp.post_batch(&mut batch) }.unwrap();
            assert_eq!(a.next().wr_id(), 3);
        }
        assert_eq!(results[..8], 0_u64.to_ne_bytes());
        assert_eq!(results[8..], 5_u64.to_ne_bytes());
        assert_eq!(b.board.atomic_u64(8).unwrap().load(Ordering::Acquire), 9);
        assert!(a.is_idle());
    }
}

#[test]
fn concurrent_fetch_and_adds_return_distinct_values() {
    const THREADS: usize = 4;
    const EACH: usize = 200;
    for device in DEVICES {
        let (pd, cq) = parts(device);
        let board = pd.allocate_shared_region(8, everything()).unwrap();
        let counter = board.remote();
        let clients: Vec<(QueuePair, QueuePair)> = (0..THREADS)
            .map(|_| {
                let own = CompletionQueue::create(pd.context(), 16).unwrap();
                let prepare = |cq, size| {
                    let builder = pd.create_qp().send_cq(cq).recv_cq(cq).access(everything());
                    builder.max_send_wr(size).max_recv_wr(size).build().unwrap()
                };
                let (client, server) = (prepare(&own, 4), prepare(&cq, 4));
                let (client_end, server_end) = (client.endpoint(), server.endpoint());
                (client.handshake(server_end).unwrap(), server.handshake(client_end).unwrap())
            })
            .collect();
        let count = |client: &QueuePair| {
            let mut region = client.pd().allocate_region(8).unwrap();
            let numbers = (0..EACH).map(|_| {
                let mut result = ScatterList::from([region.as_slice_mut()]);
                let add = AtomicWorkRequest::fetch_and_add(&mut result, counter, 1);
                // SAFETY: SAFETY.md F8: the region is not used until the completion below.
                unsafe { client.post_atomic(add, 1) }.unwrap();
                let mut slots = [PollSlot::default()];
                let done = loop {
                    let next = client.send_cq().poll(&mut slots).unwrap().next();
                    if let Some(done) = next {
                        break done;
                    }
                    thread::yield_now();
                };
                done.result().unwrap();
                u64::from_ne_bytes(region[..].try_into().unwrap())
            });
            numbers.collect::<Vec<_>>()
        };
        let numbers = thread::scope(|threads| {
            let workers: Vec<_> =
                clients.iter().map(|(client, _)| threads.spawn(|| count(client))).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<HashSet<_>>()
        });
        assert_eq!(numbers, (0..(THREADS * EACH) as u64).collect());
    }
}

#[test]
fn without_the_right_an_atomic_is_refused_by_the_peer() {
    for device in DEVICES {
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let (a, b) = pair_with(device, |builder| builder.access(access));
        let mut result = ScatterElement::from(a.board.element(0..8).unwrap());
        let add = AtomicWorkRequest::fetch_and_add(&mut result, b.board.remote(), 1);
        // SAFETY: SAFETY.md F8: a shared region, which outlives the completion.
        unsafe { a.qp.post_atomic(add, 1) }.unwrap();
        assert_eq!(a.next().result().unwrap_err().class(), WorkErrorClass::Remote);
        assert_eq!(b.read(0), [0; 8]);
    }
}

/// A device without atomic operations, such as some Ethernet NICs.
fn plain() -> &'static str {
    let name = "no-atomics";
    // Another test may have installed it already.
    let _ = rdma_soft::Builder::new(name).without_atomics().install();
    name
}

#[test]
fn a_device_without_atomics_refuses_the_access_by_name() {
    let (pd, cq) = parts(plain());
    let error = pd.allocate_shared_region(64, everything()).unwrap_err();
    assert!(matches!(&error, rdma_mem::Error::NoAtomics { device } if device == plain()));
    assert!(error.to_string().contains("no atomic operations"), "{error}");
    let access = AccessFlags::new().with_remote_atomic();
    let error = pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access).build().unwrap_err();
    assert!(matches!(error, Error::Memory(rdma_mem::Error::NoAtomics { .. })), "{error}");
}

#[test]
fn a_device_without_atomics_refuses_the_request_before_the_provider_sees_it() {
    let (pd, cq) = parts(plain());
    let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
    let own = prepared.endpoint();
    let qp = prepared.handshake(own).unwrap();
    let mut region = pd.allocate_region(8).unwrap();
    let remote = RemoteMemoryRegion::new(0x1000, 8, 1);
    let mut result = ScatterList::from([region.as_slice_mut()]);
    let request = AtomicWorkRequest::fetch_and_add(&mut result, remote, 1);
    // SAFETY: SAFETY.md F8: it is refused.
    let error = unsafe { qp.post_atomic(request, 1) }.unwrap_err();
    assert_eq!((error.kind(), error.posted()), (PostErrorKind::NoAtomics, 0));
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_send(SendWorkRequest::only_immediate(7), 2) }.unwrap();
}
