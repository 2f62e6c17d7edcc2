//! Endings that end the process, and endings in a process that does not own the channel.
#![allow(unsafe_code)]

use std::env;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rdma_channel::{CloseReason, ScopeError, TransportError};
use rdma_mem::{GatherElement, ScatterList};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use test_support::program::{is_emulated, this_program};

use crate::common::child::{self, CHILD, must_live, wait_for};
use crate::common::provider::{KEEP, POLL, STAY, faulty};
use crate::common::stuck::{Handles, Stuck};
use crate::common::{DRAIN, HELD, LATE, Pair, everything, short};

fn must_abort(test: &str, work: fn(Pair)) {
    child::must_abort(test, |device| work(Pair::on(&faulty(device), short)));
}

fn leave_a_scope(mut pair: Pair) {
    let mut stuck = Stuck::new(&pair);
    let _ = pair.here.scope(|s| {
        stuck.post(s, Handles::Forgotten).unwrap();
        KEEP.set(true);
        STAY.set(true);
        Ok::<(), TransportError>(())
    });
}

#[test]
fn a_scope_whose_queue_pair_cannot_be_destroyed_aborts() {
    must_abort(
        "endings::process::a_scope_whose_queue_pair_cannot_be_destroyed_aborts",
        leave_a_scope,
    );
}

fn panic_in_a_scope(mut pair: Pair) {
    let mut stuck = Stuck::new(&pair);
    let _ = pair.here.scope(|s| -> Result<(), TransportError> {
        stuck.post(s, Handles::Dropped).unwrap();
        KEEP.set(true);
        POLL.set(Some(-1));
        panic!("unwinding would free the memory")
    });
}

#[test]
fn a_panic_does_not_unwind_out_of_a_scope_that_has_to_abort() {
    must_abort(
        "endings::process::a_panic_does_not_unwind_out_of_a_scope_that_has_to_abort",
        panic_in_a_scope,
    );
}

fn time_out(mut pair: Pair) {
    let mut room = pair.memory(8, 1);
    let mut list = ScatterList::from([room.as_slice_mut()]);
    KEEP.set(true);
    STAY.set(true);
    let _ = pair.here.within(DRAIN).receive(ReceiveWorkRequest::from_list(&mut list));
}

#[test]
fn a_blocking_call_whose_queue_pair_cannot_be_destroyed_aborts() {
    must_abort(
        "endings::process::a_blocking_call_whose_queue_pair_cannot_be_destroyed_aborts",
        time_out,
    );
}

#[test]
fn an_abort_does_not_wait_until_its_message_is_read() {
    if let Some(device) = env::var_os(CHILD) {
        // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
        unsafe { libc::alarm(120) };
        return leave_a_scope(Pair::on(&faulty(device.to_str().unwrap()), short));
    }
    if is_emulated() {
        return println!(
            "skipped: the emulator itself writes to standard error when a program aborts"
        );
    }
    for device in LATE {
        let (_unread, full) = io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&full, 4096).unwrap();
        (&full).write_all(&[b'.'; 4096]).unwrap();
        let mut child = this_program();
        let test = "endings::process::an_abort_does_not_wait_until_its_message_is_read";
        child.args(["--exact", test, "--nocapture"]).env(CHILD, device);
        let status = child.stdout(Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
    }
}

/// Memory in flight is then not borrowed: it is leaked with the queue pair, since the device uses both.
#[test]
fn a_dropped_channel_that_cannot_be_destroyed_keeps_its_unpolled_work() {
    let test =
        "endings::process::a_dropped_channel_that_cannot_be_destroyed_keeps_its_unpolled_work";
    must_live(test, leave_unpolled);
}

fn leave_unpolled(device: &str) {
    let context = faulty(device);
    let Pair { here, there: _there, board: _board, pd, device } = Pair::on(&context, short);
    let qpn = here.qpn().unwrap();
    let data = pd.allocate_shared_region(8, everything(&pd)).unwrap();
    let element = GatherElement::from(data.element(0..8).unwrap());
    // SAFETY: SAFETY.md F8: the region is shared, and outlives the checks of the test.
    drop(unsafe { here.send_unpolled(SendWorkRequest::new(&[element])) }.unwrap());
    KEEP.set(true);
    drop(here);
    KEEP.set(false);
    let lives_on = device.in_flight(qpn) == 1;
    // SAFETY: SAFETY.md F15: no work is left, and a leak checker does not check the intended leak.
    unsafe { libc::_exit(i32::from(!lives_on)) };
}

#[test]
fn a_forked_child_that_leaves_a_scope_touches_nothing_of_its_parent() {
    for device in LATE {
        let mut pair = Pair::new(device);
        let mut stuck = Stuck::new(&pair);
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let mut child = false;
        let begin = Instant::now();
        let left = pair.here.scope(|s| {
            stuck.post(s, Handles::Forgotten).unwrap();
            // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
            let pid = unsafe { libc::fork() };
            child = pid == 0;
            if child {
                // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
                unsafe { libc::alarm(120) };
            } else {
                wait_for(pid);
                assert_eq!(soft.in_flight(qpn), 2, "nothing has changed");
            }
            Ok::<(), TransportError>(())
        });
        if child {
            let good = begin.elapsed() < Duration::from_secs(60)
                && matches!(&left, Err(ScopeError::AutoPollError(lost)) if lost.len() == 3)
                && pair.here.closed() == Some(CloseReason::Forked)
                && matches!(
                    pair.here.send(SendWorkRequest::only_immediate(1)),
                    Err(TransportError::Closed { reason: CloseReason::Forked, .. })
                );
            // SAFETY: SAFETY.md F15: no other thread runs in this child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        assert!(matches!(pair.here.closed(), Some(CloseReason::Timeout { .. })));
        stuck.assert_given_back(&mut pair);
    }
}

/// Its completion goes to the parent.
#[test]
fn a_wait_without_a_limit_ends_in_a_forked_child() {
    let mut pair = Pair::new(HELD);
    let qpn = pair.here.qpn().unwrap();
    pair.there
        .scope(|s| {
            let received = s.post_receive(ReceiveWorkRequest::only_immediate()).unwrap();
            // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
                unsafe { libc::alarm(120) };
                let error = received.wait(Duration::MAX).unwrap_err();
                let good =
                    matches!(error, TransportError::Closed { reason: CloseReason::Forked, .. });
                // SAFETY: SAFETY.md F15: no other thread runs in this child.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            wait_for(pid);
            pair.here.scope(|s| {
                let sent = s.post_send(SendWorkRequest::only_immediate(5))?;
                pair.device.release(qpn, 1);
                sent.wait(DRAIN)
            })?;
            assert_eq!(received.wait(DRAIN)?.immediate_data(), Some(5));
            Ok::<(), ScopeError>(())
        })
        .unwrap();
}
