//! Queue pairs of this process as requesters use them: the requester's queue pair, and its peers.

use std::ops::Deref;
use std::sync::Arc;

use crate::address::{Group, Path};
use crate::engine::requester::side::SendSide;
use crate::engine::responder::side::Responder;
use crate::engine::station::{Owner, Station};
use crate::engine::wire::{Mailbox, Outlet};
use crate::sync::Lock;

/// A queue pair of this process: a requester's own, or its peer. There is only one implementation, so calls are static.
pub(crate) trait Near: Owner + Deref<Target = Station> + Sized + 'static {
    fn send_side(&self) -> &Lock<SendSide<Self>>;

    fn responder(&self) -> &Lock<Responder>;

    /// Returns the number of letters that have arrived at the queue pair's device.
    fn arrived(&self) -> u64;

    /// Returns the LID of the queue pair's port.
    fn lid(&self) -> u16;

    /// Finds the queue pair at the far end of a path, if it is in this process.
    fn find_peer(&self, path: Option<&Path>, number: u32) -> Option<Arc<Self>>;

    /// Finds the receiver of datagrams that take this path to this queue pair number.
    fn receiver(&self, path: &Path, number: u32) -> DatagramReceiver<Self>;

    /// Returns the inboxes of the devices that have members of a group and that this device sends packets to.
    fn inboxes_of(&self, group: Group) -> impl Iterator<Item = &'static dyn Mailbox>;

    /// Returns the members of a group on devices whose port is up and that this device copies to directly.
    fn members_of(&self, group: Group) -> impl Iterator<Item = Arc<Self>>;

    /// Returns the outlet through which packets for a group leave this process, if any.
    fn outlet_from(&self, path: &Path) -> Option<Outlet>;
}

/// The receiver of a datagram.
pub(crate) enum DatagramReceiver<P> {
    Direct(Arc<P>),
    Wire(Outlet),
    Nobody,
}
