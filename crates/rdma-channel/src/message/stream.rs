//! Streams of bytes.

pub(super) mod chunk;
pub(super) mod halves;

use std::fmt;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use rdma_connect::ConnectError;
use rdma_connect::messaging::{Options, StreamState};
use rdma_mem::BufferPool;

use self::chunk::Chunk;
use self::halves::{ReadHalf, WriteHalf};
use super::session::Session;
use crate::channel::Channel;
use crate::channel::builder::ChannelBuilder;
use crate::rendezvous::builder::ByAddress;

/// A stream of bytes in each direction, for programs that run on a [`TcpStream`](std::net::TcpStream).
///
/// - **Writing.** A write copies bytes to registered memory and posts them. It waits while the peer has no memory for
///   them, so a peer that does not read stops the writer.
/// - **`flush`** does nothing, because accepted bytes are posted. [`shutdown`](Self::shutdown) ends this end's stream,
///   and waits until the peer's device has received all of it. The peer may still send.
/// - **Reading** ends with 0 bytes only if the peer has ended its stream. If the connection is lost before, the read
///   fails with `ConnectionReset`, after all bytes that have arrived. If the peer breaks the protocol, it fails with
///   `InvalidData`.
/// - **Limits.** A read has the channel's [`receive_timeout`](ChannelBuilder::receive_timeout), and a write and
///   `shutdown` have its [`send_timeout`](ChannelBuilder::send_timeout). They fail with `TimedOut`, and the stream stays
///   usable.
/// - **Dropping** a stream returns at once. Accepted bytes are still sent by a thread. The connection ends when both
///   ends have ended their streams, or is reset after [`Options::linger`]. The peer's writes fail with `BrokenPipe`. Call
///   `shutdown` before the program ends, because its threads end with it.
///
/// Like a socket, a program that only writes while its peer only writes waits until its limit. Two threads prevent this:
/// see [`into_split`](Self::into_split).
///
/// # Examples
/// ```
/// use std::io::{Read as _, Write as _};
/// use rdma_channel::message::Options;
/// use rdma_channel::{BufferPool, prelude::*};
///
/// type Any = Box<dyn std::error::Error + Send + Sync>;
///
/// # rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let (pool, options) = (BufferPool::new(&pd), Options::new());
/// let mut listener = pd.create_channel().listen_for_streams("127.0.0.1:0", &pool, options)?;
/// let address = listener.local_addr();
/// let server = std::thread::spawn(move || -> Result<(), Any> {
///     let (mut reader, mut writer) = listener.accept()?.into_split();
///     std::io::copy(&mut reader, &mut writer)?; // an echo
///     Ok(writer.shutdown()?)
/// });
///
/// // This could be another process.
/// let mut stream = pd.create_channel().connect_stream(address, &pool, options)?;
/// stream.write_all(b"hello")?;
/// stream.shutdown()?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert_eq!(answer, "hello");
/// server.join().unwrap()?;
/// # Ok::<(), Any>(())
/// ```
pub struct Stream {
    reader: ReadHalf,
    writer: WriteHalf,
}

impl Stream {
    /// Turns a channel into a stream. The peer must do the same.
    ///
    /// The queues of the channel must have the lengths that [`ChannelBuilder::fit`] sets. If the peer's first frame
    /// arrives before this call, its device sends the frame again.
    ///
    /// # Errors
    /// `InvalidInput` if an option is outside its range, or the queues are too short. Otherwise an error of the pool, or
    /// of the system if the process has too many files.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read as _, Write as _};
    /// use rdma_channel::message::{Options, Stream};
    /// use rdma_channel::{BufferPool, prelude::*};
    ///
    /// # rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let (pool, options) = (BufferPool::new(&pd), Options::new());
    /// let prepare = || pd.create_channel().fit(&options).build();
    /// let (one, other) = (prepare()?, prepare()?);
    /// let (at_one, at_other) = (one.endpoint(), other.endpoint());
    /// let (one, other) = (one.handshake(at_other)?, other.handshake(at_one)?);
    /// let other = std::thread::spawn({
    ///     let pool = pool.clone();
    ///     move || -> std::io::Result<[u8; 2]> {
    ///         let mut bytes = [0; 2];
    ///         Stream::new(other, &pool, options)?.read_exact(&mut bytes)?;
    ///         Ok(bytes)
    ///     }
    /// });
    /// Stream::new(one, &pool, options)?.write_all(b"hi")?;
    /// assert_eq!(other.join().unwrap()?, *b"hi");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(channel: Channel, pool: &BufferPool, options: Options) -> io::Result<Self> {
        let state = |limits: &_| {
            let machine = rdma_message::Stream::new(limits);
            Ok(StreamState::new(machine.map_err(io::Error::other)?))
        };
        let session = Session::new(channel, pool, &options, false, state)?;
        let reader = ReadHalf::new(Arc::clone(&session));
        Ok(Self { reader, writer: WriteHalf::new(session) })
    }

    /// Splits the stream into halves, which two threads can own.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Same as [`ReadHalf::read_chunk`], also if the time limit expires.
    ///
    /// # Errors
    /// Same errors as reading.
    pub fn read_chunk(&mut self) -> io::Result<Option<Chunk>> {
        self.reader.read_chunk()
    }

    /// Same as [`WriteHalf::shutdown`], also if the time limit expires.
    ///
    /// # Errors
    /// Same errors as [`WriteHalf::shutdown`].
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.writer.shutdown()
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `Unsupported` if the channel was not made by address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.reader.peer_addr()
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buf)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, amt: usize) {
        self.reader.consume(amt);
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.writer.write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.writer.write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(self.writer.session()).finish()
    }
}

/// Listens for clients that [connect a stream](ChannelBuilder::connect_stream), created by
/// [`ChannelBuilder::listen_for_streams`].
#[derive(Debug)]
pub struct StreamListener(super::listener::MessageListener);

impl StreamListener {
    /// Waits for a client, and accepts it. If a client is already gone, waits for the next one. The wait has no time
    /// limit.
    ///
    /// # Errors
    /// Same errors as [`ChannelListener::accept`](crate::ChannelListener::accept), and [`ConnectError::Io`] if memory
    /// cannot be allocated.
    pub fn accept(&mut self) -> Result<Stream, ConnectError> {
        self.0.accept(Stream::new)
    }

    /// Returns the address at which the listener listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }
}

impl<C: ByAddress> ChannelBuilder<'_, C> {
    /// Connects a [`Stream`] to a [`StreamListener`], or to one of `rdma-async`. The lengths of the queues are those of
    /// the options. The memory is from the pool.
    ///
    /// The time limit is that of [`connect`](Self::connect). If it expires, nothing remains at this end, but the server may
    /// have accepted the channel, which then ends.
    ///
    /// # Errors
    /// Same errors as [`connect`](Self::connect), and [`ConnectError::Io`] if an option is outside its range, or memory
    /// cannot be allocated.
    ///
    /// # Examples
    /// See [`Stream`].
    pub fn connect_stream(
        self,
        addr: impl ToSocketAddrs,
        pool: &BufferPool,
        options: Options,
    ) -> Result<Stream, ConnectError> {
        super::listener::connect(self, addr, pool, options, Stream::new)
    }

    /// Listens for clients that connect a [`Stream`]. For port 0, the kernel chooses a port.
    ///
    /// # Errors
    /// Same errors as [`listen`](Self::listen), and [`ConnectError::Io`] if an option is outside its range.
    ///
    /// # Examples
    /// See [`Stream`].
    pub fn listen_for_streams(
        self,
        addr: impl ToSocketAddrs,
        pool: &BufferPool,
        options: Options,
    ) -> Result<StreamListener, ConnectError> {
        Ok(StreamListener(super::listener::listen(self, addr, pool, options)?))
    }
}
