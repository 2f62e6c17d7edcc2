//! Registration: the choices of this device.

use rdma_soft::{Builder, Limits};
use rdma_sys::{Errno, ibv_access_flags as Flags};
use test_support::program::{in_own_process, is_emulated};
use test_support::system_calls::refuse_membarrier;

use crate::device::rig::connect::pair;
use crate::device::rig::map::Mapping;
use crate::device::rig::memory::deregister;
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Context, LOCAL_WRITE, on_each_device, open_default};

const PAGE: usize = 4096;

#[test]
fn addresses_that_wrap_are_refused() {
    let context = open_default("soft0");
    let pd = context.pd();
    let mut memory = [0u8; 16];
    assert_eq!(pd.try_register_at(&mut memory, u64::MAX - 14, 0).err(), Some(Errno::EINVAL));
    deregister(pd.try_register_at(&mut memory, u64::MAX - 16, 0).unwrap());
}

#[test]
fn rights_that_the_device_does_not_have_are_refused() {
    let context = open_default("soft0");
    let pd = context.pd();
    let mut memory = [0u8; 16];
    for access in [Flags::IBV_ACCESS_ON_DEMAND.0, 1 << 19, 1 << 31] {
        let refused = pd.try_register(memory.as_mut_ptr(), 16, access | LOCAL_WRITE);
        assert_eq!(refused.err(), Some(Errno::EOPNOTSUPP), "{access:#x}");
    }
}

#[test]
fn memory_is_registered_at_addresses_of_any_alignment() {
    on_each_device("iova", |device| {
        let (a, b) = pair(device);
        let source = a.pd.register_filled((0..16).collect(), 0);
        let sink = b.pd.register_at(vec![0; 32], 101, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 16)], &sink, 0).remote(111, sink.key()));
        a.send_cq.expect_success(1);
        assert_eq!(sink.bytes()[10..26], source.bytes());
    });
}

#[test]
fn memlock_limit_counts_whole_pages_until_they_are_deregistered() {
    let device = "memlock";
    Builder::new(device).limits(Limits::default().memlock(3 * PAGE as u64)).install().unwrap();
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
    // A registration that is refused for another reason is not counted.
    assert!(pd.try_register(std::ptr::null_mut(), 1, 0).is_err());
    let two = pd.try_register(start, 2 * PAGE, 0).unwrap();
    assert_eq!(pd.try_register(start, 1, 0).err(), full);
    deregister(two);
    deregister(one);
    deregister(pd.try_register(start, 3 * PAGE, 0).unwrap());
}

#[test]
fn first_registration_needs_little_stack() {
    Builder::new("little-stack").install().unwrap();
    let context = Context::open("little-stack");
    let pd = context.pd();
    let thread = std::thread::Builder::new().stack_size(32 << 10);
    std::thread::scope(|scope| {
        let registered = thread.spawn_scoped(scope, || drop(pd.register(64, ALL_ACCESS))).unwrap();
        registered.join().unwrap();
    });
}

/// A program may restrict itself after it has opened its device. Each post then issues a memory barrier.
#[test]
fn a_program_may_forbid_membarrier_before_its_first_queue_pair() {
    const NAME: &str =
        "device::registration::a_program_may_forbid_membarrier_before_its_first_queue_pair";
    in_own_process(NAME, || {
        let _context = open_default("soft0");
        // The kernel would apply the filter to the emulator.
        if !is_emulated() {
            refuse_membarrier();
        }
        let (a, b) = pair("soft0");
        let source = a.pd.register_filled((0..16).collect(), 0);
        let sink = b.pd.register(16, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 16)], &sink, 0));
        a.send_cq.expect_success(1);
        drop((source, sink));
    });
}
