//! What devices that can reach each other share: a clock, deadlines, which device has which address, and what is left
//! to be done.
//!
//! The engine reaches all of it through a device, so that the devices of another fabric, which a test or a
//! model makes, have nothing in common with those of the process.

use std::sync::OnceLock;

use crate::sync::Line;
use clock::Clock;
use devices::Devices;
use ids::Ids;
use overflow::Unsettled;
use random::Seeds;
use simulation::Simulation;
use timers::Timers;
#[cfg(loom)]
use timers::model::Alarms;

pub(crate) mod clock;
#[cfg_attr(loom, allow(dead_code))] // no model has one for programs
pub(crate) mod devices;
pub(crate) mod ids;
pub(crate) mod overflow;
#[cfg_attr(loom, allow(dead_code))] // models need no seeds
pub(crate) mod random;
pub(crate) mod rest;
#[cfg_attr(loom, allow(dead_code))] // no model is one
pub(crate) mod simulation;
pub(crate) mod stalls;
#[cfg_attr(loom, allow(dead_code))] // models have threads of their own
pub(crate) mod thread;
pub(crate) mod timers;
pub(crate) mod turns;

/// A link that is driven by who polls in vain, as long as the timers say that [polls
/// look](Timers::have_polls_look).
pub(crate) trait Polled: Sync + std::fmt::Debug {
    /// Takes what has come, and has it executed. The caller holds no lock.
    fn poll(&'static self);

    /// Takes all that has come by now, and has it executed, or dropped. The caller holds no lock.
    fn catch_up(&'static self);

    /// How many polls there were.
    fn polls(&self) -> u32;

    /// Who has polled is about to sleep.
    fn poller_sleeps(&self);
}

pub(crate) struct Fabric {
    pub(crate) clock: Clock,
    pub(crate) seeds: Seeds,
    pub(crate) devices: Devices,
    pub(crate) ids: Ids,
    /// Read by every empty poll: apart from what changes more often.
    pub(crate) timers: Line<Timers>,
    /// Read before every verb returns, likewise.
    pub(crate) unsettled: Line<Unsettled>,
    /// What is between its devices, if time is virtual.
    pub(crate) simulation: Option<Simulation>,
    /// The link to other processes, once a device has claimed a slot.
    pub(crate) polled: OnceLock<&'static dyn Polled>,
}

impl Fabric {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self::of(Clock::System, Timers::new(), Unsettled::new())
    }

    const fn of(clock: Clock, timers: Timers, unsettled: Unsettled) -> Self {
        Self {
            clock,
            seeds: Seeds::System,
            devices: Devices::new(),
            ids: Ids::new(),
            timers: Line(timers),
            unsettled: Line(unsettled),
            simulation: None,
            polled: OnceLock::new(),
        }
    }

    /// A fabric in virtual time.
    #[cfg(not(loom))]
    pub(crate) fn simulated(seed: u64) -> Self {
        Self {
            seeds: Seeds::simulated(seed),
            simulation: Some(Simulation::new(seed)),
            ..Self::of(Clock::stopped(), Timers::in_virtual_time(), Unsettled::new())
        }
    }

    /// The fabric of all devices that are in no [network](crate::Network).
    pub(crate) fn of_process() -> &'static Self {
        #[cfg(not(loom))]
        static OF_PROCESS: Fabric = Fabric::new();
        // No model has it: what is in it belongs to one run of a model.
        #[cfg(loom)]
        static OF_PROCESS: std::sync::LazyLock<Fabric> =
            std::sync::LazyLock::new(|| Fabric::with(Alarms::None));
        &OF_PROCESS
    }

    /// A fabric of one model, which is never freed, as its devices are not. No alarm ever rings in it.
    #[cfg(all(test, loom))]
    pub(crate) fn of_model() -> &'static Self {
        Self::of_model_with(Alarms::None)
    }

    /// A fabric of one model, with alarms.
    #[cfg(all(test, loom))]
    pub(crate) fn of_model_with(alarms: Alarms) -> &'static Self {
        Box::leak(Box::new(Self::with(alarms)))
    }

    /// A fabric of a test, whose clock goes on when the test says so.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn with_set_clock() -> Self {
        Self::of(Clock::stopped(), Timers::new(), Unsettled::new())
    }

    #[cfg(loom)]
    fn with(alarms: Alarms) -> Self {
        Self::of(Clock::stopped(), Timers::of_model(alarms), Unsettled::new())
    }
}

impl std::fmt::Debug for Fabric {
    /// Without its devices, which would print it again.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::device::Device;
    use crate::fabric::devices::InstallError;
    use crate::limits::Limits;
    use crate::link::Link;
    use crate::schedule::Schedule;
    use random::Seed;

    fn add(fabric: &'static Fabric) -> Result<&'static Device, InstallError> {
        let (link, limits, schedule) = (Link::InfiniBand, Limits::default(), Schedule::Immediate);
        let seed = Seed::new(1);
        let device = Device::new(fabric, "twin".into(), link, Vec::new(), limits, schedule, &seed);
        fabric.devices.add(device)
    }

    #[test]
    fn devices_of_two_fabrics_share_neither_names_nor_addresses() {
        static FABRICS: [Fabric; 2] = [const { Fabric::new() }; 2];
        let [one, other] = FABRICS.each_ref().map(|fabric| add(fabric).unwrap());
        // Within one fabric the name would be taken and the identity drawn again.
        assert_eq!(one.guid(), other.guid());
        let address = Address::Lid(one.identity.lid);
        for (fabric, device) in FABRICS.iter().zip([one, other]) {
            assert!(matches!(add(fabric), Err(InstallError::NameTaken(_))));
            let found = fabric.devices.at(device.link, &address);
            assert!(std::ptr::eq(found.unwrap(), device));
        }
    }
}
