//! The limits of a connection that carries a stream or messages.

use std::io::{self, ErrorKind};
use std::time::Duration;

use rdma_mem::BufferPool;
use rdma_message::Options as Limits;
use rdma_qp::QueuePairBuilder;

/// The limits of one end of a connection that carries a stream or messages. The two ends may differ.
///
/// # Examples
/// ```
/// use rdma_connect::messaging::Options;
///
/// // For many idle connections.
/// let options = Options::new().receives(5).sends(8).frame_bytes(1024);
/// assert_eq!(options.registered_bytes(), 16 << 10);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Options {
    limits: Limits,
    linger: Duration,
}

impl Options {
    /// Returns the default limits.
    pub fn new() -> Self {
        let mut limits = Limits::default();
        (limits.sends, limits.offers, limits.eager_bytes) = (16, 8, 256 << 10);
        Self { limits, linger: Duration::from_secs(5) }.frame_bytes((32 << 10) + 64)
    }

    /// Sets the number of frames with data that the peer may send before this end has processed one. Default: 32.
    pub const fn receives(mut self, receives: u32) -> Self {
        self.limits.receives = receives;
        self
    }

    /// Sets the number of frames that this end sends at a time. Three of them are reserved for frames without data.
    /// Default: 16.
    pub const fn sends(mut self, sends: u32) -> Self {
        self.limits.sends = sends;
        self
    }

    /// Sets the length of the longest frame in bytes. At most this much is sent or received in one piece. Each frame
    /// with data begins with a header. Default: 32 KiB, and 64 bytes for the header.
    pub const fn frame_bytes(mut self, bytes: u32) -> Self {
        (self.limits.receive_bytes, self.limits.send_bytes) = (bytes, bytes);
        self
    }

    /// Sets the number of bytes that the peer may send before the program has taken some. At least two frames. Default:
    /// 1 MiB.
    pub const fn window_bytes(mut self, bytes: u32) -> Self {
        self.limits.window_bytes = bytes;
        self
    }

    /// Sets the length of the longest message that this end accepts. Default: 64 MiB. If the
    /// [limit](rdma_mem::BufferPool::set_limit) of the pool is lower when the end is created, it applies instead, because
    /// a longer message could never be fetched. The peer's `send` of a longer message fails with `TooLong`.
    pub const fn max_message(mut self, bytes: u32) -> Self {
        self.limits.max_message = bytes;
        self
    }

    /// Sets the length of the longest message that is always sent in frames. A longer one is lent to the peer, which
    /// fetches it. Default: 256 KiB.
    pub const fn eager_bytes(mut self, bytes: u32) -> Self {
        self.limits.eager_bytes = bytes;
        self
    }

    /// Sets the number of bytes that are lent to the peer at a time. A single longer message is lent too. If this is 0,
    /// all messages are sent in frames. Default: 64 MiB.
    ///
    /// Copies of messages of more than 1 MiB that are sent in frames count too, unless they are on the heap.
    pub const fn offer_bytes(mut self, bytes: u32) -> Self {
        self.limits.offer_bytes = bytes;
        self
    }

    /// Sets the number of bytes that this end fetches before the program receives the messages. A single longer message
    /// is fetched too, and replies do not count. If this is 0, the peer sends all messages in frames. Default: 64 MiB.
    pub const fn fetch_bytes(mut self, bytes: u32) -> Self {
        self.limits.fetch_bytes = bytes;
        self
    }

    /// Sets the number of messages, calls and replies of this end that may be pending. Further messages and calls wait;
    /// replies do not. Default: 1,024.
    pub const fn operations(mut self, operations: u32) -> Self {
        self.limits.operations = operations;
        self
    }

    /// Sets the number of the peer's requests that may be open. The peer's further calls wait. Default: 256.
    pub const fn calls(mut self, calls: u32) -> Self {
        self.limits.calls = calls;
        self
    }

    /// Sets how long a dropped connection may take to send what is left, before it is reset. Also how long a connection
    /// whose peer has broken the protocol may take to notify the peer. Default: 5 seconds.
    #[doc(alias = "SO_LINGER")]
    pub const fn linger(mut self, limit: Duration) -> Self {
        self.linger = limit;
        self
    }

    /// Returns the registered memory of an idle connection in bytes.
    #[doc(alias = "idle_memory")]
    #[must_use]
    pub const fn registered_bytes(&self) -> usize {
        let limits = &self.limits;
        let receives =
            (limits.receive_slots() as usize).saturating_mul(limits.receive_bytes as usize);
        receives.saturating_add((limits.sends as usize).saturating_mul(limits.send_bytes as usize))
    }

    /// Adjusts the queues of a queue pair to these limits, and lets the peer read memory that is lent to it.
    ///
    /// # Examples
    /// See `Stream::new` of `rdma-async`.
    pub fn fit<'a>(&self, qp: QueuePairBuilder<'a>) -> QueuePairBuilder<'a> {
        let access = qp.granted().with_remote_read();
        let qp = if limits_of(self, true).offers > 0 { qp.access(access) } else { qp };
        let [sends, receives] = depths_of(self);
        qp.max_send_wr(sends).max_recv_wr(receives)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the limits of the protocol. The end makes offers only if it `lends`.
#[must_use]
pub const fn limits_of(options: &Options, lends: bool) -> Limits {
    let mut limits = options.limits;
    if !lends || limits.offer_bytes == 0 {
        limits.offers = 0;
    }
    if limits.fetch_bytes == 0 {
        limits.reads = 0;
    }
    limits
}

/// Returns the limits of the protocol for messages. A message that is longer than the pool may register could never be
/// fetched, so this end does not accept it.
#[must_use]
pub fn message_limits(options: &Options, lends: bool, pool: &BufferPool) -> Limits {
    let mut limits = limits_of(options, lends);
    if limits.reads > 0 {
        let most = u32::try_from(pool.limit()).unwrap_or(u32::MAX);
        limits.max_message = limits.max_message.min(most);
    }
    limits
}

/// Returns the limit that [`Options::linger`] has set.
#[must_use]
pub const fn linger_of(options: &Options) -> Duration {
    options.linger
}

/// Returns the lengths of the send queue and of the receive queue. Each lease has at most one request in the send queue,
/// and so has the program, to write to memory of the peer.
#[must_use]
pub const fn depths_of(options: &Options) -> [u32; 2] {
    let limits = limits_of(options, true);
    let sends = limits.send_queue().saturating_add(limits.offers).saturating_add(1);
    [sends, limits.receive_slots()]
}

/// Checks that no limit is outside its range.
///
/// # Errors
/// `InvalidInput` otherwise.
pub fn check_limits(options: &Options) -> io::Result<()> {
    options.limits.check().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
}

/// Checks that the queues of a connection are long enough: they hold that many sends and receives.
///
/// # Errors
/// `InvalidInput` if they are not.
pub fn check_depths(options: &Options, [sends, receives]: [u32; 2]) -> io::Result<()> {
    let [wants_sends, wants] = depths_of(options);
    if sends >= wants_sends && receives >= wants {
        return Ok(());
    }
    let error = format!(
        "the queues hold {sends} requests to send and {receives} receives, these options need {wants_sends} and {wants}: \
         create them with `fit`"
    );
    Err(io::Error::new(ErrorKind::InvalidInput, error))
}
