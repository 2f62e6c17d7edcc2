//! Faults that recur: the port goes down, and GIDs move.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::device::Device;
use crate::engine::adapter::faults::Injected;
use crate::fabric::run_queue::{Entry, Task};

/// A fault that recurs in each period.
pub(super) struct Recurring {
    device: &'static Device,
    period: Duration,
    kind: Kind,
    entry: Entry,
}

#[derive(Debug)]
enum Kind {
    /// The port goes down at the end of each period, for a tenth of its length.
    PortFlap { is_down: AtomicBool },
    /// The GIDs move at the end of each period.
    GidMove,
}

impl std::fmt::Debug for Recurring {
    /// Prints the fault without its device, because the device would print this again.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recurring").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Recurring {
    /// Begins the first periods of a device's faults.
    pub(super) fn begin_all(device: &'static Device) -> Vec<Arc<Self>> {
        let Some(injector) = &device.injector else { return Vec::new() };
        let port_flap = Kind::PortFlap { is_down: AtomicBool::new(false) };
        let kinds = [
            (injector.faults.port_flap, port_flap),
            (injector.faults.gid_move.filter(|_| device.identity.gids.len() > 1), Kind::GidMove),
        ];
        let begin =
            |(period, kind): (Option<Duration>, _)| Some(Self::begin(device, period?, kind));
        kinds.into_iter().filter_map(begin).collect()
    }

    fn begin(device: &'static Device, period: Duration, kind: Kind) -> Arc<Self> {
        let recurring = Arc::new_cyclic(|own: &Weak<Self>| Self {
            device,
            period,
            kind,
            entry: Entry::new(device.fabric, own.clone()),
        });
        recurring.set_timer(period);
        recurring
    }

    fn set_timer(&self, after: Duration) {
        self.entry.set_timer(self.device.fabric.clock.now() + after);
    }
}

impl Task for Recurring {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn expire(self: Arc<Self>) {
        let after = match &self.kind {
            Kind::PortFlap { is_down } => {
                let was_down = is_down.fetch_not(Ordering::Relaxed);
                if !was_down {
                    self.device.report_fault(Injected::PortDown);
                }
                self.device.change_port(was_down);
                let down = self.period / 10;
                if was_down { self.period - down } else { down }
            }
            Kind::GidMove => {
                self.device.report_fault(Injected::GidMove);
                self.device.move_gids();
                self.period
            }
        };
        self.set_timer(after);
    }
}
