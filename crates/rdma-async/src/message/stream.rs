//! Streams of bytes.

pub(super) mod chunk;
pub(super) mod read_half;
pub(super) mod write_half;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rdma_connect::ConnectError;
use rdma_connect::messaging::{Options, Slots, StreamState, check_depths, limits_of, linger_of};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::ToSocketAddrs;

use self::chunk::Chunk;
use self::read_half::ReadHalf;
use self::write_half::WriteHalf;
use super::linger::Linger;
use super::requests::allocate;
use super::session::Session;
use crate::buffer::pool::Pool;
use crate::connection::Connection;
use crate::control::endpoint::Endpoint;

/// A stream of bytes in each direction, for programs that run on a [`TcpStream`](tokio::net::TcpStream).
///
/// - **Writing.** A write copies bytes to registered memory and posts them. It waits while the peer has no memory for
///   them, so a peer that does not read stops the writer. A dropped `write_all` has written a prefix.
/// - **`flush`** is ready at once, because accepted bytes are posted. **`shutdown`** ends this end's stream, and waits
///   until the peer's device has received all of it. The peer may still send.
/// - **Reading** ends with 0 bytes only if the peer has ended its stream. If the connection is lost before, the read
///   fails with `ConnectionReset`, after all bytes that have arrived. If the peer breaks the protocol, it fails with
///   `InvalidData`.
/// - **Dropping** a stream returns at once. Accepted bytes are still sent. The connection ends when both ends have
///   ended their streams, or is reset after [`Options::linger`]. The peer's writes fail with `BrokenPipe`.
///
/// All waits are cancel safe, as those of a `TcpStream`. A `shutdown` that is dropped after its first poll still ends the
/// stream.
///
/// # Examples
/// ```
/// use rdma_async::message::{Options, Stream};
/// use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
///
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let endpoint = rdma_async::Endpoint::new(&rdma_mem::open_device("soft0")?)?;
/// let listener = endpoint.listen_for_streams("127.0.0.1:0", Options::new()).await?;
/// let address = listener.local_addr();
/// let server = async {
///     let (mut reader, mut writer) = listener.accept().await?.into_split();
///     tokio::io::copy(&mut reader, &mut writer).await?; // an echo
///     writer.shutdown().await?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// };
/// let client = async {
///     let mut stream = endpoint.connect_stream(address, Options::new()).await?; // another process
///     stream.write_all(b"hello").await?;
///     stream.shutdown().await?;
///     let mut answer = String::new();
///     stream.read_to_string(&mut answer).await?;
///     assert_eq!(answer, "hello");
///     Ok(())
/// };
/// tokio::try_join!(server, client)?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Stream {
    reader: ReadHalf,
    writer: WriteHalf,
}

impl Stream {
    /// Turns a connection into a stream. The peer must do the same, and nothing else may use the connection.
    ///
    /// The queues of the connection must have the lengths that [`Options::fit`] sets. If the peer's first frame arrives
    /// before this call, its device sends the frame again. [`Endpoint::connect_stream`] and
    /// [`Endpoint::listen_for_streams`] prevent this.
    ///
    /// If the future is dropped early, nothing is sent, and this handle of the connection is dropped.
    ///
    /// # Examples
    /// ```
    /// use rdma_async::message::{Options, Stream};
    /// use rdma_async::{Driver, Pool};
    /// use rdma_qp::prelude::*;
    /// use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    ///
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let (driver, pool, options) = (Driver::spawn(pd.context())?, Pool::new(&pd), Options::new());
    /// let prepare = || driver.prepare(options.fit(pd.create_qp()));
    /// let (one, other) = (prepare()?, prepare()?);
    /// let (at_one, at_other) = (one.endpoint(), other.endpoint());
    /// let (one, other) = (one.handshake(at_other)?, other.handshake(at_one)?);
    /// let mut one = Stream::new(one, &pool, options).await?;
    /// let mut other = Stream::new(other, &pool, options).await?;
    /// one.write_u16(7).await?;
    /// assert_eq!(other.read_u16().await?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if an option is outside its range, or the queues are too short. Otherwise an error of
    /// [`Pool::allocate`].
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with time.
    pub async fn new(connection: Connection, pool: &Pool, options: Options) -> io::Result<Self> {
        let memory = allocate(pool, &options).await?;
        let stream = Self::prepare(connection, memory, pool, &options)?;
        stream.start();
        Ok(stream)
    }

    /// Creates a stream whose receives are posted, but that sends nothing yet.
    pub(super) fn prepare(
        connection: Connection,
        slots: Slots,
        _: &Pool,
        options: &Options,
    ) -> io::Result<Self> {
        let linger = Linger::new(linger_of(options));
        check_depths(options, connection.inner().depths)?;
        let limits = limits_of(options, false);
        let machine = rdma_message::Stream::new(&limits).map_err(io::Error::other)?;
        let session = Session::new(connection, slots, StreamState::new(machine), linger);
        let reader = ReadHalf::new(Arc::clone(&session));
        Ok(Self { reader, writer: WriteHalf::new(session) })
    }

    /// Sends the first frame.
    pub(super) fn start(&self) {
        self.writer.session().with(|_| ());
    }

    /// Splits the stream into halves, which two tasks can own. Both share a lock. It is held while frames are processed,
    /// but not while bytes are copied or a write is posted.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Same as [`ReadHalf::read_chunk`].
    ///
    /// # Errors
    /// Same errors as reading.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Chunk>> {
        self.reader.read_chunk().await
    }

    /// Same as [`ReadHalf::poll_read_chunk`].
    ///
    /// # Errors
    /// Same errors as reading.
    pub fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        self.reader.poll_read_chunk(cx)
    }

    /// Returns the address of the peer's control connection.
    ///
    /// # Errors
    /// `Unsupported` if the connection was not made by address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.reader.peer_addr()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().reader).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Pin::new(&mut self.reader).consume(amt);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(self.writer.session().connection()).finish()
    }
}

/// Listens for clients that [connect a stream](Endpoint::connect_stream), created by [`Endpoint::listen_for_streams`].
#[derive(Debug)]
pub struct StreamListener(super::listener::MessageListener);

impl StreamListener {
    /// Waits for a client, and accepts it. If a client is already gone, waits for the next one. Dropping the future
    /// early loses no client.
    ///
    /// # Errors
    /// Only errors of this end: those of [`Listener::incoming`](crate::Listener::incoming), and [`ConnectError::Io`] if
    /// memory cannot be allocated. The program calls this again, unless the listener [has ended](Self::has_ended).
    pub async fn accept(&self) -> Result<Stream, ConnectError> {
        self.0.accept(Stream::prepare, Stream::start).await
    }

    /// Returns true if the listener's task has ended, for example with its runtime. Then every `accept` fails.
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
    /// Connects a [`Stream`] to a [`StreamListener`]. If the future is dropped early, nothing remains at this end, but the
    /// server may have accepted the connection, which then ends.
    ///
    /// # Errors
    /// Same errors as [`Driver::connect`](crate::Driver::connect), and [`ConnectError::Io`] if an option is outside its
    /// range, or memory cannot be allocated.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    pub async fn connect_stream(
        &self,
        addr: impl ToSocketAddrs,
        options: Options,
    ) -> Result<Stream, ConnectError> {
        super::listener::connect(self, addr, options, Stream::prepare, Stream::start).await
    }

    /// Listens for clients that connect a [`Stream`]. For port 0, the kernel chooses a port. If the future is dropped
    /// early, no client has been able to connect.
    ///
    /// # Errors
    /// Same errors as [`Driver::listen`](crate::Driver::listen), and [`ConnectError::Io`] if an option is outside its
    /// range.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    pub async fn listen_for_streams(
        &self,
        addr: impl ToSocketAddrs,
        options: Options,
    ) -> Result<StreamListener, ConnectError> {
        Ok(StreamListener(super::listener::listen(self, addr, options).await?))
    }
}
