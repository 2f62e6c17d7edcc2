//! Regions: bounds, access, and ownership of the memory.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use rdma_mem::{
    AccessError, AccessFlags, CommonMemory, Error, GatherElement, ProtectionDomain, RangeError,
    RegionMemory, ScatterElement, ScatterGatherElementError, open_device,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

fn pd() -> ProtectionDomain {
    rdma_soft::install();
    open_device("soft0").unwrap().allocate_pd().unwrap()
}

fn shared() -> AccessFlags {
    AccessFlags::new().with_local_write().with_remote_write().with_remote_read()
}

#[test]
fn an_owned_region_derefs_to_its_bytes() {
    let mut region = pd().allocate_region(5000).unwrap();
    assert_eq!((region.len(), region.iter().max()), (5000, Some(&0)));
    region[4999] = 9;
    assert_eq!(&*region.get_ref(4999, 1).unwrap(), [9]);
    assert!(region.get_ref(5000, 0).is_some());
    for (offset, length) in [(5000, 1), (0, 5001), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(region.get_ref(offset, length).is_none());
        assert!(region.get_mut(offset, length).is_none());
    }
}

#[test]
fn an_array_is_the_values_of_its_region() {
    let mut array = pd().allocate_array::<[u16; 3]>(100).unwrap();
    assert_eq!((array.len(), array[99]), (100, [0; 3]));
    array[40] = [0x0101, 0x0202, 0x0303];
    let [.., mut last] = array.get_mut(39, 2).unwrap().into_array::<2>().unwrap();
    assert_eq!(last[..], [1, 1, 2, 2, 3, 3]);
    last.fill(7); // as a device would
    assert_eq!(array[40], [0x0707; 3]);
    let start = array.as_ptr().addr() as u64;
    let sge = *array.get_ref(50, 50).unwrap().gather_element().as_raw();
    assert_eq!((sge.addr, sge.length), (start + 300, 300));
    assert_eq!((array.as_slice().len(), array.as_slice_mut().len()), (600, 600));
    for (index, count) in
        [(100, 1), (0, 101), (usize::MAX, 1), (1, usize::MAX), (usize::MAX / 6 + 1, 0)]
    {
        assert!(array.get_ref(index, count).is_none());
        assert!(array.get_mut(index, count).is_none());
    }
    let region = array.into_region();
    assert_eq!((region.len(), region[240]), (600, 7));
}

#[test]
fn an_array_of_nothing_or_of_too_much_is_refused() {
    assert!(matches!(pd().allocate_array::<u64>(0), Err(Error::EmptyRegion)));
    assert!(matches!(pd().allocate_array::<()>(9), Err(Error::EmptyRegion)));
    let whole = usize::MAX / 8 + 2; // 8 bytes of each, if it wrapped
    assert!(matches!(pd().allocate_array::<u64>(whole), Err(Error::OutOfMemory { .. })));
}

#[test]
fn registered_slices_carry_address_and_key() {
    let mut region = pd().allocate_region(100).unwrap();
    let (start, lkey) = (region.as_ptr().addr() as u64, region.lkey());
    let (mut head, mut tail) = region.get_mut(10, 50).unwrap().split_at(20);
    head.fill(1);
    tail.fill(2);
    let sge = *tail.scatter_element().as_raw();
    assert_eq!((sge.addr, sge.length, sge.lkey), (start + 30, 30, lkey.get()));
    let sge = *head.gather_element().as_raw();
    assert_eq!((sge.addr, sge.length), (start + 10, 20));
    assert_eq!(region[9..61].iter().map(|&byte| u32::from(byte)).sum::<u32>(), 20 + 60);
}

#[test]
#[should_panic(expected = "split at 51 of 50 bytes")]
fn a_slice_cannot_be_split_beyond_its_end() {
    let _ = pd().allocate_region(100).unwrap().get_mut(0, 50).unwrap().split_at(51);
}

#[test]
fn a_borrowed_region_derefs_to_the_bytes_it_borrows() {
    let pd = pd();
    let mut memory = [0; 100];
    let start = memory.as_ptr().addr() as u64;
    let mut region = pd.register_borrowed(&mut memory[20..80]).unwrap();
    let lkey = region.lkey().get();
    region[0] = 1;
    let (mut head, tail) = region.split_at(40);
    head[39] = 2;
    let sge = *head.scatter_element().as_raw();
    assert_eq!((sge.addr, sge.length, sge.lkey), (start + 20, 40, lkey));
    let sge = *tail.gather_element().as_raw();
    assert_eq!((sge.addr, sge.length, sge.lkey), (start + 60, 20, lkey));
    assert!(region.as_slice().pd().is_same(&pd) && region.as_slice_mut().len() == 60);
    assert!(region.get_ref(60, 0).is_some() && region.get_mut(59, 2).is_none());
    let (left, right) = region.as_slice().split_at(1);
    assert_eq!((left[0], right[38], right.gather_element().length()), (1, 2, 59));
    region.close().unwrap();
    assert_eq!((memory[20], memory[59]), (1, 2));
    assert!(matches!(pd.register_borrowed(&mut []), Err(Error::EmptyRegion)));
}

#[test]
fn slices_know_their_domain() {
    let (pd, other) = (pd(), pd());
    let mut region = pd.allocate_region(8).unwrap();
    let (left, right) = region.split_at(4);
    assert!(left.pd().is_same(&pd) && right.pd().is_same(&pd.clone()));
    assert!(!left.pd().is_same(&other));
}

#[test]
fn memory_goes_from_owned_to_shared_and_back_without_a_copy() {
    let pd = pd();
    let mut region = pd.allocate_region(4096).unwrap();
    region[..5].copy_from_slice(b"hello");
    let address = region.as_ptr();
    let region = pd.register_shared(region.close().unwrap(), shared()).unwrap();
    assert_eq!(region.remote().address(), address.addr() as u64);
    region.write(5, b" peer").unwrap();
    let region = pd.register_owned(region.close().unwrap()).unwrap();
    assert_eq!((&region[..10], region.as_ptr()), (&b"hello peer"[..], address));
}

#[test]
fn common_memory_comes_back_when_all_of_it_is_closed() {
    let pd = pd();
    let mut memory = RegionMemory::allocate(8192).unwrap();
    memory.fill(3);
    let common = CommonMemory::new(memory);
    let rights = [shared(), AccessFlags::new().with_remote_read()];
    let open: Vec<_> =
        rights.into_iter().map(|access| common.open(&pd, 10..20, access).unwrap()).collect();
    let [one, other] = [open[0].remote(), open[1].remote()];
    assert_eq!((one.address(), one.length()), (other.address(), 10));
    assert_ne!(one.rkey(), other.rkey());
    assert!(open[0].memory().len() == 8192 && open[0].len() == 10 && open[0].pd().is_same(&pd));
    let refused = common.open(&pd, 0..8192, AccessFlags::new().with_remote_write()).unwrap_err();
    assert!(matches!(refused, Error::Access(_)), "{refused}");
    let empty = common.open(&pd, 8192..8192, shared()).unwrap_err();
    assert!(matches!(empty, Error::EmptyRegion), "{empty}");
    let mut common = common;
    for part in open {
        let still = common.try_into_memory().unwrap_err();
        common = part.close().unwrap();
        drop(still);
    }
    assert_eq!(common.try_into_memory().unwrap()[..], [3; 8192]);
}

#[test]
#[should_panic(expected = "0..8193 is not within 8192 bytes")]
fn common_memory_is_not_opened_beyond_its_end() {
    let common = CommonMemory::new(RegionMemory::allocate(8192).unwrap());
    let _ = common.open(&pd(), 0..8193, shared());
}

#[test]
fn a_refused_registration_gives_the_memory_back() {
    let mut memory = RegionMemory::allocate(64).unwrap();
    memory.fill(3);
    let access = AccessFlags::new().with_remote_write();
    let (memory, error) = pd().register_shared(memory, access).unwrap_err();
    let reason = AccessError::RemoteWriteWithoutLocalWrite;
    assert!(matches!(error, Error::Access(found) if found == reason), "{error}");
    assert_eq!(&*memory, [3; 64]);
}

#[test]
fn a_shared_region_copies_within_its_bounds() {
    let region = pd().allocate_shared_region(100, shared()).unwrap();
    region.write(90, b"0123456789").unwrap();
    let mut out = [0; 10];
    region.read(90, &mut out).unwrap();
    assert_eq!(&out, b"0123456789");
    let error = RangeError::OutOfBounds { offset: 91, length: 10, region: 100 };
    assert_eq!(region.write(91, b"abcdefghij"), Err(error));
    assert_eq!(region.read(91, &mut out), Err(error));
    assert!(region.read(usize::MAX, &mut out).is_err());
    region.read(90, &mut out).unwrap();
    assert_eq!(&out, b"0123456789", "a refused write writes nothing");
    let text = error.to_string();
    assert_eq!(text, "10 bytes at offset 91 are not within a region of 100 bytes");
}

#[test]
fn words_are_atomic_aligned_and_the_bytes_of_the_region() {
    let region = pd().allocate_shared_region(20, shared()).unwrap();
    region.atomic_u64(8).unwrap().store(0x0102_0304_0506_0708, Ordering::Release);
    let mut out = [0; 8];
    region.read(8, &mut out).unwrap();
    assert_eq!(u64::from_ne_bytes(out), 0x0102_0304_0506_0708);
    assert_eq!(region.atomic_u64(4).unwrap_err(), RangeError::Misaligned { offset: 4, align: 8 });
    assert!(matches!(region.atomic_u64(16), Err(RangeError::OutOfBounds { .. })));
}

#[test]
fn a_shared_element_is_source_and_destination() {
    let region = pd().allocate_shared_region(100, shared()).unwrap();
    let element = region.element(10..40).unwrap();
    assert!(element.pd().is_same(region.pd()));
    let source = *GatherElement::from(element).as_raw();
    let target = *ScatterElement::from(element).as_raw();
    assert_eq!(
        (source.addr, source.length, source.lkey),
        (target.addr, target.length, target.lkey)
    );
    assert_eq!(source.addr, region.remote().address() + 10);
    assert!(region.element(90..101).is_err());
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = region.element(40..10);
    assert!(reversed.is_err());
}

#[test]
fn elements_must_be_within_their_region() {
    let mut memory = [0; 64];
    let pd = pd();
    let region = pd.register_local_mr_slice(&memory[16..48]).unwrap();
    assert_eq!(region.address(), memory[16..].as_ptr().addr());
    assert_eq!(region.gather_element(&memory[16..48]).length(), 32);
    assert!(region.encloses_slice(&memory[48..48]));
    assert!(!region.encloses(memory.as_ptr(), usize::MAX));
    for (start, end) in [(15, 20), (40, 49), (0, 64), (60, 64)] {
        let error = region.gather_element_checked(&memory[start..end]).unwrap_err();
        assert_eq!(error, ScatterGatherElementError::SliceNotWithinBounds);
        assert!(region.scatter_element_checked(&mut memory[start..end]).is_err());
    }
    // The device refuses it, not this crate.
    assert_eq!(region.gather_element_unchecked(&memory[..64]).length(), 64);
    region.close().unwrap();
}

#[test]
#[should_panic(expected = "the slice is not within the bounds of the memory region")]
fn new_panics_outside_of_the_region_in_every_build() {
    let memory = [0; 64];
    let region = pd().register_local_mr_slice(&memory[..32]).unwrap();
    let _ = region.gather_element(&memory[31..33]);
}

#[test]
fn slices_too_long_for_c_are_refused() {
    let pd = pd();
    let memory = [0; 8];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    let huge = Huge::map();
    let error = region.gather_element_checked(&huge).unwrap_err();
    assert_eq!(error, ScatterGatherElementError::SliceTooBig);
    assert_eq!(region.gather_element_unchecked(&huge).length(), u32::MAX);
}

/// 4 GiB that read as zero and use no memory.
struct Huge(*mut std::ffi::c_void);

impl Huge {
    const LENGTH: usize = 1 << 32;

    fn map() -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let null = std::ptr::null_mut();
        // SAFETY: SAFETY.md F15: a new mapping, anywhere.
        let mapped = unsafe { mmap_anonymous(null, Self::LENGTH, ProtFlags::READ, flags) };
        Self(mapped.unwrap())
    }
}

impl std::ops::Deref for Huge {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: SAFETY.md F15: mapped until it is dropped, and never written.
        unsafe { std::slice::from_raw_parts(self.0.cast(), Self::LENGTH) }
    }
}

impl Drop for Huge {
    fn drop(&mut self) {
        // SAFETY: SAFETY.md F15: the mapping of `map`, to which no reference is left.
        unsafe { munmap(self.0, Self::LENGTH) }.unwrap();
    }
}

#[test]
fn a_zero_based_region_counts_from_zero() {
    let memory = [0; 64];
    let access = AccessFlags::new().with_remote_read().with_zero_based();
    let (address, pd) = (memory.as_ptr().cast_mut(), pd());
    // SAFETY: SAFETY.md F8: the array outlives the region and is only read.
    let region = match unsafe { pd.register_mr_with_access(address, 64, access) } {
        Ok(region) => region,
        Err(error) => return println!("skipped: {error}"),
    };
    assert_eq!(region.remote().address(), 0);
    assert_eq!(region.gather_element(&memory[16..32]).as_raw().addr, 16);
}

#[test]
fn the_error_of_an_invalid_registration_has_the_cause() {
    let pd = pd();
    assert!(matches!(pd.allocate_region(0), Err(Error::EmptyRegion)));
    assert!(matches!(pd.register_local_mr_slice(&[]), Err(Error::EmptyRegion)));
    // SAFETY: SAFETY.md F8: NULL is not mapped, so nothing is registered.
    let error = unsafe { pd.register_local_mr(std::ptr::null_mut(), 64) }.unwrap_err();
    assert!(error.to_string().contains("NULL"), "{error}");
    static READ_ONLY: [u8; 64] = [1; 64];
    let error = pd.register_local_mr_slice(&READ_ONLY).unwrap_err().to_string();
    assert!(error.starts_with("ibv_reg_mr: Bad address (EFAULT): a page"), "{error}");
}

#[test]
fn the_limit_of_locked_memory_is_explained() {
    rdma_soft::Builder::new("softlimit0")
        .limits(rdma_soft::Limits::default().memlock(1 << 20))
        .install()
        .unwrap();
    let pd = open_device("softlimit0").unwrap().allocate_pd().unwrap();
    let fits = pd.allocate_region(1 << 19).unwrap();
    let Err(Error::Verb(error)) = pd.allocate_region(1 << 20) else { panic!("over the limit") };
    assert_eq!(error.errno, rdma_mem::Errno::ENOMEM);
    let text = error.to_string();
    for part in ["1048576 bytes", "RLIMIT_MEMLOCK is", "ulimit -l", "max_mr_size"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    drop(fits);
    pd.allocate_region(1 << 20).unwrap();
}
