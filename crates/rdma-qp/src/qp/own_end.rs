//! What a queue pair knows of its end of a connection, or of its datagrams.

use std::sync::OnceLock;

use crate::ah::handle::AddressHandle;
use crate::endpoint::QueuePairEndpoint;
use crate::qp::settings::Settings;

/// This end, as it was made.
#[derive(Debug)]
pub(crate) struct OwnEnd {
    pub(crate) endpoint: QueuePairEndpoint,
    /// The indices in the port's table of the endpoint's GIDs.
    pub(crate) indexes: Vec<u8>,
    pub(crate) port: u8,
    pub(crate) settings: Settings,
}

/// This end, and the way to itself for the last request of
/// [`QueuePair::drain`](crate::QueuePair::drain).
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) end: OwnEnd,
    pub(crate) own: OnceLock<AddressHandle>,
}
