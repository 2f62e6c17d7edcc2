//! The device as a case sees it.

use std::cell::RefCell;
use std::ops::Deref;
use std::process;

use rdma_sys::ibv_device_attr;
use test_support::rig::Context;
use test_support::rig::connect::pair;

use crate::outcome::Outcome;

const OF_RXE: &str = include_str!("../../../docs/rxe-differences.md");
const OF_PACKETS: &str = include_str!("../../../docs/wire-differences.md");

/// Why cases are skipped on the software devices.
const LACKED: &[&str] = &[
    "headers of InfiniBand have one form alone",
    "an address of the host is its process's alone",
    "the device does not resize shared receive queues",
    "the device has multicast groups",
    "the port has no GIDs of both versions of RoCE",
    "the port has no address of IPv4",
    "the port is of Ethernet, which has neither LIDs nor service levels",
    "the port is of Ethernet, which has no LIDs",
    "the port is of InfiniBand",
    "without a header the port alone is asked for",
];

/// Whose device it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of this project.
    Software,
    /// Of this project, with all that it sends and receives as packets.
    Packets,
    /// The same, whose packets go through sockets, as those between processes.
    Sockets,
    /// The same, whose packets go by UDP, as those between hosts.
    Network,
    /// The kernel's SoftRoCE.
    Rxe,
    /// A NIC, or anything else.
    Other,
}

/// The device of this process. It is its name where the rig wants one.
#[derive(Debug)]
pub(crate) struct Device {
    name: String,
    kind: Kind,
    differences: RefCell<Vec<String>>,
}

impl Deref for Device {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl Device {
    pub(crate) fn new(name: String, kind: Kind) -> Self {
        Self { name, kind, differences: RefCell::default() }
    }

    pub(crate) fn open(&self) -> Context {
        Context::open(&self.name)
    }

    pub(crate) fn attributes(&self) -> ibv_device_attr {
        self.open().query_device()
    }

    /// Ends the case, since the device lacks what it is about.
    ///
    /// A software device lacks nothing but what is [known](LACKED): if it does, it fails.
    pub(crate) fn skip(&self, reason: &str) -> ! {
        let known = !self.is_software() || LACKED.contains(&reason);
        assert!(known, "not known to be so: {reason}");
        report(&Outcome::Skipped { reason: reason.to_owned() });
        process::exit(0);
    }

    /// Whether its packets go by UDP.
    pub(crate) fn has_network(&self) -> bool {
        self.kind == Kind::Network
    }

    /// Goes on only if the device has what the case is about.
    pub(crate) fn needs(&self, has: bool, reason: &str) {
        if !has {
            self.skip(reason);
        }
    }

    /// Whether nothing is known of it but the contract.
    pub(crate) fn is_other(&self) -> bool {
        self.kind == Kind::Other
    }

    /// Whether it is of this project.
    pub(crate) fn is_software(&self) -> bool {
        !matches!(self.kind, Kind::Rxe | Kind::Other)
    }

    /// Whether to expect the difference of SoftRoCE that has this name in `docs/rxe-differences.md`,
    /// instead of what the contract says. The case then asserts the difference, and is counted apart.
    pub(crate) fn differs(&self, difference: &str) -> bool {
        self.is_of(Kind::Rxe, OF_RXE, difference)
    }

    /// The same of the software device that sends packets, with `docs/wire-differences.md`.
    pub(crate) fn differs_by_packets(&self, difference: &str) -> bool {
        let kind = match self.kind {
            kind @ (Kind::Sockets | Kind::Network) => kind,
            _ => Kind::Packets,
        };
        self.is_of(kind, OF_PACKETS, difference)
    }

    /// The same of the one whose packets go by UDP.
    pub(crate) fn differs_by_udp(&self, difference: &str) -> bool {
        self.is_of(Kind::Network, OF_PACKETS, difference)
    }

    /// Has arrived what was sent without acknowledgements, where it may take its time: through sockets it is read before
    /// a queue pair becomes ready.
    pub(crate) fn let_arrive(&self) {
        if matches!(self.kind, Kind::Sockets | Kind::Network) {
            drop(pair(self));
        }
    }

    fn is_of(&self, kind: Kind, differences: &str, difference: &str) -> bool {
        let entry = format!("## {difference}");
        assert!(differences.lines().any(|line| line == entry), "no entry {difference}");
        if self.kind != kind {
            return false;
        }
        self.differences.borrow_mut().push(difference.to_owned());
        true
    }

    /// What the contract says, or on SoftRoCE what [`differs`](Self::differs).
    pub(crate) fn expected<T>(&self, contract: T, difference: &str, rxe: T) -> T {
        if self.differs(difference) { rxe } else { contract }
    }

    /// Ends a case that came to its end.
    pub(crate) fn report(&self) {
        let mut differences = self.differences.borrow().clone();
        differences.sort();
        differences.dedup();
        report(&match differences.is_empty() {
            true => Outcome::Passed,
            false => Outcome::Differs { differences },
        });
    }
}

fn report(outcome: &Outcome) {
    println!("{}", serde_json::to_string(outcome).unwrap());
}
