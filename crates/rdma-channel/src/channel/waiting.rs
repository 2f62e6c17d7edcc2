//! Sleeping in a program's own loop, over several channels and other files.

use std::os::fd::{AsFd, BorrowedFd};

use rdma_connect::TransportError;

use super::Channel;
use crate::multi_channel::MultiChannel;
use crate::scope::Scope;

/// What [`arm`](Scope::arm) of a channel says.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)] // a program sleeps or does not
pub enum Armed {
    /// Something was done, so that no event may come: ask the handles before you sleep.
    Ready,
    /// Nothing was done. At the next completion the [file](Waitable) is readable.
    Sleep,
}

/// The file of a channel, which is readable when something has completed since the channel was
/// [armed](Scope::arm): for `poll(2)`, `epoll`, and what is made of them.
///
/// It stays readable until the channel is armed again. Nothing is to be read from it.
#[derive(Clone, Copy, Debug)]
pub struct Waitable<'c>(pub(crate) BorrowedFd<'c>);

impl AsFd for Waitable<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

impl Channel {
    /// As [`Scope::arm`], for [unpolled](Self::send_unpolled) operations.
    ///
    /// # Errors
    /// Those of [`Scope::arm`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<Armed, TransportError> {
        self.ledger.arm()
    }

    /// As [`Scope::waitable`], for [unpolled](Self::send_unpolled) operations.
    #[must_use]
    pub fn waitable(&self) -> Option<Waitable<'_>> {
        self.ledger.waitable()
    }
}

impl MultiChannel {
    /// As [`Scope::arm`], for [unpolled](Self::send_unpolled) operations: of all peers.
    ///
    /// # Errors
    /// Those of [`Scope::arm`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<Armed, TransportError> {
        self.ledger.arm()
    }

    /// As [`Scope::waitable`], for [unpolled](Self::send_unpolled) operations: of all peers.
    #[must_use]
    pub fn waitable(&self) -> Option<Waitable<'_>> {
        self.ledger.waitable()
    }
}

impl<'scope, C> Scope<'scope, '_, C> {
    /// Has the channel's [file](Self::waitable) become readable at the next completion, for a program
    /// that sleeps by its own means. Takes completions that are there first.
    ///
    /// A program asks its handles, arms each channel, and sleeps only if all say [`Armed::Sleep`].
    /// After that it begins again. Each operation that is done gives one [`Armed::Ready`], or wakes the
    /// sleeper, whichever handle has found its completion: so if all handles are asked after each of
    /// these, none is missed, and one that is never asked keeps nobody awake. A post for which the queue
    /// had no free slot ([`TransportError::WouldBlock`]) is tried again when the handles were asked: of an
    /// operation whose handle was dropped nobody is told. A channel that has nothing in flight wakes nobody.
    ///
    /// A channel that [spins](crate::Wait::Spin) cannot wake anybody, and says `Ready` each time: the
    /// program then spins, too.
    ///
    /// # Errors
    /// [`TransportError::PollError`], if the completion queue has failed; [`TransportError::Closed`] in a
    /// forked child; [`TransportError::IbvError`], if the provider refuses: then there is no event, and
    /// nothing else has changed.
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
    ///                 poll(&mut files, None).expect("the files are there");
    ///             }
    ///         };
    ///         b.close(); // and its receive, if that is not done
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

    /// The file that is readable when something has completed since the channel was [armed](Self::arm).
    /// `None` if the channel [spins](crate::Wait::Spin).
    #[must_use]
    pub fn waitable(&self) -> Option<Waitable<'scope>> {
        self.only.ledger().waitable()
    }
}
