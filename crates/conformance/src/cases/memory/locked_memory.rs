//! The limit on the memory that a process may lock without `CAP_IPC_LOCK`.

use rdma_soft::{Builder, Limits};
use rdma_sys::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use test_support::rig::map::Mapping;
use test_support::rig::memory::deregister;
use test_support::rig::{ALL_ACCESS, Context};

use crate::case::cases;
use crate::device::Device;

cases![
    more_than_the_limit_is_refused,
    limit_counts_whole_pages,
    limit_is_of_all_regions_together,
    end_of_a_registration_gives_its_pages_back,
    refused_registration_counts_nothing,
];

const PAGE: usize = 4096;

/// Opens the device in such a way that only `pages` pages can be locked. The software device locks
/// no memory, so it gets its own limit.
fn limited(device: &Device, pages: usize) -> Context {
    let bytes = (pages * PAGE) as u64;
    if device.is_software() {
        let name = format!("{}-limited", &**device);
        Builder::new(&name).limits(Limits::default().memlock(bytes)).install().unwrap();
        return Context::open(&name);
    }
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let limit = Rlimit { current: Some(bytes), ..getrlimit(Resource::Memlock) };
    setrlimit(Resource::Memlock, limit).unwrap();
    device.open()
}

fn more_than_the_limit_is_refused(device: &Device) {
    let context = limited(device, 8);
    let pd = context.pd();
    let mapping = Mapping::writable(9 * PAGE);
    for access in [0, ALL_ACCESS] {
        let refused = pd.try_register(mapping.start(), 9 * PAGE, access);
        assert_eq!(refused.err(), Some(Errno::ENOMEM));
        deregister(pd.try_register(mapping.start(), 8 * PAGE, access).unwrap());
    }
}

fn limit_counts_whole_pages(device: &Device) {
    let context = limited(device, 2);
    let pd = context.pd();
    let mapping = Mapping::writable(3 * PAGE);
    // The range begins at the end of one page and reaches into the third.
    let start = mapping.start().wrapping_add(PAGE - 1);
    assert_eq!(pd.try_register(start, PAGE + 2, 0).err(), Some(Errno::ENOMEM));
    let two = pd.try_register(start, 2, 0).unwrap();
    assert_eq!(pd.try_register(mapping.start(), 1, 0).err(), Some(Errno::ENOMEM));
    deregister(two);
}

fn limit_is_of_all_regions_together(device: &Device) {
    let context = limited(device, 4);
    let (pd, other) = (context.pd(), context.pd());
    let mapping = Mapping::writable(4 * PAGE);
    // A page that is registered twice counts twice.
    let three = pd.try_register(mapping.start(), 3 * PAGE, 0).unwrap();
    let one = other.try_register(mapping.start(), PAGE, 0).unwrap();
    for pd in [&pd, &other] {
        assert_eq!(pd.try_register(mapping.start(), 1, 0).err(), Some(Errno::ENOMEM));
    }
    deregister(one);
    deregister(three);
}

fn end_of_a_registration_gives_its_pages_back(device: &Device) {
    let context = limited(device, 4);
    let pd = context.pd();
    let mapping = Mapping::writable(4 * PAGE);
    for _ in 0..20 {
        deregister(pd.try_register(mapping.start(), 4 * PAGE, ALL_ACCESS).unwrap());
    }
}

fn refused_registration_counts_nothing(device: &Device) {
    let context = limited(device, 4);
    let pd = context.pd();
    let mut mapping = Mapping::writable(4 * PAGE);
    let (start, behind) = (mapping.start(), mapping.start().wrapping_add(3 * PAGE));
    mapping.truncate(3 * PAGE);
    for _ in 0..20 {
        assert_eq!(pd.try_register(behind, PAGE, 0).err(), Some(Errno::EFAULT));
        assert_eq!(pd.try_register(start, 4 * PAGE, 0).err(), Some(Errno::EFAULT));
        assert_eq!(pd.try_register(start, 5 * PAGE, 0).err(), Some(Errno::ENOMEM));
    }
    deregister(pd.try_register(start, 3 * PAGE, 0).unwrap());
}
