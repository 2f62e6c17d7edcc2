//! Asynchronous events of queue pairs and completion queues, from the software device.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use crate::common::{DEVICES, HANG, TestPeer, everything, must_end, open, pair, parts};
use rdma_mem::{
    AsyncEvent, AsyncEventKind, AsyncEventSource, AsyncEvents, Context, RemoteMemoryRegion,
};
use rdma_qp::{CompletionQueue, QpState, WorkErrorCode, WriteWorkRequest, prelude::*};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn next(events: &AsyncEvents) -> (AsyncEventKind, AsyncEventSource) {
    let AsyncEvent { kind, source, .. } = events.get_event_timeout(HANG).unwrap().unwrap();
    (kind, source)
}

/// Makes `b` refuse a write of `a` to memory that does not exist.
fn refuse_access(a: &TestPeer, b: &TestPeer) {
    let source = a.pd.allocate_region(8).unwrap();
    let elements = [source.get_ref(0, 8).unwrap().gather_element()];
    let nowhere = RemoteMemoryRegion::new(0x1000, 8, 0x1234_5678);
    // SAFETY: SAFETY.md F8: the region lives until the completion below.
    unsafe { a.qp.post_write(WriteWorkRequest::new(&elements, nowhere), 1) }.unwrap();
    let error = a.next().result().unwrap_err();
    assert_eq!(error.code(), WorkErrorCode::RemoteAccessError);
    while b.qp.state().unwrap() != QpState::ERR {
        thread::yield_now();
    }
}

#[test]
fn a_refused_access_is_an_event_of_the_queue_pair_that_refused() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let events = b.pd.context().async_events().unwrap();
        let elsewhere = a.pd.context().async_events().unwrap();
        refuse_access(&a, &b);
        let source = b.qp.event_source();
        assert_eq!(next(&events), (AsyncEventKind::QP_ACCESS_ERR, source));
        assert_eq!(events.try_get_event().unwrap(), None);
        assert_eq!(elsewhere.try_get_event().unwrap(), None, "it has its completion");
        // The event is acknowledged, so destroying does not wait.
        b.qp.close().unwrap();
    }
}

#[test]
fn an_overflow_is_an_event_of_the_completion_queue_and_of_its_queue_pairs() {
    for device in DEVICES {
        let (pd, cq) = parts(device);
        let events = pd.context().async_events().unwrap();
        let small = CompletionQueue::create(pd.context(), 4).unwrap();
        let connected: Vec<_> = (0..3)
            .map(|_| {
                let prepare = |sends| {
                    let builder = pd.create_qp().send_cq(sends).recv_cq(&cq).access(everything());
                    builder.max_send_wr(2).max_recv_wr(2).build().unwrap()
                };
                let (a, b) = (prepare(&small), prepare(&cq));
                let (a_end, b_end) = (a.endpoint(), b.endpoint());
                (a.handshake(b_end).unwrap(), b.handshake(a_end).unwrap())
            })
            .collect();
        for (a, _) in &connected {
            for n in 0..2 {
                let nothing = RemoteMemoryRegion::new(0, 0, 0);
                let request = WriteWorkRequest::new(&[], nothing);
                // SAFETY: SAFETY.md F8: no memory. After the overflow the post may fail.
                let _ = unsafe { a.post_write(request, n) };
            }
        }
        let mut expected: HashSet<_> =
            connected.iter().map(|(a, _)| (AsyncEventKind::QP_FATAL, a.event_source())).collect();
        let source = AsyncEventSource::CompletionQueue(small.id());
        assert_ne!(small.id(), cq.id());
        expected.insert((AsyncEventKind::CQ_ERR, source));
        while !expected.is_empty() {
            let event = next(&events);
            assert!(expected.remove(&event), "{event:?} was not expected");
        }
    }
}

#[test]
fn each_taker_gets_every_event_from_any_fetching_thread() {
    const EVENTS: usize = 20;
    for device in DEVICES {
        rdma_soft::install();
        let context: Context = open(device);
        let takers = [(); 3].map(|()| context.async_events().unwrap());
        let (pairs, taken) = thread::scope(|threads| {
            let all = |events: &AsyncEvents| (0..EVENTS).map(|_| next(events)).collect::<Vec<_>>();
            let [one, other, _] = &takers;
            let waiters = [threads.spawn(move || all(one)), threads.spawn(move || all(other))];
            let refuse = |_| {
                let (a, b) = crate::common::pair_on(device, &context);
                refuse_access(&a, &b);
                // This query removes no events.
                while b.qp.async_events().unwrap() != [AsyncEventKind::QP_ACCESS_ERR] {
                    thread::yield_now();
                }
                assert_eq!(a.qp.async_events().unwrap(), []);
                (a, b)
            };
            let pairs = (0..EVENTS).map(refuse).collect::<Vec<_>>();
            (pairs, waiters.map(|waiter| waiter.join().unwrap()))
        });
        let event = |b: &TestPeer| (AsyncEventKind::QP_ACCESS_ERR, b.qp.event_source());
        let expected: Vec<_> = pairs.iter().map(|(_, b)| event(b)).collect();
        assert_eq!(taken, [expected.clone(), expected.clone()]);
        // The third has them all, although the others have stopped fetching. Its file is readable until the last.
        let file = takers[2].as_fd().try_clone_to_owned().unwrap();
        for event in expected {
            assert!(is_readable(&file));
            assert_eq!(next(&takers[2]), event);
        }
        assert!(!is_readable(&file));
    }
}

fn is_readable(file: &OwnedFd) -> bool {
    let mut files = [PollFd::new(file, PollFlags::IN)];
    poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn an_event_of_a_queue_pair_is_not_that_of_a_later_one_of_its_number() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let source = b.qp.event_source();
        refuse_access(&a, &b);
        while b.qp.async_events().unwrap().is_empty() {
            thread::yield_now();
        }
        let context = b.pd.context().clone();
        drop(b);
        assert_eq!(context.events_of(source).unwrap(), [AsyncEventKind::QP_ACCESS_ERR]);
        let AsyncEventSource::QueuePair { qpn, id } = source else { unreachable!() };
        let later = AsyncEventSource::QueuePair { qpn, id: a.qp.send_cq().id() };
        assert_ne!(id, a.qp.send_cq().id());
        assert_eq!(context.events_of(later).unwrap(), []);
    }
}

#[test]
fn unread_events_do_not_block_destruction() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let events = b.pd.context().async_events().unwrap();
        refuse_access(&a, &b);
        must_end(move || {
            drop((a, b));
            assert_eq!(events.try_get_event().unwrap(), None, "it went with its queue pair");
        });
    }
}
