//! Which devices a run has.

use std::env;
use std::path::Path;

use rdma_soft::{Builder, Link, Schedule};
use test_support::rig::{Provider, use_provider};

use crate::device::{Device, Kind};

/// The software devices: name, link, schedule.
const SOFTWARE: [(&str, Link, Schedule); 4] = [
    ("soft0", Link::Ethernet, Schedule::Immediate),
    ("soft0-deferred", Link::Ethernet, Schedule::Deferred { seed: 1 }),
    ("softib0", Link::InfiniBand, Schedule::Immediate),
    ("softib0-deferred", Link::InfiniBand, Schedule::Deferred { seed: 1 }),
];

/// Names further devices of the machine, `NAME` or `NAME:all`, with commas between.
const VARIABLE: &str = "RDMA_TEST_DEVICES";

/// A device of this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// Whether it also gets the cases that overflow, exhaust or break something.
    pub(crate) all: bool,
}

/// The software devices, then those that were named.
pub(crate) fn wanted() -> Vec<Wanted> {
    let software = SOFTWARE.iter().map(|(name, ..)| Wanted { name: (*name).to_owned(), all: true });
    let named = env::var(VARIABLE).unwrap_or_default();
    software.chain(named.split(',').filter(|name| !name.is_empty()).map(named_device)).collect()
}

fn named_device(text: &str) -> Wanted {
    let text = text.trim();
    match text.strip_suffix(":all") {
        Some(name) => Wanted { name: name.to_owned(), all: true },
        None => Wanted { name: text.to_owned(), all: false },
    }
}

/// Makes this process's device; any name but those of the software devices is one of libibverbs.
pub(crate) fn prepare(name: &str) -> Device {
    let kind = match SOFTWARE.iter().find(|software| software.0 == name) {
        Some(&(_, link, schedule)) => {
            // Those that are there without being built have the same names.
            rdma_soft::install();
            if rdma_soft::SoftDevice::find(name).is_none() {
                Builder::new(name).link(link).schedule(schedule).install().unwrap();
            }
            use_provider(Provider { verbs: rdma_soft::verbs(), slow: false });
            Kind::Software
        }
        None => {
            use_provider(Provider { verbs: rdma_sys::system().unwrap(), slow: true });
            // Only of SoftRoCE the kernel says on which network interface it stands.
            let parent = Path::new("/sys/class/infiniband").join(name).join("parent");
            if parent.is_file() { Kind::Rxe } else { Kind::Other }
        }
    };
    Device::new(name.to_owned(), kind)
}
