//! When one side fails, the other ends too, and the caller gets the cause.

use std::fs::File;
use std::io::{self, Read, Write};
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use copy_file::{Control, Error, Settings, transfer};
use rdma::soft::{Builder, Limits, Schedule};

use crate::bench::Bench;

/// Devices on which requests are, or may be, in flight when a side fails.
fn devices() -> [String; 3] {
    rdma::soft::install();
    static MADE: AtomicU32 = AtomicU32::new(0);
    let name = format!("late{}", MADE.fetch_add(1, Ordering::Relaxed));
    Builder::new(&name).schedule(Schedule::Deferred { seed: 3 }).install().unwrap();
    ["soft0".to_owned(), "softib0".to_owned(), name]
}

/// A stream that continues until it fails, or without a limit.
struct Endless {
    left: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("the reader broke"))?;
        Ok(buffer.len())
    }
}

const FOR_EVER: Endless = Endless { left: usize::MAX };

/// The time that a channel by default gives the requests that a scope has left in flight.
const DRAIN: Duration = Duration::from_secs(5);

fn settings() -> Settings {
    Settings::new(4096, 4).unwrap()
}

#[test]
fn a_full_disk_ends_both_sides() {
    for device in devices() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let result =
            transfer(&device, &mut { FOR_EVER }, &mut full, settings(), Control::default());
        let Err(Error::Write(error)) = result else { panic!("{result:?}") };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}

#[test]
fn a_failing_source_ends_both_sides() {
    for device in devices() {
        for left in [0, 1, 5] {
            let (mut source, control) = (Endless { left }, Control::default());
            let result = transfer(&device, &mut source, &mut io::sink(), settings(), control);
            let Err(Error::Read(error)) = result else { panic!("{result:?}") };
            assert_eq!(error.to_string(), "the reader broke");
        }
    }
}

#[test]
fn a_panic_of_one_side_ends_both() {
    struct Panics;
    impl Write for Panics {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("the sink panics on purpose");
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Read for Panics {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("the source panics on purpose");
        }
    }
    for device in devices() {
        let begin = Instant::now();
        let receiver =
            || transfer(&device, &mut { FOR_EVER }, &mut Panics, settings(), Control::default());
        assert!(catch_unwind(AssertUnwindSafe(receiver)).is_err());
        let sender =
            || transfer(&device, &mut Panics, &mut io::sink(), settings(), Control::default());
        assert!(catch_unwind(AssertUnwindSafe(sender)).is_err());
        assert!(begin.elapsed() < Control::default().patience, "the other side did not notice");
    }
}

#[test]
fn a_cancelled_copy_ends_both_sides() {
    for device in devices() {
        let is_fast = || {
            let cancelled = AtomicBool::new(false);
            let progress = |bytes| cancelled.store(bytes > 100_000, Ordering::Relaxed);
            let control =
                Control { progress: &progress, cancelled: &cancelled, ..Control::default() };
            let begin = Instant::now();
            let result = transfer(&device, &mut { FOR_EVER }, &mut io::sink(), settings(), control);
            assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
            begin.elapsed() < DRAIN
        };
        // On a busy machine, an attempt may take that long for another reason.
        let mut attempts = iter::repeat_with(is_fast).take(10);
        assert!(attempts.any(|is_fast| is_fast), "it waited for messages that are never sent");
    }
}

#[test]
fn a_device_that_never_completes_ends_the_copy_after_the_limit() {
    Builder::new("held").schedule(Schedule::Held).install().unwrap();
    let control = Control { patience: Duration::from_millis(50), ..Control::default() };
    let result = transfer("held", &mut { FOR_EVER }, &mut io::sink(), settings(), control);
    assert!(matches!(result, Err(Error::Stalled { .. })), "{result:?}");
}

#[test]
fn exceeding_the_memlock_limit_is_an_error_with_a_remedy() {
    for (name, limit) in [("locked_none", 0), ("locked_one", 1 << 20)] {
        Builder::new(name).limits(Limits::default().memlock(limit)).install().unwrap();
        let bench = Bench::with_source(b"x");
        let settings = Settings::new(65536, 16).unwrap();
        let said = bench.failed(bench.copy(name, settings, Control::default()));
        for says in ["1048576 bytes", "RLIMIT_MEMLOCK", "ulimit -l", "smaller --chunk or --depth"] {
            assert!(said.contains(says), "{said}");
        }
        // Within the limit, both sides work.
        let settings = Settings::new(4096, 4).unwrap();
        assert_eq!(bench.copy(name, settings, Control::default()).is_ok(), limit > 0);
    }
}

#[test]
fn each_side_registers_depth_chunks_and_nothing_else() {
    let settings = Settings::new(4096, 16).unwrap();
    let both_sides = 2 * 4096 * 16;
    for (name, limit) in [("exactly", both_sides), ("page_less", both_sides - 4096)] {
        Builder::new(name).limits(Limits::default().memlock(limit)).install().unwrap();
        let result =
            transfer(name, &mut &[1; 9][..], &mut io::sink(), settings, Control::default());
        match result {
            Ok(done) => assert_eq!((done.registered_bytes, limit), (4096 * 16, both_sides)),
            Err(Error::Registration { bytes, .. }) => {
                assert_eq!((bytes, limit), (4096 * 16, both_sides - 4096));
            }
            Err(other) => panic!("{other}"),
        }
    }
}
