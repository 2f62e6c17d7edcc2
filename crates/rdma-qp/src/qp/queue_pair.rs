//! Queue pairs that are ready.

use std::sync::OnceLock;

use rdma_mem::{AsyncEventKind, AsyncEventSource, ProtectionDomain};
use rdma_sys::{ibv_qp, ibv_qp_attr_mask, ibv_qp_state};
use rdma_types::{QpState, QpType, Qpn};

use crate::cq::queue::CompletionQueue;
use crate::endpoint::connect::ConnectAttributes;
use crate::error::Error;
use crate::qp::attributes::QueuePairAttributes;
use crate::qp::capabilities::QueuePairCapabilities;
use crate::qp::datagrams::groups::Groups;
use crate::qp::modify;
use crate::qp::modify::modification::QueuePairModification;
use crate::qp::object::Object;
use crate::qp::own_end::{Datagrams, OwnEnd};
use crate::srq::queue::SharedReceiveQueue;

/// A queue pair (QP): a send queue and a receive queue.
///
/// | [type](crate::QueuePairBuilder::qp_type) | talks to | messages | requests of the send queue |
/// |---|---|---|---|
/// | RC | one peer, by [`handshake`](crate::PreparedQueuePair::handshake) | arrive once, in order, or it fails | all |
/// | UC | one peer, by [`handshake`](crate::PreparedQueuePair::handshake) | arrive whole, in order, or not at all | sends, writes |
/// | UD | anybody, after [`activate`](crate::PreparedQueuePair::activate) | of one packet, which arrives or not | sends that say [where they go](crate::SendWorkRequest::to) |
///
/// Requests go in by the [`post_…`](Self#posting) methods, and come out as completions of the
/// queue pair's completion queues. All methods take `&self` and can be called from several threads.
///
/// The first failing request ends a reliable connection: the queue pair goes to its error state, and the
/// rest is flushed. Of UC and UD a failing request of the send queue stops that queue alone: it goes to
/// [`SQE`](QpState::SQE), receives go on, and [`modify`](Self::modify) to `RTS` lets it go on too. Success
/// says there that the message was sent, not that it arrived. Dropping a queue pair destroys it; completions
/// that were not polled are gone then.
///
/// # Examples
/// A message from one end to the other.
/// ```
/// use rdma_qp::{CompletionQueue, PollSlot, ReceiveWorkRequest, SendWorkRequest, prelude::*};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let cq = CompletionQueue::create(&context, 64)?;
/// let pd = context.allocate_pd()?;
/// let mut source = pd.allocate_region(64)?;
/// let mut target = pd.allocate_region(64)?;
/// source[..5].copy_from_slice(b"hello");
/// # let a = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
/// # let b = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
/// # let (a_end, b_end) = (a.endpoint(), b.endpoint());
/// # let (a, b) = (a.handshake(b_end)?, b.handshake(a_end)?);
///
/// let mut buffer = target.get_mut(0, 64).unwrap();
/// // SAFETY: nobody touches either region until both requests have completed below.
/// unsafe { b.post_receive(ReceiveWorkRequest::new(&mut [buffer.scatter_element()]), 1) }.unwrap();
/// let data = [source.get_ref(0, 5).unwrap().gather_element()];
/// // SAFETY: as above.
/// unsafe { a.post_send(SendWorkRequest::new(&data).with_immediate(7), 2) }.unwrap();
///
/// let (mut slots, mut left) = ([PollSlot::default(); 4], 2);
/// while left > 0 {
///     for completion in cq.poll(&mut slots)? {
///         let success = completion.result().unwrap();
///         if completion.wr_id() == 1 {
///             assert_eq!(success.immediate_data(), Some(7));
///             assert_eq!(success.scattered_bytes(), Some(5));
///         }
///         left -= 1;
///     }
/// }
/// assert_eq!(&target[..5], b"hello");
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[doc(alias = "ibv_qp")]
#[derive(Debug)]
pub struct QueuePair {
    /// Left before the queue pair is destroyed; `None` if it is connected.
    groups: Option<Groups>,
    // Before the peers: the handle to itself is the device's as long as there is a request that names it.
    object: Object,
    peers: Peers,
}

/// The peer of the queue pair.
#[derive(Debug)]
enum Peers {
    One(Option<ConnectAttributes>),
    Anybody(Box<Datagrams>),
}

impl QueuePair {
    pub(crate) const fn connected(object: Object, peer: ConnectAttributes) -> Self {
        Self { groups: None, object, peers: Peers::One(Some(peer)) }
    }

    pub(crate) const fn connected_elsewhere(object: Object) -> Self {
        Self { groups: None, object, peers: Peers::One(None) }
    }

    pub(crate) fn of_datagrams(object: Object, end: OwnEnd) -> Self {
        let groups = Some(object.groups());
        let datagrams = Datagrams { end, own: OnceLock::new() };
        Self { groups, object, peers: Peers::Anybody(Box::new(datagrams)) }
    }

    pub(crate) fn groups(&self) -> Result<&Groups, Error> {
        self.groups.as_ref().ok_or(Error::NotDatagrams { qp_type: self.qp_type() })
    }

    /// What only queue pairs for datagrams have.
    pub(crate) fn datagrams(&self) -> Result<&Datagrams, Error> {
        match &self.peers {
            Peers::Anybody(datagrams) => Ok(datagrams),
            Peers::One(_) => Err(Error::NotDatagrams { qp_type: self.qp_type() }),
        }
    }

    /// The type of the queue pair.
    #[inline]
    #[must_use]
    pub const fn qp_type(&self) -> QpType {
        self.object.qp_type
    }

    /// The QPN (queue pair number) of this queue pair.
    #[doc(alias = "qp_num")]
    #[inline]
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.object.qpn
    }

    /// The capacities of the queues, as the device has set them: never less than requested.
    #[inline]
    #[must_use]
    pub const fn capabilities(&self) -> QueuePairCapabilities {
        self.object.capabilities
    }

    #[inline]
    pub(crate) const fn limits(&self) -> &QueuePairCapabilities {
        &self.object.capabilities
    }

    pub(crate) const fn has_atomics(&self) -> bool {
        self.object.has_atomics
    }

    #[inline]
    pub(crate) const fn usual_sge(&self) -> u32 {
        self.object.usual_sge
    }

    /// Returns true if the queue pair posts by function calls (`ibv_wr_send` and its kin), as [asked
    /// for](crate::QueuePairBuilder::extended).
    #[doc(alias = "ibv_qp_to_qp_ex")]
    #[must_use]
    pub const fn is_extended(&self) -> bool {
        self.object.posted.stands_in()
    }

    /// The object that `ibv_post_send` is called on.
    #[inline]
    pub(crate) const fn posted(&self) -> *mut ibv_qp {
        self.object.posted.as_ptr()
    }

    /// The peer that the queue pair was connected to, and the attributes; `None` for UD, which has
    /// no one peer, and for a queue pair that was connected [elsewhere](Self::from_raw).
    #[must_use]
    pub const fn peer(&self) -> Option<ConnectAttributes> {
        match self.peers {
            Peers::One(peer) => peer,
            Peers::Anybody(_) => None,
        }
    }

    /// The Q_Key that datagrams needed when the queue pair was made ready; `None` for connected queue pairs.
    /// [`query`](Self::query) returns the present one.
    #[must_use]
    pub fn qkey(&self) -> Option<u32> {
        self.datagrams().ok().map(|datagrams| datagrams.end.endpoint.qkey())
    }

    /// The completion queue for requests of the send queue.
    #[must_use]
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.object.needs().send_cq
    }

    /// The completion queue for receives.
    #[must_use]
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.object.needs().recv_cq
    }

    /// The shared receive queue that receives are taken from, if there is one.
    #[inline]
    #[must_use]
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.object.needs().srq.as_ref()
    }

    /// The protection domain whose memory the queue pair can use.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.object.needs().pd
    }

    /// Queries the state of the queue pair from the device.
    ///
    /// # Errors
    /// If the provider refuses.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QpState, Error> {
        Ok(QpState::from_raw(self.object.query(ibv_qp_attr_mask::IBV_QP_STATE)?.0.qp_state.0))
    }

    /// The attributes, as the device has them; see `man ibv_query_qp`.
    ///
    /// # Errors
    /// If the provider refuses.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairAttributes, Error> {
        let (attributes, init) = self.object.query(QueuePairAttributes::mask(self.qp_type()))?;
        Ok(QueuePairAttributes::from_raw(&attributes, &init))
    }

    /// What the device has said of this queue pair, oldest first, without taking it from anybody. It tells why the
    /// queue pair has failed where no request of its own did: [`QP_ACCESS_ERR`](AsyncEventKind::QP_ACCESS_ERR) and
    /// [`QP_REQ_ERR`](AsyncEventKind::QP_REQ_ERR) say that a request of the peer was refused here. SoftRoCE says
    /// neither. It is a look at the last events of the context, as [`Context::events_of`](rdma_mem::Context::events_of)
    /// says.
    ///
    /// # Errors
    /// The provider's error, most often because the device went away.
    ///
    /// # Examples
    /// ```
    /// # use rdma_qp::{CompletionQueue, prelude::*};
    /// # rdma_soft::install();
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let cq = CompletionQueue::create(&context, 64)?;
    /// # let pd = context.allocate_pd()?;
    /// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    /// # let (one, other) = (prepare()?, prepare()?);
    /// # let qp = one.handshake(other.endpoint())?;
    /// assert_eq!(qp.async_events()?, []);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> Result<Vec<AsyncEventKind>, Error> {
        Ok(self.pd().context().events_of(self.event_source())?)
    }

    /// The source by which events name the queue pair.
    #[must_use]
    pub const fn event_source(&self) -> AsyncEventSource {
        AsyncEventSource::QueuePair { qpn: self.object.qpn, id: self.object.id }
    }

    /// Changes the state, attributes, or both; see `man ibv_modify_qp`.
    ///
    /// [`handshake`](crate::PreparedQueuePair::handshake) makes all transitions of a connection. Use this for later
    /// changes: another `min_rnr_timer`, less `access`, or a new connection after `RESET`, which [`peer`](Self::peer)
    /// does not return. Going to `RESET` drops all requests, without completions.
    ///
    /// # Errors
    /// [`Error::NoTransition`] and [`Error::Attributes`], which name the mismatch, before the device sees the change;
    /// [`Error::Transition`] with the refusal of the device.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{MinRnrTimer, QpState, QueuePairModification};
    /// # use rdma_qp::{CompletionQueue, prelude::*};
    /// # rdma_soft::install();
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let cq = CompletionQueue::create(&context, 64)?;
    /// # let pd = context.allocate_pd()?;
    /// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    /// # let (one, other) = (prepare()?, prepare()?);
    /// # let other = other.endpoint();
    /// # let qp = one.handshake(other)?;
    ///
    /// qp.modify(&QueuePairModification::new().min_rnr_timer(MinRnrTimer::longest()))?;
    /// assert_eq!(qp.query()?.min_rnr_timer, MinRnrTimer::longest());
    ///
    /// let incomplete = QueuePairModification::new().state(QpState::INIT).port(1);
    /// qp.modify(&QueuePairModification::new().state(QpState::RESET))?;
    /// let error = qp.modify(&incomplete).unwrap_err().to_string();
    /// assert!(error.ends_with("RESET to INIT lacks `pkey_index`, `access`"), "{error}");
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, modification: &QueuePairModification) -> Result<(), Error> {
        let QueuePairModification { mut attributes, mask } = *modification;
        let from = self.state()?;
        self.object.modify(&mut attributes, mask, from, modification.to().unwrap_or(from))
    }

    /// Ends the connection, and flushes outstanding requests: they complete with
    /// [`WorkErrorCode::WorkRequestFlushError`](crate::WorkErrorCode::WorkRequestFlushError), except for those that
    /// were done already. The peer is not notified.
    ///
    /// # Errors
    /// If the provider refuses.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn to_error(&self) -> Result<(), Error> {
        let (mut attributes, mask) = modify::to_state(ibv_qp_state::IBV_QPS_ERR);
        self.object.modify(&mut attributes, mask, QpState::RTS, QpState::ERR)
    }

    /// Destroys the queue pair, after it has left the groups that it [joined](Self::attach_multicast). The device uses no
    /// memory of its requests after this. A [borrowed](rdma_mem::Ownership::Borrowed) queue pair leaves those groups, and
    /// is unchanged otherwise.
    ///
    /// # Errors
    /// The provider's error, with the queue pair.
    #[doc(alias = "ibv_destroy_qp")]
    #[allow(clippy::result_large_err)] // it is the queue pair itself
    pub fn close(self) -> Result<(), (Self, Error)> {
        if let Some(Err(error)) = self.groups.as_ref().map(Groups::leave_all) {
            return Err((self, error));
        }
        let Self { groups, object, peers } = self;
        object.close().map_err(|(object, error)| (Self { groups, object, peers }, error.into()))
    }

    /// The C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub const fn as_raw(&self) -> *mut ibv_qp {
        self.object.as_raw()
    }
}
