//! A message and its answer in one call. The receive is posted before the message is sent.

use rdma_connect::{CloseReason, Operation, RefusedWork, TransportError};
use rdma_mem::{GatherList, InlineElement, ScatterList, SliceMut, SliceRef};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WcOpcode, WorkErrorClass, WorkSuccess};

use super::Channel;
use crate::deadline::Deadline;
use crate::ledger::end::without_unwinding;
use crate::ledger::post::PostFailure;
use crate::ledger::queues::Connection;
use crate::ledger::ticket::Ticket;
use crate::ledger::{Ledger, closed};
use crate::lend::Call;

/// An exchange that did not succeed.
enum ExchangeFailure {
    /// Nothing was posted.
    NotPosted(TransportError),
    /// The receive was posted, or may have been. It must be ended, and the channel must be closed for this reason.
    Ends(TransportError, CloseReason),
}

/// The time limits of an exchange: one for the whole exchange, or one for each of its two operations.
enum ExchangeLimits {
    Whole(Deadline),
    Each { send: Deadline, receive: Deadline },
}

impl ExchangeLimits {
    fn of(&mut self, operation: Operation) -> &mut Deadline {
        match self {
            Self::Whole(deadline) => deadline,
            Self::Each { receive, .. } if operation == Operation::Receive => receive,
            Self::Each { send, .. } => send,
        }
    }
}

impl Ledger {
    fn exchange<'both, 'sent: 'both, 'received: 'both>(
        &mut self,
        send: SendWorkRequest<'_, 'sent>,
        receive: ReceiveWorkRequest<'_, 'received>,
    ) -> Result<WorkSuccess, TransportError> {
        let mut limits = match self.limits.within {
            Some(whole) => ExchangeLimits::Whole(Deadline::new(whole)),
            None => ExchangeLimits::Each {
                send: Deadline::new(self.limits.of(Operation::Send)),
                receive: Deadline::new(self.limits.of(Operation::Receive)),
            },
        };
        self.block_to_end(
            |call: Call<'_, 'both>| call.exchange(send, receive, &mut limits),
            |ledger, failure| match failure {
                ExchangeFailure::NotPosted(error) => ledger.end_calls(Err(error)),
                ExchangeFailure::Ends(error, reason) => without_unwinding(|| {
                    ledger.end_now(reason);
                    Err(error)
                }),
            },
        )
    }

    /// Waits until the queue for this kind of operation has a free slot.
    fn make_room(
        &self,
        connection: &Connection,
        operation: Operation,
        deadline: &mut Deadline,
    ) -> Result<(), TransportError> {
        let queue = connection.queue(operation);
        if connection.has_room(queue) {
            return Ok(());
        }
        let deadline = Some(deadline).filter(|deadline| deadline.is_for_room());
        self.take_slot(connection, queue, operation, deadline).map(drop)
    }
}

impl<'both> Call<'_, 'both> {
    fn exchange<'sent: 'both, 'received: 'both>(
        self,
        send: SendWorkRequest<'_, 'sent>,
        receive: ReceiveWorkRequest<'_, 'received>,
        limits: &mut ExchangeLimits,
    ) -> Result<WorkSuccess, ExchangeFailure> {
        let ledger = self.ledger();
        let only = ledger.only();
        for operation in [Operation::Receive, Operation::Send] {
            let room = ledger.make_room(only, operation, limits.of(operation));
            room.map_err(ExchangeFailure::NotPosted)?;
        }
        // The send is checked before the receive is posted: until then, the call can fail without closing the channel.
        let qp = only.qp().ok_or_else(|| ExchangeFailure::NotPosted(closed(only)))?;
        qp.check(send).map_err(|error| {
            let operation = Operation::Send;
            ExchangeFailure::NotPosted(RefusedWork::new(operation, only.peer, error).into())
        })?;
        let doubtful = |operation| {
            move |error| ExchangeFailure::Ends(error, CloseReason::Doubtful { operation })
        };
        let received = self.post(only, receive).map_err(|refused| match refused.why() {
            PostFailure { error, maybe_posted: None } => ExchangeFailure::NotPosted(error),
            PostFailure { error, maybe_posted: Some(_) } => doubtful(Operation::Receive)(error),
        })?;
        let sent = self.post(only, send).map_err(|refused| match refused.why() {
            PostFailure { error, maybe_posted: None } => {
                ExchangeFailure::Ends(error, CloseReason::Refused { operation: Operation::Send })
            }
            PostFailure { error, maybe_posted: Some(_) } => doubtful(Operation::Send)(error),
        })?;
        ledger.succeed(sent, limits.of(Operation::Send)).map_err(|failure| {
            // If the answer does not fit into the receive, the send is flushed, but the cause is the failure of the
            // receive.
            ledger.earlier_failure(&received).unwrap_or(failure)
        })?;
        ledger.succeed(received, limits.of(Operation::Receive))
    }
}

impl Ledger {
    /// Waits for one of the two requests of an exchange.
    fn succeed(
        &self,
        ticket: Ticket<'_>,
        deadline: &mut Deadline,
    ) -> Result<WorkSuccess, ExchangeFailure> {
        let request = ticket.request();
        let so_far = match request.glance() {
            Ok(success) => {
                ticket.release();
                return Ok(success);
            }
            Err(so_far) => so_far,
        };
        let operation = request.operation();
        match request.wait_until(so_far, deadline) {
            Ok(Some(Ok(success))) => Ok(success),
            Ok(Some(Err(error))) => {
                let reason = CloseReason::Work { operation, error };
                Err(ExchangeFailure::Ends(request.failed(error), reason))
            }
            Ok(None) => {
                let (timeout, peer) = (deadline.limit(), self.only().peer);
                let error = TransportError::Timeout { operation, timeout, peer };
                Err(ExchangeFailure::Ends(error, CloseReason::Timeout { operation }))
            }
            Err(error) => Err(ExchangeFailure::Ends(error, CloseReason::Poll)),
        }
    }

    /// Returns the failure of the receive if it caused the flush of the send.
    #[cold]
    fn earlier_failure(&self, received: &Ticket<'_>) -> Option<ExchangeFailure> {
        let request = received.request();
        let error = request.reported()?.err()?;
        let is_cause = error.class() != WorkErrorClass::Flushed;
        let reason = CloseReason::Work { operation: Operation::Receive, error };
        is_cause.then(|| ExchangeFailure::Ends(request.failed(error), reason))
    }
}

/// Sends a message and receives the answer. The receive is posted first, so that it is ready for the answer.
///
/// If a program sends first and only then posts the receive, the peer's answer may have to
/// [wait](crate::guide#receives-that-are-posted-ahead), even on a NIC.
impl Channel {
    /// Posts the receive, then the send, and waits until both have completed. Returns the completion of the receive.
    ///
    /// Both ends of a conversation can use this: one call sends an answer and receives the next message.
    ///
    /// # Limits
    /// The send and the receive each have their own time limit. By default, the receive has none. A limit set with
    /// [`within`](Self::within) applies to the whole call.
    ///
    /// # Errors
    /// Any [`TransportError`]. When an error is returned, the device no longer uses any of the memory.
    /// - If a request is refused before the receive is posted, the channel is unchanged. This includes mistakes in the
    ///   send that this library can detect itself, such as too many elements.
    /// - After any other error, the channel is closed, because only closing it makes the device release the receive.
    ///   The contents of the receive's memory are then unspecified. If the device refused the send, the channel's
    ///   reason is [`CloseReason::Refused`].
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// use rdma_mem::{GatherList, ScatterList};
    /// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
    /// # let (here_end, there_end) = (here.endpoint(), there.endpoint());
    /// # let (mut channel, mut there) = (here.handshake(there_end)?, there.handshake(here_end)?);
    /// # let other = pd.clone();
    /// # let peer = std::thread::spawn(move || {
    /// #     let mut buffer = other.allocate_region(64)?;
    /// #     let length = there.receive_into(&mut buffer)?;
    /// #     there.send_from(buffer.get_ref(0, length).expect("it fits"))
    /// # });
    /// let (question, mut answer) = (pd.allocate_region(8)?, pd.allocate_region(64)?);
    /// let list = GatherList::from([question.as_slice()]);
    /// let mut room = ScatterList::from([answer.as_slice_mut()]);
    /// let send = SendWorkRequest::from_list(&list).with_immediate(7);
    /// let answered = channel.exchange(send, ReceiveWorkRequest::from_list(&mut room))?;
    /// assert_eq!(answered.scattered_bytes(), Some(8));
    /// # peer.join().unwrap()?;
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    #[doc(alias("ibv_post_send", "ibv_post_recv"))]
    pub fn exchange(
        &mut self,
        send: SendWorkRequest<'_, '_>,
        receive: ReceiveWorkRequest<'_, '_>,
    ) -> Result<WorkSuccess, TransportError> {
        self.ledger.exchange(send, receive)
    }

    /// Sends registered bytes as one message, like [`send_from`](Self::send_from), and receives the answer, like
    /// [`receive_into`](Self::receive_into). Returns the number of bytes received into `into`.
    ///
    /// # Errors
    /// Same errors as [`exchange`](Self::exchange).
    ///
    /// # Examples
    /// A server that answers each message with the same bytes. The two regions take turns, because the receive for the
    /// next message is posted before the answer is sent.
    /// ```
    /// use std::mem::swap;
    /// use rdma_channel::{Channel, TransportError};
    /// use rdma_mem::OwnedRegion;
    ///
    /// fn echo(channel: &mut Channel, mut here: OwnedRegion, mut there: OwnedRegion) -> Result<(), TransportError> {
    ///     let mut length = channel.receive_into(&mut here)?;
    ///     while length > 0 {
    ///         let answer = here.get_ref(0, length).expect("within the region");
    ///         length = channel.exchange_from(answer, &mut there)?;
    ///         swap(&mut here, &mut there);
    ///     }
    ///     Ok(())
    /// }
    /// # use rdma_channel::prelude::*;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let (one, other) = (pd.create_channel().build()?, pd.create_channel().build()?);
    /// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
    /// # let (mut client, mut server) = (one.handshake(other_end)?, other.handshake(one_end)?);
    /// # let rooms = [pd.allocate_region(64)?, pd.allocate_region(64)?];
    /// # let server = std::thread::spawn(move || {
    /// #     let [here, there] = rooms;
    /// #     echo(&mut server, here, there)
    /// # });
    /// # let mut answer = pd.allocate_region(64)?;
    /// # for text in [&b"one"[..], b"two"] {
    /// #     let length = client.exchange_inline(text, &mut answer)?;
    /// #     assert_eq!(answer[..length], *text);
    /// # }
    /// # client.send_inline(b"")?;
    /// # server.join().unwrap()?;
    /// # Ok::<(), TransportError>(())
    /// ```
    pub fn exchange_from<'a>(
        &mut self,
        from: impl Into<SliceRef<'a>>,
        into: impl Into<SliceMut<'a>>,
    ) -> Result<usize, TransportError> {
        let list = GatherList::from([from.into()]);
        self.exchange_into(SendWorkRequest::from_list(&list), into.into())
    }

    /// Sends these bytes as one message, like [`send_inline`](Self::send_inline), and receives the answer, like
    /// [`receive_into`](Self::receive_into). Returns the number of bytes received into `into`.
    ///
    /// # Errors
    /// Same errors as [`exchange`](Self::exchange) and [`send_inline`](Self::send_inline).
    pub fn exchange_inline<'a>(
        &mut self,
        data: &[u8],
        into: impl Into<SliceMut<'a>>,
    ) -> Result<usize, TransportError> {
        if self.ledger.has_copies()
            && let Some(copy) = self.ledger.call_copy(data)?
        {
            return self.exchange_into(SendWorkRequest::from_list(&copy.list()), into.into());
        }
        let data = [InlineElement::new_checked(data)?];
        self.exchange_into(SendWorkRequest::inline(&data), into.into())
    }

    fn exchange_into(
        &mut self,
        send: SendWorkRequest<'_, '_>,
        into: SliceMut<'_>,
    ) -> Result<usize, TransportError> {
        let mut list = ScatterList::from([into]);
        let answer = self.exchange(send, ReceiveWorkRequest::from_list(&mut list))?;
        Ok(received_bytes(&answer))
    }
}

/// Returns the number of bytes that a message has placed into its receive's memory. Returns 0 for an RDMA write with
/// immediate data, whose bytes are placed elsewhere.
pub(crate) fn received_bytes(message: &WorkSuccess) -> usize {
    let elsewhere = message.opcode() == WcOpcode::RECV_RDMA_WITH_IMM;
    message.scattered_bytes().filter(|_| !elsewhere).unwrap_or(0)
}
