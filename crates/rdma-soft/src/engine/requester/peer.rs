//! Queue pairs of this process, as their requesters know them.

use std::ops::Deref;
use std::sync::Arc;

use crate::address::{Group, Path};
use crate::engine::requester::side::SendSide;
use crate::engine::responder::side::Responder;
use crate::engine::station::{Owner, Station};
use crate::engine::wire::{Mailbox, Outlet};
use crate::sync::Lock;

/// A queue pair of this process: a requester's own, and its peer. There is one type of them, so that all of this is known
/// to the compiler.
pub(crate) trait Near: Owner + Deref<Target = Station> + Sized + 'static {
    fn send_side(&self) -> &Lock<SendSide<Self>>;

    fn responder(&self) -> &Lock<Responder>;

    /// How many packets, or runs of them, have arrived at its device.
    fn arrived(&self) -> u64;

    /// The LID of its port.
    fn lid(&self) -> u16;

    /// The queue pair at the far end of a path from here, if it is in this process.
    fn find_peer(&self, path: Option<&Path>, number: u32) -> Option<Arc<Self>>;

    /// Where datagrams go that take that path from here.
    fn receiver(&self, path: &Path, number: u32) -> Receiver<Self>;

    /// The inboxes of the devices that have members of a group and take packets from here.
    fn inboxes_of(&self, group: Group) -> impl Iterator<Item = &'static dyn Mailbox>;

    /// The members of a group on the devices that take no packets from here.
    fn members_of(&self, group: Group) -> impl Iterator<Item = Arc<Self>>;

    /// Where packets to a group go beside the devices of this process.
    fn outlet_from(&self, path: &Path) -> Option<Outlet>;
}

/// Where a datagram goes.
pub(crate) enum Receiver<P> {
    Direct(Arc<P>),
    Wire(Outlet),
    Nobody,
}
