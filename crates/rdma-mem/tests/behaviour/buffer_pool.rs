//! Pools: buffers do not overlap, are reused, and outlive their pool.

use std::thread;

use proptest::prelude::*;
use rdma_mem::{Buffer, BufferPool, Error, ProtectionDomain, Recovery, RegionMemory, open_device};

fn pd() -> ProtectionDomain {
    rdma_soft::install();
    open_device("soft0").unwrap().allocate_pd().unwrap()
}

fn small() -> BufferPool {
    BufferPool::with_region_size(&pd(), 4096)
}

#[test]
fn a_pool_has_nothing_until_it_is_asked() {
    let pool = small();
    assert_eq!(pool.usage(), Default::default());
    assert_eq!(pool.trim(), 0);
}

#[test]
fn buffers_carry_the_key_of_their_region_and_begin_on_cache_lines() {
    let pool = small();
    let mut first = pool.allocate(100).unwrap();
    let mut second = pool.allocate(1).unwrap();
    assert_eq!(first.lkey(), second.lkey(), "one region");
    assert_eq!((first.len(), second.len()), (100, 1));
    assert!(first.pd().is_same(pool.pd()));
    for buffer in [&mut first, &mut second] {
        let start = buffer.as_ptr().addr();
        assert_eq!(start % 64, 0);
        let sge = *buffer.as_slice().gather_element().as_raw();
        assert_eq!((sge.addr, sge.lkey), (start as u64, buffer.lkey().get()));
        assert_eq!(sge.length as usize, buffer.len());
        let sge = *buffer.as_slice_mut().scatter_element().as_raw();
        assert_eq!(sge.addr, start as u64);
    }
    let part = first.get_ref(90, 10).unwrap();
    assert_eq!(part.gather_element().as_raw().addr, first.as_ptr().addr() as u64 + 90);
    for (offset, length) in [(91, 10), (101, 0), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(first.get_ref(offset, length).is_none());
        assert!(first.get_mut(offset, length).is_none());
    }
}

#[test]
fn a_pool_grows_and_trims() {
    let pool = small();
    let buffers: Vec<Buffer> = (0..3).map(|_| pool.allocate(2048).unwrap()).collect();
    let usage = pool.usage();
    assert_eq!((usage.regions, usage.registered_bytes), (2, 8192));
    assert_eq!((usage.buffers, usage.used_bytes), (3, 6144));
    let large = pool.allocate(100_000).unwrap();
    assert_eq!(pool.usage().regions, 3);
    assert!(large.iter().all(|&byte| byte == 0));
    drop(buffers);
    assert_eq!(pool.usage().regions, 3, "they stay, for the next ones");
    assert_eq!(pool.trim(), 8192);
    let usage = pool.usage();
    assert_eq!((usage.regions, usage.buffers), (1, 1));
    assert!(usage.registered_bytes >= 100_000 && usage.registered_bytes < 115_000);
    drop(large);
    assert!(pool.trim() >= 100_000);
    assert_eq!(pool.usage(), Default::default());
}

#[test]
fn freed_buffers_merge_into_one_range() {
    let pool = small();
    let mut pieces: Vec<Buffer> = (0..64).map(|_| pool.allocate(64).unwrap()).collect();
    assert_eq!(pool.usage().regions, 1);
    pieces.sort_by_key(|piece| piece.as_ptr().addr() % 1009); // shuffled
    drop(pieces);
    let whole = pool.allocate(4096).unwrap();
    assert_eq!((pool.usage().regions, whole.len()), (1, 4096));
}

#[test]
fn a_buffer_outlives_its_pool_and_its_handles() {
    let mut buffer = small().allocate(64).unwrap();
    buffer.fill(3);
    assert_eq!(buffer.pd().context().device().name(), "soft0");
    thread::spawn(move || assert_eq!(&*buffer, [3; 64])).join().unwrap();
}

/// H15: a dropped pool keeps no registered memory.
#[test]
fn a_pool_keeps_its_domain_no_longer_than_its_last_buffer() {
    rdma_soft::install();
    let context = open_device("soft0").unwrap();
    let pd = context.allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    let (one, other) = (pool.allocate(64).unwrap(), pool.allocate(64).unwrap());
    drop((pool, one));
    let (pd, _) = pd.close().unwrap_err();
    drop(other);
    pd.close().unwrap();
    context.close().unwrap();
}

#[test]
fn empty_and_impossible_lengths() {
    let pool = small();
    let empty = pool.allocate(0).unwrap();
    assert!(empty.is_empty() && empty.as_slice().gather_element().length() == 0);
    for length in [usize::MAX, 1 << 40] {
        assert!(matches!(pool.allocate(length), Err(Error::OutOfMemory { .. })));
    }
    assert_eq!(pool.usage().buffers, 1);
}

#[test]
fn buffers_begin_where_they_should() {
    let pool = small();
    let mut held = Vec::new();
    // Valgrind's allocator supports alignments up to 16 MiB.
    for shift in 0..if cfg!(miri) { 16 } else { 25 } {
        for length in [0, 1, 100, 5000] {
            let buffer = pool.allocate_aligned(length, 1 << shift).unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % (1 << shift)), (length, 0));
            let sge = *buffer.as_slice().gather_element().as_raw();
            assert_eq!(sge.addr, buffer.as_ptr().addr() as u64);
            held.push(buffer);
        }
    }
    assert_eq!(pool.usage().buffers, held.len());
    drop(held);
    assert_eq!((pool.usage().buffers, pool.usage().used_bytes), (0, 0));
}

/// If a buffer begins later than its range, the bytes before it belong to no other buffer, and are
/// freed with it.
#[test]
fn alignment_takes_what_lies_before() {
    let pool = BufferPool::with_region_size(&pd(), 1 << 16);
    let first = pool.allocate_aligned(64, 64).unwrap();
    let before = pool.usage().used_bytes;
    let second = pool.allocate_aligned(64, 4096).unwrap();
    assert_eq!(pool.usage().used_bytes, before + 4096);
    assert_eq!(second.as_ptr().addr() % 4096, 0);
    let (one, other) = second.split_at(10);
    let second = one.unsplit(other).unwrap();
    drop(second);
    assert_eq!(pool.usage().used_bytes, before);
    drop(first);
    // A buffer that is aligned by chance takes no additional bytes.
    let page = pool.allocate_aligned(4096, 4096).unwrap();
    assert_eq!((pool.usage().used_bytes, pool.usage().regions), (4096, 1));
    drop(page);
    assert_eq!(pool.allocate(1 << 16).unwrap().len(), 1 << 16);
    assert_eq!(pool.usage().regions, 1);
}

#[test]
fn bad_alignments_are_errors() {
    let pool = small();
    for alignment in [0, 3, 65, usize::MAX] {
        for error in [
            pool.allocate_aligned(1, alignment).unwrap_err(),
            pool.try_allocate_aligned(1, alignment).unwrap_err(),
            RegionMemory::allocate_aligned(1, alignment).unwrap_err(),
        ] {
            assert!(error.to_string().contains("is not a power of two"), "{error}");
            assert_eq!(error.recovery(), Recovery::Programming);
        }
    }
    let error = pool.allocate_aligned(1, 1 << 63).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { length: _ }), "{error}");
    assert!(pool.try_allocate_aligned(1, 1 << 63).unwrap().is_none());
    assert_eq!(pool.usage(), Default::default());
}

#[test]
fn registered_memory_is_allocated_without_growth() {
    let pool = small();
    assert!(pool.try_allocate(1).unwrap().is_none());
    assert_eq!(pool.usage(), Default::default());
    assert_eq!(pool.grow(1).unwrap(), 4096);
    let held: Vec<Buffer> = (0..4).map(|_| pool.try_allocate(1024).unwrap().unwrap()).collect();
    assert!(pool.try_allocate(1).unwrap().is_none());
    assert_eq!((pool.usage().regions, held.len()), (1, 4));
    assert!(pool.grow(10_000).unwrap() >= 10_000);
    assert_eq!(pool.try_allocate(10_000).unwrap().unwrap().len(), 10_000);
    assert!(matches!(pool.grow(usize::MAX), Err(Error::OutOfMemory { length: usize::MAX })));
}

#[test]
fn a_limit_is_kept() {
    let pool = small();
    pool.set_limit(10_000);
    assert_eq!((pool.limit(), pool.clone().limit()), (10_000, 10_000));
    let held = [pool.allocate(4096).unwrap(), pool.allocate(4096).unwrap()];
    // Less than the region size remains.
    let last = pool.allocate(1000).unwrap();
    let usage = pool.usage();
    assert_eq!(usage.regions, 3);
    assert!((9192..=10_000).contains(&usage.registered_bytes), "{usage:?}");
    for refused in [pool.allocate(2000).map(|buffer| buffer.len()), pool.grow(2000)] {
        let error = refused.unwrap_err();
        assert_eq!(error.recovery(), Recovery::Resource);
        let Error::PoolLimit { length: 2000, registered, limit: 10_000 } = error else {
            panic!("{error}")
        };
        assert_eq!(registered, usage.registered_bytes);
    }
    drop(held);
    assert_eq!(pool.allocate(4096).unwrap().len(), 4096, "what is free is no growth");
    assert_eq!(pool.trim(), 8192);
    assert_eq!(pool.allocate(8000).unwrap().len(), 8000);
    pool.set_limit(0);
    assert!(pool.allocate(9000).is_err());
    assert_eq!((pool.allocate(8000).unwrap().len(), last.len()), (8000, 1000));
    pool.set_limit(usize::MAX);
    assert_eq!(pool.allocate(100_000).unwrap().len(), 100_000);
}

#[test]
fn a_region_that_cannot_be_registered_changes_nothing() {
    rdma_soft::Builder::new("softpool0")
        .limits(rdma_soft::Limits::default().memlock(1 << 20))
        .install()
        .unwrap();
    let pd = open_device("softpool0").unwrap().allocate_pd().unwrap();
    let pool = BufferPool::with_region_size(&pd, 1 << 19);
    let held = pool.allocate(1 << 19).unwrap();
    let before = pool.usage();
    let error = pool.allocate(1 << 20).unwrap_err().to_string();
    assert!(error.contains("RLIMIT_MEMLOCK"), "{error}");
    assert_eq!(pool.usage(), before);
    drop(held);
    assert_eq!(pool.allocate(1 << 18).unwrap().len(), 1 << 18);
}

#[test]
fn parts_of_a_buffer_are_buffers_and_return_one_range() {
    let pool = small();
    let before = pool.usage().used_bytes;
    let mut whole = pool.allocate(1000).unwrap();
    whole.copy_from_slice(&[3; 1000]);
    let address = whole.as_ptr().addr();
    let (a, rest) = whole.split_at(10);
    let (mut b, c) = rest.split_at(500);
    assert_eq!((a.len(), b.len(), c.len()), (10, 500, 490));
    let at = |part: &Buffer| part.as_ptr().addr() - address;
    assert_eq!((at(&a), at(&b), at(&c)), (0, 10, 510));
    assert_eq!(b.get_mut(1, 4).unwrap().len(), 4);
    b.fill(7);
    assert_eq!((a[9], c[0], c[489]), (3, 3, 3));
    // Another buffer does not overlap them.
    let other = pool.allocate(1000).unwrap();
    assert_eq!(pool.usage().buffers, 2);
    // Only adjacent parts can be joined, in order.
    let (c, a) = c.unsplit(a).unwrap_err();
    let (a, c) = a.unsplit(c).unwrap_err();
    let (a, other) = a.unsplit(other).unwrap_err();
    drop(other);
    let bc = b.unsplit(c).unwrap();
    drop(a);
    assert_eq!((pool.usage().buffers, bc.len(), bc[0], bc[500]), (1, 990, 7, 3));
    // The same with an empty part at either end.
    let (empty, bc) = bc.split_at(0);
    let (bc, end) = bc.split_at(990);
    assert!(empty.is_empty() && end.is_empty());
    let bc = empty.unsplit(bc).unwrap().unsplit(end).unwrap();
    assert_eq!(bc.len(), 990);
    drop(bc);
    assert_eq!((pool.usage().buffers, pool.usage().used_bytes), (0, before));
    // Buffers that were never one cannot be joined.
    let (one, two) = (pool.allocate(64).unwrap(), pool.allocate(64).unwrap());
    let (one, _two) = one.unsplit(two).unwrap_err();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.split_at(65)));
    assert!(caught.is_err());
    assert_eq!(pool.usage().buffers, 1);
}

/// Any thread may be the last.
#[test]
fn parts_are_dropped_by_any_thread() {
    let pool = small();
    for _ in 0..if cfg!(miri) { 3 } else { 200 } {
        let (mut parts, mut rest) = (Vec::new(), pool.allocate(512).unwrap());
        for _ in 0..7 {
            let (part, end) = rest.split_at(64);
            parts.push(part);
            rest = end;
        }
        parts.push(rest);
        std::thread::scope(|scope| {
            for (number, mut part) in (0..).zip(parts) {
                scope.spawn(move || {
                    part.fill(number);
                    assert!(part.iter().all(|&byte| byte == number));
                });
            }
        });
        assert_eq!(pool.usage().buffers, 0);
    }
}

#[test]
fn threads_share_a_pool_and_never_a_byte() {
    let pool = small();
    thread::scope(|scope| {
        for mark in 1..=4_u8 {
            let pool = pool.clone();
            scope.spawn(move || {
                let mut held: Vec<Buffer> = Vec::new();
                for round in 0..500_usize {
                    let mut buffer = pool.allocate(round * 37 % 700).unwrap();
                    buffer.fill(mark);
                    held.push(buffer);
                    if held.len() > 10 {
                        let old = held.swap_remove(round % 10);
                        assert!(old.iter().all(|&byte| byte == mark));
                    }
                }
            });
        }
    });
    assert_eq!((pool.usage().buffers, pool.usage().used_bytes), (0, 0));
    let _ = pool.trim();
    assert_eq!(pool.usage(), Default::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each buffer keeps its data during other allocations and drops, and begins at the requested alignment.
    #[test]
    fn buffers_never_overlap(
        steps in prop::collection::vec((0_usize..3000, 0_u32..15, any::<u8>()), 1..60),
    ) {
        let pool = small();
        let mut held: Vec<(Buffer, u8)> = Vec::new();
        for (length, shift, mark) in steps {
            if mark % 3 == 0 && !held.is_empty() {
                let (buffer, mark) = held.swap_remove(length % held.len());
                prop_assert!(buffer.iter().all(|&byte| byte == mark));
            }
            let mut buffer = pool.allocate_aligned(length, 1 << shift).unwrap();
            prop_assert_eq!((buffer.len(), buffer.as_ptr().addr() % (1 << shift)), (length, 0));
            buffer.fill(mark);
            held.push((buffer, mark));
        }
        let least: usize = held.iter().map(|(buffer, _)| buffer.len().div_ceil(64).max(1) * 64).sum();
        let usage = pool.usage();
        prop_assert_eq!(usage.buffers, held.len());
        prop_assert!(usage.used_bytes >= least && usage.used_bytes <= least + held.len() * (1 << 14));
        for (buffer, mark) in &held {
            prop_assert!(buffer.iter().all(|byte| byte == mark));
        }
        drop(held);
        prop_assert_eq!((pool.usage().buffers, pool.usage().used_bytes), (0, 0));
        let _ = pool.trim();
        prop_assert_eq!(pool.usage(), Default::default());
    }
}
