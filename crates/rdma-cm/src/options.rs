//! The options of a port.

/// The options with which a port is bound. By default, none is set.
///
/// # Examples
/// ```
/// use rdma_cm::{BindOptions, EventChannel, Listener};
///
/// rdma_soft::install();
/// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
/// let options = BindOptions::new().with_one_ip_version(true);
/// let listener = Listener::bind_with(&channel, "[::]:0", options)?;
/// // Clients that connect to 127.0.0.1 are rejected.
/// # assert!(listener.local_address().is_ipv6());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_set_option")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BindOptions {
    pub(crate) is_shared: bool,
    pub(crate) is_one_ip_version: bool,
}

impl BindOptions {
    /// Returns the default options: none is set.
    #[must_use]
    pub const fn new() -> Self {
        Self { is_shared: false, is_one_ip_version: false }
    }

    /// Sets whether the port is shared with other owners in this process that have this option, too
    /// (`RDMA_OPTION_ID_REUSEADDR`). Only one of them can listen, and it must do so before the others are bound.
    ///
    /// A program that listens at a port needs this to send its own requests from the same port. It does not need it for
    /// a port that was in use a moment ago and has no owner any more.
    #[must_use]
    pub const fn with_shared_port(mut self, is_shared: bool) -> Self {
        self.is_shared = is_shared;
        self
    }

    /// Sets whether only requests for addresses of the listener's IP version are accepted (`RDMA_OPTION_ID_AFONLY`).
    /// Otherwise, a listener at `::` or 0.0.0.0 accepts both versions, as does one at `localhost`.
    #[must_use]
    pub const fn with_one_ip_version(mut self, is_one_ip_version: bool) -> Self {
        self.is_one_ip_version = is_one_ip_version;
        self
    }
}
