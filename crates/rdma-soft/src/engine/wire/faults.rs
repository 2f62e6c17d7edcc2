//! The faults of a queue pair's requests and packets: which requests fail, and which packets are lost or late.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rdma_types::WcStatus;

use crate::engine::adapter::Adapter;
use crate::engine::adapter::faults::Injected;
use crate::engine::wire::letter::Letter;
use crate::engine::wire::{Outlet, TURN};
use crate::fabric::clock::Time;
use crate::fabric::random::SplitMix;
use crate::fabric::run_queue::{Entry, Task};
use crate::faults::Faults;
use crate::sync::locked;

/// The faults of one queue pair. A seed of its own decides about each request and packet by number, so the traffic of
/// other queue pairs has no effect.
#[derive(Debug)]
pub(crate) struct QueuePairFaults {
    adapter: &'static Adapter,
    faults: &'static Faults,
    seed: u64,
    /// The number of datagrams that were sent or have failed.
    datagrams: AtomicU64,
    /// The number of packets, including lost ones.
    packets: AtomicU64,
    delay: Arc<Delay>,
}

impl QueuePairFaults {
    /// Creates the faults of a new queue pair, if its device has faults of requests or packets. `delay` is the device's.
    pub(crate) fn new(
        adapter: &'static Adapter,
        delay: impl FnOnce() -> Arc<Delay>,
    ) -> Option<Self> {
        let injector = adapter.injector.as_ref()?;
        if !injector.faults.need_packets() {
            return None;
        }
        Some(Self {
            adapter,
            faults: &injector.faults,
            seed: mixed(injector.faults.seed, injector.count_queue_pair()),
            datagrams: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            delay: delay(),
        })
    }

    /// Returns the status with which a fault makes a request fail. The result depends only on the request's number.
    #[cold]
    pub(crate) fn failure(&self, number: u64) -> Option<WcStatus> {
        let seed = mixed(self.seed, number);
        let mut drawn = self.faults.requests.iter().zip(0..);
        let failed = drawn.find(|(requests, n)| is_drawn(mixed(seed, *n), requests.fraction));
        failed.map(|(requests, _)| requests.status)
    }

    /// Returns the status with which a fault makes the next datagram fail, and reports the fault.
    #[cold]
    pub(crate) fn fail_datagram(&self, qpn: u32, wr_id: u64) -> Option<WcStatus> {
        let status = self.failure(self.datagrams.load(Ordering::Relaxed))?;
        self.count_datagram();
        self.adapter.report_fault(Injected::Request { qpn, wr_id, status });
        Some(status)
    }

    /// Records that a datagram was sent.
    #[cold]
    pub(crate) fn count_datagram(&self) {
        self.datagrams.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the maximum number of packets in a burst. If packets can be lost, each is sent alone.
    pub(crate) fn most_segments(&self) -> u32 {
        if self.faults.loss > 0.0 { 1 } else { TURN }
    }

    /// Sends a letter of this queue pair, unless a fault drops or delays it.
    #[cold]
    pub(super) fn send(&self, qpn: u32, outlet: &Outlet, letter: Letter) {
        let number = self.packets.fetch_add(1, Ordering::Relaxed);
        // The seed is inverted, so that packets and requests are drawn independently.
        if is_drawn(mixed(!self.seed, number), self.faults.loss) {
            self.adapter.report_fault(Injected::Packet { qpn });
            return outlet.give_back(letter.into_buffer());
        }
        let late = self.faults.slow_peer;
        if late.is_zero() {
            return outlet.send(self.adapter, letter);
        }
        let at = self.adapter.fabric.clock.now() + late;
        self.delay.add(Late { at, outlet: outlet.clone(), letter });
    }
}

/// Returns a random number that is determined by a seed and a number.
fn mixed(seed: u64, number: u64) -> u64 {
    SplitMix::new(seed ^ SplitMix::new(number).next_u64()).next_u64()
}

/// Returns true for this fraction of all random numbers.
fn is_drawn(random: u64, fraction: f64) -> bool {
    f64::from((random >> 32) as u32) < fraction * 4_294_967_296.0
}

/// The delayed packets of a device. All of them are delayed by the same time, so they leave in order.
pub(crate) struct Delay {
    adapter: &'static Adapter,
    entry: Entry,
    waiting: Mutex<VecDeque<Late>>,
    /// Held by the thread that sends, so that packets stay in order. A thread that locks this holds no other lock.
    sending: Mutex<()>,
}

/// A packet that is sent at time `at`. Its payload is in a buffer of the outlet.
struct Late {
    at: Time,
    outlet: Outlet,
    letter: Letter,
}

impl std::fmt::Debug for Delay {
    /// Prints no packets, and not the device, because the device would print this again.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delay").finish_non_exhaustive()
    }
}

impl Delay {
    pub(crate) fn new(adapter: &'static Adapter) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| Self {
            adapter,
            entry: Entry::new(adapter.fabric, own.clone()),
            waiting: Mutex::default(),
            sending: Mutex::default(),
        })
    }

    fn add(&self, late: Late) {
        let at = late.at;
        locked(&self.waiting).push_back(late);
        self.entry.set_timer(at);
    }

    /// Removes the first letter if it is due. If not, sets the timer for it.
    fn take_due(&self) -> Option<Late> {
        let mut waiting = locked(&self.waiting);
        let at = waiting.front()?.at;
        if at <= self.adapter.fabric.clock.now() {
            return waiting.pop_front();
        }
        drop(waiting);
        self.entry.set_timer(at);
        None
    }
}

impl Task for Delay {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn expire(self: Arc<Self>) {
        let _sending = locked(&self.sending);
        while let Some(late) = self.take_due() {
            late.outlet.send(self.adapter, late.letter);
        }
    }
}
