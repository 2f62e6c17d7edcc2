//! The device on which a case runs.

use std::cell::RefCell;
use std::ops::Deref;
use std::process;

use rdma_sys::{
    ibv_device_attr, ibv_device_cap_flags, ibv_qp_create_send_ops_flags as Op, ibv_qp_type,
};
use test_support::features;
use test_support::rig::connect::expect_nothing_under_way;
use test_support::rig::datagram;
use test_support::rig::extended::limit_operations;
use test_support::rig::{Context, Size, limit_inline, usual_inline};

use crate::outcome::Outcome;

const OF_RXE: &str = include_str!("../../../docs/rxe-differences.md");
const OF_PACKETS: &str = include_str!("../../../docs/wire-differences.md");

/// The accepted reasons for skipping a case on a software device.
const LACKED: &[&str] = &[
    "InfiniBand headers have only one form",
    "an address of the host belongs to one process",
    "the device does not resize shared receive queues",
    "the device does not speak iWARP",
    "the device has multicast groups",
    "the port has no GIDs of both versions of RoCE",
    "the port has no IPv4 address",
    "the port is of Ethernet, which has neither LIDs nor service levels",
    "the port is of Ethernet, which has no LIDs",
    "the port is of InfiniBand",
    "without a header only the port is checked",
];

/// Further accepted reasons for skipping a case on a device that imitates hardware.
const LACKED_BY_PROFILES: &[&str] = &[
    "the device does not map memory that comes as a file",
    "the device has no limit below the largest request",
    "the device has more completion queues than a case can make",
    "the device has more protection domains than a case can make",
    "the device has more room than a case should take",
    "the device has no atomic operations",
    "the device has no atomics",
    "the device has no readable clock",
    "the device has no extended completion queues with these fields",
    "the device has less inline data",
    "the device has no memory windows",
    "the device has no memory windows of type 1",
    "the device has no memory windows of type 2",
    "the device has no multicast groups",
    "the device has no queue pairs for datagrams",
    "the device has no queue pairs of unreliable connections",
    "the device has no queue pairs that post by function calls",
    "the device has no shared receive queues",
    "the device has no timestamps",
];

/// The origin of a device, and the way in which it transfers messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A software device that copies messages within the process.
    Software,
    /// A software device on which all messages travel as packets.
    Packets,
    /// A software device whose packets go through sockets, as they do between processes.
    Sockets,
    /// A software device whose packets go over UDP, as they do between hosts.
    Network,
    /// A software device that imitates the features of hardware.
    Profile,
    /// The kernel's SoftRoCE.
    Rxe,
    /// An adapter, or any other device.
    Other,
}

/// This process's device. It dereferences to its name, which the rig takes as an argument.
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
        let device = Self { name, kind, differences: RefCell::default() };
        if matches!(kind, Kind::Profile | Kind::Other) {
            device.find_inline();
            limit_operations(device.lacking_operations());
        }
        device
    }

    pub(crate) fn open(&self) -> Context {
        Context::open(&self.name)
    }

    pub(crate) fn attributes(&self) -> ibv_device_attr {
        self.open().query_device()
    }

    pub(crate) fn has_atomics(&self) -> bool {
        features::has_atomics(&self.open())
    }

    pub(crate) fn has_windows_of_type_2(&self) -> bool {
        let flag = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        self.attributes().device_cap_flags & flag != 0
    }

    /// Skips the case because the device lacks a feature.
    ///
    /// On a software device, skipping is a failure unless the reason is in [`LACKED`]. A device
    /// that imitates hardware may also have a reason in [`LACKED_BY_PROFILES`].
    pub(crate) fn skip(&self, reason: &str) -> ! {
        let by_profile = self.kind == Kind::Profile && LACKED_BY_PROFILES.contains(&reason);
        let known = !self.is_software() || LACKED.contains(&reason) || by_profile;
        assert!(known, "the reason is not in the list for this device: {reason}");
        report(&Outcome::Skipped { reason: reason.to_owned() });
        process::exit(0);
    }

    /// Returns true if the device's packets go over UDP.
    pub(crate) fn has_network(&self) -> bool {
        self.kind == Kind::Network
    }

    /// Skips the case unless the device has the feature.
    pub(crate) fn needs(&self, has: bool, reason: &str) {
        if !has {
            self.skip(reason);
        }
    }

    /// Returns those of the given types that the device supports for queue pairs.
    pub(crate) fn types(&self, types: &[ibv_qp_type]) -> Vec<ibv_qp_type> {
        types.iter().copied().filter(|&qp_type| self.has_type(qp_type)).collect()
    }

    /// Skips the case unless the device supports queue pairs of this type.
    pub(crate) fn needs_type(&self, qp_type: ibv_qp_type) {
        let what = match qp_type {
            ibv_qp_type::IBV_QPT_UC => "of unreliable connections",
            _ => "for datagrams",
        };
        self.needs(self.has_type(qp_type), &format!("the device has no queue pairs {what}"));
    }

    /// Returns queue sizes for this type. Skips the case if the device does not support it.
    pub(crate) fn size_of(&self, qp_type: ibv_qp_type) -> Size {
        self.needs_type(qp_type);
        Size { qp_type, ..Size::default() }
    }

    /// Returns true if the device supports queue pairs of this type. The only way to find out is to
    /// create one, which is needed only on the kinds of devices that may lack a type.
    fn has_type(&self, qp_type: ibv_qp_type) -> bool {
        if qp_type == ibv_qp_type::IBV_QPT_RC || !matches!(self.kind, Kind::Profile | Kind::Other) {
            return true;
        }
        features::has_type(&self.open(), qp_type)
    }

    /// Skips the case unless the device supports this much inline data.
    pub(crate) fn needs_inline(&self, bytes: u32) {
        self.needs(usual_inline() >= bytes, "the device has less inline data");
    }

    /// Returns the atomics and the binds, if the device's queue pairs cannot post them.
    fn lacking_operations(&self) -> u64 {
        let atomics =
            Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 | Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
        let without_atomics = if self.has_atomics() { 0 } else { atomics };
        let windows = Op::IBV_QP_EX_WITH_BIND_MW.0;
        let without_windows = if self.has_windows_of_type_2() { 0 } else { windows };
        (without_atomics | without_windows).into()
    }

    /// Finds out how much inline data the device supports, by trying. If it is less than usual, all
    /// queue pairs request only that much.
    fn find_inline(&self) {
        let context = self.open();
        let (cq, pd) = (context.cq(4), context.pd());
        let fits = |inline: &u32| {
            let size = Size { sge: 1, inline: *inline, ..Size::default() };
            pd.try_qp(&cq, &cq, &size).is_ok()
        };
        limit_inline([64, 32, 16].into_iter().find(fits).unwrap_or(0));
    }

    /// Returns true if the device is of no known kind, so that only the contract can be expected of
    /// it.
    pub(crate) fn is_other(&self) -> bool {
        self.kind == Kind::Other
    }

    /// Returns true if this is a software device of this project.
    pub(crate) fn is_software(&self) -> bool {
        !matches!(self.kind, Kind::Rxe | Kind::Other)
    }

    /// Returns true if this is SoftRoCE, whose behaviour then differs from the contract as
    /// `docs/rxe-differences.md` describes under this name. The case then checks the difference,
    /// and is counted separately.
    pub(crate) fn differs(&self, difference: &str) -> bool {
        self.is_of(Kind::Rxe, OF_RXE, difference)
    }

    /// Like [`differs`](Self::differs), for software devices that send packets, and for the
    /// differences in `docs/wire-differences.md`.
    pub(crate) fn differs_by_packets(&self, difference: &str) -> bool {
        let kind = match self.kind {
            kind @ (Kind::Sockets | Kind::Network) => kind,
            _ => Kind::Packets,
        };
        self.is_of(kind, OF_PACKETS, difference)
    }

    /// Like [`differs_by_packets`](Self::differs_by_packets), but only for the device whose packets
    /// go over UDP.
    pub(crate) fn differs_by_udp(&self, difference: &str) -> bool {
        self.is_of(Kind::Network, OF_PACKETS, difference)
    }

    /// Waits until unacknowledged messages have arrived. This is needed only if packets carry them:
    /// a completion then means only that the message was sent. Messages on connections arrive in
    /// order, and so do datagrams, but there is no order between the two. So this sends one of each
    /// kind.
    pub(crate) fn let_arrive(&self) {
        if matches!(self.kind, Kind::Packets | Kind::Sockets | Kind::Network) {
            expect_nothing_under_way(self);
            let pair = datagram::Pair::new(self);
            let ah = pair.ah();
            pair.receive(1, datagram::HEADER);
            pair.expect_sent(&pair.good(&ah, 2, 0), 1);
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

    /// Returns `rxe` on SoftRoCE, where the behaviour [differs](Self::differs), and `contract`
    /// elsewhere.
    pub(crate) fn expected<T>(&self, contract: T, difference: &str, rxe: T) -> T {
        if self.differs(difference) { rxe } else { contract }
    }

    /// Reports the outcome of a case that has run to its end.
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
