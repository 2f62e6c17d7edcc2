//! Connected queue pairs, and active ones for datagrams.

use std::sync::OnceLock;

use rdma_mem::{AsyncEventKind, AsyncEventSource, ProtectionDomain};
use rdma_sys::{ibv_qp, ibv_qp_attr_mask, ibv_qp_state};
use rdma_types::{QpState, QpType, Qpn};

use crate::cq::queue::CompletionQueue;
use crate::endpoint::connect::ConnectAttributes;
use crate::error::Error;
use crate::post::operations::Operations;
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
/// | [type](crate::QueuePairBuilder::qp_type) | communicates with | messages | requests of the send queue |
/// |---|---|---|---|
/// | RC | one peer, after [`handshake`](crate::PreparedQueuePair::handshake) | arrive exactly once, in order, or the connection fails | all |
/// | UC | one peer, after [`handshake`](crate::PreparedQueuePair::handshake) | arrive completely and in order, or not at all | sends, writes, binds, local invalidations |
/// | UD | any queue pair, after [`activate`](crate::PreparedQueuePair::activate) | have one packet, which can be lost | sends with [a destination](crate::SendWorkRequest::to) |
///
/// The [`post_…`](Self#posting) methods post requests, whose completions arrive in the completion queues. All methods
/// except [`close`](Self::close) take `&self` and can be called from several threads.
///
/// The first failing request ends a reliable connection: the queue pair goes to its error state, and the other requests
/// are flushed. With UC and UD, a failing request of the send queue stops only that queue. The queue pair goes to
/// [`SQE`](QpState::SQE), where it can still receive. [`modify`](Self::modify) to `RTS` restarts the send queue. With
/// UC and UD, a successful send means that the message was sent, not that it arrived.
///
/// Dropping a queue pair destroys it, and drops completions that were not polled.
///
/// # Examples
/// Sends a message from one end to the other.
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
/// // SAFETY: neither region is used elsewhere until both requests have completed below.
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
    /// The multicast groups, which the queue pair leaves before it is destroyed; `None` if it is connected.
    groups: Option<Groups>,
    // Dropped before `peers`, which can hold an address handle: the device uses that handle while a request names it.
    object: Object,
    peers: Peers,
}

/// The queue pair's peer, or `Anybody` for datagrams.
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

    /// Returns the state for datagrams, or an error if the queue pair is connected.
    pub(crate) fn datagrams(&self) -> Result<&Datagrams, Error> {
        match &self.peers {
            Peers::Anybody(datagrams) => Ok(datagrams),
            Peers::One(_) => Err(Error::NotDatagrams { qp_type: self.qp_type() }),
        }
    }

    /// Returns the type of the queue pair.
    #[inline]
    #[must_use]
    pub const fn qp_type(&self) -> QpType {
        self.object.qp_type
    }

    /// Returns the QPN (queue pair number) of this queue pair.
    #[doc(alias = "qp_num")]
    #[inline]
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.object.qpn
    }

    /// Returns the capacities of the queues. The device may have set them higher than requested, but never lower.
    #[inline]
    #[must_use]
    pub const fn capabilities(&self) -> QueuePairCapabilities {
        self.object.capabilities
    }

    #[inline]
    pub(crate) const fn limits(&self) -> &QueuePairCapabilities {
        &self.object.capabilities
    }

    pub(crate) const fn operations(&self) -> Operations {
        self.object.operations
    }

    #[inline]
    pub(crate) const fn usual_sge(&self) -> u32 {
        self.object.usual_sge
    }

    /// Returns true if the queue pair posts through the `ibv_wr_*` calls; see
    /// [`extended`](crate::QueuePairBuilder::extended).
    #[doc(alias = "ibv_qp_to_qp_ex")]
    #[must_use]
    pub const fn is_extended(&self) -> bool {
        self.object.posted.stands_in()
    }

    /// Returns the object that `ibv_post_send` is called on: the queue pair's own, or its stand-in.
    #[inline]
    pub(crate) const fn posted(&self) -> *mut ibv_qp {
        self.object.posted.as_ptr()
    }

    /// Returns the attributes of the connection to the peer. `None` for UD, which has no single
    /// peer, and for a queue pair that was connected [elsewhere](Self::from_raw), or by the kernel on iWARP.
    #[must_use]
    pub const fn peer(&self) -> Option<ConnectAttributes> {
        match self.peers {
            Peers::One(peer) => peer,
            Peers::Anybody(_) => None,
        }
    }

    /// Returns the Q_Key that datagrams had to carry when the queue pair was activated; `None` for connected queue
    /// pairs. [`query`](Self::query) returns the current one.
    #[must_use]
    pub fn qkey(&self) -> Option<u32> {
        self.datagrams().ok().map(|datagrams| datagrams.end.endpoint.qkey())
    }

    /// Returns the completion queue for requests of the send queue.
    #[must_use]
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.object.needs().send_cq
    }

    /// Returns the completion queue for receives.
    #[must_use]
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.object.needs().recv_cq
    }

    /// Returns the shared receive queue that the queue pair takes receives from, if any.
    #[inline]
    #[must_use]
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.object.needs().srq.as_ref()
    }

    /// Returns the protection domain of the queue pair. Requests can use only memory of this domain.
    #[inline]
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.object.needs().pd
    }

    /// Queries the state of the queue pair from the device.
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QpState, Error> {
        Ok(QpState::from_raw(self.object.query(ibv_qp_attr_mask::IBV_QP_STATE)?.0.qp_state.0))
    }

    /// Queries the attributes from the device; see `man ibv_query_qp`.
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairAttributes, Error> {
        let (attributes, init) = self.object.query(QueuePairAttributes::mask(self.qp_type()))?;
        Ok(QueuePairAttributes::from_raw(&attributes, &init))
    }

    /// Returns the device's events about this queue pair, oldest first. The events remain available to other readers.
    /// If the queue pair has failed although none of its requests failed, the events contain the reason.
    /// [`QP_ACCESS_ERR`](AsyncEventKind::QP_ACCESS_ERR) and [`QP_REQ_ERR`](AsyncEventKind::QP_REQ_ERR) report that this
    /// end refused a request of the peer. SoftRoCE reports neither. Only recent events are available; see
    /// [`Context::events_of`](rdma_mem::Context::events_of).
    ///
    /// # Errors
    /// Returns the provider's error, most often because the device was removed.
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

    /// Returns the source of the queue pair's events.
    #[must_use]
    pub const fn event_source(&self) -> AsyncEventSource {
        AsyncEventSource::QueuePair { qpn: self.object.qpn, id: self.object.id }
    }

    /// Changes the state, attributes, or both; see `man ibv_modify_qp`.
    ///
    /// [`handshake`](crate::PreparedQueuePair::handshake) makes all transitions of a connection. Use this method for
    /// later changes: another `min_rnr_timer`, less `access`, or a new connection after `RESET`. [`peer`](Self::peer)
    /// does not reflect such a connection. A change to `RESET` drops all requests, and they never complete.
    ///
    /// # Errors
    /// [`Error::NoTransition`] and [`Error::Attributes`] name the mismatch, and are returned before the device sees the
    /// change. [`Error::Transition`] if the device refuses.
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

    /// Ends the connection, and flushes outstanding requests. They complete with
    /// [`WorkErrorCode::WorkRequestFlushError`](crate::WorkErrorCode::WorkRequestFlushError), unless they were already
    /// executed. The peer is not notified.
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn to_error(&self) -> Result<(), Error> {
        let (mut attributes, mask) = modify::to_state(ibv_qp_state::IBV_QPS_ERR);
        self.object.modify(&mut attributes, mask, QpState::RTS, QpState::ERR)
    }

    /// Destroys the queue pair, after leaving the groups that it [joined](Self::attach_multicast). After this, the
    /// device no longer uses the memory of its requests. A [borrowed](rdma_mem::Ownership::Borrowed) queue pair only
    /// leaves those groups.
    ///
    /// # Errors
    /// Returns the queue pair and the provider's error.
    #[doc(alias = "ibv_destroy_qp")]
    #[allow(clippy::result_large_err)] // it is the queue pair itself
    pub fn close(self) -> Result<(), (Self, Error)> {
        if let Some(Err(error)) = self.groups.as_ref().map(Groups::leave_all) {
            return Err((self, error));
        }
        let Self { groups, object, peers } = self;
        object.close().map_err(|(object, error)| (Self { groups, object, peers }, error.into()))
    }

    /// Returns the C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub const fn as_raw(&self) -> *mut ibv_qp {
        self.object.as_raw()
    }
}
