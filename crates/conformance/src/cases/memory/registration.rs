//! Registration: which memory and rights are accepted, and at which addresses requests find the
//! memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Barrier, Mutex};

use rdma_sys::{Errno, ibv_access_flags as Flags, ibv_mr, ibv_sge, ibv_wc_status as Status};
use rustix::fs::SealFlags;
use test_support::rig::connect::pair;
use test_support::rig::dmabuf::memfd;
use test_support::rig::map::Mapping;
use test_support::rig::memory::{deregister, fields_of, key_of, rkey_of};
use test_support::rig::post::Wr;
use test_support::rig::{
    ALL_ACCESS, LOCAL_WRITE, MW_BIND, Mr, Pd, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, ZERO_BASED,
};

use crate::case::cases;
use crate::device::Device;

cases![
    unmapped_memory_is_refused,
    memory_that_ends_before_the_range_is_refused,
    memory_that_may_not_be_read_is_refused,
    memory_that_may_not_be_written_is_not_registered_for_writing,
    read_only_memory_is_registered_for_reading,
    no_bytes_are_refused,
    ranges_that_wrap_are_refused,
    rights_for_peers_to_write_need_the_right_to_write_here,
    every_other_combination_of_rights_is_taken,
    rights_that_nobody_knows_are_refused,
    optional_rights_are_taken_whether_they_are_known_or_not,
    region_says_what_it_was_made_of,
    same_memory_can_be_registered_often_under_different_keys,
    each_registration_of_the_same_memory_has_its_own_rights,
    end_of_one_registration_leaves_others_of_the_same_memory,
    many_regions_are_used_beside_each_other,
    region_starts_and_ends_at_its_bytes_not_at_pages,
    one_byte_is_a_region,
    advice_about_memory_needs_a_device_that_pages_on_demand,
    memory_of_every_kind_is_registered,
    pages_that_nobody_touched_are_registered_and_read_as_zeros,
    large_region_is_reached_from_its_first_to_its_last_byte,
    program_and_device_see_each_others_bytes,
    memory_stays_as_it_is_when_it_is_registered_and_deregistered,
    memory_can_be_unmapped_after_its_registration,
    requests_name_memory_by_the_address_it_was_registered_at,
    other_address_than_it_was_registered_at_is_refused,
    zero_based_memory_starts_at_0,
    regions_end_in_any_order,
    threads_register_at_the_same_time,
    requests_go_on_while_other_memory_is_registered,
];

const PAGE: usize = 4096;

fn with_pd(device: &Device, test: impl Fn(&Pd)) {
    let context = device.open();
    test(&context.pd());
}

/// Returns `length` bytes whose values depend on their positions.
fn pattern(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

/// Returns an element of `length` bytes at `address`, as requests address this region.
fn element(mr: *mut ibv_mr, address: u64, length: usize) -> ibv_sge {
    ibv_sge { addr: address, length: u32::try_from(length).unwrap(), lkey: key_of(mr) }
}

fn address(start: *const u8) -> u64 {
    start.addr() as u64
}

fn unmapped_memory_is_refused(device: &Device) {
    with_pd(device, |pd| {
        let mut mapping = Mapping::writable(3 * PAGE);
        mapping.truncate(2 * PAGE);
        let behind = mapping.start().wrapping_add(2 * PAGE);
        for access in [0, REMOTE_READ, LOCAL_WRITE, ALL_ACCESS] {
            for start in [behind, std::ptr::null_mut()] {
                assert_eq!(pd.try_register(start, 8, access).err(), Some(Errno::EFAULT));
            }
        }
    });
}

fn memory_that_ends_before_the_range_is_refused(device: &Device) {
    with_pd(device, |pd| {
        let mut mapping = Mapping::writable(3 * PAGE);
        mapping.truncate(2 * PAGE);
        let start = mapping.start();
        for access in [0, REMOTE_READ, LOCAL_WRITE, ALL_ACCESS] {
            let refused = pd.try_register(start, 2 * PAGE + 1, access);
            assert_eq!(refused.err(), Some(Errno::EFAULT), "one byte too many, {access}");
            deregister(pd.try_register(start, 2 * PAGE, access).unwrap());
        }
    });
}

fn memory_that_may_not_be_read_is_refused(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::inaccessible(PAGE);
        let mr = pd.try_register(mapping.start(), PAGE, 0);
        if device.differs("memory-that-may-not-be-read") {
            deregister(mr.unwrap());
        } else {
            assert_eq!(mr.err(), Some(Errno::EFAULT));
        }
    });
}

fn memory_that_may_not_be_written_is_not_registered_for_writing(device: &Device) {
    with_pd(device, |pd| {
        for mapping in [Mapping::readable(PAGE), Mapping::inaccessible(PAGE)] {
            for access in [LOCAL_WRITE, LOCAL_WRITE | REMOTE_WRITE, ALL_ACCESS] {
                let refused = pd.try_register(mapping.start(), PAGE, access);
                assert_eq!(refused.err(), Some(Errno::EFAULT), "{access}");
            }
        }
    });
}

fn read_only_memory_is_registered_for_reading(device: &Device) {
    let (a, b) = pair(device);
    let mapping = Mapping::readable(PAGE);
    let start = address(mapping.start());
    let sink = a.pd.register_filled(vec![1; 16], LOCAL_WRITE);
    let source = b.pd.try_register(mapping.start(), PAGE, REMOTE_READ).unwrap();
    let read = Wr::read(1, &[sink.sge(0, 16)], &sink, 0);
    a.qp.post(&read.remote(start + PAGE as u64 - 16, rkey_of(source)));
    a.send_cq.expect_success(1);
    sink.assert_filled(0);
    deregister(source);
    let sink = b.pd.register_filled(vec![1; 16], ALL_ACCESS);
    let source = a.pd.try_register(mapping.start(), PAGE, 0).unwrap();
    a.qp.post(&Wr::write(2, &[element(source, start, 16)], &sink, 0));
    a.send_cq.expect_success(2);
    sink.assert_filled(0);
    deregister(source);
}

fn no_bytes_are_refused(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::writable(PAGE);
        for access in [0, ALL_ACCESS] {
            assert_eq!(pd.try_register(mapping.start(), 0, access).err(), Some(Errno::EINVAL));
        }
    });
}

fn ranges_that_wrap_are_refused(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::writable(PAGE);
        let last = std::ptr::without_provenance_mut(usize::MAX);
        for (start, length) in [(mapping.start(), usize::MAX), (last, 2), (last, usize::MAX)] {
            assert_eq!(pd.try_register(start, length, 0).err(), Some(Errno::EINVAL));
        }
    });
}

fn rights_for_peers_to_write_need_the_right_to_write_here(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::writable(PAGE);
        for peers in [REMOTE_WRITE, REMOTE_ATOMIC, REMOTE_WRITE | REMOTE_ATOMIC] {
            for access in [peers, peers | REMOTE_READ, peers | MW_BIND] {
                let refused = pd.try_register(mapping.start(), 16, access);
                assert_eq!(refused.err(), Some(Errno::EINVAL), "{access:#x}");
            }
        }
    });
}

fn every_other_combination_of_rights_is_taken(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::writable(PAGE);
        for access in 0..32 {
            if access & (REMOTE_WRITE | REMOTE_ATOMIC) == 0 || access & LOCAL_WRITE != 0 {
                deregister(pd.try_register(mapping.start(), 16, access).unwrap());
            }
        }
    });
}

fn rights_that_nobody_knows_are_refused(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::writable(PAGE);
        for access in [1 << 19, 1 << 30, 1 << 31] {
            let refused = pd.try_register(mapping.start(), 16, access | LOCAL_WRITE).err();
            let known = [Some(Errno::EOPNOTSUPP), Some(Errno::EINVAL)];
            assert!(known.contains(&refused), "{access:#x}: {refused:?}");
        }
    });
}

fn optional_rights_are_taken_whether_they_are_known_or_not(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::writable(PAGE);
        for optional in [Flags::IBV_ACCESS_RELAXED_ORDERING.0, 1 << 29] {
            let access = ALL_ACCESS | optional;
            let (start, iova) = (mapping.start(), address(mapping.start()));
            deregister(pd.try_register_range_at(start, PAGE, iova, access).unwrap());
        }
    });
}

fn region_says_what_it_was_made_of(device: &Device) {
    let context = device.open();
    let pd = context.pd();
    let mapping = Mapping::writable(PAGE);
    let start = mapping.start().wrapping_add(17);
    let mr = pd.try_register(start, 1000, ALL_ACCESS).unwrap();
    let fields = fields_of(mr);
    assert_eq!((fields.addr.addr(), fields.length), (start.addr(), 1000));
    assert_eq!((fields.context, fields.pd), (context.0, pd.0));
    deregister(mr);
}

fn same_memory_can_be_registered_often_under_different_keys(device: &Device) {
    with_pd(device, |pd| {
        let mapping = Mapping::writable(PAGE);
        let register = |_| pd.try_register(mapping.start(), 16, ALL_ACCESS).unwrap();
        let regions: Vec<_> = (0..100).map(register).collect();
        for of in [key_of, rkey_of] {
            let mut keys: Vec<_> = regions.iter().map(|&mr| of(mr)).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), 100);
        }
        regions.into_iter().for_each(deregister);
    });
}

fn each_registration_of_the_same_memory_has_its_own_rights(device: &Device) {
    let (a, b) = pair(device);
    let mapping = Mapping::writable(PAGE);
    let start = address(mapping.start());
    let writable = b.pd.try_register(mapping.start(), PAGE, LOCAL_WRITE | REMOTE_WRITE).unwrap();
    let readable = b.pd.try_register(mapping.start(), PAGE, REMOTE_READ).unwrap();
    let here = a.pd.register_filled(vec![5; 8], LOCAL_WRITE);
    let write = Wr::write(1, &[here.sge(0, 8)], &here, 0);
    a.qp.post(&write.clone().remote(start, rkey_of(writable)));
    a.send_cq.expect_success(1);
    here.fill(0);
    let read = Wr::read(2, &[here.sge(0, 8)], &here, 0);
    a.qp.post(&read.remote(start, rkey_of(readable)));
    a.send_cq.expect_success(2);
    here.assert_filled(5);
    here.fill(6);
    a.qp.post(&write.remote(start, rkey_of(readable)));
    a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(mapping.bytes(0, 8), [5; 8]);
    deregister(readable);
    deregister(writable);
}

fn end_of_one_registration_leaves_others_of_the_same_memory(device: &Device) {
    let (a, b) = pair(device);
    let mapping = Mapping::writable(2 * PAGE);
    let here = a.pd.register_filled(vec![5; 8], LOCAL_WRITE);
    let first = b.pd.try_register(mapping.start(), PAGE + 1, ALL_ACCESS).unwrap();
    let second = b.pd.try_register(mapping.start(), 2 * PAGE, ALL_ACCESS).unwrap();
    deregister(first);
    let write = Wr::write(1, &[here.sge(0, 8)], &here, 0);
    a.qp.post(&write.remote(address(mapping.start()) + PAGE as u64 - 4, rkey_of(second)));
    a.send_cq.expect_success(1);
    assert_eq!(mapping.bytes(PAGE - 4, 8), [5; 8]);
    deregister(second);
}

fn many_regions_are_used_beside_each_other(device: &Device) {
    const COUNT: usize = 1100;
    let most = usize::try_from(device.attributes().max_mr).unwrap();
    device.needs(most > COUNT, "the device has fewer regions");
    let (a, b) = pair(device);
    let regions: Vec<_> = (0..COUNT).map(|_| b.pd.register(8, ALL_ACCESS)).collect();
    let here = a.pd.register_filled(pattern(COUNT), LOCAL_WRITE);
    for n in (0..COUNT).step_by(17) {
        a.qp.post(&Wr::write(n as u64, &[here.sge(n, 1)], &regions[n], 3));
        a.send_cq.expect_success(n as u64);
    }
    for (n, region) in regions.iter().enumerate() {
        let written = if n % 17 == 0 { pattern(COUNT)[n] } else { 0 };
        assert_eq!(region.bytes(), [0, 0, 0, written, 0, 0, 0, 0]);
    }
}

fn region_starts_and_ends_at_its_bytes_not_at_pages(device: &Device) {
    // The region starts near the end of a page and ends in the third page.
    let (from, length) = (PAGE - 3, PAGE + 10);
    let mapping = Mapping::writable(3 * PAGE);
    let start = mapping.start().wrapping_add(from);
    let (a, b) = pair(device);
    let here = a.pd.register_filled(pattern(length), LOCAL_WRITE);
    let there = b.pd.try_register(start, length, ALL_ACCESS).unwrap();
    let write = Wr::write(1, &[here.sge(0, length)], &here, 0);
    a.qp.post(&write.remote(address(start), rkey_of(there)));
    a.send_cq.expect_success(1);
    assert_eq!(mapping.bytes(from, length), pattern(length));
    // These bytes are on the region's pages, but outside the region.
    for outside in [address(start) - 1, address(start) + length as u64] {
        let (a, c) = pair(device);
        let here = a.pd.register_filled(vec![0xff; 1], LOCAL_WRITE);
        let there = c.pd.try_register(start, length, ALL_ACCESS).unwrap();
        let write = Wr::write(2, &[here.sge(0, 1)], &here, 0);
        a.qp.post(&write.remote(outside, rkey_of(there)));
        a.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
        deregister(there);
    }
    deregister(there);
    assert_eq!(mapping.bytes(0, from), vec![0; from]);
    let behind = from + length;
    assert_eq!(mapping.bytes(behind, 3 * PAGE - behind), vec![0; 3 * PAGE - behind]);
}

fn advice_about_memory_needs_a_device_that_pages_on_demand(device: &Device) {
    let (a, b) = pair(device);
    let here = a.pd.register_filled(vec![9; PAGE], LOCAL_WRITE);
    let advised = a.pd.prefetch(here.sge(0, PAGE));
    if device.open().query_device_ex().odp_caps.general_caps == 0 {
        assert_eq!(advised, Errno::EOPNOTSUPP.raw());
    }
    let there = b.pd.register(PAGE, ALL_ACCESS);
    a.qp.post(&Wr::write(1, &[here.sge(0, PAGE)], &there, 0));
    a.send_cq.expect_success(1);
    device.let_arrive();
    there.assert_filled(9);
}

fn one_byte_is_a_region(device: &Device) {
    let mut mapping = Mapping::writable(3 * PAGE);
    mapping.truncate(2 * PAGE);
    let (a, b) = pair(device);
    let here = a.pd.register_filled(vec![9], LOCAL_WRITE);
    // The first byte of a page, and the last byte before unmapped memory.
    for place in [PAGE, 2 * PAGE - 1] {
        let start = mapping.start().wrapping_add(place);
        let there = b.pd.try_register(start, 1, ALL_ACCESS).unwrap();
        let write = Wr::write(1, &[here.sge(0, 1)], &here, 0);
        a.qp.post(&write.remote(address(start), rkey_of(there)));
        a.send_cq.expect_success(1);
        deregister(there);
        assert_eq!(mapping.bytes(place, 1), [9]);
    }
}

fn memory_of_every_kind_is_registered(device: &Device) {
    let (a, b) = pair(device);
    let here = a.pd.register_filled(pattern(64), LOCAL_WRITE);
    let write_to = |start: *mut u8| {
        start.expose_provenance();
        let there = b.pd.try_register(start, 64, ALL_ACCESS).unwrap();
        let write = Wr::write(1, &[here.sge(0, 64)], &here, 0);
        a.qp.post(&write.remote(address(start), rkey_of(there)));
        a.send_cq.expect_success(1);
        deregister(there);
    };
    let mut stack = [0_u8; 64];
    write_to(stack.as_mut_ptr());
    assert_eq!(black_box(stack).to_vec(), pattern(64));
    let mut heap = vec![0_u8; 64];
    write_to(heap.as_mut_ptr());
    assert_eq!(black_box(heap), pattern(64));
    static STATIC: [AtomicU8; 64] = [const { AtomicU8::new(0) }; 64];
    write_to(STATIC[0].as_ptr());
    let bytes: Vec<u8> = STATIC.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    assert_eq!(bytes, pattern(64));
    let file = memfd("registered", PAGE as u64, SealFlags::empty());
    for mapping in [Mapping::writable(PAGE), Mapping::shared(PAGE), Mapping::of_file(&file, PAGE)] {
        write_to(mapping.start().wrapping_add(PAGE - 64));
        assert_eq!(mapping.bytes(PAGE - 64, 64), pattern(64));
    }
}

fn pages_that_nobody_touched_are_registered_and_read_as_zeros(device: &Device) {
    let (a, b) = pair(device);
    let mapping = Mapping::writable(4 * PAGE);
    let there = b.pd.try_register(mapping.start(), 4 * PAGE, ALL_ACCESS).unwrap();
    let here = a.pd.register_filled(vec![1; 4 * PAGE], LOCAL_WRITE);
    let read = Wr::read(1, &[here.sge(0, 4 * PAGE)], &here, 0);
    a.qp.post(&read.remote(address(mapping.start()), rkey_of(there)));
    a.send_cq.expect_success(1);
    here.assert_filled(0);
    deregister(there);
}

fn large_region_is_reached_from_its_first_to_its_last_byte(device: &Device) {
    const LENGTH: usize = 32 << 20;
    let (a, b) = pair(device);
    let mapping = Mapping::writable(LENGTH);
    let there = b.pd.try_register(mapping.start(), LENGTH, ALL_ACCESS).unwrap();
    let here = a.pd.register_filled(pattern(16), LOCAL_WRITE);
    let places = [0, 1 << 20, (1 << 21) - 7, (3 << 20) + 5, LENGTH - 16];
    for place in places {
        let write = Wr::write(1, &[here.sge(0, 16)], &here, 0);
        a.qp.post(&write.remote(address(mapping.start()) + place as u64, rkey_of(there)));
        a.send_cq.expect_success(1);
    }
    deregister(there);
    for place in places {
        assert_eq!(mapping.bytes(place, 16), pattern(16));
    }
    assert_eq!(mapping.bytes(16, 1000), [0; 1000]);
}

fn program_and_device_see_each_others_bytes(device: &Device) {
    let (a, b) = pair(device);
    let (here, there) = (a.pd.register(64, LOCAL_WRITE), b.pd.register(64, ALL_ACCESS));
    for round in 1..20 {
        // The program writes to both regions while they are registered.
        here.fill(round);
        a.qp.post(&Wr::write(1, &[here.sge(0, 32)], &there, 0));
        a.send_cq.expect_success(1);
        assert_eq!(there.bytes()[..32], [round; 32]);
        there.fill(round + 100);
        a.qp.post(&Wr::read(2, &[here.sge(32, 32)], &there, 32));
        a.send_cq.expect_success(2);
        assert_eq!(here.bytes(), [[round; 32], [round + 100; 32]].concat());
    }
}

fn memory_stays_as_it_is_when_it_is_registered_and_deregistered(device: &Device) {
    with_pd(device, |pd| {
        for access in [0, LOCAL_WRITE, ALL_ACCESS] {
            let mr = pd.register_filled(pattern(3 * PAGE), access);
            assert_eq!(mr.bytes(), pattern(3 * PAGE));
            let mut memory = mr.deregister();
            assert_eq!(memory, pattern(3 * PAGE));
            memory.fill(1);
            assert_eq!(black_box(memory), vec![1; 3 * PAGE]);
        }
    });
}

fn memory_can_be_unmapped_after_its_registration(device: &Device) {
    with_pd(device, |pd| {
        for _ in 0..20 {
            let mapping = Mapping::writable(4 * PAGE);
            deregister(pd.try_register(mapping.start(), 4 * PAGE, ALL_ACCESS).unwrap());
            let start = mapping.start();
            drop(mapping);
            assert_eq!(pd.try_register(start, PAGE, ALL_ACCESS).err(), Some(Errno::EFAULT));
        }
    });
}

/// An address far away from any mapping.
const FAR: u64 = 0x7000_0000_0000 - (1 << 40);

fn requests_name_memory_by_the_address_it_was_registered_at(device: &Device) {
    let (a, b) = pair(device);
    let (from, to) = (Mapping::writable(PAGE), Mapping::writable(PAGE));
    from.put(100, &pattern(32));
    let (at_from, at_to) = (from.start().wrapping_add(100), to.start().wrapping_add(8));
    // The addresses for requests are on other pages, but have the same offset within the page.
    let source = a.pd.try_register_range_at(at_from, 32, FAR + 100, LOCAL_WRITE).unwrap();
    let sink = b.pd.try_register_range_at(at_to, 32, 8, ALL_ACCESS).unwrap();
    let elements = [element(source, FAR + 108, 16)];
    let write = Wr::new(1, rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, &elements);
    a.qp.post(&write.remote(18, rkey_of(sink)));
    a.send_cq.expect_success(1);
    deregister(source);
    deregister(sink);
    let wanted = [vec![0; 18], pattern(24)[8..].to_vec(), vec![0; 30]].concat();
    assert_eq!(to.bytes(0, 64), wanted);
}

fn other_address_than_it_was_registered_at_is_refused(device: &Device) {
    let (a, b) = pair(device);
    let mapping = Mapping::writable(PAGE);
    let sink = b.pd.try_register_range_at(mapping.start(), 32, FAR, ALL_ACCESS).unwrap();
    let source = a.pd.register_filled(vec![1; 16], 0);
    // The write uses the address at which the memory is mapped, not the one for requests.
    let write = Wr::write(1, &[source.sge(0, 16)], &source, 0);
    a.qp.post(&write.remote(address(mapping.start()), rkey_of(sink)));
    a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    deregister(sink);
    assert_eq!(mapping.bytes(0, 32), [0; 32]);
}

fn zero_based_memory_starts_at_0(device: &Device) {
    let (a, b) = pair(device);
    let mapping = Mapping::writable(PAGE);
    let source = a.pd.register_filled(pattern(32), 0);
    let sink = b.pd.try_register(mapping.start(), 32, ALL_ACCESS | ZERO_BASED).unwrap();
    let base = device.expected(0, "zero-based-memory", address(mapping.start()));
    let write = |wr_id, from| Wr::write(wr_id, &[source.sge(from, 16)], &source, 0);
    a.qp.post(&write(1, 0).remote(base, rkey_of(sink)));
    a.qp.post(&write(2, 16).remote(base + 16, rkey_of(sink)));
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    assert_eq!(mapping.bytes(0, 32), pattern(32));
    a.qp.post(&write(3, 0).remote(base + 17, rkey_of(sink)));
    a.send_cq.expect(3, Status::IBV_WC_REM_ACCESS_ERR);
    deregister(sink);
}

fn regions_end_in_any_order(device: &Device) {
    let (a, b) = pair(device);
    let here = a.pd.register_filled(vec![1; 1], LOCAL_WRITE);
    let mut regions: Vec<_> = (0..8).map(|_| Some(b.pd.register(8, ALL_ACCESS))).collect();
    for n in [3, 0, 7, 4, 1, 6, 2] {
        drop(regions[n].take());
        for region in regions.iter().flatten() {
            a.qp.post(&Wr::write(1, &[here.sge(0, 1)], region, 0));
            a.send_cq.expect_success(1);
        }
    }
    assert_eq!(regions[5].as_ref().unwrap().bytes(), [1, 0, 0, 0, 0, 0, 0, 0]);
}

fn threads_register_at_the_same_time(device: &Device) {
    let context = device.open();
    let pd = context.pd();
    let (keys, all_there) = (Mutex::new(Vec::new()), Barrier::new(4));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let regions: Vec<_> = (0..50).map(|_| pd.register(100, ALL_ACCESS)).collect();
                // All 200 regions stay registered until every thread has reached the barrier.
                keys.lock().unwrap().extend(regions.iter().map(Mr::key));
                all_there.wait();
            });
        }
    });
    let mut keys = keys.into_inner().unwrap();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 200);
}

fn requests_go_on_while_other_memory_is_registered(device: &Device) {
    let (a, b) = pair(device);
    let (here, there) = (a.pd.register(64, LOCAL_WRITE), b.pd.register(64, ALL_ACCESS));
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(a.pd.register(PAGE, LOCAL_WRITE));
                drop(b.pd.register(PAGE, ALL_ACCESS));
            }
        });
        for round in 1..100 {
            here.fill(round);
            a.qp.post(&Wr::write(1, &[here.sge(0, 64)], &there, 0));
            a.send_cq.expect_success(1);
            there.assert_filled(round);
        }
        done.store(true, Ordering::Relaxed);
    });
}
