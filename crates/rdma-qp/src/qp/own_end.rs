//! The local end of a connection, or of datagrams.

use std::sync::OnceLock;

use crate::ah::handle::AddressHandle;
use crate::endpoint::{EndpointGid, QueuePairEndpoint};
use crate::qp::settings::Settings;

/// The endpoint of this end, and the GIDs of its port.
#[derive(Debug)]
pub(crate) struct OwnEnd {
    pub(crate) endpoint: QueuePairEndpoint,
    /// The usable GIDs of the port, with their indices in the port's table. The GIDs of the endpoint come first.
    pub(crate) table: Vec<(EndpointGid, u8)>,
    pub(crate) port: u8,
    pub(crate) settings: Settings,
}

/// The local end, and an address handle to its own port. [`QueuePair::drain`](crate::QueuePair::drain) uses the handle
/// for its last request.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) end: OwnEnd,
    pub(crate) own: OnceLock<AddressHandle>,
}
