//! Queue pairs of this process, as requesters use them: their own, and their peers.

use std::ops::Deref;
use std::sync::Arc;

use crate::address::{Group, Path};
use crate::engine::requester::side::SendSide;
use crate::engine::responder::side::Responder;
use crate::engine::station::{Owner, Station};
use crate::engine::wire::{Mailbox, Outlet};
use crate::sync::Lock;

/// A queue pair of this process: a requester's own, or its peer. There is one implementation, so all calls are static.
pub(crate) trait Near: Owner + Deref<Target = Station> + Sized + 'static {
    fn send_side(&self) -> &Lock<SendSide<Self>>;

    fn responder(&self) -> &Lock<Responder>;

    /// The number of packets, or runs of them, that have arrived at its device.
    fn arrived(&self) -> u64;

    /// The LID of its port.
    fn lid(&self) -> u16;

    /// Finds the queue pair at the far end of a path, if it is in this process.
    fn find_peer(&self, path: Option<&Path>, number: u32) -> Option<Arc<Self>>;

    /// Finds the destination of datagrams that take a path to a queue pair number.
    fn receiver(&self, path: &Path, number: u32) -> DatagramReceiver<Self>;

    /// The inboxes of devices that have members of a group, and to which this one sends packets.
    fn inboxes_of(&self, group: Group) -> impl Iterator<Item = &'static dyn Mailbox>;

    /// The members of a group on devices to which this one copies directly, if their port is up.
    fn members_of(&self, group: Group) -> impl Iterator<Item = Arc<Self>>;

    /// The outlet of packets to a group outside the devices of this process.
    fn outlet_from(&self, path: &Path) -> Option<Outlet>;
}

/// The destination of a datagram.
pub(crate) enum DatagramReceiver<P> {
    Direct(Arc<P>),
    Wire(Outlet),
    Nobody,
}
