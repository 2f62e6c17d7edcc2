//! Channels to several peers.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)] // tests

mod collectives;
mod endings;
mod peers;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rdma_channel::{
    Channel, ChannelBuilder, MultiChannel, MultiChannelBuilder, PeerRemoteMemoryRegion,
    TransportError, prelude::*,
};
use rdma_mem::{AccessFlags, ProtectionDomain, SharedRegion, open_device};
use rdma_qp::{MaxRnrRetries, Qpn, ReceiveWorkRequest, SendWorkRequest};
use rdma_soft::{Builder, Schedule, SoftDevice};

const SECOND: Duration = Duration::from_secs(10);
/// What endings may take for each of their steps.
const DRAIN: Duration = Duration::from_millis(50);

const DEFERRED: &str = "softmany0";
const HELD: &str = "softmanyheld0";
/// Those that work by themselves.
const DEVICES: [&str; 2] = ["soft0", DEFERRED];

/// A channel to three peers, each with one channel and memory that the center may use.
struct Star {
    center: MultiChannel,
    peers: Vec<Channel>,
    boards: Vec<SharedRegion>,
    /// Of the center, one for each peer.
    qpns: Vec<Qpn>,
    pd: ProtectionDomain,
    device: SoftDevice,
}

fn domain(device: &str) -> ProtectionDomain {
    rdma_soft::install();
    for (name, schedule) in [(DEFERRED, Schedule::Deferred { seed: 3 }), (HELD, Schedule::Held)] {
        // Another test may have been first.
        let _ = Builder::new(name).schedule(schedule).install();
    }
    open_device(device).unwrap().allocate_pd().unwrap()
}

fn everything() -> AccessFlags {
    AccessFlags::new()
        .with_local_write()
        .with_remote_write()
        .with_remote_read()
        .with_remote_atomic()
}

impl Star {
    fn new(device: &str) -> Self {
        Self::with(device, |builder| builder)
    }

    fn with(
        device: &str,
        knobs: impl for<'a> FnOnce(MultiChannelBuilder<'a>) -> MultiChannelBuilder<'a>,
    ) -> Self {
        let pd = domain(device);
        let center = pd.create_multi_channel().num_channels(3).drain_timeout(DRAIN);
        let center = knobs(center.access(everything())).build().unwrap();
        // They may send before there is a receive for it.
        let forever = MaxRnrRetries::unlimited();
        let tune = |builder: ChannelBuilder<'_>| builder.access(everything()).build().unwrap();
        let peer = || tune(pd.create_channel().max_rnr_retries(forever));
        let peers: Vec<_> = (0..3).map(|_| peer()).collect();
        let ends = center.endpoints();
        let qpns = ends.iter().map(|end| end.qpn()).collect();
        let center = center.handshake(peers.iter().map(|peer| peer.endpoint())).unwrap();
        let peers = peers.into_iter().zip(ends).map(|(peer, end)| peer.handshake(end).unwrap());
        let boards = (0..3).map(|_| pd.allocate_shared_region(64, everything()).unwrap()).collect();
        let device = SoftDevice::find(device).unwrap();
        Self { center, peers: peers.collect(), boards, qpns, pd, device }
    }

    fn remote(&self, peer: usize) -> PeerRemoteMemoryRegion {
        PeerRemoteMemoryRegion::new(peer, self.boards[peer].remote())
    }

    /// Has a peer take a message of no bytes, when it comes.
    fn expect_number(&self, peer: usize) {
        let room = ReceiveWorkRequest::only_immediate();
        // SAFETY: SAFETY.md F8: no memory.
        drop(unsafe { self.peers[peer].receive_unpolled(room) }.unwrap());
    }

    /// Has a peer send that number, which is with the device when this returns.
    fn send_number(&self, peer: usize, number: u32) {
        // SAFETY: SAFETY.md F8: no memory.
        drop(
            unsafe { self.peers[peer].send_unpolled(SendWorkRequest::only_immediate(number)) }
                .unwrap(),
        );
    }

    /// How many requests of the center's send queues are with the device.
    fn in_flight(&self) -> usize {
        self.qpns.iter().map(|&qpn| self.device.in_flight(qpn)).sum()
    }

    /// Which connections are open.
    fn open(&self) -> Vec<usize> {
        (0..3).filter(|&peer| self.center.closed(peer).unwrap().is_none()).collect()
    }
}

/// Of an error of a collective: which peers, and how it failed with the first.
fn failed(error: TransportError) -> (Vec<usize>, TransportError) {
    let TransportError::Collective(errors) = error else { panic!("{error}") };
    let peers = errors.iter().map(|error| error.peer.unwrap()).collect();
    (peers, errors.into_iter().next().unwrap().error)
}

/// Fails if `work` does not end.
fn must_end(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    let hangs = ended.recv_timeout(2 * SECOND) == Err(RecvTimeoutError::Timeout);
    assert!(!hangs, "it hangs");
    worker.join().unwrap();
}
