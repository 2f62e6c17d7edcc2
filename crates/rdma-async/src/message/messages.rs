//! Connections that carry messages, requests and replies.

pub(super) mod incoming;
mod mailbox;
mod run;
mod supply;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma_connect::ConnectError;
use rdma_connect::messaging::{
    Content, MessageError, Options, Slots, Start, check_depths, limits_of, linger_of,
    message_limits,
};
use rdma_mem::{Buffer, RemoteMemoryRegion};
use rdma_message::ConnectionError;
#[cfg(feature = "serde")]
use serde::Serialize;
use tokio::net::ToSocketAddrs;
use tokio::sync::Semaphore;
use tokio::task::coop::consume_budget;

use self::incoming::Message;
use self::mailbox::Mailbox;
use super::linger::Linger;
use super::requests::allocate;
use super::session::Session;
use crate::buffer::held::Permitted;
use crate::buffer::pool::Pool;
use crate::buffer::view::BufferExt as _;
use crate::connection::Connection;
use crate::control::endpoint::Endpoint;
use crate::region::probe;

/// A connection that carries messages of any length, in order, in both directions. A message may be a request, to which
/// the peer replies.
///
/// All functions take `&self`, so several tasks can send, call and receive at once. A task that awaits each call sends in
/// the order of its calls. Calls that wait at the same time begin in any order. A peer that does not
/// [receive](Self::receive) stops the senders; replies then wait too, because they arrive in order with the messages. So
/// an end that calls also receives, in another task or with `select!`.
///
/// Dropping this value returns at once. Messages that were begun are still sent, and what arrives is discarded. The
/// peer's later messages fail with [`PeerFinished`](super::SendError::PeerFinished). The connection ends when both ends
/// have finished, or is reset after [`Options::linger`].
///
/// # Examples
/// ```
/// use rdma_async::message::Options;
///
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let endpoint = rdma_async::Endpoint::new(&rdma_mem::open_device("soft0")?)?;
/// let listener = endpoint.listen_for_messages("127.0.0.1:0", Options::new()).await?;
/// let address = listener.local_addr();
/// let server = async {
///     let client = listener.accept().await?;
///     // Until the client has finished.
///     while let Some(message) = client.receive().await? {
///         if message.is_request() {
///             let answer = message.to_ascii_uppercase();
///             message.reply(&answer).await?;
///         } else {
///             assert_eq!(*message, *b"a note");
///         }
///     }
///     Ok::<_, Box<dyn std::error::Error>>(())
/// };
/// let client = async {
///     let server = endpoint.connect_messages(address, Options::new()).await?; // another process
///     server.send(b"a note").await?;
///     let answer = server.call(b"a question").await?;
///     assert_eq!(*answer, *b"A QUESTION");
///     server.finish().await?;
///     Ok(())
/// };
/// tokio::try_join!(server, client)?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Messages {
    session: Arc<Session<Mailbox>>,
    /// Permits the WRITEs. The send queue has room for one besides the frames.
    writes: Arc<Semaphore>,
}

impl Messages {
    /// Makes a connection carry messages. The peer must do the same, and nothing else may use the connection. See
    /// [`Stream::new`](super::Stream::new) for the queues of the connection, and for the first frame.
    ///
    /// If the future is dropped early, nothing is sent, and this handle of the connection is dropped.
    ///
    /// # Errors
    /// Same errors as [`Stream::new`](super::Stream::new).
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with time.
    pub async fn new(connection: Connection, pool: &Pool, options: Options) -> io::Result<Self> {
        let memory = allocate(pool, &options).await?;
        if limits_of(&options, true).offers > 0 {
            probe::are_windows_bounded(connection.inner()).await;
        }
        let messages = Self::prepare(connection, memory, pool, &options)?;
        messages.start();
        Ok(messages)
    }

    /// Creates an end whose receives are posted, but that sends nothing yet.
    fn prepare(
        connection: Connection,
        slots: Slots,
        pool: &Pool,
        options: &Options,
    ) -> io::Result<Self> {
        let linger = Linger::new(linger_of(options));
        check_depths(options, connection.inner().depths)?;
        let has_windows = connection.inner().driver.0.windows.known.get() == Some(&true);
        let limits = message_limits(options, has_windows, pool.as_blocking());
        let machine = rdma_message::Messages::new(&limits).map_err(io::Error::other)?;
        let mailbox = Mailbox::new(machine, pool.clone(), limits);
        let session = Session::new(connection, slots, mailbox, linger);
        Ok(Self { session, writes: Arc::new(Semaphore::new(1)) })
    }

    /// Sends the first frame.
    fn start(&self) {
        self.session.with(|_| ());
    }

    /// Sends a message. Ready when the peer's device has received all of it; the peer's program may not have.
    ///
    /// It waits while too many operations of this end are pending, or the peer has no memory for the message. If the
    /// future is dropped before a part was sent, nothing is sent. Afterwards, the message is sent completely.
    ///
    /// # Errors
    /// [`MessageError::NotSent`] if the message is longer than the peer accepts, if the peer has dropped its `Messages`,
    /// or if this end has finished. If the connection ends, [`MessageError::Operation`] states whether the peer may have
    /// received the message.
    pub async fn send(&self, message: &[u8]) -> Result<(), MessageError> {
        run::run(&self.session, Start::Send, Content::Bytes(message), || ()).await.map(drop)
    }

    /// Posts a message: like [`send`](Self::send), but is ready before the peer's device has received it.
    ///
    /// It is ready when the first frame was posted. A message that is longer than a [frame](Options::frame_bytes)
    /// continues to be sent. [`flush`](Self::flush) waits until the peer's device has received it. If the future is dropped
    /// before it is ready, see [`send`](Self::send).
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send). If the connection ends later, only later calls report that.
    pub async fn post(&self, message: &[u8]) -> Result<(), MessageError> {
        run::post(&self.session, message).await
    }

    /// Waits until the peer's device has received all messages and replies that had begun when it was first polled. They
    /// continue if the future is dropped. It does not wait for requests: `call` waits for the reply.
    ///
    /// # Errors
    /// [`MessageError::Ended`] if the connection has ended before.
    pub async fn flush(&self) -> Result<(), MessageError> {
        let mut flush = None;
        run::wait(&self.session, |state, (waiting, waker)| {
            let mailbox = &mut state.protocol.shared;
            let flush = *flush.get_or_insert_with(|| mailbox.flush());
            mailbox.poll_sent(flush, waiting, waker)
        })
        .await
    }

    /// Sends the bytes of a buffer, without a copy if the message is long: the buffer is lent to the peer, which fetches it.
    /// Afterwards, or if the send fails, the buffer returns to its pool.
    ///
    /// Otherwise same as [`send`](Self::send). A buffer is copied as usual if its pool is [without
    /// windows](rdma_mem::BufferPool::without_windows), or of another domain.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// # use rdma_async::message::Options;
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let endpoint = rdma_async::Endpoint::new(&rdma_mem::open_device("soft0")?)?;
    /// # let listener = endpoint.listen_for_messages("127.0.0.1:0", Options::new()).await?;
    /// # let client = endpoint.connect_messages(listener.local_addr(), Options::new());
    /// # let (client, server) = tokio::join!(client, listener.accept());
    /// # let (client, server) = (client?, server?);
    /// let mut picture = endpoint.allocate(10 << 20).await?;
    /// picture.fill(7);
    /// let receive = async {
    ///     let message = server.receive().await?.expect("a picture");
    ///     let picture = message.into_buffer().await?; // for operations of a connection, or to send it on
    ///     assert!(picture.len() == 10 << 20 && picture[1 << 20] == 7);
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// };
    /// let (sent, received) = tokio::join!(client.send_buffer(picture), receive);
    /// sent?;
    /// received?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn send_buffer(&self, message: Buffer) -> Result<(), MessageError> {
        let message = Content::Buffer(Some(message));
        run::run(&self.session, Start::Send, message, || ()).await.map(drop)
    }

    /// Writes a part of a buffer to memory of the peer, whose program has described the memory in a message. Ready with the
    /// buffer when the peer's device has all bytes.
    ///
    /// One WRITE is in flight at a time, and further ones wait for it.
    ///
    /// The peer is not notified. When it receives a message that was sent after the WRITE, the bytes have arrived. If the
    /// future is dropped before the WRITE was posted, nothing is written. Afterwards the WRITE continues, and the buffer
    /// then returns to its pool. A future that is not polled after the post, or is forgotten (`mem::forget`), holds up all
    /// later WRITEs. The [limit of the connection](crate::ConnectionOptions::operation_timeout) does not apply.
    ///
    /// # Errors
    /// [`MessageError::Ended`] if the connection has ended. The buffer then returns to its pool.
    ///
    /// # Panics
    /// Panics if the part is not within the buffer, or its length differs from that of the target.
    pub async fn write(
        &self,
        buffer: Buffer,
        part: Range<usize>,
        target: RemoteMemoryRegion,
    ) -> Result<Buffer, MessageError> {
        let is_within = part.start <= part.end && part.end <= buffer.len();
        assert!(is_within && part.len() == target.length(), "{part:?}, {target:?}");
        let lost = MessageError::Ended(ConnectionError::Lost);
        // It fails only if the semaphore is closed, and nothing closes it.
        let permit = Arc::clone(&self.writes).acquire_owned().await;
        let Ok(permit) = permit else { return Err(lost) };
        let memory = Permitted { part: buffer.slice(part), _permit: permit };
        // The connection's time limit would end the operation, but not the connection.
        let written = self.session.connection().write(memory, target).within(Duration::MAX).await;
        written.map(|Permitted { part, .. }| part.into_inner()).map_err(|_| lost)
    }

    /// Encodes a value in the format of [`ValueExt`](crate::ValueExt), and [sends](Self::send) it. The peer decodes it
    /// with [`Message::value`]. Dropping the future has the same effect as for [`send`](Self::send).
    ///
    /// # Errors
    /// [`MessageError::Value`] if the value cannot be encoded; otherwise the same errors as [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// # use rdma_async::message::Options;
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let endpoint = rdma_async::Endpoint::new(&rdma_mem::open_device("soft0")?)?;
    /// # let listener = endpoint.listen_for_messages("127.0.0.1:0", Options::new()).await?;
    /// # let client = endpoint.connect_messages(listener.local_addr(), Options::new());
    /// # let (client, server) = tokio::join!(client, listener.accept());
    /// # let (client, server) = (client?, server?);
    /// client.send_value(&("apples", 3_u32)).await?;
    /// let order = server.receive().await?.expect("an order");
    /// assert_eq!(order.value::<(String, u32)>()?, ("apples".to_owned(), 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "serde")]
    pub async fn send_value<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), MessageError> {
        self.send(&rdma_connect::to_bytes(value)?).await
    }

    /// Sends a request and waits for its reply.
    ///
    /// If the future is dropped before a part was sent, nothing is sent. Afterwards, the request is sent completely.
    /// The peer is notified that the reply is not wanted, and a reply that arrives is discarded.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send). Also [`MessageError::Operation`] with
    /// [`Refused`](super::OperationError::Refused) if the peer dropped the request, and with
    /// [`PeerFinished`](super::OperationError::PeerFinished) if it finished without a reply.
    pub async fn call(&self, request: &[u8]) -> Result<Message, MessageError> {
        let reply = run::run(&self.session, Start::Call, Content::Bytes(request), || ()).await?;
        Ok(Message::new(Arc::clone(&self.session), reply, None))
    }

    /// Waits for the next message or request. `None` means that the peer has finished, and all its messages were
    /// received.
    ///
    /// Cancel safe: if the future is dropped, the next call receives the message.
    ///
    /// # Errors
    /// [`MessageError::Ended`] if the connection has ended before the peer finished. Messages that had arrived
    /// completely are received before that.
    pub async fn receive(&self) -> Result<Option<Message>, MessageError> {
        // Without a budget, a task whose messages have always arrived would starve other tasks.
        consume_budget().await;
        let received = run::wait(&self.session, |state, (waiting, waker)| {
            state.protocol.shared.poll_receive(waiting, waker)
        });
        let message = |(body, request)| Message::new(Arc::clone(&self.session), body, request);
        Ok(received.await?.map(message))
    }

    /// Ends this end's messages after all that have begun. Ready when the peer's device has received them. The peer may
    /// still send. Open requests of the peer get no reply.
    ///
    /// If the future is dropped, this end's messages still end.
    ///
    /// # Errors
    /// [`MessageError::Ended`] if the connection has ended before, unless the peer had finished and received everything.
    pub async fn finish(&self) -> Result<(), MessageError> {
        self.session.with(|state| state.protocol.shared.finish(&mut state.woken));
        run::wait(&self.session, |state, (waiting, waker)| {
            state.protocol.shared.poll_flushed(waiting, waker)
        })
        .await
    }

    /// Returns the address of the peer's control connection.
    ///
    /// # Errors
    /// `Unsupported` if the connection was not made by address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.session.peer_addr()
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if self.session.is_of_this_process() {
            self.session.with(|state| state.protocol.shared.leave_program(&mut state.woken));
            self.session.linger().leave(&self.session);
        }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Messages").field(self.session.connection()).finish()
    }
}

/// Listens for clients that [connect for messages](Endpoint::connect_messages), created by
/// [`Endpoint::listen_for_messages`].
#[derive(Debug)]
pub struct MessagesListener(super::listener::MessageListener);

impl MessagesListener {
    /// Waits for a client, and accepts it. If a client is already gone, waits for the next one. Dropping the future
    /// early loses no client.
    ///
    /// # Errors
    /// Same errors as [`StreamListener::accept`](super::StreamListener::accept), all of them of this end.
    pub async fn accept(&self) -> Result<Messages, ConnectError> {
        self.0.accept(Messages::prepare, Messages::start).await
    }

    /// Same as [`StreamListener::has_ended`](super::StreamListener::has_ended).
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Returns the address at which the listener listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }
}

impl Endpoint {
    /// Connects to a [`MessagesListener`]. If the future is dropped early, nothing remains at this end, but the server may
    /// have accepted the connection, which then ends.
    ///
    /// # Errors
    /// Same errors as [`connect_stream`](Self::connect_stream).
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    pub async fn connect_messages(
        &self,
        addr: impl ToSocketAddrs,
        options: Options,
    ) -> Result<Messages, ConnectError> {
        self.prepare_windows(options).await;
        super::listener::connect(self, addr, options, Messages::prepare, Messages::start).await
    }

    /// Listens for clients that connect for messages. For port 0, the kernel chooses a port. If the future is dropped
    /// early, no client has been able to connect.
    ///
    /// # Errors
    /// Same errors as [`listen_for_streams`](Self::listen_for_streams).
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    pub async fn listen_for_messages(
        &self,
        addr: impl ToSocketAddrs,
        options: Options,
    ) -> Result<MessagesListener, ConnectError> {
        self.prepare_windows(options).await;
        Ok(MessagesListener(super::listener::listen(self, addr, options).await?))
    }

    /// Tests the windows of the device, unless that was done before.
    async fn prepare_windows(&self, options: Options) {
        if limits_of(&options, true).offers > 0 {
            probe::prepare(self.driver(), self.options().qp.fixed_port()).await;
        }
    }
}
