//! The origin of a request.

use crate::address::Path;
use crate::engine::queue_pair::service::Service;

/// A requester, as its responder knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    /// A number that changes whenever the requester is reset or gets another address vector. So no request from an
    /// earlier incarnation or another sender is mistaken for this requester's.
    pub(crate) number: u64,
    pub(crate) service: Service,
    pub(crate) qpn: u32,
    pub(crate) path: Option<Path>,
}

impl Origin {
    /// Returns true if the requester is the peer that a responder is connected to. `qpn` and `path` are the
    /// responder's.
    pub(crate) fn is(&self, qpn: u32, path: Option<&Path>) -> bool {
        let paths = self.path.as_ref().zip(path);
        self.qpn == qpn && paths.is_some_and(|(theirs, ours)| theirs.is_reverse_of(ours))
    }
}
