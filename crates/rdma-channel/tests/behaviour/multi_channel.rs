//! Channels to several peers.
#![allow(unsafe_code)]
#![allow(clippy::cast_possible_truncation)] // tests

mod collectives;
mod endings;
mod gone;
mod members;
mod peers;
mod process;
mod providers;

use std::time::Duration;

use crate::common::stuck::Stuck;
use crate::common::{
    DEFERRED, DRAIN, HELD, LATE, answer, everything, must_end, open, wait_in_vain,
};
use rdma_channel::{
    Channel, ChannelBuilder, MultiChannel, MultiChannelBuilder, PeerRemoteMemoryRegion,
    TransportError, prelude::*,
};
use rdma_mem::{Context, ProtectionDomain, SharedRegion};
use rdma_qp::{MaxRnrRetries, Qpn, ReceiveWorkRequest, SendWorkRequest};
use rdma_soft::SoftDevice;

const SECONDS: Duration = Duration::from_secs(25);

/// Devices that work by themselves.
const DEVICES: [&str; 2] = ["soft0", DEFERRED];

/// A channel to three peers, each with one channel and memory that the center may access.
struct Star {
    center: MultiChannel,
    peers: Vec<Channel>,
    boards: Vec<SharedRegion>,
    /// The queue pairs of the center, one for each peer.
    qpns: Vec<Qpn>,
    pd: ProtectionDomain,
    /// The domain of the peers.
    far: ProtectionDomain,
    device: SoftDevice,
}

impl Star {
    fn new(device: &str) -> Self {
        Self::with(device, |builder| builder)
    }

    fn with(
        device: &str,
        knobs: impl for<'a> FnOnce(MultiChannelBuilder<'a>) -> MultiChannelBuilder<'a>,
    ) -> Self {
        Self::on(&open(device), knobs)
    }

    /// Creates the center on this context.
    fn on(
        context: &Context,
        knobs: impl for<'a> FnOnce(MultiChannelBuilder<'a>) -> MultiChannelBuilder<'a>,
    ) -> Self {
        let pd = context.allocate_pd().unwrap();
        let name = context.device().name();
        let far = open(name).allocate_pd().unwrap();
        let center = pd.create_multi_channel().num_channels(3).drain_timeout(DRAIN);
        let center = knobs(center.access(everything(&pd))).build().unwrap();
        // They may send before a receive is posted.
        let forever = MaxRnrRetries::unlimited();
        let tune = |builder: ChannelBuilder<'_>| builder.access(everything(&far)).build().unwrap();
        let peer = || tune(far.create_channel().max_rnr_retries(forever));
        let peers: Vec<_> = (0..3).map(|_| peer()).collect();
        let ends = center.endpoints();
        let qpns = ends.iter().map(|end| end.qpn()).collect();
        let center = center.handshake(peers.iter().map(|peer| peer.endpoint())).unwrap();
        let peers = peers.into_iter().zip(ends).map(|(peer, end)| peer.handshake(end).unwrap());
        let boards =
            (0..3).map(|_| far.allocate_shared_region(64, everything(&far)).unwrap()).collect();
        let device = SoftDevice::find(name).unwrap();
        Self { center, peers: peers.collect(), boards, qpns, pd, far, device }
    }

    fn remote(&self, peer: usize) -> PeerRemoteMemoryRegion {
        PeerRemoteMemoryRegion::new(peer, self.boards[peer].remote())
    }

    /// Makes a peer receive an empty message when one arrives.
    fn expect_number(&self, peer: usize) {
        expect_number(&self.peers[peer]);
    }

    /// Makes a peer send this number; the request is in flight when this returns.
    fn send_number(&self, peer: usize, number: u32) {
        // SAFETY: SAFETY.md F8: the request has no memory.
        drop(
            unsafe { self.peers[peer].send_unpolled(SendWorkRequest::only_immediate(number)) }
                .unwrap(),
        );
    }

    /// Number of requests in flight in the center's send queues.
    fn in_flight(&self) -> usize {
        self.qpns.iter().map(|&qpn| self.device.in_flight(qpn)).sum()
    }

    /// The open connections.
    fn open(&self) -> Vec<usize> {
        (0..3).filter(|&peer| self.center.closed(peer).unwrap().is_none()).collect()
    }

    /// A closure that executes all remaining requests of all these queue pairs, and returns their number.
    fn releases(&self) -> impl Fn() -> u32 + use<> {
        let peers = self.peers.iter().filter_map(Channel::qpn);
        let (device, qpns): (_, Vec<_>) = (self.device, peers.chain(self.qpns.clone()).collect());
        move || qpns.iter().map(|&qpn| device.release(qpn, u32::MAX)).sum()
    }

    /// The memory of requests to each peer that are never answered.
    fn stuck(&self) -> Vec<Stuck> {
        self.boards.iter().map(|board| Stuck::of(&self.pd, board)).collect()
    }

    /// Checks that the memory belongs to the caller, whatever the peers and the device do now.
    fn assert_given_back(&self, stuck: Vec<Stuck>) {
        assert_eq!(self.in_flight(), 0, "requests are still in flight");
        Stuck::assert_untouched(stuck, || self.provoke());
    }

    /// Like [`Pair::provoke`](crate::common::Pair::provoke), for all peers.
    fn provoke(&self) {
        self.peers.iter().zip(&self.boards).for_each(|(peer, board)| answer(peer, board));
        self.releases()();
        wait_in_vain();
        self.releases()();
    }

    /// Writes to the peers successfully, on every device.
    fn assert_usable(&mut self, peers: &[usize]) {
        let data = self.pd.allocate_region(8).unwrap();
        for &peer in peers {
            let (remote, releases) = (self.remote(peer), self.releases());
            let written = self.center.scope(|s| {
                let write = s.to(remote.peer())?.write_from(data.as_slice(), remote.remote())?;
                releases();
                write.wait(SECONDS).unwrap().result
            });
            assert!(written.is_ok(), "peer {peer}: {written:?}");
        }
    }
}

/// See [`Star::expect_number`].
fn expect_number(peer: &Channel) {
    let room = ReceiveWorkRequest::only_immediate();
    // SAFETY: SAFETY.md F8: the request has no memory.
    drop(unsafe { peer.receive_unpolled(room) }.unwrap());
}

/// The peers in an error of a collective, and the error of the first one.
fn failed(error: TransportError) -> (Vec<usize>, TransportError) {
    let TransportError::Collective(errors) = error else { panic!("{error}") };
    let peers = errors.iter().map(|error| error.peer.unwrap()).collect();
    (peers, errors.into_iter().next().unwrap().error)
}
