use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;

use super::*;
use crate::device::Device;
use crate::device::subnet::Subnet;
use crate::engine::completion::CompletionQueue;
use crate::fabric::random::Seed;
use crate::limits::Limits;
use crate::link::Link;
use crate::memory::protection::ProtectionDomain;
use crate::schedule::Schedule;

#[test]
fn a_visit_is_waited_for() {
    let over = AtomicBool::new(false);
    let (began, begun) = mpsc::channel();
    thread::scope(|threads| {
        threads.spawn(|| {
            let _visit = Visit::begin();
            began.send(()).unwrap();
            // Long enough to detect a thread that does not wait.
            thread::sleep(std::time::Duration::from_millis(20));
            over.store(true, Ordering::Relaxed);
        });
        begun.recv().unwrap();
        wait();
        assert!(over.load(Ordering::Relaxed), "a visit was not waited for");
    });
}

/// A wait does not extend to later visits of a thread that makes one visit after another.
#[test]
fn visits_that_begin_later_are_not_waited_for() {
    let (stop, began) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut visit = Visit::begin();
            while !stop.load(Ordering::Relaxed) {
                began.store(true, Ordering::Relaxed);
                drop(visit);
                visit = Visit::begin();
            }
        });
        while !began.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        (0..100).for_each(|_| wait());
        stop.store(true, Ordering::Relaxed);
    });
}

/// A thread that has ended does not prolong waits, and its word is reused.
#[test]
fn threads_that_ended_are_not_in_the_list() {
    let listed = || VISITORS.lock().active.len();
    for _ in 0..100 {
        thread::spawn(|| drop(Visit::begin())).join().unwrap();
    }
    // Other tests run in parallel.
    assert!(listed() < 90, "{} threads", listed());
}

/// A thread-local's destructor may post after the thread has left the list. The thread then joins the list again, for
/// one visit.
#[test]
fn a_visit_at_the_end_of_a_thread_is_waited_for() {
    struct Last(mpsc::Sender<bool>);
    impl Drop for Last {
        fn drop(&mut self) {
            let visit = Visit::begin();
            let listed = VISITORS.lock().active.iter().any(|&v| std::ptr::eq(v, visit.visitor));
            self.0.send(listed && visit.thread_ends).unwrap();
        }
    }
    thread_local!(static LAST: std::cell::OnceCell<Last> = const { std::cell::OnceCell::new() });
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // The thread-local that was created last is destroyed first.
        assert!(LAST.with(|last| last.set(Last(sender)).is_ok()));
        drop(Visit::begin());
    })
    .join()
    .unwrap();
    assert_eq!(receiver.recv(), Ok(true));
}

/// A thread that registers memory and polls, but never posts, does not prolong waits.
#[test]
fn a_thread_that_never_posted_is_not_in_the_list() {
    // The device is in a static, so that a leak checker finds it.
    static SUBNET: Subnet = Subnet::new();
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let (limits, schedule) = (Limits::default(), Schedule::Immediate);
    let new = || {
        let seed = Seed::new(1);
        Device::new(&SUBNET, "d".into(), Link::Ethernet, Vec::new(), limits, schedule, &seed)
    };
    let device = DEVICE.get_or_init(new);
    thread::spawn(|| {
        let pd = ProtectionDomain::new(&device.memory);
        let cq = CompletionQueue::new(&SUBNET, 1, None).unwrap();
        let memory = [0u8; 8];
        let address = memory.as_ptr().expose_provenance() as u64;
        let registration = pd.register(address, 8, address, 0).unwrap();
        assert_eq!(cq.poll(1, |_, _, _| ()), Ok(0));
        assert!(WORD.get().is_none(), "it has joined");
        pd.deregister(registration).unwrap();
        assert!(WORD.get().is_none(), "it has joined to wait for others");
        // The thread joins with its first visit.
        drop(Visit::begin());
        let own = WORD.get().unwrap();
        assert!(VISITORS.lock().active.iter().any(|&visitor| std::ptr::eq(visitor, own)));
    })
    .join()
    .unwrap();
}
