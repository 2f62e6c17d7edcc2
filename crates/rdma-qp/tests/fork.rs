//! Starting programs, and forking children, during traffic.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{DEVICES, TestPeer, pair};
use rdma_mem::{GatherElement, ScatterElement};
use rdma_qp::{CompletionQueue, Error, PollSlot, ReceiveWorkRequest, SendWorkRequest, prelude::*};

fn post_receive(end: &TestPeer, id: u64) {
    let mut room = [ScatterElement::from(end.board.element(0..8).unwrap())];
    // SAFETY: SAFETY.md F8: a shared region, which outlives the completion.
    unsafe { end.qp.post_receive(ReceiveWorkRequest::new(&mut room), id) }.unwrap();
}

/// Sends eight bytes, for a posted receive.
fn message(from: &TestPeer, to: &TestPeer, number: u64) {
    from.board.write(8, &number.to_le_bytes()).unwrap();
    let data = [GatherElement::from(from.board.element(8..16).unwrap())];
    // SAFETY: SAFETY.md F8: a shared region, which outlives the completion.
    unsafe { from.qp.post_send(SendWorkRequest::new(&data), number) }.unwrap();
    assert!(from.next().result().is_ok());
    assert_eq!(to.next().result().unwrap().scattered_bytes(), Some(8));
    assert_eq!(to.read(0), number.to_le_bytes());
}

#[test]
fn programs_are_started_while_receives_are_posted() {
    for device in DEVICES {
        let (a, b) = pair(device);
        for number in 0..5 {
            post_receive(&b, number);
            // The child is forked, or cloned, with the receive in flight; its exit changes nothing.
            let running = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
            message(&a, &b, number);
            assert!(running.wait_with_output().unwrap().status.success());
            post_receive(&a, number);
            message(&b, &a, number);
        }
    }
}

#[test]
fn a_forked_child_cannot_touch_the_connection_and_its_end_changes_nothing() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let srq = a.pd.create_srq().build().unwrap();
        post_receive(&b, 1);
        // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no child");
        if pid == 0 {
            // SAFETY: SAFETY.md F15: it ends a child that hangs.
            unsafe { libc::alarm(120) };
            let forked = |error| matches!(error, Error::Memory(rdma_mem::Error::Forked(_)));
            let create = CompletionQueue::create(a.pd.context(), 16).err().is_some_and(forked);
            let query = a.qp.query().err().is_some_and(forked);
            let shared = a.pd.create_srq().build().err().is_some_and(forked)
                && srq.query().err().is_some_and(forked)
                && srq.set_limit(1).err().is_some_and(forked)
                && srq.close().err().is_some_and(|(_, error)| forked(error));
            let close = a.qp.close().err().is_some_and(|(_, error)| forked(error));
            drop(b);
            // SAFETY: SAFETY.md F15: nothing else runs in this child.
            unsafe { libc::_exit(i32::from(!(create && query && shared && close))) };
        }
        let mut status = 0;
        // SAFETY: SAFETY.md F15: the child of this process, and room for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        message(&a, &b, 1);
    }
}

/// Exchanges messages that wait for their receives, so that timers expire, until `is_over` is set.
fn keep_busy(is_over: &AtomicBool, a: &TestPeer, b: &TestPeer) {
    while !is_over.load(Ordering::Relaxed) {
        let data = [GatherElement::from(a.board.element(0..8).unwrap())];
        // SAFETY: SAFETY.md F8: a shared region, which outlives the completion.
        unsafe { a.qp.post_send(SendWorkRequest::new(&data), 1) }.unwrap();
        for _ in 0..100 {
            assert!(a.cq.poll(&mut [PollSlot::default()]).unwrap().is_empty());
        }
        post_receive(b, 2);
        assert!(a.next().result().is_ok() && b.next().result().is_ok());
    }
}

/// The parent's threads may hold the device's locks at any moment, and the child has none of these threads.
#[test]
fn a_forked_child_polls_without_waiting_for_threads_of_its_parent() {
    const CHILDREN: usize = 100;
    const POLLS: usize = 20_000;
    for device in DEVICES {
        let (idle, _peer) = pair(device);
        let pairs = [(); 2].map(|()| pair(device));
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            for (a, b) in &pairs {
                threads.spawn(|| keep_busy(&is_over, a, b));
            }
            for _ in 0..CHILDREN {
                // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
                let pid = unsafe { libc::fork() };
                assert!(pid >= 0, "no child");
                if pid == 0 {
                    // SAFETY: SAFETY.md F15: it ends a child that hangs.
                    unsafe { libc::alarm(60) };
                    let is_empty = |_| matches!(idle.cq.poll(&mut [PollSlot::default()]), Ok(new) if new.is_empty());
                    let good = (0..POLLS).all(is_empty);
                    // SAFETY: SAFETY.md F15: nothing else runs in this child.
                    unsafe { libc::_exit(i32::from(!good)) };
                }
                let mut status = 0;
                // SAFETY: SAFETY.md F15: the child of this process, and room for its status.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                if status != 0 {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert_eq!(status, 0);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
