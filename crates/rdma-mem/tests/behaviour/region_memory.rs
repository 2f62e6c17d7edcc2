//! The kinds of memory that a region can own.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use rdma_mem::{
    AccessFlags, Errno, Error, HugePageSize, ProtectionDomain, RegionMemory, open_device,
};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, ftruncate};

fn pd() -> ProtectionDomain {
    rdma_soft::install();
    open_device("soft0").unwrap().allocate_pd().unwrap()
}

fn peers() -> AccessFlags {
    AccessFlags::new().with_local_write().with_remote_write()
}

#[test]
fn a_sealed_file_is_memory_of_a_region_and_of_others() {
    let pd = pd();
    let region = pd.register_shared(RegionMemory::memfd(5000).unwrap(), peers()).unwrap();
    region.write(4990, b"here").unwrap();
    // SAFETY: the file is not written after the region was closed.
    let file = unsafe { region.memfd() }.unwrap();
    let seals = fcntl_get_seals(file).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(ftruncate(file, 4096).is_err() && ftruncate(file, 8192).is_err());
    let file = File::from(file.try_clone_to_owned().unwrap());
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 4990).unwrap();
    assert_eq!(&bytes, b"here");
    file.write_all_at(b"back", 0).unwrap();
    region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"back");
    drop(file);

    let memory = region.close().unwrap();
    assert_eq!((&memory[..4], memory.len()), (&b"back"[..], 5000));
    let region = pd.register_owned(memory).unwrap();
    assert_eq!(&region[4990..4994], b"here");
}

/// Returns the number of descriptors of this process for that file.
fn descriptors_of(inode: u64) -> usize {
    // A descriptor that another thread has closed meanwhile does not count.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let files = open.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    files.filter(|file| file.ino() == inode).count()
}

#[test]
fn an_owned_region_keeps_no_descriptor_open() {
    let pd = pd();
    let region = pd.register_shared(RegionMemory::memfd(64).unwrap(), peers()).unwrap();
    // SAFETY: the file is not written.
    let inode = fstat(unsafe { region.memfd() }.unwrap()).unwrap().st_ino;
    assert_eq!(descriptors_of(inode), 1, "for others to map");
    region.write(0, b"kept").unwrap();
    let memory = region.close().unwrap();
    assert_eq!(descriptors_of(inode), 1, "it can be shared again");
    let region = pd.register_owned(memory).unwrap();
    assert_eq!((descriptors_of(inode), &region[..4]), (0, &b"kept"[..]));
    let region = pd.register_shared(region.close().unwrap(), peers()).unwrap();
    // SAFETY: there is no file.
    assert!(unsafe { region.memfd() }.is_none());
    let bindable = pd.register_bindable(region.close().unwrap()).unwrap();
    assert_eq!(&bindable[..4], b"kept");
}

#[test]
fn other_memory_is_no_file() {
    let region = pd().allocate_shared_region(64, peers()).unwrap();
    // SAFETY: there is no file.
    assert!(unsafe { region.memfd() }.is_none());
}

#[test]
fn huge_pages_are_whole_or_the_error_has_a_remedy() {
    let length = (2 << 20) + 1;
    match RegionMemory::huge_pages(length, HugePageSize::MIB2) {
        Ok(memory) => {
            assert_eq!((memory.len(), memory.as_ptr().addr() % (2 << 20)), (length, 0));
            let mut region = pd().register_owned(memory).unwrap();
            region[length - 1] = 1;
            region.close().unwrap();
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("nr_hugepages") || text.contains("no huge pages"), "{text}");
            println!("skipped: {text}");
        }
    }
}

/// Memory of each kind of region, including those that peers use, begins at its alignment.
#[test]
fn aligned_memory_stays_where_it_is() {
    let pd = pd();
    // Valgrind's allocator supports alignments up to 16 MiB.
    for shift in 0..25 {
        let memory = RegionMemory::allocate_aligned(5000, 1 << shift).unwrap();
        let address = memory.as_ptr().addr();
        assert_eq!((memory.len(), address % (1 << shift).max(4096)), (5000, 0));
        assert!(memory.iter().all(|&byte| byte == 0));
        let region = pd.register_shared(memory, peers()).unwrap();
        assert_eq!(region.remote().address(), address as u64);
        let region = pd.register_owned(region.close().unwrap()).unwrap();
        assert_eq!(region.as_ptr().addr(), address);
    }
    assert!(matches!(RegionMemory::allocate_aligned(0, 64), Err(Error::EmptyRegion)));
    let error = RegionMemory::allocate_aligned(5, 1 << 63).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { length: 5 }), "{error}");
}

#[test]
fn impossible_lengths_are_errors() {
    assert!(matches!(RegionMemory::memfd(0), Err(Error::EmptyRegion)));
    assert!(matches!(RegionMemory::huge_pages(0, HugePageSize::MIB2), Err(Error::EmptyRegion)));
    for length in [usize::MAX, isize::MAX as usize] {
        for result in
            [RegionMemory::memfd(length), RegionMemory::huge_pages(length, HugePageSize::GIB1)]
        {
            let error = result.unwrap_err();
            let refused = [
                Errno::ENOMEM,
                Errno::EINVAL,
                Errno::from_raw(libc::EFBIG),
                Errno::from_raw(libc::EOVERFLOW),
            ];
            assert!(matches!(&error, Error::Verb(e) if refused.contains(&e.errno)), "{error}");
        }
    }
}
