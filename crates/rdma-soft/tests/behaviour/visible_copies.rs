//! Accesses of the device to invalid memory are reported: by AddressSanitizer with `--cfg rdma_visible_copies`, and by
//! valgrind on the real copies.
//!
//! A test runs itself as a child that makes the device access invalid memory, and reads the report. Without
//! AddressSanitizer the first kind fails, and valgrind's are ignored: the jobs `asan` and `valgrind` run them by name.

use std::env;
use std::process::Command;

use rdma_soft::{Builder, Schedule, SoftDevice};
use test_support::rig::connect::{Side, pair};
use test_support::rig::memory::{key_of, note_mapped};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE};

const CHILD: &str = "RDMA_VISIBLE_COPIES_CHILD";

/// In the child, runs the invalid access; in the parent, expects its report.
fn expect_report(test: &str, wrong: impl FnOnce(), report: &str) {
    if env::var_os(CHILD).is_some() {
        return wrong();
    }
    let this = env::current_exe().unwrap();
    let mut child = if cfg!(rdma_visible_copies) {
        Command::new(this)
    } else {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=99"]).arg(this);
        valgrind
    };
    child.args([test, "--exact", "--include-ignored", "--nocapture"]).env(CHILD, "1");
    let output = child.output().unwrap();
    let ran = String::from_utf8_lossy(&output.stdout);
    assert!(ran.contains("running 1 test"), "no test `{test}`: {ran}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains(report),
        "{}, with this output:\n{said}",
        output.status
    );
    assert!(
        said.contains("device_copy") || !cfg!(rdma_visible_copies),
        "the report does not name `device_copy`:\n{said}"
    );
}

const BYTES: usize = 64;

/// A device, and two connected queue pairs on it.
fn stage(device: &str, schedule: Schedule) -> (SoftDevice, Side, Side) {
    let soft = Builder::new(device).schedule(schedule).install().unwrap();
    let (a, b) = pair(device);
    (soft, a, b)
}

/// A peer writes to registered memory that was freed.
fn write_to_freed_memory() {
    let (_, a, b) = stage("freed", Schedule::Immediate);
    let source = a.pd.register(BYTES, 0);
    let mut sink = vec![0_u8; BYTES];
    let (start, address) = (sink.as_mut_ptr(), sink.as_ptr().addr() as u64);
    let mr = b.pd.try_register(start, BYTES, ALL_ACCESS).unwrap();
    drop(sink);
    a.qp.post(&Wr::write(1, &[source.sge(0, BYTES)], &source, 0).remote(address, key_of(mr)));
    a.send_cq.expect_success(1);
    test_support::rig::memory::deregister(mr);
}

/// A peer writes one byte past the end of a buffer, since the program registered a greater length.
fn write_past_the_end() {
    let (_, a, b) = stage("past-the-end", Schedule::Immediate);
    let source = a.pd.register(BYTES + 1, 0);
    let mut sink = vec![0_u8; BYTES];
    let mr = b.pd.try_register(sink.as_mut_ptr(), BYTES + 1, ALL_ACCESS).unwrap();
    let address = sink.as_ptr().addr() as u64;
    a.qp.post(&Wr::write(1, &[source.sge(0, BYTES + 1)], &source, 0).remote(address, key_of(mr)));
    a.send_cq.expect_success(1);
    test_support::rig::memory::deregister(mr);
}

/// A program frees memory while it is being sent.
fn read_of_freed_memory() {
    let (soft, a, b) = stage("in-flight", Schedule::Held);
    let sink = b.pd.register(BYTES, LOCAL_WRITE);
    b.qp.post_receive(1, &[sink.sge(0, BYTES)]);
    let mut source = vec![0_u8; BYTES];
    let mr = a.pd.try_register(source.as_mut_ptr(), BYTES, 0).unwrap();
    let address = source.as_ptr().addr() as u64;
    let sge = rdma_sys::ibv_sge { addr: address, length: 64, lkey: key_of(mr) };
    a.qp.post(&Wr::send(2, &[sge]));
    drop(source);
    assert_eq!(soft.release(a.qp.qpn(), 1), 1);
    test_support::rig::memory::deregister(mr);
}

/// A packet arrives for memory that was freed although its program has declared that it stays: the kernel does not
/// check it.
fn packet_to_freed_memory() {
    Builder::new("noted").force_wire().install().unwrap();
    let (a, b) = pair("noted");
    let source = a.pd.register(BYTES, 0);
    let mut sink = vec![0_u8; BYTES];
    let (start, address) = (sink.as_mut_ptr(), sink.as_ptr().addr() as u64);
    let mr = b.pd.try_register(start, BYTES, ALL_ACCESS).unwrap();
    note_mapped(mr);
    drop(sink);
    a.qp.post(&Wr::write(1, &[source.sge(0, BYTES)], &source, 0).remote(address, key_of(mr)));
    a.send_cq.expect_success(1);
    test_support::rig::memory::deregister(mr);
}

#[cfg(rdma_visible_copies)]
mod address_sanitizer {
    use super::*;

    #[test]
    fn sees_a_write_to_freed_memory() {
        let name = "visible_copies::address_sanitizer::sees_a_write_to_freed_memory";
        expect_report(name, write_to_freed_memory, "AddressSanitizer: heap-use-after-free");
    }

    #[test]
    fn sees_a_write_past_the_end() {
        let name = "visible_copies::address_sanitizer::sees_a_write_past_the_end";
        expect_report(name, write_past_the_end, "AddressSanitizer: heap-buffer-overflow");
    }

    #[test]
    fn sees_a_packet_to_freed_memory() {
        let name = "visible_copies::address_sanitizer::sees_a_packet_to_freed_memory";
        expect_report(name, packet_to_freed_memory, "AddressSanitizer: heap-use-after-free");
    }

    #[test]
    fn sees_a_read_of_freed_memory() {
        let name = "visible_copies::address_sanitizer::sees_a_read_of_freed_memory";
        expect_report(name, read_of_freed_memory, "AddressSanitizer: heap-use-after-free");
    }
}

#[cfg(not(rdma_visible_copies))]
mod valgrind {
    use super::*;

    #[test]
    #[ignore = "needs valgrind, which the job `valgrind` has"]
    fn sees_a_write_to_freed_memory() {
        expect_report(
            "visible_copies::valgrind::sees_a_write_to_freed_memory",
            write_to_freed_memory,
            "Invalid write",
        );
    }

    #[test]
    #[ignore = "needs valgrind, which the job `valgrind` has"]
    fn sees_a_write_past_the_end() {
        expect_report(
            "visible_copies::valgrind::sees_a_write_past_the_end",
            write_past_the_end,
            "Invalid write",
        );
    }

    #[test]
    #[ignore = "needs valgrind, which the job `valgrind` has"]
    fn sees_a_packet_to_freed_memory() {
        expect_report(
            "visible_copies::valgrind::sees_a_packet_to_freed_memory",
            packet_to_freed_memory,
            "Invalid write",
        );
    }

    #[test]
    #[ignore = "needs valgrind, which the job `valgrind` has"]
    fn sees_a_read_of_freed_memory() {
        expect_report(
            "visible_copies::valgrind::sees_a_read_of_freed_memory",
            read_of_freed_memory,
            "Invalid read",
        );
    }
}
