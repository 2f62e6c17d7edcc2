//! The devices that the tests run on; the rest of the rig is shared with the conformance suite.

pub(crate) use test_support::rig::*;

use rdma_soft::{Builder, Link, Schedule, SoftDevice};

/// Runs a test on a device of each link, under each schedule that ends by itself; `name` is the
/// test's own.
pub(crate) fn on_each_device(name: &str, test: impl Fn(&str)) {
    let schedules =
        [Schedule::Immediate, Schedule::Deferred { seed: 1 }, Schedule::Deferred { seed: 2 }];
    for (link, link_name) in [(Link::Ethernet, "roce"), (Link::InfiniBand, "ib")] {
        for (n, schedule) in schedules.into_iter().enumerate() {
            let device = format!("{name}-{link_name}-{n}");
            Builder::new(&device).link(link).schedule(schedule).install().unwrap();
            test(&device);
        }
    }
}

/// Runs a test on a device of each link that executes nothing until it is released.
pub(crate) fn on_each_held_device(name: &str, test: impl Fn(&SoftDevice)) {
    release_by(|device| {
        soft(device).release_all();
    });
    for (link, link_name) in [(Link::Ethernet, "roce"), (Link::InfiniBand, "ib")] {
        let device = format!("{name}-{link_name}-held");
        test(&Builder::new(&device).link(link).schedule(Schedule::Held).install().unwrap());
    }
}

/// Opens one of the devices that exist without being built.
pub(crate) fn open_default(name: &str) -> Context {
    rdma_soft::install();
    Context::open(name)
}

pub(crate) fn soft(device: &str) -> SoftDevice {
    SoftDevice::find(device).unwrap()
}
