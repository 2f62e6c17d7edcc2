//! The ends of a measurement. There is one kind for each interface of the library.

mod blocking;
mod futures;
mod memory;
mod queue_pairs;

use std::io::{Read as _, Write as _};
use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use rdma::channel::{confirm, exchange_all};
use rdma::device::Context;
use rdma::memory::{ProtectionDomain, RemoteMemoryRegion};
use rdma::qp::{GidChoice, QueuePairEndpoint};

pub(crate) use crate::perf::ends::memory::zeros;
use crate::perf::ends::memory::{Memory, Target};
use crate::perf::protocol::{Block, Control, PATIENCE};
use crate::perf::report::Measure;
use crate::perf::samples::Samples;
use crate::perf::settings::{Api, Settings};
use crate::perf::watch::{Watch, lost};

/// One end of a set of connected queue pairs. It runs its part of each block.
pub(crate) trait End {
    /// Runs the client's part of a block, and records it.
    ///
    /// # Errors
    /// Returns an error if a request fails, or if the watch ends the block.
    fn client(
        &mut self,
        plan: &Plan,
        watch: &mut Watch,
        samples: &mut Samples,
    ) -> anyhow::Result<()>;

    /// Runs the server's part of a block, if it has one. Calls `ready` once the client may start.
    ///
    /// # Errors
    /// Returns the errors of [`client`](Self::client) and of `ready`.
    fn server(&mut self, plan: &Plan, watch: &mut Watch, ready: Ready<'_>) -> anyhow::Result<()>;
}

/// The function that a server calls when the client may start the block.
pub(crate) type Ready<'a> = &'a mut dyn FnMut() -> anyhow::Result<()>;

/// The parameters of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) role: Role,
    /// The length of a message, in bytes.
    pub(crate) bytes: usize,
    /// The index of this length in the settings.
    pub(crate) size: usize,
    pub(crate) queue_pairs: usize,
    pub(crate) depth: usize,
    pub(crate) iterations: u64,
}

/// The roles of the two ends in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Both ends post, in turn.
    PingPong,
    /// The client posts one request at a time and waits until it completes. The server does
    /// nothing.
    Requests,
    /// The client keeps many requests outstanding. If these are sends, the server posts receives
    /// for them.
    Stream,
}

impl Plan {
    /// Returns the plan for a block that the client requests, after checking that the settings
    /// allow it.
    ///
    /// # Errors
    /// Returns an error if the block does not match the settings.
    pub(crate) fn new(block: &Block, settings: &Settings) -> anyhow::Result<Self> {
        let bytes = settings.sizes.get(block.size).copied().context("no such length")?;
        ensure!(
            (1..=settings.queue_pairs).contains(&block.queue_pairs)
                && (1..=settings.depth).contains(&block.depth)
                && block.iterations > 0,
            "a block of {} iterations with {} queue pairs and a depth of {} does not fit the settings",
            block.iterations,
            block.queue_pairs,
            block.depth
        );
        let role = match settings.measure {
            Measure::Lat if settings.operation.is_halved() => Role::PingPong,
            Measure::Lat => Role::Requests,
            Measure::Bw | Measure::Rate => Role::Stream,
        };
        Ok(Self {
            role,
            bytes: bytes as usize,
            size: block.size,
            queue_pairs: block.queue_pairs as usize,
            depth: block.depth as usize,
            iterations: block.iterations,
        })
    }
}

/// The properties of the connection between the two ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    /// The path MTU, in bytes.
    pub(crate) mtu: u32,
    /// Whether the last byte of a write arrives last, as required by an end that polls the memory.
    pub(crate) is_ordered: bool,
}

/// The device of this end.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    pub(crate) context: Context,
    /// The index of the GID to use, or `None` to use one that matches the peer's GIDs.
    pub(crate) gid_index: Option<u8>,
}

/// Creates this end, connects it to the peer's end, and passes it to `run`.
///
/// # Errors
/// Returns an error if the device refuses an object, the ends do not match, or the peer leaves.
/// Also returns the errors of `run`.
pub(crate) fn connected<T>(
    local: &Local,
    settings: &Settings,
    control: &mut Control,
    run: impl FnOnce(&mut Control, &mut dyn End, Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let pd = local.context.allocate_pd()?;
    let target = Target::allocate(&pd, settings)?;
    let mut memory = Memory::allocate(&pd, settings)?;
    let mut peer = Peer { pd: &pd, gid_index: local.gid_index, settings, control };
    let (mut end, path): (Box<dyn End + '_>, Path) = match settings.api {
        Api::Qp => queue_pairs::connect(&mut peer, &mut memory, &target)?,
        Api::Channel => blocking::connect(&mut peer, &target)?,
        Api::Async => futures::connect(&mut peer, &target)?,
    };
    run(control, &mut *end, path)
}

/// The other end, and what this end needs to connect to it.
struct Peer<'a> {
    pd: &'a ProtectionDomain,
    gid_index: Option<u8>,
    settings: &'a Settings,
    control: &'a mut Control,
}

/// A queue pair, channel or connection that has not been connected yet.
trait Prepared: Sized {
    type Connected;
    fn endpoint(&self) -> QueuePairEndpoint;
    fn set_stream_addresses(&mut self, own: IpAddr, peer: IpAddr);
    fn handshake(self, peer: QueuePairEndpoint) -> Result<Self::Connected, rdma::qp::Error>;
}

macro_rules! prepared {
    ($($prepared:ty => $connected:ty;)+) => {$(
        impl Prepared for $prepared {
            type Connected = $connected;

            fn endpoint(&self) -> QueuePairEndpoint {
                self.endpoint()
            }

            fn set_stream_addresses(&mut self, own: IpAddr, peer: IpAddr) {
                self.set_stream_addresses(own, peer);
            }

            fn handshake(self, peer: QueuePairEndpoint) -> Result<$connected, rdma::qp::Error> {
                self.handshake(peer)
            }
        }
    )+};
}

prepared! {
    rdma::qp::PreparedQueuePair => rdma::qp::QueuePair;
    rdma::channel::PreparedChannel => rdma::channel::Channel;
    rdma::aio::PreparedConnection => rdma::aio::Connection;
}

/// The result of connecting: the connections, the peer's memory, and the path MTU.
struct Met<C> {
    connections: Vec<C>,
    remote: RemoteMemoryRegion,
    mtu: u32,
}

impl Peer<'_> {
    /// Returns the rule by which queue pairs choose their GIDs.
    fn gid_choice(&self) -> GidChoice {
        self.gid_index.map_or(GidChoice::ByPeer, GidChoice::Index)
    }

    /// Connects the prepared queue pairs to the same number at the peer. Exchanges the memory that
    /// each end lends.
    fn meet<P: Prepared>(
        &mut self,
        mut prepared: Vec<P>,
        target: &Target,
    ) -> anyhow::Result<Met<P::Connected>> {
        self.control.ready()?;
        let mut stream = self.control.stream();
        let (here, there) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
        prepared.iter_mut().for_each(|one| one.set_stream_addresses(here, there));
        let own: Vec<_> = prepared.iter().map(P::endpoint).collect();
        let peers = exchange_all(stream, &own, PATIENCE)?;
        let mtus = own.iter().chain(&peers).map(|end| end.mtu().bytes());
        let mtu = mtus.min().context("no queue pair")?;
        let connect = |(one, peer): (P, QueuePairEndpoint)| one.handshake(peer);
        let connections = prepared.into_iter().zip(peers).map(connect).collect::<Result<_, _>>()?;
        confirm(stream, PATIENCE)?;
        let mut remote = [0; RemoteMemoryRegion::BYTES];
        stream.write_all(&target.remote().to_bytes()).map_err(lost)?;
        stream.read_exact(&mut remote).map_err(lost)?;
        let remote = RemoteMemoryRegion::from_bytes(remote);
        ensure!(
            remote.length() >= self.settings.longest() as usize,
            "the peer lends {} bytes, fewer than the longest message",
            remote.length()
        );
        Ok(Met { connections, remote, mtu })
    }
}
