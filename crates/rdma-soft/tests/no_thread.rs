//! Deadlines in a process that can start no thread: whoever polls sees to them. One test, since it takes
//! its process the memory for another thread's stack.
#![allow(clippy::disallowed_methods)] // The programs' side has clocks and threads of its own.
#![allow(clippy::unwrap_used)]
// AddressSanitizer needs memory of its own all the time.
#![cfg(not(rdma_visible_copies))]

use std::time::{Duration, Instant};

use rdma_soft::{Builder, Schedule};
use rdma_sys::ibv_wc_status as Status;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::is_emulated;
use test_support::rig::Size;
use test_support::rig::connect::{Knobs, Side, pair_with};
use test_support::rig::post::Wr;

/// Meanwhile there is no more memory than now: the stack of a thread would be more. Afterwards there is, as a
/// leak checker needs some when the process ends.
fn without_more_memory(work: impl FnOnce()) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let now = pages * rustix::param::page_size() as u64;
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(now), ..before }).unwrap();
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "a thread was started");
    work();
    setrlimit(Resource::As, before).unwrap();
}

#[test]
fn polls_end_what_a_thread_would_have_ended() {
    if is_emulated() {
        return; // the emulator does not limit its program's memory
    }
    let deferred = Schedule::Deferred { seed: 5 };
    for (name, schedule) in [("alone", Schedule::Immediate), ("alone-deferred", deferred)] {
        Builder::new(name).schedule(schedule).install().unwrap();
    }
    let knobs =
        Knobs { rnr_retries: 1, min_rnr_timer: 10, timeout: 5, retries: 2, ..Knobs::default() };
    let pairs = ["alone", "alone-deferred"]
        .map(|name| [(); 2].map(|()| pair_with(name, &Size::default(), &knobs)));
    without_more_memory(|| pairs.into_iter().for_each(both_end));
}

/// Both requests end though no thread comes.
fn both_end([(not_ready, _receiver), (unanswered, gone)]: [(Side, Side); 2]) {
    drop(gone);
    not_ready.qp.post(&Wr::send(1, &[]));
    unanswered.qp.post(&Wr::send(2, &[]));
    for (side, status) in
        [(not_ready, Status::IBV_WC_RNR_RETRY_EXC_ERR), (unanswered, Status::IBV_WC_RETRY_EXC_ERR)]
    {
        let limit = Instant::now() + Duration::from_secs(20);
        let completion = loop {
            assert!(Instant::now() < limit, "never ended: {status:?}");
            if let Some(&completion) = side.send_cq.try_poll::<1>().unwrap().first() {
                break completion;
            }
        };
        assert_eq!(completion.status, status);
    }
}
