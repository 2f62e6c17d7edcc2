//! A queue pair's own end of a connection, or of its datagrams.

use std::sync::OnceLock;

use crate::ah::handle::AddressHandle;
use crate::endpoint::{EndpointGid, QueuePairEndpoint};
use crate::qp::settings::Settings;

/// The unchanged endpoint of this end, and its GIDs.
#[derive(Debug)]
pub(crate) struct OwnEnd {
    pub(crate) endpoint: QueuePairEndpoint,
    /// The usable GIDs of the port, with their indices in its table. The first are the endpoint's.
    pub(crate) table: Vec<(EndpointGid, u8)>,
    pub(crate) port: u8,
    pub(crate) settings: Settings,
}

/// This end, and the route to itself for the last request of
/// [`QueuePair::drain`](crate::QueuePair::drain).
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) end: OwnEnd,
    pub(crate) own: OnceLock<AddressHandle>,
}
