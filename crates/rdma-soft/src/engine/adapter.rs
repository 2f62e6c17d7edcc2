//! The part of a device that its objects use.

pub(crate) mod faults;
pub(crate) mod notices;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_types::Mtu;

use crate::counters::Tally;
use crate::engine::adapter::faults::Injector;
use crate::engine::adapter::notices::Notices;
use crate::fabric::Fabric;
use crate::fabric::deferred::Deferred;
use crate::limits::Limits;
use crate::link::Link;
use crate::link::pcap::Tap;
use crate::memory::budget::Budget;
use crate::memory::copy::Reach;
use crate::schedule::Schedule;

/// A device without its tables of objects and its routes to other devices.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) fabric: &'static Fabric,
    pub(crate) name: String,
    pub(crate) link: Link,
    pub(crate) limits: Limits,
    pub(crate) schedule: Schedule,
    /// Present only with a deferred schedule.
    pub(crate) deferred: Option<Deferred>,
    pub(crate) memory: Budget,
    pub(crate) tally: Tally,
    pub(crate) notices: Notices,
    /// The largest packet size of the device's port.
    pub(crate) mtu: Mtu,
    /// Captures the packets that the device sends and receives. A device with a capture sends all messages as packets.
    pub(crate) tap: Option<Arc<Tap>>,
    /// Injects the device's faults, if it has any.
    pub(crate) injector: Option<Injector>,
    /// Whether other processes of this user may map the memory of regions, and this process theirs.
    pub(crate) maps: bool,
    port_is_up: AtomicBool,
}

impl Adapter {
    pub(crate) fn new(
        fabric: &'static Fabric,
        name: String,
        link: Link,
        limits: Limits,
        schedule: Schedule,
        memory: Budget,
    ) -> Self {
        let deferred = match schedule {
            Schedule::Deferred { seed } => Some(Deferred::new(seed)),
            _ => None,
        };
        Self {
            fabric,
            name,
            link,
            limits,
            schedule,
            deferred,
            memory,
            tally: Tally::default(),
            notices: Notices::default(),
            mtu: Mtu::MTU4096,
            tap: None,
            injector: None,
            maps: false,
            port_is_up: AtomicBool::new(true),
        }
    }

    pub(crate) fn port_is_up(&self) -> bool {
        self.port_is_up.load(Ordering::Acquire)
    }

    /// Brings the port up or down, and returns whether it was up.
    pub(crate) fn swap_port(&self, up: bool) -> bool {
        self.port_is_up.swap(up, Ordering::AcqRel)
    }

    /// Returns the reach for copies that run after the post returns, or on another thread. By then, another part of the
    /// program may have unmapped the memory.
    pub(crate) fn later(&'static self) -> Reach {
        Reach::MayBeGone(&self.tally.rare.guarded_copies)
    }

    /// Counts a datagram whose Q_Key differs from the receiver's.
    pub(crate) fn count_wrong_qkey(&self) {
        self.tally.rare.qkey_viol_cntr.count();
    }
}
