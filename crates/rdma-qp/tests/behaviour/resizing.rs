//! Completion queues with a changed size.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::{DEVICES, open, pair};
use rdma_mem::{Errno, GatherElement};
use rdma_qp::{CompletionQueue, Error, QueuePair, WriteWorkRequest};
use test_support::flag::SetWhenDropped;

fn write(qp: &QueuePair, wr_id: u64) {
    let none: [GatherElement<'_>; 0] = [];
    let remote = rdma_mem::RemoteMemoryRegion::new(0, 0, 0);
    // SAFETY: SAFETY.md F8: a write of 0 bytes.
    unsafe { qp.post_write(WriteWorkRequest::new(&none, remote), wr_id) }.unwrap();
}

fn errno(error: Error) -> Errno {
    match error {
        Error::Verb(error) => error.errno,
        other => panic!("{other}"),
    }
}

#[test]
fn a_queue_keeps_its_completions_in_whatever_size() {
    for device in DEVICES {
        let (a, _b) = pair(device);
        (0..8).for_each(|n| write(&a.qp, n));
        for capacity in [200, 8, 1000] {
            a.cq.resize(capacity).unwrap();
            assert_eq!(a.cq.clone().min_capacity(), capacity);
        }
        for n in 0..8 {
            assert_eq!(a.next().wr_id(), n);
        }
        assert!(a.is_idle());
    }
}

#[test]
fn a_size_that_cannot_be_is_refused_and_changes_nothing() {
    for device in DEVICES {
        let (a, _b) = pair(device);
        write(&a.qp, 7);
        let before = a.cq.min_capacity();
        for capacity in [0, 1 << 31, u32::MAX] {
            assert_eq!(errno(a.cq.resize(capacity).unwrap_err()), Errno::EINVAL, "{capacity}");
        }
        assert_eq!(a.cq.min_capacity(), before);
        assert_eq!(a.next().wr_id(), 7);
    }
}

#[test]
fn queues_with_timestamps_are_resized_too() {
    for device in DEVICES {
        let context = open(device);
        let cq = CompletionQueue::builder(&context).timestamps(true).build(4).unwrap();
        assert!(cq.has_timestamps());
        cq.resize(100).unwrap();
        assert_eq!(cq.min_capacity(), 100);
    }
}

#[test]
fn a_queue_is_resized_by_one_thread_while_another_fills_and_polls_it() {
    for device in DEVICES {
        let (a, _b) = pair(device);
        let (done, cq) = (AtomicBool::new(false), a.cq.clone());
        thread::scope(|scope| {
            let resizer = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    for capacity in [64, 1000, 33] {
                        cq.resize(capacity).unwrap();
                    }
                }
            });
            let uses = SetWhenDropped(&done);
            for n in 0..1000 {
                write(&a.qp, n);
                if resizer.is_finished() {
                    break; // it has failed
                }
                assert_eq!(a.next().wr_id(), n);
            }
            drop(uses);
        });
    }
}
