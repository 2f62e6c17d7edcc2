//! The options of connections that are made by address.

use std::time::Duration;

use rdma_connect::ConnectError;
use rdma_mem::{AccessFlags, ProtectionDomain};
use rdma_qp::{QueuePair, QueuePairBuilder};

use crate::lease::limits::LeaseLimits;

/// The options of connections that are made by address: all options of the queue pair, plus the options of the control
/// connection. Both ends use this type: [`Driver::connect`](crate::Driver::connect) for one connection, and
/// [`Driver::listen`](crate::Driver::listen) for all clients.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_async::ConnectionOptions;
/// use rdma_mem::AccessFlags;
/// use rdma_qp::prelude::*;
///
/// # rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// // Like a channel: a peer may read and write memory after it has received the key.
/// let options = ConnectionOptions::new(&pd).user_bytes(b"swordfish");
/// // Or any other options of the queue pair.
/// let access = AccessFlags::new().with_remote_atomic();
/// let options = ConnectionOptions::from(pd.create_qp().max_send_wr(256).access(access))
///     .peer_timeout(Duration::from_secs(5));
/// # let _ = options;
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ConnectionOptions {
    pub(crate) qp: QueuePairBuilder<'static>,
    pub(crate) user_bytes: Box<[u8]>,
    pub(crate) rendezvous_timeout: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) operation_timeout: Option<Duration>,
    pub(crate) lease_limits: Option<LeaseLimits>,
    pub(crate) lease_margin: Duration,
}

impl ConnectionOptions {
    /// Returns the options that channels use: a reliable connection whose peer may read and write. A send is retried
    /// without limit while the peer has no receive posted.
    pub fn new(pd: &ProtectionDomain) -> Self {
        let access = AccessFlags::new().with_remote_read().with_remote_write();
        QueuePair::builder(pd).access(access).into()
    }

    /// Sets the bytes to send to the other end, at most 1,024. The server's program
    /// [reads](crate::Incoming::user_bytes) a client's bytes before it accepts the client.
    /// [`accept`](crate::Listener::accept) sends the listener's bytes. Default: none.
    pub fn user_bytes(mut self, user_bytes: &[u8]) -> Self {
        self.user_bytes = user_bytes.into();
        self
    }

    /// Sets the time limit for connecting. On a client, it covers all of [`connect`](crate::Driver::connect) except
    /// name lookup; on a listener, it applies to each client. It is also how long the peer has to answer
    /// [`reconnect`](crate::Connection::reconnect), [`connect_additional`](crate::Connection::connect_additional),
    /// [`borrow`](crate::Connection::borrow) and [`receive_lease`](crate::Connection::receive_lease). Default: 10
    /// seconds. [`Duration::MAX`] means no limit.
    pub const fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.rendezvous_timeout = timeout;
        self
    }

    /// Sets the time after which the peer's machine counts as gone if it is silent. TCP probes the machine four times
    /// in that time (`SO_KEEPALIVE`, `TCP_USER_TIMEOUT`), but at most once per second. Default: 30 seconds. If only the
    /// peer's process ends, this end notices at once.
    #[doc(alias("TCP_USER_TIMEOUT", "SO_KEEPALIVE"))]
    pub const fn peer_timeout(mut self, limit: Duration) -> Self {
        self.peer_timeout = limit;
        self
    }

    /// Sets the interval at which the peer's program must answer on the control connection. After three missed answers,
    /// the connection ends with [`CloseReason::Silent`](crate::CloseReason::Silent). This detects a program that hangs,
    /// for example in a debugger or with a blocked runtime. Default: no heartbeat. A channel at the other end does not
    /// answer, so it is not checked.
    pub const fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = Some(every);
        self
    }

    /// Sets the time limit of operations that are awaited without their own limit, as if by
    /// [`within`](crate::Op::within). It applies to operations of the connection, of its [additional
    /// connections](crate::Connection::connect_additional), and on [borrowed memory](crate::RemoteRegion). Default:
    /// none.
    ///
    /// An operation that was [posted](crate::Op::post) before it is awaited has no limit, so a receive can be posted
    /// long before its message arrives.
    pub const fn operation_timeout(mut self, limit: Duration) -> Self {
        self.operation_timeout = Some(limit);
        self
    }

    /// Sets the limits of the memory that the peer may [borrow](crate::Connection::borrow). Default: no memory.
    pub fn lease_limits(mut self, limits: LeaseLimits) -> Self {
        self.lease_limits = Some(limits);
        self
    }

    /// Sets how much time a lease must have left for an operation on [borrowed memory](crate::RemoteRegion) to be
    /// posted. It allows for the time that a request takes to reach the peer. Default: 1 ms.
    pub const fn lease_margin(mut self, margin: Duration) -> Self {
        self.lease_margin = margin;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConnectError> {
        ConnectError::check_user_bytes(&self.user_bytes)
    }
}

/// Options of a queue pair. Unlike with [`ConnectionOptions::new`], the peer has no rights unless the options set them.
impl From<QueuePairBuilder<'static>> for ConnectionOptions {
    fn from(qp: QueuePairBuilder<'static>) -> Self {
        Self {
            qp,
            user_bytes: Box::default(),
            rendezvous_timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(30),
            heartbeat: None,
            operation_timeout: None,
            lease_limits: None,
            lease_margin: Duration::from_millis(1),
        }
    }
}
