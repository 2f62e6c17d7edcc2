//! Channels that carry messages, requests and replies.

pub(super) mod incoming;
pub(super) mod writing;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use rdma_connect::messaging::{
    Begun, Body, Content, Mailbox, MessageError, Options, Start, Ticket, Waiting, limits_of,
};
use rdma_connect::{ConnectError, Operation};
use rdma_mem::{Buffer, BufferPool};
#[cfg(feature = "serde")]
use serde::Serialize;

use self::incoming::Message;
use super::session::{Session, State, Unfinished};
use super::windows;
use crate::channel::Channel;
use crate::channel::builder::ChannelBuilder;
use crate::deadline::Deadline;
use crate::rendezvous::builder::ByAddress;

/// A channel that carries messages of any length, in order, in both directions. A message may be a request, to which
/// the peer replies.
///
/// All functions take `&self`, so several threads can send, call and receive at once. Messages of one thread are sent in
/// the order of its calls. A peer that does not [receive](Self::receive) stops the senders; replies then wait too,
/// because they arrive in order with the messages. So an end that calls also receives, in another thread.
///
/// Calls have the time limits of the channel: [`receive_timeout`](ChannelBuilder::receive_timeout) for `receive`, and
/// [`send_timeout`](ChannelBuilder::send_timeout) for all others. A call that exceeds its limit fails with
/// [`MessageError::TimedOut`], and the connection stays usable. The channel [waits](ChannelBuilder::wait) as usual.
///
/// Dropping this value returns at once. Messages that were begun are still sent by a thread, and what arrives is
/// discarded. The peer's later messages fail with [`PeerFinished`](super::SendError::PeerFinished). The connection ends
/// when both ends have finished, or is reset after [`Options::linger`]. Call [`finish`](Self::finish) before the program
/// ends, because its threads end with it.
///
/// # Examples
/// ```
/// use rdma_channel::message::Options;
/// use rdma_channel::{BufferPool, prelude::*};
///
/// type Any = Box<dyn std::error::Error + Send + Sync>;
///
/// # rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let (pool, options) = (BufferPool::new(&pd), Options::new());
/// let mut listener = pd.create_channel().listen_for_messages("127.0.0.1:0", &pool, options)?;
/// let address = listener.local_addr();
/// let server = std::thread::spawn(move || -> Result<(), Any> {
///     let client = listener.accept()?;
///     // Until the client has finished.
///     while let Some(message) = client.receive()? {
///         if message.is_request() {
///             let answer = message.to_ascii_uppercase();
///             message.reply(&answer)?;
///         } else {
///             assert_eq!(*message, *b"a note");
///         }
///     }
///     Ok(())
/// });
///
/// // This could be another process.
/// let server_end = pd.create_channel().connect_messages(address, &pool, options)?;
/// server_end.send(b"a note")?;
/// let answer = server_end.call(b"a question")?;
/// assert_eq!(*answer, *b"A QUESTION");
/// server_end.finish()?;
/// server.join().unwrap()?;
/// # Ok::<(), Any>(())
/// ```
pub struct Messages {
    session: Arc<Session<Mailbox>>,
}

impl Messages {
    /// Makes a channel carry messages. The peer must do the same. See [`Stream::new`](super::Stream::new) for the
    /// queues of the channel.
    ///
    /// # Errors
    /// Same errors as [`Stream::new`](super::Stream::new).
    pub fn new(channel: Channel, pool: &BufferPool, options: Options) -> io::Result<Self> {
        let lends =
            limits_of(&options, true).offers > 0 && windows::are_bounded(&channel.ledger.pd);
        let mailbox = |limits: &_| {
            let machine = rdma_message::Messages::new(limits).map_err(io::Error::other)?;
            Ok(Mailbox::new(machine, *limits))
        };
        Ok(Self { session: Session::new(channel, pool, &options, lends, mailbox)? })
    }

    /// Sends a message. Returns when the peer's device has received all of it; the peer's program may not have.
    ///
    /// It waits while too many operations of this end are pending, or the peer has no memory for the message. If the
    /// time limit expires before a part was sent, nothing is sent. Afterwards, the message is sent completely.
    ///
    /// # Errors
    /// [`MessageError::NotSent`] if the message is longer than the peer accepts, if the peer has dropped its `Messages`,
    /// or if this end has finished. If the connection ends, [`MessageError::Operation`] states whether the peer may have
    /// received the message.
    pub fn send(&self, message: &[u8]) -> Result<(), MessageError> {
        run(&self.session, Start::Send, Content::Bytes(message), || ()).map(drop)
    }

    /// Posts a message: like [`send`](Self::send), but returns before the peer's device has received it.
    ///
    /// It returns when the first frame was posted. Later calls send the rest of a message that is longer than a
    /// [frame](Options::frame_bytes), and [`flush`](Self::flush) waits until the peer's device has received it. If the
    /// time limit expires, nothing is sent.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send). If the connection ends after this call, only later calls report that.
    pub fn post(&self, message: &[u8]) -> Result<(), MessageError> {
        let mut deadline = self.session.deadline(Operation::Send);
        // Most messages are posted when they begin, and are then over for this end.
        let started = |mailbox: &mut Mailbox, ticket| match mailbox.owes_count() {
            false => poll_posted(mailbox, ticket, &mut None),
            true => Poll::Pending,
        };
        let content = Content::Bytes(message);
        let (ticket, posted) = begin(&self.session, &mut deadline, Start::Send, content, started)?;
        match posted {
            Poll::Ready(result) => result,
            Poll::Pending => finish(&self.session, &mut deadline, ticket, poll_posted),
        }
    }

    /// Waits until the peer's device has received all messages and replies that had begun before this call. It does not
    /// wait for requests: `call` waits for the reply. If the time limit expires, later calls continue to send them.
    ///
    /// # Errors
    /// [`MessageError::Ended`] if the connection has ended before.
    pub fn flush(&self) -> Result<(), MessageError> {
        let mut flush = None;
        self.session.wait(Operation::Send, |State { protocol, .. }| {
            let flush = *flush.get_or_insert_with(|| protocol.flush());
            protocol.poll_sent(flush, &mut Waiting::default(), &mut None)
        })?
    }

    /// Sends the bytes of a buffer, which returns to its pool afterwards, or if the send fails. Otherwise same as
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send).
    pub fn send_buffer(&self, message: Buffer) -> Result<(), MessageError> {
        run(&self.session, Start::Send, Content::Buffer(Some(message)), || ()).map(drop)
    }

    /// Encodes a value, and [sends](Self::send) it. The peer decodes it with [`Message::value`]. If the time limit expires,
    /// see [`send`](Self::send).
    ///
    /// # Errors
    /// [`MessageError::Value`] if the value cannot be encoded; otherwise the same errors as [`send`](Self::send).
    #[cfg(feature = "serde")]
    pub fn send_value<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), MessageError> {
        self.send(&rdma_connect::to_bytes(value)?)
    }

    /// Sends a request and waits for its reply.
    ///
    /// If the time limit expires before a part was sent, nothing is sent. Afterwards, the request is sent completely.
    /// The peer is notified that the reply is not wanted, and a reply that arrives is discarded.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send). Also [`MessageError::Operation`] with
    /// [`Refused`](super::OperationError::Refused) if the peer dropped the request, and with
    /// [`PeerFinished`](super::OperationError::PeerFinished) if it finished without a reply.
    pub fn call(&self, request: &[u8]) -> Result<Message, MessageError> {
        let reply = run(&self.session, Start::Call, Content::Bytes(request), || ())?;
        Ok(Message::new(Arc::clone(&self.session), reply, None))
    }

    /// Waits for the next message or request. `None` means that the peer has finished, and all its messages were
    /// received.
    ///
    /// # Errors
    /// [`MessageError::Ended`] if the connection has ended before the peer finished. Messages that had arrived
    /// completely are received before that. [`MessageError::TimedOut`] after the limit; nothing is lost then.
    pub fn receive(&self) -> Result<Option<Message>, MessageError> {
        let poll = |State { protocol, .. }: &mut State<Mailbox>| {
            let received = protocol.poll_receive(&mut Waiting::default(), &mut None);
            received.map(|received| (received, protocol.owes_count()))
        };
        let (received, owes_count) = self.session.wait(Operation::Receive, poll)?;
        if owes_count {
            count_fetched(&self.session);
        }
        let received = received?;
        let message = |(body, request)| Message::new(Arc::clone(&self.session), body, request);
        Ok(received.map(message))
    }

    /// Ends this end's messages after all that have begun. Returns when the peer's device has received them. The peer
    /// may still send. Open requests of the peer get no reply.
    ///
    /// If the time limit expires, this end's messages have ended nevertheless, and later calls send the rest.
    ///
    /// # Errors
    /// [`MessageError::Ended`] if the connection has ended before, unless the peer had finished and received everything.
    pub fn finish(&self) -> Result<(), MessageError> {
        let mut is_finished = false;
        self.session.wait(Operation::Send, |state| {
            if !is_finished {
                is_finished = true;
                state.protocol.finish(&mut Vec::new());
                // Messages that wait for their start fail.
                state.must_wake = true;
            }
            state.protocol.poll_flushed(&mut Waiting::default(), &mut None)
        })?
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `Unsupported` if the channel was not made by address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.session.peer_addr()
    }
}

/// Runs an operation from its start to its result. Calls `started` after the start.
fn run(
    session: &Session<Mailbox>,
    start: Start,
    content: Content<'_>,
    mut started: impl FnMut(),
) -> Result<Body, MessageError> {
    let mut deadline = session.deadline(Operation::Send);
    let (ticket, ()) = begin(session, &mut deadline, start, content, |_, _| started())?;
    finish(session, &mut deadline, ticket, Mailbox::poll_result)
}

/// Begins an operation. Calls `started` after the start, under the same lock, and returns its result.
fn begin<R>(
    session: &Session<Mailbox>,
    deadline: &mut Deadline,
    start: Start,
    mut content: Content<'_>,
    mut started: impl FnMut(&mut Mailbox, Ticket) -> R,
) -> Result<(Ticket, R), MessageError> {
    let begun = session.wait_until(deadline, |State { protocol, requests, .. }| {
        let (start, none) = ((start, &mut content), (&mut Waiting::default(), &mut None));
        let begun = protocol.poll_start(start, none, requests, &mut Vec::new());
        begun.map_ok(|begun| {
            let result = started(protocol, begun.ticket);
            (begun, result)
        })
    });
    let (Begun { ticket, copy, .. }, result) = begun??;
    if let (Some(copy), Content::Bytes(bytes)) = (copy, content) {
        let copied = copy.of(bytes);
        session.with(|state| state.protocol.copied(ticket, copied, &mut state.requests));
    }
    Ok((ticket, result))
}

/// Ready when the first frame of a message is posted. This end then leaves the operation.
fn poll_posted(
    mailbox: &mut Mailbox,
    ticket: Ticket,
    waker: &mut Option<Waker>,
) -> Poll<Result<(), MessageError>> {
    mailbox.poll_begun(ticket, waker).map_ok(|continues| {
        if continues {
            mailbox.abandon(ticket);
        }
    })
}

/// Waits until `poll` is ready for an operation. If the limit expires, the operation is cancelled if nothing was sent,
/// and continues otherwise.
fn finish<T>(
    session: &Session<Mailbox>,
    deadline: &mut Deadline,
    ticket: Ticket,
    poll: impl Fn(&mut Mailbox, Ticket, &mut Option<Waker>) -> Poll<Result<T, MessageError>>,
) -> Result<T, MessageError> {
    let poll = |State { protocol, .. }: &mut State<Mailbox>| {
        let result = poll(protocol, ticket, &mut None);
        result.map(|result| (result, protocol.owes_count()))
    };
    let (result, owes_count) = session.wait_until(deadline, poll).or_else(|unfinished| {
        session.with(|state| {
            // Another thread may have made progress after the limit.
            if let Poll::Ready(result) = poll(state) {
                return Ok(result);
            }
            state.protocol.abandon(ticket);
            state.must_wake = true;
            Err(unfinished)
        })
    })?;
    if owes_count {
        count_fetched(session);
    }
    result
}

/// Waits until a frame has reported what was fetched. The peer waits for this frame, and the session makes no progress
/// between calls. The peer may have to acknowledge an earlier frame first. If it does not do so within [`COUNT_LIMIT`],
/// a later call sends the frame.
fn count_fetched(session: &Session<Mailbox>) {
    let _ = session.wait_until(&mut Deadline::new(COUNT_LIMIT), |state| {
        if state.protocol.owes_count() { Poll::Pending } else { Poll::Ready(()) }
    });
}

/// The time in which the peer acknowledges a frame if it processes its completions.
const COUNT_LIMIT: Duration = Duration::from_millis(100);

impl From<Unfinished> for MessageError {
    fn from(unfinished: Unfinished) -> Self {
        match unfinished {
            Unfinished::TimedOut(limit) => Self::TimedOut { limit },
            Unfinished::Forked(forked) => Self::Forked(forked),
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if self.session.is_of_this_process() {
            self.session.with(|state| state.protocol.leave_program(&mut Vec::new()));
            self.session.leave();
        }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Messages").field(&self.session).finish()
    }
}

/// Listens for clients that [connect for messages](ChannelBuilder::connect_messages), created by
/// [`ChannelBuilder::listen_for_messages`].
#[derive(Debug)]
pub struct MessagesListener(super::listener::MessageListener);

impl MessagesListener {
    /// Waits for a client, and accepts it. If a client is already gone, waits for the next one. The wait has no time
    /// limit.
    ///
    /// # Errors
    /// Same errors as [`StreamListener::accept`](super::StreamListener::accept).
    pub fn accept(&mut self) -> Result<Messages, ConnectError> {
        self.0.accept(Messages::new)
    }

    /// Returns the address at which the listener listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }
}

impl<C: ByAddress> ChannelBuilder<'_, C> {
    /// Connects to a [`MessagesListener`], or to one of `rdma-async`. The lengths of the queues are those of the
    /// options. The memory is from the pool.
    ///
    /// The time limit is that of [`connect`](Self::connect). If it expires, nothing remains at this end, but the server may
    /// have accepted the channel, which then ends. The first call on a device also tests its memory windows.
    ///
    /// # Errors
    /// Same errors as [`connect_stream`](Self::connect_stream).
    ///
    /// # Examples
    /// See [`Messages`].
    pub fn connect_messages(
        self,
        addr: impl ToSocketAddrs,
        pool: &BufferPool,
        options: Options,
    ) -> Result<Messages, ConnectError> {
        super::listener::connect(self, addr, pool, options, Messages::new)
    }

    /// Listens for clients that connect for messages. For port 0, the kernel chooses a port.
    ///
    /// # Errors
    /// Same errors as [`listen_for_streams`](Self::listen_for_streams).
    ///
    /// # Examples
    /// See [`Messages`].
    pub fn listen_for_messages(
        self,
        addr: impl ToSocketAddrs,
        pool: &BufferPool,
        options: Options,
    ) -> Result<MessagesListener, ConnectError> {
        Ok(MessagesListener(super::listener::listen(self, addr, pool, options)?))
    }
}
