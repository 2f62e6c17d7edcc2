//! Listeners, whose clients become channels.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_connect::{ConnectError, MakeEnds, NoEnd, StreamAddresses, Until};
use rdma_qp::QueuePairEndpoint;

use super::clients::Listening;
use super::files::Files;
use super::incoming::Incoming;
use crate::channel::Channel;
use crate::channel::options::{Options, RendezvousOptions};
use crate::channel::prepared::PreparedChannel;

/// Listens at an address of TCP for clients that [connect](crate::Channel::connect), each of which becomes a channel.
///
/// It is made by [`listen`](crate::ChannelBuilder::listen), owns all that it needs, and can be kept in a struct or moved
/// to a thread. It has no thread of its own: clients go forward while [`incoming`](Self::incoming) or
/// [`accept`](Self::accept) waits.
///
/// # Clients that are slow or bad
/// A client is half-open until its queue pair and one of this end are connected; then the program can accept it. It has
/// the [`rendezvous_timeout`](crate::ChannelBuilder::rendezvous_timeout) for its first message, and the same time for
/// the next one. It gets a queue pair once its first message is valid, so that a silent client costs only a file.
///
/// Up to 256 clients are half-open at a time, or a quarter of the limit of open files if that is less. When one more
/// comes, the listener drops one, so that silent clients do not block others. It is one of the address with the most
/// half-open clients (an IPv4 address, or an IPv6 network of 64 bits): first one that has sent nothing within a second,
/// and then the one for which the listener has waited longest. That client is told [`Busy`](ConnectError::Busy), and
/// [counted](Self::dropped_half_open). While there is room, a slow client has all of its time. Likewise, if there is no
/// queue pair for a client, the listener drops one that has had a queue pair for a second, or whose address has more of
/// them.
///
/// Clients that wait for the program have no limit except their own. If 64 of them wait, others wait in the backlog of
/// the socket. Time in which the program does not call the listener counts, but a client that has sent its message by
/// then is not refused for that.
///
/// The kernel may take a moment to find the way to a client's GID on Ethernet, when its queue pair is connected: a client
/// with an address that nobody has can cost others that moment, and its own connection.
///
/// A client that is silent, ends early, says too much, or something else, or whose queue pair does not fit, is
/// [counted](Self::refused), is told why where it can understand it, and is no error.
///
/// What passes through the stream is neither secret nor signed: who can reach the address can connect.
///
/// # Examples
/// ```
/// use std::thread;
///
/// use rdma_channel::{Channel, prelude::*};
/// use rdma_mem::{GatherList, ScatterList};
/// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut listener = pd.create_channel().listen("127.0.0.1:0")?;
/// let address = listener.local_addr();
///
/// // This could be another process, or another machine.
/// let client = thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
///     let mut channel = Channel::connect(address, &pd)?;
///     let mut data = pd.allocate_region(5)?;
///     data.copy_from_slice(b"hello");
///     channel.send(SendWorkRequest::from_list(&GatherList::from([data.as_slice()])))?;
///     Ok(())
/// });
///
/// let mut channel = listener.accept()?;
/// let mut buffer = pd.allocate_region(5)?;
/// channel.receive(ReceiveWorkRequest::from_list(&mut ScatterList::from([buffer.as_slice_mut()])))?;
/// assert_eq!(*buffer, *b"hello");
/// client.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct ChannelListener {
    clients: Listening<Options>,
    user_bytes: Box<[u8]>,
    watch: Option<Duration>,
}

/// Each client becomes a channel with these options.
impl MakeEnds for Options {
    type Prepared = PreparedChannel;
    type End = Channel;

    fn prepare(
        &self,
        stream: StreamAddresses,
    ) -> Result<(PreparedChannel, QueuePairEndpoint), NoEnd> {
        let mut prepared = PreparedChannel::new(self).map_err(NoEnd::Failed)?;
        if let Some((own, peer)) = stream {
            prepared.set_stream_addresses(own, peer);
        }
        let endpoint = prepared.endpoint();
        Ok((prepared, endpoint))
    }

    fn device(&self) -> String {
        self.pd.context().device().name().to_owned()
    }

    fn connect(
        &self,
        prepared: PreparedChannel,
        peer: QueuePairEndpoint,
    ) -> Result<Channel, rdma_qp::Error> {
        prepared.handshake(peer)
    }
}

impl ChannelListener {
    /// Listens at the first of the addresses that can be listened at.
    pub(super) fn bind(
        options: Options,
        rendezvous: RendezvousOptions,
        addresses: &[SocketAddr],
    ) -> Result<Self, ConnectError> {
        let device = options.pd.context().device().name();
        let _span = tracing::debug_span!("listen", device, ?addresses).entered();
        // What no client could be given is said now, and not to the first client.
        drop(PreparedChannel::new(&options)?);
        let RendezvousOptions { user_bytes, timeout, watch } = rendezvous;
        Ok(Self {
            clients: Listening::new(options, timeout, addresses, Files::new()?)?,
            user_bytes,
            watch,
        })
    }

    /// Where it listens. With the port that the kernel has chosen, if it was asked for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.clients.address()
    }

    /// Waits for a client, and accepts it with the [`user_bytes`](crate::ChannelBuilder::user_bytes) of the builder.
    ///
    /// A client that has gone is no error: the next one is waited for.
    ///
    /// # Errors
    /// Those of [`incoming`](Self::incoming).
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self) -> Result<Channel, ConnectError> {
        let answer = self.user_bytes.clone();
        loop {
            match self.incoming(None)?.accept(&answer) {
                Err(ConnectError::Closed { .. } | ConnectError::Garbled { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    /// Waits for a client that is connected, at most so long; `None` is for as long as it takes. With a limit of zero it
    /// does what can be done at once.
    ///
    /// The client can be [accepted](Incoming::accept) with an answer to what it said, or
    /// [rejected](Incoming::reject).
    ///
    /// # Errors
    /// What is wrong here, not what is wrong with a client. After any of these the listener can be asked again:
    ///
    /// | | |
    /// |---|---|
    /// | [`Timeout`](ConnectError::Timeout) | no client came in time; those that have begun go on with the next call |
    /// | [`Verbs`](ConnectError::Verbs) | no queue pair could be made for a client, which was told so |
    /// | [`Io`](ConnectError::Io) | no client can be accepted from the socket, mostly because too many files are open; clients wait, and the listener tries again after a second |
    pub fn incoming(&mut self, limit: Option<Duration>) -> Result<Incoming<'_>, ConnectError> {
        let limit = limit.unwrap_or(Duration::MAX);
        let until = Until::after(Instant::now(), limit);
        let clients = &mut self.clients;
        loop {
            clients.update_taking()?;
            clients.serve(until)?;
            if let Some(client) = clients.take() {
                let (refused, watch) = (&mut self.clients.refused, self.watch);
                return Ok(Incoming { refused, client, watch });
            }
            if let Some(failure) = clients.take_failure() {
                return Err(failure);
            }
            if until.is_over(Instant::now()) {
                let address = clients.address();
                let awaited = match clients.last_refused() {
                    None => format!("client at {address}: does one connect to this address?"),
                    Some(last) => {
                        format!("good client at {address}; the last one that was refused, {last}")
                    }
                };
                return Err(ConnectError::Timeout { limit, awaited });
            }
        }
    }

    /// How many clients were refused so far since they were bad, or have gone before the program had decided. Those that
    /// the program has rejected do not count.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.clients.refused
    }

    /// The number of clients that were dropped so far while half-open: others needed the room, or the
    /// [`rendezvous_timeout`](crate::ChannelBuilder::rendezvous_timeout) was over. They are among those
    /// [refused](Self::refused). If it grows, clients are silent, or more of them come at a time than the listener
    /// serves.
    ///
    /// # Examples
    /// ```
    /// use std::time::{Duration, Instant};
    /// use rdma_channel::prelude::*;
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let builder = pd.create_channel().rendezvous_timeout(Duration::from_millis(10));
    /// let mut listener = builder.listen("127.0.0.1:0")?;
    /// let _silent = std::net::TcpStream::connect(listener.local_addr())?;
    /// while listener.dropped_half_open() == 0 {
    ///     assert!(listener.incoming(Some(Duration::from_millis(1))).is_err());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dropped_half_open(&self) -> u64 {
        self.clients.dropped_half_open()
    }

    /// Which client was refused last, by its address, and why. `None` if none was.
    #[must_use]
    pub fn last_refused(&self) -> Option<&str> {
        self.clients.last_refused()
    }
}
