//! Connected channels in one process, on devices that keep requests in flight.
#![allow(unsafe_code)]
#![allow(dead_code)] // each test binary uses a part

pub(crate) mod child;
pub(crate) mod provider;
pub(crate) mod random;
pub(crate) mod stuck;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rdma_channel::{Channel, ChannelBuilder, ConnectError, prelude::*};
use rdma_mem::{
    AccessFlags, AtomicCapability, Context, OwnedRegion, ProtectionDomain, SharedRegion,
    open_device,
};
use rdma_qp::{AckTimeout, MaxRnrRetries, ReceiveWorkRequest, SendWorkRequest};
use rdma_soft::{Builder, Limits, Schedule, SoftDevice};
use test_support::features::{self, Feature};

/// A longer wait is a hang.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// The time limit of each step of an ending, in tests.
pub(crate) const DRAIN: Duration = Duration::from_millis(40);

/// A device that executes requests at a later poll or on another thread.
pub(crate) const DEFERRED: &str = "softlate0";
/// A device that executes requests only when the test releases them.
pub(crate) const HELD: &str = "softheld0";
/// A device that sends packets.
pub(crate) const WIRE: &str = "softwire0";
/// A device without shared receive queues, as some NICs are.
pub(crate) const NO_SRQ: &str = "softnosrq0";
/// A device without shared receive queues that sends packets.
pub(crate) const WIRE_NO_SRQ: &str = "softwirenosrq0";
/// The devices on which work is in flight.
pub(crate) const LATE: [&str; 2] = [DEFERRED, HELD];
/// The devices of `LATE`, and the one that executes requests within their post.
pub(crate) const DEVICES: [&str; 3] = ["soft0", DEFERRED, HELD];

/// A context of one of the [`DEVICES`].
pub(crate) fn open(device: &str) -> Context {
    install();
    open_device(device).unwrap()
}

pub(crate) fn install() {
    rdma_soft::install();
    for (name, schedule) in [(DEFERRED, Schedule::Deferred { seed: 7 }), (HELD, Schedule::Held)] {
        // Another test may have installed it first.
        let _ = Builder::new(name).schedule(schedule).install();
    }
    let _ = Builder::new(WIRE).force_wire().install();
    let _ = Builder::new(NO_SRQ).limits(Limits::default().max_srq(0)).install();
    let _ = Builder::new(WIRE_NO_SRQ).force_wire().limits(Limits::default().max_srq(0)).install();
}

/// All access rights that the device of the domain supports.
pub(crate) fn everything(pd: &ProtectionDomain) -> AccessFlags {
    let rights = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
    match pd.context().query_device().unwrap().atomic_capability {
        AtomicCapability::NONE => rights,
        _ => rights.with_remote_atomic(),
    }
}

/// Returns true if the device lacks the feature, and prints that a test or a part of it is skipped.
pub(crate) fn lacks(device: &str, feature: Feature) -> bool {
    install();
    features::lacks(device, feature)
}

/// Two channels that are connected to each other, and memory of the second that the first may access.
pub(crate) struct Pair {
    pub(crate) here: Channel,
    pub(crate) there: Channel,
    pub(crate) board: SharedRegion,
    pub(crate) pd: ProtectionDomain,
    pub(crate) device: SoftDevice,
}

/// Limits the waits of a [`Pair`] on a device whose requests never complete.
pub(crate) fn short(builder: ChannelBuilder<'_>) -> ChannelBuilder<'_> {
    let builder = builder.drain_timeout(DRAIN).send_timeout(DRAIN).write_timeout(DRAIN);
    builder.read_timeout(DRAIN).atomic_timeout(DRAIN)
}

impl Pair {
    pub(crate) fn new(device: &str) -> Self {
        Self::with(device, short)
    }

    pub(crate) fn with(
        device: &str,
        knobs: impl for<'a> Fn(ChannelBuilder<'a>) -> ChannelBuilder<'a>,
    ) -> Self {
        Self::on(&open(device), knobs)
    }

    /// Creates a pair with the first channel on this context.
    pub(crate) fn on(
        context: &Context,
        knobs: impl for<'a> Fn(ChannelBuilder<'a>) -> ChannelBuilder<'a>,
    ) -> Self {
        let pd = context.allocate_pd().unwrap();
        let name = context.device().name();
        let far = open(name).allocate_pd().unwrap();
        let prepare = |pd: &ProtectionDomain| {
            // A send without a receive waits.
            let patient = pd.create_channel().max_rnr_retries(MaxRnrRetries::unlimited());
            // One thread handles the packets of all tests, and may get no processor time for some seconds.
            let patient = match [WIRE, WIRE_NO_SRQ].contains(&name) {
                true => patient.ack_timeout(AckTimeout::limited(20).unwrap()),
                false => patient,
            };
            knobs(patient.access(everything(pd))).build().unwrap()
        };
        let (here, there) = (prepare(&pd), prepare(&far));
        let (here_end, there_end) = (here.endpoint(), there.endpoint());
        let (here, there) =
            (here.handshake(there_end).unwrap(), there.handshake(here_end).unwrap());
        let board = far.allocate_shared_region(4096, everything(&far)).unwrap();
        let device = SoftDevice::find(name).unwrap();
        Self { here, there, board, pd, device }
    }

    /// Memory of the first channel's domain, filled with `byte`.
    pub(crate) fn memory(&self, length: usize, byte: u8) -> OwnedRegion {
        let mut region = self.pd.allocate_region(length).unwrap();
        region.fill(byte);
        region
    }

    /// Executes all remaining requests of both queue pairs. Returns their number.
    pub(crate) fn release(&self) -> u32 {
        let released = [&self.here, &self.there]
            .map(|channel| channel.qpn().map_or(0, |qpn| self.device.release(qpn, u32::MAX)));
        released.iter().sum()
    }

    /// Number of requests in flight in the first channel's send queue.
    pub(crate) fn in_flight(&self) -> usize {
        in_flight(self.device, &self.here)
    }

    /// After an ending, makes the peer do what the earlier requests would have waited for, and the device execute what
    /// it has held back.
    pub(crate) fn provoke(&mut self) {
        answer(&self.there, &self.board);
        self.release();
        wait_in_vain();
        self.release();
    }
}

/// Makes a peer do what requests would have waited for: receive a message, and send one from its board.
pub(crate) fn answer(peer: &Channel, board: &SharedRegion) {
    // SAFETY: SAFETY.md F8: the request has no memory.
    let _ = unsafe { peer.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
    let data = [rdma_mem::GatherElement::from(board.element(0..64).unwrap())];
    // SAFETY: SAFETY.md F8: the region is shared, and lives as long as the channel.
    let _ = unsafe { peer.send_unpolled(SendWorkRequest::new(&data)) };
}

/// Waits for a time in which nothing should happen, so that there is no event to wait for. The thread of the deferred
/// device delays work by at most 300 microseconds. If it still had work of a queue pair that has released its memory,
/// it would execute it now.
pub(crate) fn wait_in_vain() {
    thread::sleep(Duration::from_millis(2));
}

pub(crate) fn in_flight(device: SoftDevice, channel: &Channel) -> usize {
    channel.qpn().map_or(0, |qpn| device.in_flight(qpn))
}

/// Connects again while the listener refuses this client as late. On a busy machine, the client's thread may get no
/// processor until the listener's limit. Also returns the number of these refusals.
pub(crate) fn connected<T>(mut connect: impl FnMut() -> Result<T, ConnectError>) -> (T, u64) {
    let mut refused = 0;
    loop {
        match connect() {
            Err(ConnectError::Rejected(why)) if why.contains("rendezvous within") => refused += 1,
            outcome => return (outcome.unwrap(), refused),
        }
    }
}

/// Fails if `work` does not end; a busy machine has minutes for it. Returns its result.
pub(crate) fn must_end<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        let result = work();
        done.send(()).unwrap();
        result
    });
    assert_ne!(ended.recv_timeout(9 * HANG), Err(RecvTimeoutError::Timeout), "it hangs");
    worker.join().unwrap()
}
