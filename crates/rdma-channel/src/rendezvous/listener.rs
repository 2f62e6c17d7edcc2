//! Clients that come, and what is known of them so far.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::error::ConnectError;
use super::half_open::{Candidate, HalfOpen, Step};
use super::incoming::Incoming;
use super::until::Until;
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
/// A client gets a queue pair when its first message was right, and comes to the program when it is connected. Until
/// then it stops nobody else: all clients are served at a time, up to 64, and others wait in the backlog of the socket.
/// It has the [`rendezvous_timeout`](crate::ChannelBuilder::rendezvous_timeout) for its part, so 64 clients that say
/// nothing keep others out for as long as that. Clients that wait for the program have no limit but their own. Time in
/// which the program does not ask counts, but a client that spoke in it is not refused for that.
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
    socket: TcpListener,
    address: SocketAddr,
    options: Options,
    rendezvous: RendezvousOptions,
    half_open: Vec<HalfOpen>,
    connected: VecDeque<Candidate>,
    refused: u64,
    /// Which client was refused last, and why.
    last_refused: Option<String>,
    /// What the next call has to say.
    failure: Option<ConnectError>,
}

/// The most clients at a time that the program has not been given.
const MOST_CLIENTS: usize = 64;

/// How long the clients are served that have said something, though the limit of the call is over.
const PASS: Duration = Duration::from_millis(100);

impl ChannelListener {
    /// Listens at the first of the addresses that can be listened at.
    pub(super) fn bind(
        options: Options,
        rendezvous: RendezvousOptions,
        addresses: &[SocketAddr],
    ) -> Result<Self, ConnectError> {
        // What no client could be given is said now, and not to the first client.
        drop(PreparedChannel::new(&options)?);
        let mut failure = None;
        for &address in addresses {
            match listen(address) {
                Ok((socket, address)) => {
                    return Ok(Self {
                        socket,
                        address,
                        options,
                        rendezvous,
                        half_open: Vec::new(),
                        connected: VecDeque::new(),
                        refused: 0,
                        last_refused: None,
                        failure: None,
                    });
                }
                Err(source) => {
                    let tried = format!("listening at {address}");
                    failure.get_or_insert(ConnectError::Io { tried, source });
                }
            }
        }
        Err(failure.unwrap_or(ConnectError::NoAddress))
    }

    /// Where it listens. With the port that the kernel has chosen, if it was asked for port 0.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a client, and accepts it with the [`user_bytes`](crate::ChannelBuilder::user_bytes) of the builder.
    ///
    /// A client that has gone is no error: the next one is waited for.
    ///
    /// # Errors
    /// Those of [`incoming`](Self::incoming).
    pub fn accept(&mut self) -> Result<Channel, ConnectError> {
        let answer = self.rendezvous.user_bytes.clone();
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
    /// | [`Io`](ConnectError::Io) | no client can be taken from the socket, mostly since too many files are open; they wait, and asked at once it says the same |
    pub fn incoming(&mut self, limit: Option<Duration>) -> Result<Incoming<'_>, ConnectError> {
        let limit = limit.unwrap_or(Duration::MAX);
        let until = Until::after(limit);
        loop {
            self.serve(until)?;
            if let Some(client) = self.connected.pop_front() {
                let (refused, watch) = (&mut self.refused, self.rendezvous.watch);
                return Ok(Incoming { refused, client, watch });
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if until.is_over() {
                let awaited = match &self.last_refused {
                    None => {
                        format!("client at {}: does one connect to this address?", self.address)
                    }
                    Some(last) => {
                        format!(
                            "good client at {}; the last one that was refused, {last}",
                            self.address
                        )
                    }
                };
                return Err(ConnectError::Timeout { limit, awaited });
            }
        }
    }

    /// How many clients were refused so far since they were bad, or have gone before the program had decided. Those that
    /// the program has rejected do not count.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Which client was refused last, by its address, and why. `None` if none was.
    #[must_use]
    pub fn last_refused(&self) -> Option<&str> {
        self.last_refused.as_deref()
    }

    /// Waits until something has happened, and does what is to be done for it.
    fn serve(&mut self, until: Until) -> Result<(), ConnectError> {
        let has_room = self.half_open.len() + self.connected.len() < MOST_CLIENTS;
        let in_hand = !self.connected.is_empty() || self.failure.is_some();
        let ends = self.half_open.iter().map(|client| client.until.left());
        let wait = if in_hand { Duration::ZERO } else { ends.fold(until.left(), Duration::min) };
        let clients =
            (self.half_open.iter().map(AsFd::as_fd)).chain(self.connected.iter().map(AsFd::as_fd));
        // Last, and left out if there is no room.
        let socket = has_room.then(|| self.socket.as_fd());
        let mut files: Vec<_> = clients
            .chain(socket)
            .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN))
            .collect();
        // A time that cannot be expressed is no limit.
        match poll(&mut files, Timespec::try_from(wait).ok().as_ref()) {
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(self.failed(error.into())),
            Ok(_) => {}
        }
        let events: Vec<_> = files.iter().map(|file| !file.revents().is_empty()).collect();
        let mut events = events.into_iter();
        let mut happened = || events.next().unwrap_or(false);
        let clients = mem::take(&mut self.half_open);
        let waiting = mem::take(&mut self.connected);
        let clients: Vec<_> = clients.into_iter().map(|client| (client, happened())).collect();
        for mut client in waiting {
            match !happened() || client.check().is_ok() {
                true => self.connected.push_back(client),
                false => self.refused += 1,
            }
        }
        let socket = happened();
        let pass = Until::after(PASS);
        for (client, happened) in clients {
            // A device may take its time to connect a queue pair. Who comes behind has its bytes in its socket still.
            if pass.is_over() && until.is_over() {
                self.half_open.push(client);
            } else {
                self.step(client, happened);
            }
        }
        if socket {
            self.take_client();
        }
        Ok(())
    }

    /// Has a client go forward, or ends it if its time is over.
    fn step(&mut self, client: HalfOpen, happened: bool) {
        let step = if happened { client.step(&self.options) } else { Step::Open(client) };
        match step {
            Step::Open(client) if client.until.is_over() => {
                self.refuse(client.expire());
            }
            Step::Open(client) => self.half_open.push(client),
            Step::Connected(client) => self.connected.push_back(client),
            Step::Refused(why) => self.refuse(why),
            Step::Failed(error) => {
                self.failure.get_or_insert(error.into());
            }
        }
    }

    fn refuse(&mut self, why: String) {
        self.refused += 1;
        self.last_refused = Some(why);
    }

    /// Takes one client that is there. Only one: to ask for another one that is not there needs a free file, too.
    fn take_client(&mut self) {
        let error = match self.socket.accept() {
            Ok((stream, address)) => {
                // Without it the client waits longer, no more.
                let _ = stream.set_nodelay(true);
                let client = HalfOpen::new(stream, address, self.rendezvous.timeout);
                return self.half_open.push(client);
            }
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            // It is about this socket or process, so the next call would say the same.
            Some(
                Errno::MFILE
                | Errno::NFILE
                | Errno::NOBUFS
                | Errno::NOMEM
                | Errno::BADF
                | Errno::INVAL
                | Errno::NOTSOCK,
            )
            | None => {
                let failure = self.failed(error);
                self.failure.get_or_insert(failure);
            }
            // A client that has gone, or cannot be reached, and is no longer there; see `man 2 accept`.
            Some(_) => {}
        }
    }

    fn failed(&self, source: io::Error) -> ConnectError {
        ConnectError::Io { tried: format!("taking clients at {}", self.address), source }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}
