//! The injection of a device's [faults](Faults): which calls fail, and the events that report injected faults. The faults
//! of requests and packets are in [`wire::faults`](crate::engine::wire::faults).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_types::WcStatus;
use tracing::level_filters::LevelFilter;

use crate::engine::Refusal;
use crate::engine::adapter::Adapter;
use crate::fabric::emitters::{Emit, EventSource};
use crate::faults::{Faults, Verb};
use crate::sync::locked;

/// The maximum number of events that wait to be reported. While this many wait, further faults are only counted.
const MOST_EVENTS: usize = 1024;

/// The faults of a device, and the state that decides when they happen.
#[derive(Debug)]
pub(crate) struct Injector {
    device: String,
    pub(crate) faults: Faults,
    /// The number of calls of each verb.
    calls: [AtomicU64; Verb::ALL.len()],
    /// The number of queue pairs with faults that were created.
    queue_pairs: AtomicU64,
    events: Mutex<Events>,
}

/// The events that were not reported yet.
#[derive(Debug, Default)]
struct Events {
    due: Vec<Injected>,
    /// Whether the run queue contains the source of these events.
    queued: bool,
}

/// A fault that was injected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Injected {
    Call { verb: Verb, call: u64 },
    Request { qpn: u32, wr_id: u64, status: WcStatus },
    Packet { qpn: u32 },
    PortDown,
    GidMove,
}

impl Injector {
    pub(crate) fn new(device: &str, faults: Faults) -> Self {
        Self {
            device: device.to_owned(),
            faults,
            calls: Default::default(),
            queue_pairs: AtomicU64::new(0),
            events: Mutex::default(),
        }
    }

    /// Returns the number of queue pairs before a new one.
    pub(crate) fn count_queue_pair(&self) -> u64 {
        self.queue_pairs.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an event. Returns true if the source of the events must be queued.
    fn add(&self, injected: Injected) -> bool {
        if LevelFilter::current() == LevelFilter::OFF {
            return false;
        }
        let events = &mut *locked(&self.events);
        if events.due.len() < MOST_EVENTS {
            events.due.push(injected);
        }
        !std::mem::replace(&mut events.queued, true)
    }
}

impl EventSource for Injector {
    fn take_due(&'static self) -> Option<Emit> {
        let Events { due, .. } = std::mem::take(&mut *locked(&self.events));
        let device = &*self.device;
        (!due.is_empty()).then(|| {
            Box::new(move || due.iter().for_each(|injected| injected.emit(device))) as Emit
        })
    }

    /// Keeps the events until the next fault.
    fn postpone(&self) {
        locked(&self.events).queued = false;
    }
}

impl Injected {
    fn emit(self, device: &str) {
        macro_rules! event {
            ($message:literal $(, $field:ident = $value:expr)*) => {
                tracing::info!(target: "rdma_soft::faults", device $(, $field = $value)*, $message)
            };
        }
        match self {
            Self::Call { verb, call } => {
                event!("a fault makes a call fail", verb = verb.name(), call = call);
            }
            Self::Request { qpn, wr_id, status } => event!(
                "a fault makes a request fail",
                qpn = qpn,
                wr_id = wr_id,
                status = tracing::field::display(status)
            ),
            Self::Packet { qpn } => event!("a fault drops a packet", qpn = qpn),
            Self::PortDown => event!("a fault takes the port down", port = 1),
            Self::GidMove => event!("a fault moves the GIDs", port = 1),
        }
    }
}

impl Adapter {
    /// Counts a call of this verb. Fails if a fault requires the call to fail. The caller holds no lock.
    #[inline]
    pub(crate) fn count_call(&'static self, verb: Verb) -> Result<(), Refusal> {
        self.injector.as_ref().map_or(Ok(()), |injector| self.count_faulty(injector, verb))
    }

    #[cold]
    fn count_faulty(&'static self, injector: &Injector, verb: Verb) -> Result<(), Refusal> {
        let call = injector.calls[verb as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let failed = injector.faults.calls.iter().find(|it| it.verb == verb && it.call == call);
        let Some(failed) = failed else { return Ok(()) };
        self.report_fault(Injected::Call { verb, call });
        self.fabric.run_queue.run();
        Err(failed.error)
    }

    /// Counts a fault, and schedules its event. The caller may hold any lock except a [leaf](crate::engine).
    #[cold]
    pub(crate) fn report_fault(&'static self, injected: Injected) {
        self.tally.rare.injected_faults.count();
        if let Some(injector) = &self.injector
            && injector.add(injected)
        {
            self.fabric.run_queue.queue_source(injector);
        }
    }
}
