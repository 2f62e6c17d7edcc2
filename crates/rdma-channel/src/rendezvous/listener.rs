//! Listeners, which turn their clients into channels.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_connect::{ConnectError, MakeEnds, NoEnd, StreamAddresses, Until};
use rdma_qp::QueuePairEndpoint;

use super::clients::Listening;
#[cfg(feature = "cm")]
use super::cm::{accept_next, next_request};
use super::files::Files;
use super::incoming::{Arrived, Incoming};
use super::source::Source;
use crate::channel::Channel;
use crate::channel::options::{Options, RendezvousOptions};
use crate::channel::prepared::PreparedChannel;

/// Listens on a TCP address for clients that [connect](crate::Channel::connect), and turns each into a channel.
///
/// Create it with [`listen`](crate::ChannelBuilder::listen). It owns everything that it needs, so it can be kept in a
/// struct or moved to another thread. It runs no thread of its own: clients make progress only while
/// [`incoming`](Self::incoming) or [`accept`](Self::accept) waits.
///
/// # Slow or invalid clients
/// A client is half-open until its queue pair is connected to one of the listener's. After that, the program can accept
/// the client. The client has the [`rendezvous_timeout`](crate::ChannelBuilder::rendezvous_timeout) for its first
/// message, and the same time again for the next one. The listener creates a queue pair for a client only after a valid
/// first message, so a silent client uses only a file.
///
/// Up to 256 clients are half-open at a time, or a quarter of the open-file limit if that is less. When another client
/// connects, the listener drops a half-open one, so that silent clients do not block others. It chooses from the
/// address with the most half-open clients (an IPv4 address, or an IPv6 /64 network). Of these clients, it drops one
/// whose next message it has awaited for at least a second, preferably one that has sent nothing. If there is none, the
/// new client waits in the socket's backlog. For ten seconds after such a drop, clients that have sent nothing can be
/// dropped before that second has passed. If their address occupies more than half of the room, so can its other
/// clients. The dropped client gets [`Busy`](ConnectError::Busy), and is [counted](Self::dropped_half_open). While
/// there is room, a slow client can use all of its time.
///
/// The listener also drops a half-open client if another client needs its queue pair. It then chooses a client that has
/// not continued for a second. It can also choose one whose address has more queue pairs than the newcomer's address
/// would have.
///
/// A client that waits to be accepted has no time limit except the one that it set. If 64 clients wait, or a sixteenth
/// of the open-file limit if that is less, others stay in the socket's backlog. A client's time limit also runs while
/// the program does not call the listener. However, a client that has already sent its message is never refused for
/// that reason.
///
/// When a queue pair is connected on Ethernet, the kernel may need a moment to find the route to the client's GID. A
/// client whose address does not exist can therefore delay other clients by that moment, before its connection fails.
///
/// Some clients are silent, end early, send too much, use another protocol, or have a queue pair that does not fit.
/// These clients are [counted](Self::refused) and cause no error. They receive the reason if they use the right
/// protocol.
///
/// The stream is neither encrypted nor authenticated: any program that can reach the address can connect.
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
    pub(super) clients: Source<Options>,
    pub(super) user_bytes: Box<[u8]>,
    pub(super) watch: Option<Duration>,
}

/// Turns each client into a channel with these options.
impl MakeEnds for Options {
    type Prepared = PreparedChannel;
    type Connected = Channel;

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
    /// Listens on the first usable address.
    pub(super) fn bind(
        options: Options,
        rendezvous: RendezvousOptions,
        addresses: &[SocketAddr],
    ) -> Result<Self, ConnectError> {
        let device = options.pd.context().device().name();
        let _span = tracing::debug_span!("listen", device, ?addresses).entered();
        // Creates a channel only to find unsupported options now, instead of when the first client connects.
        drop(PreparedChannel::new(&options)?);
        let RendezvousOptions { user_bytes, timeout, watch } = rendezvous;
        Ok(Self {
            clients: Source::Tcp(Listening::new(options, timeout, addresses, Files::new()?)?),
            user_bytes,
            watch,
        })
    }

    /// The address of the listener. If port 0 was requested, it contains the port that the kernel chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.clients.address()
    }

    /// Waits for a client, and accepts it with the [`user_bytes`](crate::ChannelBuilder::user_bytes) of the builder.
    ///
    /// It is not an error if a client has gone away in the meantime: `accept` waits for the next one.
    ///
    /// # Errors
    /// Same errors as [`incoming`](Self::incoming).
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self) -> Result<Channel, ConnectError> {
        #[cfg(feature = "cm")]
        if let Source::Cm(clients) = &mut self.clients {
            return accept_next(clients, self.watch);
        }
        let answer = self.user_bytes.clone();
        loop {
            match self.incoming(None)?.accept(&answer) {
                Err(ConnectError::Closed { .. } | ConnectError::Garbled { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    /// Waits for a connected client, for at most `limit`. `None` means no limit. With a limit of zero, it does only
    /// what is possible without waiting.
    ///
    /// The client can be [accepted](Incoming::accept) with an answer to its user bytes, or
    /// [rejected](Incoming::reject).
    ///
    /// # Errors
    /// Only errors of this end, never errors of a client. After each error, `incoming` can be called again:
    ///
    /// | | |
    /// |---|---|
    /// | [`Timeout`](ConnectError::Timeout) | no client was connected in time; half-open clients continue in the next call |
    /// | [`Verbs`](ConnectError::Verbs) | no queue pair could be created for a client, and the client was notified |
    /// | [`Io`](ConnectError::Io) | no client can be accepted from the socket, most often because too many files are open; clients wait, and the listener tries again after a second |
    pub fn incoming(&mut self, limit: Option<Duration>) -> Result<Incoming<'_>, ConnectError> {
        let limit = limit.unwrap_or(Duration::MAX);
        let until = Until::after(Instant::now(), limit);
        let watch = self.watch;
        loop {
            let client = match &mut self.clients {
                Source::Tcp(clients) => {
                    clients.update_taking()?;
                    clients.serve(until)?;
                    clients.take().map(|client| Arrived::Tcp(Box::new(client)))
                }
                #[cfg(feature = "cm")]
                Source::Cm(clients) => {
                    let request = next_request(clients, until)?;
                    request.map(|request| Arrived::cm(request, clients.limit()))
                }
            };
            if let Some(client) = client {
                return Ok(Incoming { clients: &mut self.clients, client, watch });
            }
            if let Some(failure) = self.clients.take_failure() {
                return Err(failure);
            }
            if until.is_over(Instant::now()) {
                return Err(self.clients.timed_out(limit));
            }
        }
    }

    /// The number of clients refused so far. They were invalid, or went away before the program accepted or rejected
    /// them. Clients that the program rejected do not count.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.clients.refused()
    }

    /// The number of half-open clients dropped so far. Each had to make room for another client, or its
    /// [`rendezvous_timeout`](crate::ChannelBuilder::rendezvous_timeout) expired. [`refused`](Self::refused) counts
    /// these clients, too. A growing number means that clients are silent, or that more clients connect at a time than
    /// the listener can serve.
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

    /// The address of the client that was refused last, with the reason. `None` if no client was refused.
    #[must_use]
    pub fn last_refused(&self) -> Option<&str> {
        self.clients.last_refused()
    }
}
