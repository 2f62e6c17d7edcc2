//! Registration: which memory and which rights are taken, and under which addresses.

use rdma_soft::Builder;
use rdma_sys::{Errno, ibv_access_flags as Flags};

use crate::rig::connect::pair;
use crate::rig::map::Mapping;
use crate::rig::memory::deregister;
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, Context, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, on_each_device};

const PAGE: usize = 4096;

fn with_pd(test: impl Fn(&crate::rig::Pd)) {
    let context = crate::rig::open_default("soft0");
    test(&context.pd());
}

#[test]
fn unmapped_memory_is_refused() {
    with_pd(|pd| {
        let mut mapping = Mapping::writable(3 * PAGE);
        mapping.truncate(2 * PAGE);
        let start = mapping.start();
        for access in [0, REMOTE_READ, LOCAL_WRITE, ALL_ACCESS] {
            let refused = pd.try_register(start, 2 * PAGE + 1, access);
            assert_eq!(refused.err(), Some(Errno::EFAULT), "one byte too many, {access}");
            let behind = start.wrapping_add(2 * PAGE);
            assert_eq!(pd.try_register(behind, 1, access).err(), Some(Errno::EFAULT));
            deregister(pd.try_register(start, 2 * PAGE, access).unwrap());
        }
        assert_eq!(pd.try_register(std::ptr::null_mut(), 8, 0).err(), Some(Errno::EFAULT));
    });
}

#[test]
fn memory_without_permission_is_refused() {
    with_pd(|pd| {
        let mapping = Mapping::inaccessible(PAGE);
        for access in [0, ALL_ACCESS] {
            let refused = pd.try_register(mapping.start(), PAGE, access);
            assert_eq!(refused.err(), Some(Errno::EFAULT));
        }
    });
}

#[test]
fn read_only_memory_is_registered_for_reading_only() {
    with_pd(|pd| {
        let mapping = Mapping::readable(PAGE);
        for access in [LOCAL_WRITE, LOCAL_WRITE | REMOTE_WRITE, ALL_ACCESS] {
            let refused = pd.try_register(mapping.start(), PAGE, access);
            assert_eq!(refused.err(), Some(Errno::EFAULT), "{access}");
        }
        for access in [0, REMOTE_READ] {
            deregister(pd.try_register(mapping.start(), PAGE, access).unwrap());
        }
    });
}

#[test]
fn no_bytes_and_ranges_that_wrap_are_refused() {
    with_pd(|pd| {
        let mut memory = [0u8; 16];
        let start = memory.as_mut_ptr();
        assert_eq!(pd.try_register(start, 0, 0).err(), Some(Errno::EINVAL));
        assert_eq!(pd.try_register(start, usize::MAX, 0).err(), Some(Errno::EINVAL));
        let last = std::ptr::without_provenance_mut(usize::MAX);
        assert_eq!(pd.try_register(last, 2, 0).err(), Some(Errno::EINVAL));
        assert_eq!(pd.try_register_at(&mut memory, u64::MAX - 14, 0).err(), Some(Errno::EINVAL));
        deregister(pd.try_register_at(&mut memory, u64::MAX - 16, 0).unwrap());
    });
}

#[test]
fn rights_for_peers_to_write_need_the_right_to_write_here() {
    with_pd(|pd| {
        let mut memory = [0u8; 16];
        let start = memory.as_mut_ptr();
        for access in [REMOTE_WRITE, REMOTE_WRITE | REMOTE_READ, Flags::IBV_ACCESS_REMOTE_ATOMIC.0]
        {
            assert_eq!(pd.try_register(start, 16, access).err(), Some(Errno::EINVAL), "{access}");
        }
        deregister(pd.try_register(start, 16, REMOTE_READ).unwrap());
    });
}

#[test]
fn rights_that_the_device_does_not_have_are_refused_unless_optional() {
    with_pd(|pd| {
        let mut memory = [0u8; 16];
        let start = memory.as_mut_ptr();
        for access in [Flags::IBV_ACCESS_ON_DEMAND.0, 1 << 19, 1 << 31] {
            let refused = pd.try_register(start, 16, access | LOCAL_WRITE);
            assert_eq!(refused.err(), Some(Errno::EOPNOTSUPP), "{access:#x}");
        }
        let relaxed = Flags::IBV_ACCESS_RELAXED_ORDERING.0;
        deregister(pd.try_register(start, 16, ALL_ACCESS | relaxed).unwrap());
    });
}

#[test]
fn memlock_limit_counts_whole_pages_until_they_are_deregistered() {
    let device = "memlock";
    Builder::new(device).memlock_limit(3 * PAGE as u64).install().unwrap();
    let context = Context::open(device);
    let (pd, other) = (context.pd(), context.pd());
    let mapping = Mapping::writable(4 * PAGE);
    let start = mapping.start();
    let full = Some(Errno::ENOMEM);
    assert_eq!(pd.try_register(start, 4 * PAGE, ALL_ACCESS).err(), full);
    assert_eq!(pd.try_register(start.wrapping_add(1), 3 * PAGE, ALL_ACCESS).err(), full);
    let two = pd.try_register(start.wrapping_add(1), 2 * PAGE - 1, ALL_ACCESS).unwrap();
    let one = other.try_register(start, 1, 0).unwrap();
    assert_eq!(pd.try_register(start, 1, 0).err(), full, "the limit is the device's");
    deregister(two);
    // What is refused for another reason is not counted.
    assert!(pd.try_register(std::ptr::null_mut(), 1, 0).is_err());
    let two = pd.try_register(start, 2 * PAGE, 0).unwrap();
    assert_eq!(pd.try_register(start, 1, 0).err(), full);
    deregister(two);
    deregister(one);
    deregister(pd.try_register(start, 3 * PAGE, 0).unwrap());
}

#[test]
fn same_memory_can_be_registered_often_under_different_keys() {
    with_pd(|pd| {
        let mut memory = [0u8; 16];
        let start = memory.as_mut_ptr();
        let regions: Vec<_> =
            (0..100).map(|_| pd.try_register(start, 16, ALL_ACCESS).unwrap()).collect();
        let mut keys: Vec<_> = regions.iter().map(|&mr| crate::rig::memory::key_of(mr)).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 100);
        regions.into_iter().for_each(deregister);
    });
}

#[test]
fn requests_name_memory_by_the_address_it_was_registered_at() {
    on_each_device("iova", |device| {
        let (a, b) = pair(device);
        let iova = 0x7000_0000_0000;
        let source = a.pd.register_at((0..32).collect(), iova, LOCAL_WRITE);
        let sink = b.pd.register_at(vec![0; 32], 100, ALL_ACCESS);
        let sge = rdma_sys::ibv_sge { addr: iova + 8, length: 16, lkey: source.key() };
        a.qp.post(&Wr::write(1, &[sge], &sink, 0).remote(110, sink.key()));
        a.send_cq.expect_success(1);
        let bytes = sink.bytes();
        assert_eq!(bytes[10..26], (8..24).collect::<Vec<u8>>());
        assert_eq!((&bytes[..10], &bytes[26..]), (&[0; 10][..], &[0; 6][..]));
        // Its own address is not its name.
        a.qp.post(&Wr::write(2, &[sge], &sink, 0));
        a.send_cq.expect(2, rdma_sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    });
}

#[test]
fn zero_based_memory_starts_at_0() {
    on_each_device("zero-based", |device| {
        let (a, b) = pair(device);
        let zero_based = Flags::IBV_ACCESS_ZERO_BASED.0;
        let source = a.pd.register_filled((0..32).collect(), 0);
        let sink = b.pd.register_filled(vec![0; 32], ALL_ACCESS | zero_based);
        a.qp.post(&Wr::write(1, &[source.sge(0, 16)], &sink, 0).remote(0, sink.key()));
        a.qp.post(&Wr::write(2, &[source.sge(16, 16)], &sink, 0).remote(16, sink.key()));
        a.send_cq.expect_success(1);
        a.send_cq.expect_success(2);
        assert_eq!(sink.bytes(), (0..32).collect::<Vec<u8>>());
        a.qp.post(&Wr::write(3, &[source.sge(0, 16)], &sink, 0).remote(17, sink.key()));
        a.send_cq.expect(3, rdma_sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    });
}
