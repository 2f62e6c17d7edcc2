//! The resources that this process uses, and the time that its calls take.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::rig::Size;
use test_support::rig::connect::pair_with;
use test_support::rig::post::Wr;

use crate::two_processes::near::PATIENT;

/// Makes a pair of queue pairs, sends, and destroys both, `times` times.
#[allow(clippy::disallowed_methods)] // The program has a clock of its own.
pub(super) fn work(times: usize) -> Duration {
    let mut longest = Duration::ZERO;
    let mut timed = |begin: Instant| longest = longest.max(begin.elapsed());
    for _ in 0..times {
        let begin = Instant::now();
        let (one, other) = pair_with("soft0", &Size::default(), &PATIENT);
        timed(begin);
        let begin = Instant::now();
        other.qp.post_receive(1, &[]);
        one.qp.post(&Wr::send(1, &[]));
        other.receive_cq.expect_success(1);
        one.send_cq.expect_success(1);
        timed(begin);
        let begin = Instant::now();
        drop((one, other));
        timed(begin);
    }
    longest
}

pub(crate) fn memory_in_use() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * rustix::param::page_size()
}

pub(super) fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

pub(super) fn allow(more: usize) {
    let limit = getrlimit(Resource::Nofile);
    let current = match more {
        0 => Some(3),
        _ => limit.maximum,
    };
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

/// The processor time in ticks, user and kernel together.
pub(super) fn processor_time(stat: &File) -> u64 {
    let mut bytes = [0; 1024];
    let length = stat.read_at(&mut bytes, 0).unwrap();
    let stat = str::from_utf8(&bytes[..length]).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
