//! Signals during a sleep, and forked children.
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{CloseReason, ScopeError, TransportError, Wait};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

use crate::common::child::{must_live, wait_for};
use crate::common::{Pair, must_end};
use crate::sleeping::{MODES, SECONDS, pair};

const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Signals end `poll(2)`, and the wait goes on.
#[test]
fn signals_do_not_end_a_wait() {
    // SAFETY: SAFETY.md F15: the handler only counts.
    let before = unsafe { libc::signal(libc::SIGUSR1, note as *const () as libc::sighandler_t) };
    assert_ne!(before, libc::SIG_ERR);
    for wait in MODES {
        must_end(move || {
            let Pair { mut here, mut there, .. } = pair("soft0", wait);
            let (say, is_over) = std::sync::mpsc::channel();
            let waiter = thread::spawn(move || {
                let limit = Duration::from_millis(100);
                let begin = Instant::now();
                here.scope(|s| {
                    let received = s.post_receive(ROOM)?;
                    let late = received.wait(limit);
                    assert!(matches!(late, Err(TransportError::Timeout { .. })), "{late:?}");
                    assert!(begin.elapsed() >= limit);
                    say.send(()).unwrap();
                    assert_eq!(received.wait(SECONDS)?.immediate_data(), Some(4));
                    Ok::<(), TransportError>(())
                })
                .unwrap();
            });
            let (thread, seen) = (waiter.as_pthread_t(), SIGNALS.load(Ordering::Relaxed));
            while is_over.recv_timeout(Duration::from_millis(5)).is_err() {
                // SAFETY: SAFETY.md F15: the thread was not joined yet.
                assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
            }
            assert!(SIGNALS.load(Ordering::Relaxed) > seen, "none came");
            there.send(SendWorkRequest::only_immediate(4)).unwrap();
            waiter.join().unwrap();
        });
    }
}

/// It shares its parent's file, and receives nothing from it. The test runs in a process whose other threads hold no
/// locks.
#[test]
fn a_forked_child_neither_sleeps_nor_takes_events() {
    must_live("sleeping::process::a_forked_child_neither_sleeps_nor_takes_events", |_| {
        MODES.into_iter().for_each(fork_in_a_scope);
    });
}

fn fork_in_a_scope(wait: Wait) {
    let Pair { mut here, mut there, .. } = pair("soft0", wait);
    here.scope(|s| {
        let received = s.post_receive(ROOM)?;
        let _ = s.arm()?;
        there.send(SendWorkRequest::only_immediate(5))?;
        let later = s.post_receive(ROOM)?;
        // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
            unsafe { libc::alarm(120) };
            let forked =
                |error| matches!(error, TransportError::Closed { reason: CloseReason::Forked, .. });
            let good = s.arm().is_err_and(forked)
                && later.wait(Duration::MAX).is_err_and(forked)
                && s.arm().is_err_and(forked);
            // SAFETY: SAFETY.md F15: no other thread runs in this child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        wait_for(pid);
        assert_eq!(received.wait(SECONDS)?.immediate_data(), Some(5));
        there.send(SendWorkRequest::only_immediate(6))?;
        assert_eq!(later.wait(SECONDS)?.immediate_data(), Some(6));
        Ok::<(), ScopeError>(())
    })
    .unwrap();
    assert_eq!(here.closed(), None);
}
