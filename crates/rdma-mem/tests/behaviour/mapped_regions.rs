//! Shared regions whose pages other processes may map.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use rdma_mem::{AccessFlags, BufferPool, RegionMemory, SharedRegion, open_device};
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::in_own_process;
use test_support::rig::fork::{Child, mapped_pages};

const LENGTH: usize = (64 << 10) + 5;

fn allocate(length: usize, access: AccessFlags) -> SharedRegion {
    rdma_soft::install();
    let pd = open_device("soft0").unwrap().allocate_pd().unwrap();
    pd.allocate_shared_region(length, access).unwrap()
}

fn read() -> AccessFlags {
    AccessFlags::new().with_remote_read()
}

fn write() -> AccessFlags {
    AccessFlags::new().with_local_write().with_remote_write().with_remote_read()
}

/// Opens the file of the region that contains `mark`, as another process that got its descriptor could, if the
/// device keeps such a file.
fn file_of(mark: &[u8; 16]) -> Option<File> {
    /// A search opens the files of other tests for a moment, and another search would find them.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let is_region = |path: &std::path::PathBuf| {
        let name = fs::read_link(path).unwrap_or_default();
        name.to_string_lossy().starts_with("/memfd:rdma region")
    };
    let files = open.filter(is_region);
    let mut files =
        files.filter_map(|path| OpenOptions::new().read(true).write(true).open(path).ok());
    files.find(|mut file| {
        let mut found = Vec::new();
        file.read_to_end(&mut found).is_ok() && found.windows(mark.len()).any(|part| part == mark)
    })
}

/// A process that keeps the file can still write it, so its pages are not used again.
#[test]
fn closing_a_region_moves_its_bytes_to_pages_that_no_process_has() {
    let mark = b"a closed region.";
    let region = allocate(LENGTH, write());
    region.write(0, mark).unwrap();
    let file = file_of(mark).unwrap();
    let seals = fcntl_get_seals(&file).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    file.write_all_at(b"end", LENGTH as u64 - 3).unwrap();
    let mut bytes = [0; 3];
    region.read(LENGTH - 3, &mut bytes).unwrap();
    assert_eq!(&bytes, b"end");

    let pd = region.pd().clone();
    let memory = region.close().unwrap();
    assert_eq!(
        (&memory[..16], &memory[LENGTH - 3..], memory.len()),
        (&mark[..], &b"end"[..], LENGTH)
    );
    file.write_all_at(&[0xff; LENGTH], 0).unwrap();
    assert_eq!((&memory[..16], &memory[LENGTH - 3..]), (&mark[..], &b"end"[..]));
    let owned = pd.register_owned(memory).unwrap();
    file.write_all_at(&[0xee; LENGTH], 0).unwrap();
    assert_eq!((&owned[..16], &owned[16..LENGTH - 3]), (&mark[..], &[0; LENGTH - 19][..]));
}

#[test]
fn the_file_of_a_region_that_peers_only_read_cannot_be_written() {
    let mark = b"a region to read";
    let region = allocate(LENGTH, read());
    region.write(0, mark).unwrap();
    let file = file_of(mark).unwrap();
    assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::FUTURE_WRITE));
    assert_eq!(file.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    region.write(16, b"still written here").unwrap();
    assert_eq!(&region.close().unwrap()[..16], mark);
}

/// The device closes the file, and the program gets none.
#[test]
fn a_region_has_a_file_only_while_it_is_registered() {
    let mark = b"a file is closed";
    let region = allocate(LENGTH, write());
    region.write(0, mark).unwrap();
    assert!(file_of(mark).is_some());
    drop(region);
    assert!(file_of(mark).is_none());
}

#[test]
fn other_regions_have_no_file() {
    let mark = b"there is no file";
    let local = AccessFlags::new().with_local_write();
    for (length, access) in [
        ((64 << 10) - 1, write()),
        (LENGTH, local),
        (LENGTH, local.with_remote_write()),
        (LENGTH, write().with_mw_bind()),
    ] {
        let region = allocate(length, access);
        region.write(0, mark).unwrap();
        assert!(file_of(mark).is_none(), "{length} {access:?}");
        let address = region.remote().address();
        let memory = region.close().unwrap();
        assert_eq!(memory.as_ptr().addr() as u64, address, "it did not move");
    }
}

/// Programs have references to such memory, or lend it to one peer.
#[test]
fn memory_that_is_not_allocated_for_peers_has_no_file() {
    let mark = b"not for the peer";
    rdma_soft::install();
    let pd = open_device("soft0").unwrap().allocate_pd().unwrap();
    let memory = || RegionMemory::allocate(LENGTH).unwrap();
    let check = |what| assert!(file_of(mark).is_none(), "{what}");

    let shared = pd.register_shared(memory(), write()).unwrap();
    shared.write(0, mark).unwrap();
    check("registered memory");
    for owned in [
        pd.allocate_region(LENGTH),
        pd.allocate_bindable_region(LENGTH),
        pd.register_owned(memory()).map_err(|(_, error)| error),
        pd.register_bindable(memory()).map_err(|(_, error)| error),
    ] {
        owned.unwrap()[..16].copy_from_slice(mark);
        check("an owned region");
    }
    for pool in [
        BufferPool::new(&pd),
        BufferPool::without_windows(&pd, LENGTH),
        BufferPool::with_read_windows(&pd, LENGTH),
    ] {
        let mut buffer = pool.allocate(LENGTH).unwrap();
        buffer[..16].copy_from_slice(mark);
        check("a pool");
    }
}

/// A child that wrote there would write its parent's memory.
#[test]
fn a_forked_child_has_no_page_of_a_region_that_peers_map() {
    let pages = LENGTH.div_ceil(rustix::param::page_size());
    for (access, of_child) in [(write(), 0), (write().with_mw_bind(), pages)] {
        let region = allocate(LENGTH, access);
        let mapped = || mapped_pages(region.remote().address(), LENGTH);
        assert_eq!(mapped(), pages);
        Child::fork(|| assert_eq!(mapped(), of_child)).join();
        assert_eq!(mapped(), pages);
    }
}

/// The system would end a process that creates a longer file (`ulimit -f`).
#[test]
fn a_region_longer_than_a_file_may_be_is_allocated_without_one() {
    in_own_process(
        "mapped_regions::a_region_longer_than_a_file_may_be_is_allocated_without_one",
        || {
            let limit = Rlimit { current: Some(LENGTH as u64), ..getrlimit(Resource::Fsize) };
            setrlimit(Resource::Fsize, limit).unwrap();
            let mark = b"there is no file";
            let region = allocate(2 * LENGTH, write());
            region.write(0, mark).unwrap();
            assert!(file_of(mark).is_none());
            assert!(RegionMemory::memfd(2 * LENGTH).is_err());
        },
    );
}
