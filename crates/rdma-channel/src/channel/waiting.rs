//! Waiting in the program's own event loop, for several channels and other files.

use std::os::fd::{AsFd, BorrowedFd};

use rdma_connect::TransportError;

use super::Channel;
use crate::multi_channel::MultiChannel;
use crate::scope::Scope;

/// The result of [`arm`](Scope::arm).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)] // a program sleeps or does not
pub enum Armed {
    /// Something has completed, or the channel [spins](crate::Wait::Spin). There may be no event to wake the program,
    /// so poll the handles before you sleep.
    Ready,
    /// Nothing has completed. The [file](Waitable) becomes readable at the next completion.
    Sleep,
}

/// The file of a channel, for `poll(2)`, `epoll`, and event loops built on them. It is readable if something has
/// completed since the channel was [armed](Scope::arm), and stays readable until the channel is armed again.
///
/// It may also be readable although nothing has completed. Then arm the channel again before you sleep. Do not read from
/// the file.
#[derive(Clone, Copy, Debug)]
pub struct Waitable<'c>(pub(crate) BorrowedFd<'c>);

impl AsFd for Waitable<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

impl Channel {
    /// Like [`Scope::arm`], for [unpolled](Self::send_unpolled) operations.
    ///
    /// # Errors
    /// Same errors as [`Scope::arm`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<Armed, TransportError> {
        self.ledger.arm()
    }

    /// Like [`Scope::waitable`], for [unpolled](Self::send_unpolled) operations.
    #[must_use]
    pub fn waitable(&self) -> Option<Waitable<'_>> {
        self.ledger.waitable()
    }

    /// Like [`Scope::watched_stream`], for [unpolled](Self::send_unpolled) operations.
    #[must_use]
    pub fn watched_stream(&self) -> Option<BorrowedFd<'_>> {
        self.ledger.watched_stream()
    }
}

impl MultiChannel {
    /// Like [`Scope::arm`], for [unpolled](Self::send_unpolled) operations of all peers.
    ///
    /// # Errors
    /// Same errors as [`Scope::arm`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<Armed, TransportError> {
        self.ledger.arm()
    }

    /// Like [`Scope::waitable`], for [unpolled](Self::send_unpolled) operations of all peers.
    #[must_use]
    pub fn waitable(&self) -> Option<Waitable<'_>> {
        self.ledger.waitable()
    }
}

impl<'scope, C> Scope<'scope, '_, C> {
    /// Makes the channel's [file](Self::waitable) readable at the next completion, for a program that sleeps in its own
    /// event loop. Also polls the completions that have already arrived.
    ///
    /// A program polls its handles, arms each channel, and sleeps only if all calls return [`Armed::Sleep`]. Then it
    /// repeats these steps. Each completed operation causes one [`Armed::Ready`] or one wake-up, no matter which
    /// handle's poll found the completion. So a program that polls all handles each time misses no completion, and a
    /// handle that is never polled does not keep the program awake.
    ///
    /// A post that failed because the queue was full ([`TransportError::WouldBlock`]) can be retried after the handles
    /// have been polled. Operations whose handles were dropped cause no notification. A channel with nothing in flight
    /// causes no wake-ups.
    ///
    /// A channel that [spins](crate::Wait::Spin) cannot wake the program. For such a channel, this call always returns
    /// `Ready`, so the program also spins.
    ///
    /// # Errors
    /// [`TransportError::PollError`] if the completion queue has failed. [`TransportError::Closed`] in a forked child.
    /// [`TransportError::IbvError`] if the provider refuses the request for an event. In that case, no event will be
    /// sent, and nothing else has changed.
    ///
    /// # Examples
    /// A message on either of two channels:
    /// ```
    /// use rdma_channel::{Armed, Channel, ScopeError, TransportError, prelude::*};
    /// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let pair = || -> Result<[Channel; 2], rdma_qp::Error> {
    /// #     let (a, b) = (pd.create_channel().build()?, pd.create_channel().build()?);
    /// #     let end = a.endpoint();
    /// #     Ok([a.handshake(b.endpoint())?, b.handshake(end)?])
    /// # };
    /// # let ([mut one, _far], [mut other, mut peer]) = (pair()?, pair()?);
    /// # let sender = std::thread::spawn(move || peer.send(SendWorkRequest::only_immediate(7)).map(drop));
    /// let number = one.scope(|a| {
    ///     let number = other.scope(|b| {
    ///         let handles = [
    ///             a.post_receive(ReceiveWorkRequest::only_immediate())?,
    ///             b.post_receive(ReceiveWorkRequest::only_immediate())?,
    ///         ];
    ///         let number = loop {
    ///             if let Some(received) = handles.iter().find_map(|handle| handle.poll()) {
    ///                 break received?.immediate_data();
    ///             }
    ///             let armed = [a.arm()?, b.arm()?];
    ///             if let ([Armed::Sleep, Armed::Sleep], Some(a), Some(b)) = (armed, a.waitable(), b.waitable()) {
    ///                 let mut files = [&a, &b].map(|file| PollFd::new(file, PollFlags::IN));
    ///                 poll(&mut files, None).expect("the files are open");
    ///             }
    ///         };
    ///         b.close(); // ends its receive, if still in flight
    ///         Ok::<_, ScopeError>(number)
    ///     });
    ///     a.close();
    ///     number
    /// });
    /// assert_eq!(number.unwrap(), Some(7));
    /// # sender.join().unwrap()?;
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<Armed, TransportError> {
        self.only.ledger().arm()
    }

    /// The file that becomes readable if something has completed since the channel was [armed](Self::arm). `None` if
    /// the channel [spins](crate::Wait::Spin).
    #[must_use]
    pub fn waitable(&self) -> Option<Waitable<'scope>> {
        self.only.ledger().waitable()
    }

    /// The stream that shows whether the peer is gone, for a program that sleeps in its own event loop. The stream
    /// reports `POLLRDHUP` (`EPOLLRDHUP`) when the peer is gone, and every wait then fails with
    /// [`PeerGone`](TransportError::PeerGone). Do not read from the stream. `None` if the channel [watches
    /// nothing](crate::ChannelBuilder::watch_nothing).
    #[must_use]
    pub fn watched_stream(&self) -> Option<BorrowedFd<'scope>> {
        self.only.ledger().watched_stream()
    }
}
