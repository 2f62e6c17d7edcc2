//! Registration of memory given as a file: the accepted files, and access to their bytes.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rdma_soft::{Builder, Limits};
use rdma_sys::{Errno, ibv_access_flags as Flags, ibv_wc_status as Status};
use rustix::fs::SealFlags;

use crate::device::rig::connect::pair;
use crate::device::rig::dmabuf::{Part, mappings, memfd};
use crate::device::rig::post::Wr;
use crate::device::rig::{
    ALL_ACCESS, Context, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, on_each_device,
    on_each_held_device,
};

const PAGE: u64 = 4096;
const SHRINK: SealFlags = SealFlags::SHRINK;

/// The last 200 bytes of three pages, which requests name by a distant address.
const TAIL: Part =
    Part { offset: 3 * PAGE - 200, length: 200, iova: (0x77_0000 * PAGE) + (PAGE - 200) };

fn bytes(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn requests_read_and_write_the_bytes_of_the_file() {
    on_each_device("dmabuf-traffic", |device| {
        let (a, b) = pair(device);
        let file: File = memfd("dmabuf-traffic", 3 * PAGE, SHRINK).into();
        file.write_all_at(b"hello", TAIL.offset + 100).unwrap();
        let shared = b.pd.import(TAIL, &file.try_clone().unwrap().into(), ALL_ACCESS);
        assert_eq!(shared.fields(), (usize::try_from(TAIL.offset).unwrap(), 200));
        // From the peer into the file, including its last byte, and back.
        let here = a.pd.register_filled(vec![7; 8], ALL_ACCESS);
        let write = Wr::new(1, rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[here.sge(0, 8)]);
        a.qp.post(&write.remote(shared.address(192), shared.key()));
        a.send_cq.expect_success(1);
        let read = Wr::new(2, rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_READ, &[here.sge(0, 5)]);
        a.qp.post(&read.remote(shared.address(100), shared.key()));
        a.send_cq.expect_success(2);
        assert_eq!(here.bytes()[..5], *b"hello");
        // As a receive request and as the data of a send.
        b.qp.post_receive(3, &[shared.sge(0, 3)]);
        a.qp.post(&Wr::send(3, &[here.sge(1, 3)]));
        b.receive_cq.expect_success(3);
        a.send_cq.expect_success(3);
        a.qp.post_receive(4, &[here.sge(0, 8)]);
        b.qp.post(&Wr::send(4, &[shared.sge(192, 8)]));
        a.receive_cq.expect_success(4);
        b.send_cq.expect_success(4);
        drop(shared);
        assert_eq!(here.bytes(), [7; 8]);
        assert_eq!(bytes(&file, TAIL.offset + 192, 8), [7; 8]);
        assert_eq!(bytes(&file, TAIL.offset, 4), *b"ell\0");
    });
}

#[test]
fn requests_reach_nothing_outside_of_the_part() {
    on_each_device("dmabuf-bounds", |device| {
        for (from, length) in [(193, 8), (u64::MAX, 1), (200, 1)] {
            let (a, b) = pair(device);
            let file = memfd("dmabuf-bounds", 3 * PAGE, SHRINK);
            let shared = b.pd.import(TAIL, &file, ALL_ACCESS);
            let here = a.pd.register(8, ALL_ACCESS);
            let address = TAIL.iova.wrapping_add(from);
            let write =
                Wr::new(1, rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[here.sge(0, length)]);
            a.qp.post(&write.remote(address, shared.key()));
            a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        }
    });
}

#[test]
fn the_file_stays_mapped_while_registered_even_if_it_is_closed() {
    let context = crate::device::rig::open_default("soft0");
    let pd = context.pd();
    let name = "dmabuf-lifetime";
    let file = memfd(name, 3 * PAGE, SHRINK);
    let (one, other) = (pd.import(TAIL, &file, 0), pd.import(TAIL, &file, ALL_ACCESS));
    drop(file);
    assert_eq!(mappings(name), 2);
    drop(one);
    assert_eq!(mappings(name), 1);
    drop(other);
    assert_eq!(mappings(name), 0);
}

#[test]
fn a_half_copied_request_ends_before_the_file_is_unmapped() {
    on_each_held_device("dmabuf-held", |device| {
        let (a, b) = pair(device.name());
        let file: File = memfd("dmabuf-held", 3 * PAGE, SHRINK).into();
        let shared = b.pd.import(TAIL, &file.try_clone().unwrap().into(), ALL_ACCESS);
        let here = a.pd.register_filled(vec![7; 8], ALL_ACCESS);
        let write = Wr::new(1, rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[here.sge(0, 8)]);
        a.qp.post(&write.remote(shared.address(0), shared.key()));
        assert!(device.release_half(a.qp.qpn()));
        drop(shared);
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(bytes(&file, TAIL.offset, 8), [7, 7, 7, 7, 0, 0, 0, 0]);
    });
}

#[test]
fn ranges_outside_of_the_file_are_refused() {
    let context = crate::device::rig::open_default("soft0");
    let pd = context.pd();
    let file = memfd("dmabuf-ranges", 3 * PAGE, SHRINK);
    let refused = |part: Part| pd.try_import(part, file.as_raw_fd(), 0).err();
    let invalid = Some(Errno::EINVAL);
    assert_eq!(refused(Part { length: 0, ..TAIL }), invalid);
    assert_eq!(refused(Part { length: 201, ..TAIL }), invalid, "a byte after the end");
    assert_eq!(refused(Part { length: usize::MAX, ..TAIL }), invalid);
    assert_eq!(refused(Part { iova: TAIL.iova + 1, ..TAIL }), invalid, "another page offset");
    let (end, wraps) = (3 * PAGE, u64::MAX - PAGE + 1);
    assert_eq!(refused(Part { offset: end, iova: 0, length: 1 }), invalid);
    assert_eq!(refused(Part { offset: wraps, iova: 0, length: 4096 }), invalid);
    assert_eq!(refused(Part { offset: 0, iova: wraps, length: 2 * 4096 }), invalid);
    assert_eq!(refused(TAIL), None);
    assert_eq!(mappings("dmabuf-ranges"), 0, "a refused registration leaves no mapping");
}

#[test]
fn shrinkable_files_and_files_without_memory_are_refused() {
    let context = crate::device::rig::open_default("soft0");
    let pd = context.pd();
    let part = Part { offset: 0, length: 4096, iova: 0 };
    let refused = |file: &OwnedFd| pd.try_import(part, file.as_raw_fd(), 0).err();
    let seals = SealFlags::GROW | SealFlags::SEAL;
    assert_eq!(refused(&memfd("dmabuf-unsealed", PAGE, seals)), Some(Errno::EINVAL));
    let program: OwnedFd = File::open(std::env::current_exe().unwrap()).unwrap().into();
    assert_eq!(refused(&program), Some(Errno::EINVAL));
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(refused(&pipe), Some(Errno::EINVAL));
    // Descriptors that are not open.
    for closed in [-1, i32::MIN, i32::MAX] {
        assert_eq!(pd.try_import(part, closed, 0).err(), Some(Errno::EBADF));
    }
}

#[test]
fn a_file_that_may_not_be_written_is_registered_for_reading_only() {
    let context = crate::device::rig::open_default("soft0");
    let pd = context.pd();
    let writable = memfd("dmabuf-read-only", 3 * PAGE, SHRINK);
    let read_only = File::open(format!("/proc/self/fd/{}", writable.as_raw_fd())).unwrap();
    let sealed = memfd("dmabuf-write-sealed", 3 * PAGE, SHRINK | SealFlags::WRITE);
    for file in [read_only.into(), sealed] {
        for access in [LOCAL_WRITE, ALL_ACCESS] {
            let refused = pd.try_import(TAIL, file.as_raw_fd(), access);
            assert_eq!(refused.err(), Some(Errno::EACCES));
        }
        for access in [0, REMOTE_READ] {
            drop(pd.import(TAIL, &file, access));
        }
    }
}

#[test]
fn unsupported_rights_of_a_dmabuf_are_refused() {
    let context = crate::device::rig::open_default("soft0");
    let pd = context.pd();
    let file = memfd("dmabuf-rights", 3 * PAGE, SHRINK);
    let refused = |access| pd.try_import(TAIL, file.as_raw_fd(), access).err();
    for flag in [Flags::IBV_ACCESS_ZERO_BASED, Flags::IBV_ACCESS_HUGETLB] {
        assert_eq!(refused(LOCAL_WRITE | flag.0), Some(Errno::EINVAL));
    }
    assert_eq!(refused(REMOTE_WRITE), Some(Errno::EINVAL), "without local write");
    assert_eq!(refused(ALL_ACCESS | Flags::IBV_ACCESS_RELAXED_ORDERING.0), None);
}

#[test]
fn an_import_counts_as_locked_memory_and_as_a_region() {
    Builder::new("dmabuf-limits")
        .limits(Limits::default().max_mr(1).memlock(4096))
        .install()
        .unwrap();
    let context = Context::open("dmabuf-limits");
    let pd = context.pd();
    let file = memfd("dmabuf-limits", 3 * PAGE, SHRINK);
    let two_pages = Part { offset: 0, length: 4097, iova: 0 };
    assert_eq!(pd.try_import(two_pages, file.as_raw_fd(), 0).err(), Some(Errno::ENOMEM));
    let region = pd.import(TAIL, &file, 0);
    assert_eq!(pd.try_import(TAIL, file.as_raw_fd(), 0).err(), Some(Errno::ENOMEM));
    drop(region);
    drop(pd.import(TAIL, &file, 0));
    assert_eq!(mappings("dmabuf-limits"), 0);
}
