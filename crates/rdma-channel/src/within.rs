//! Channels with a different time limit for some calls.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::channel::Channel;
use crate::ledger::Ledger;
use crate::multi_channel::MultiChannel;

impl Channel {
    /// Returns the channel with a different time limit for calls made through the returned value. Usually, that is a
    /// single call. [`Duration::MAX`] means no limit.
    ///
    /// The limit replaces the limits of all kinds of operations, but not the [drain
    /// limit](crate::ChannelBuilder::drain_timeout) at the end of a scope. It applies until the value is dropped.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{TransportError, prelude::*};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let mut buffer = pd.allocate_region(64)?;
    /// let outcome = channel.within(Duration::from_millis(20)).receive_into(&mut buffer);
    /// assert!(matches!(outcome, Err(TransportError::Timeout { .. })));
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias("timeout", "deadline"))]
    pub fn within(&mut self, limit: Duration) -> Within<'_> {
        Within::new(self, |channel| &mut channel.ledger, limit)
    }
}

impl MultiChannel {
    /// Returns the channels with a different time limit for calls made through the returned value, like
    /// [`Channel::within`]. For a collective, the limit applies to all its operations together.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{PeerReceiveWorkRequest, TransportError, prelude::*};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let prepared = pd.create_multi_channel().num_channels(2).build()?;
    /// # let endpoints = prepared.endpoints();
    /// # let mut channels = prepared.handshake(endpoints)?; // each to itself
    /// let rooms = (0..2).map(PeerReceiveWorkRequest::only_immediate);
    /// let outcome = channels.within(Duration::from_millis(20)).gather_receive(rooms);
    /// assert!(matches!(outcome, Err(TransportError::Collective(late)) if late.len() == 2));
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias("timeout", "deadline"))]
    pub fn within(&mut self, limit: Duration) -> Within<'_, Self> {
        Within::new(self, |channels| &mut channels.ledger, limit)
    }
}

/// A [`Channel`] or a [`MultiChannel`] with a different time limit until this value is dropped. Returned by
/// [`Channel::within`] and [`MultiChannel::within`].
///
/// The limit belongs to the channel. If this value is leaked, or if the channel is moved out of it (for example with
/// [`std::mem::swap`]), the channel keeps the limit.
///
/// # Examples
/// One limit for several calls, which applies to each call separately. `board` is memory of the peer:
/// ```
/// use std::time::Duration;
/// use rdma_channel::{TransportError, prelude::*};
/// # use rdma_mem::AccessFlags;
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let channel = pd.create_channel().max_inline_data(8).build()?;
/// # let endpoint = channel.endpoint();
/// # let mut channel = channel.handshake(endpoint)?; // to itself
///
/// # let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
/// # let board = pd.allocate_shared_region(8, access)?; // of this process, as the channel is connected to itself
/// # let board = board.remote();
/// let mut buffer = pd.allocate_region(8)?;
/// {
///     let mut quick = channel.within(Duration::from_secs(1));
///     quick.write_inline(b"12345678", board)?;
///     quick.read_into(&mut buffer, board)?;
/// } // from here on the limits are those of the builder
/// channel.write_from(&buffer, board)?;
/// # assert_eq!(buffer[..], *b"12345678");
/// # Ok::<(), TransportError>(())
/// ```
#[must_use = "the limit holds for calls made through this value"]
pub struct Within<'c, C = Channel> {
    channel: &'c mut C,
    ledger: fn(&mut C) -> &mut Ledger,
    /// The previous limit, if any.
    before: Option<Duration>,
}

impl<'c, C> Within<'c, C> {
    fn new(channel: &'c mut C, ledger: fn(&mut C) -> &mut Ledger, limit: Duration) -> Self {
        let before = ledger(channel).limits.within.replace(limit);
        Self { channel, ledger, before }
    }
}

/// Formats only the channel.
impl<C: fmt::Debug> fmt::Debug for Within<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Within").field(&self.channel).finish()
    }
}

impl<C> Deref for Within<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.channel
    }
}

impl<C> DerefMut for Within<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.channel
    }
}

impl<C> Drop for Within<'_, C> {
    fn drop(&mut self) {
        (self.ledger)(self.channel).limits.within = self.before;
    }
}
