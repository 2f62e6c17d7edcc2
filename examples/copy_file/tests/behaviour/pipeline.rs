//! The pipeline: the number of chunks in flight reaches its limit, and never exceeds it.

use std::io::{self, Read, Write};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use copy_file::{Control, Settings, transfer};
use rdma::soft::{Builder, Link, Schedule};

use crate::bench::noise;

/// Longer than anything here takes; a hang ends after it.
const LIMIT: Duration = Duration::from_secs(60);

/// The positions of a source and of a sink.
#[derive(Default)]
struct Meter {
    at: Mutex<(usize, usize)>,
    changed: Condvar,
}

/// A stream of `length` bytes that must never be read more than `lead` bytes ahead of the sink.
struct Source<'a> {
    meter: &'a Meter,
    length: usize,
    lead: usize,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut at = self.meter.at.lock().unwrap();
        let (read, written) = *at;
        let step = buffer.len().min(self.length - read);
        assert!(read + step <= written + self.lead, "{read} + {step} read, {written} written");
        buffer[..step].fill(read.to_le_bytes()[0]);
        at.0 += step;
        self.meter.changed.notify_all();
        Ok(step)
    }
}

/// A sink that accepts nothing until the source is as far ahead as it may be.
struct SlowSink<'a> {
    meter: &'a Meter,
    length: usize,
    lead: usize,
}

impl Write for SlowSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.meter.at.lock().unwrap();
        let behind = |at: &mut (usize, usize)| at.0 < self.length.min(at.1 + self.lead);
        let (mut at, timeout) = self.meter.changed.wait_timeout_while(at, LIMIT, behind).unwrap();
        assert!(!timeout.timed_out(), "the sender stopped early: {at:?}");
        at.1 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_slow_receiver_slows_the_sender_which_uses_all_slots() {
    rdma::soft::install();
    Builder::new("slow_deferred").schedule(Schedule::Deferred { seed: 5 }).install().unwrap();
    for device in ["soft0", "softib0", "slow_deferred"] {
        for (chunk, depth) in [(64, 1), (64, 2), (1000, 7)] {
            let (meter, length, lead) = (Meter::default(), 50_000, chunk * depth);
            let mut source = Source { meter: &meter, length, lead };
            let mut sink = SlowSink { meter: &meter, length, lead };
            let settings = Settings::new(chunk, depth).unwrap();
            let done = transfer(device, &mut source, &mut sink, settings, Control::default());
            assert_eq!(done.unwrap().bytes, length as u64);
            assert_eq!(*meter.at.lock().unwrap(), (length, length));
        }
    }
}

#[test]
fn streams_arrive_on_devices_that_execute_later() {
    for seed in 0..6 {
        let link = if seed % 2 == 0 { Link::Ethernet } else { Link::InfiniBand };
        let name = format!("deferred{seed}");
        Builder::new(&name).link(link).schedule(Schedule::Deferred { seed }).install().unwrap();
        for (chunk, depth) in [(64, 1), (64, 3), (4096, 8), (4096, 100)] {
            for length in [0, 1, chunk - 1, chunk, chunk + 1, 100_003] {
                let (bytes, mut sink) = (noise(length), Vec::new());
                let settings = Settings::new(chunk, depth).unwrap();
                let control = Control::default();
                let done = transfer(&name, &mut &bytes[..], &mut sink, settings, control).unwrap();
                assert_eq!(done.crc32, crc32fast::hash(&bytes));
                assert_eq!(done.registered_bytes, chunk * depth);
                assert!(sink == bytes, "{length} bytes in {depth} x {chunk} with seed {seed}");
            }
        }
    }
}

#[test]
fn progress_is_reported_after_each_chunk() {
    rdma::soft::install();
    let told = Mutex::new(Vec::new());
    let progress = |bytes| told.lock().unwrap().push(bytes);
    let control = Control { progress: &progress, ..Control::default() };
    let settings = Settings::new(100, 2).unwrap();
    transfer("soft0", &mut &[1; 250][..], &mut io::sink(), settings, control).unwrap();
    assert_eq!(*told.lock().unwrap(), [100, 200, 250]);
}
