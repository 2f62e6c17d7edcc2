//! The networks through which a device reaches other hosts.

use std::sync::Arc;

use rdma_types::Gid;

use crate::address::{Address, GidEntry};
use crate::engine::Refusal;
use crate::engine::wire::Carrier;

/// The network from one address of a device to other hosts.
pub(crate) trait Network: Send + Sync + std::fmt::Debug {
    /// Returns the local address.
    fn address(&self) -> GidEntry;

    /// Checks that packets can be sent to an address.
    fn reach(&self, remote: &Address) -> Result<(), Refusal>;

    /// Returns the carrier for packets to other hosts.
    fn outlet(&self) -> Arc<dyn Carrier>;

    /// Joins and leaves multicast groups, so that the packets of exactly the device's groups are received. `newest` is
    /// the group that was added last.
    fn update_groups(&self, newest: Option<Gid>, has: &dyn Fn(Gid) -> bool) -> Result<(), Refusal>;

    /// Returns true if the host's route to an address begins at the local address.
    fn is_source_to(&self, remote: Gid) -> bool;
}
