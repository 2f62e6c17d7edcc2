//! The exchange of endpoints between two processes over TCP, before an RDMA connection exists.
//!
//! Every wait has a time limit, because the peer may never connect, stall, exit early, or speak
//! another protocol.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::print;

/// The address of the other process, as part of a command line.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub struct Peer {
    /// Wait for the other process to connect to this address
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:18515")]
    listen: Option<String>,
    /// Connect to the other process, which listens at this address
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<String>,
}

impl Peer {
    /// Returns true if the command line gives the address of another process.
    #[must_use]
    pub const fn is_process(&self) -> bool {
        self.listen.is_some() || self.connect.is_some()
    }

    /// Connects to the other process within this time. Returns `None` if the command line gives no
    /// address.
    ///
    /// A listening process prints its address, because port 0 stands for any free port. A
    /// connecting process tries again until the other one listens.
    ///
    /// # Errors
    /// Returns any [`OutOfBandError`].
    pub fn meet(&self, wait: Duration) -> Result<Option<OutOfBand>, OutOfBandError> {
        Ok(self.meet_all(1, wait)?.pop())
    }

    /// Like [`meet`](Self::meet), but a listening process waits for `count` other processes. A
    /// connecting process still connects to one. Returns an empty list if the command line gives no
    /// address.
    ///
    /// # Errors
    /// Returns any [`OutOfBandError`].
    pub fn meet_all(&self, count: usize, wait: Duration) -> Result<Vec<OutOfBand>, OutOfBandError> {
        let deadline = after(wait);
        match (&self.listen, &self.connect) {
            (Some(address), _) => OutOfBand::listen_for(address, count, deadline),
            (None, Some(address)) => Ok(vec![OutOfBand::connect(address, deadline)?]),
            (None, None) => Ok(Vec::new()),
        }
    }
}

/// A TCP connection to the other process, or a pair of Unix sockets between two threads. The
/// deadline applies to receiving.
#[derive(Debug)]
pub struct OutOfBand {
    stream: TcpStream,
    deadline: Instant,
    listens: bool,
}

/// The reason why the processes could not exchange their endpoints.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutOfBandError {
    /// This address cannot be used to listen or to connect.
    #[error(
        "no connection at {address}: {source}; an address is HOST:PORT, such as 127.0.0.1:18515"
    )]
    Address {
        /// The address as the user has given it.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The other process did not connect in time.
    #[error(
        "no {more}process connected to {address} in time: start the other process with `--connect`"
    )]
    NobodyConnected {
        /// The address on which this process listened.
        address: String,
        /// "other " if at least one process has connected.
        more: &'static str,
    },
    /// The other process did not listen in time.
    #[error("no process is listening on {address}: start the other process with `--listen`")]
    NobodyListens {
        /// The address to which this process tried to connect.
        address: String,
    },
    /// The peer sent fewer bytes than expected: it speaks another protocol or has exited.
    #[error("the peer {then} after {} of {expected} bytes (\"{}\"): read its output",
        .got.len(), .got.escape_ascii())]
    Short {
        /// The bytes that arrived.
        got: Vec<u8>,
        /// The number of bytes that were expected.
        expected: usize,
        /// The event that occurred instead of the rest, such as `stalled`.
        then: &'static str,
    },
    /// The peer sent more bytes than expected: it speaks another protocol.
    #[error("the peer sent more than was agreed on: check that it is the same program")]
    Long,
    /// The peer neither finished nor exited in time.
    #[error("the peer did not finish in time")]
    Late,
    /// The address on which this process listens cannot be printed.
    #[error(transparent)]
    Output(io::Error),
    /// The connection between the processes failed.
    #[error("the connection between the processes failed: {0}")]
    Io(#[from] io::Error),
}

impl OutOfBand {
    /// Waits until one process has connected.
    ///
    /// # Errors
    /// Returns [`OutOfBandError::Address`], [`OutOfBandError::NobodyConnected`],
    /// [`OutOfBandError::Output`] or [`OutOfBandError::Io`].
    pub fn listen(address: &str, deadline: Instant) -> Result<Self, OutOfBandError> {
        let one = Self::listen_for(address, 1, deadline)?.pop();
        one.ok_or_else(|| nobody(address.to_owned(), &[]))
    }

    /// Waits until `count` processes are connected. A process that exits earlier is not counted.
    ///
    /// # Errors
    /// Returns [`OutOfBandError::Address`], [`OutOfBandError::NobodyConnected`],
    /// [`OutOfBandError::Output`] or [`OutOfBandError::Io`].
    pub fn listen_for(
        address: &str,
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<Self>, OutOfBandError> {
        let wrong = |source| OutOfBandError::Address { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?.to_string();
        print(&format!("listening on {address}")).map_err(OutOfBandError::Output)?;
        listener.set_nonblocking(true)?;
        let mut others: Vec<Self> = Vec::new();
        while others.len() < count {
            others.retain(|other| !other.has_ended(Duration::ZERO));
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    others.push(Self { stream, deadline, listens: true });
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            let mut news = vec![PollFd::new(&listener, PollFlags::IN)];
            news.extend(others.iter().map(|other| PollFd::new(&other.stream, PollFlags::RDHUP)));
            if !wait_for(&mut news, left(deadline))? {
                return Err(nobody(address, &others));
            }
        }
        Ok(others)
    }

    /// Creates both sides of a connection, for use by two threads. The first one is the listening
    /// side.
    ///
    /// # Errors
    /// Returns [`OutOfBandError::Io`].
    pub fn pair(wait: Duration) -> Result<[Self; 2], OutOfBandError> {
        let deadline = after(wait);
        let (here, there) = UnixStream::pair()?;
        let side = |stream, listens| {
            // Only operations that both kinds of sockets support are used on the stream.
            Self { stream: TcpStream::from(OwnedFd::from(stream)), deadline, listens }
        };
        Ok([side(here, true), side(there, false)])
    }

    /// Connects to the process that listens at this address, or that does so before the deadline.
    ///
    /// # Errors
    /// Returns [`OutOfBandError::Address`], [`OutOfBandError::NobodyListens`] or
    /// [`OutOfBandError::Io`].
    pub fn connect(address: &str, deadline: Instant) -> Result<Self, OutOfBandError> {
        let wrong = |source| OutOfBandError::Address { address: address.to_owned(), source };
        let places: Vec<_> = address.to_socket_addrs().map_err(wrong)?.collect();
        loop {
            for place in &places {
                match TcpStream::connect_timeout(place, left(deadline)) {
                    // If no process listens, TCP may connect the port to itself.
                    Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
                    Ok(stream) => return Ok(Self { stream, deadline, listens: false }),
                    Err(error) => match error.kind() {
                        // A listener that exits before it accepts the connection resets it.
                        ErrorKind::ConnectionRefused
                        | ErrorKind::ConnectionReset
                        | ErrorKind::TimedOut => {}
                        _ => return Err(wrong(error)),
                    },
                }
            }
            if Instant::now() >= deadline {
                return Err(OutOfBandError::NobodyListens { address: address.to_owned() });
            }
            // No event reports that a process has begun to listen.
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sets the deadline for receiving to this time from now.
    pub fn limit(&mut self, wait: Duration) {
        self.deadline = after(wait);
    }

    /// Returns true if this process listened, and the other one connected to it.
    #[must_use]
    pub const fn listens(&self) -> bool {
        self.listens
    }

    /// Returns the addresses of this end and of the other one. The ends use them to find GIDs on
    /// their common network. Returns `None` for two threads, which have no addresses.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        Some((self.stream.local_addr().ok()?.ip(), self.stream.peer_addr().ok()?.ip()))
    }

    /// Returns true if the other process has exited or closed its direction of the stream, or does
    /// so within this time.
    #[must_use]
    pub fn has_ended(&self, wait: Duration) -> bool {
        let mut end = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        wait_for(&mut end, wait).unwrap_or(false)
    }

    /// Returns the stream between the processes.
    #[must_use]
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns the stream between the processes, for a caller that enforces deadlines by other
    /// means.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends `own` to the peer, and calls `connect` with the bytes that the peer sends.
    ///
    /// The listening side connects first and then answers, so the other side's first message finds
    /// a queue pair that is ready for it. The listening side answers even if it could not connect,
    /// so that the peer can detect the mismatch too.
    ///
    /// # Errors
    /// Returns any [`OutOfBandError`], or the error of `connect`.
    pub fn exchange<const N: usize, T, E: From<OutOfBandError>>(
        &mut self,
        own: &[u8; N],
        connect: impl FnOnce(&[u8; N]) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.listens {
            let connected = connect(&self.receive()?);
            self.send(own)?;
            connected
        } else {
            self.send(own)?;
            connect(&self.receive()?)
        }
    }

    /// Sends these bytes immediately.
    ///
    /// # Errors
    /// Returns [`OutOfBandError::Io`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), OutOfBandError> {
        Ok(self.stream.write_all(bytes)?) // a socket buffers far more bytes than this
    }

    /// Receives exactly `N` bytes.
    ///
    /// # Errors
    /// Returns [`OutOfBandError::Short`] or [`OutOfBandError::Io`].
    pub fn receive<const N: usize>(&mut self) -> Result<[u8; N], OutOfBandError> {
        let (mut bytes, mut filled) = ([0; N], 0);
        let then = loop {
            let rest = bytes.get_mut(filled..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(bytes);
            }
            match read(&mut self.stream, rest, self.deadline)? {
                Some(0) => break "closed the connection",
                Some(count) => filled += count,
                None => break "stalled",
            }
        };
        let got = bytes.get(..filled).unwrap_or_default().to_vec();
        Err(OutOfBandError::Short { got, expected: N, then })
    }

    /// Reports that this process has finished, and waits for up to `wait` until the peer has
    /// finished too. A process that exits earlier might not acknowledge the peer's last message.
    ///
    /// # Errors
    /// Returns [`OutOfBandError::Long`], [`OutOfBandError::Late`] or [`OutOfBandError::Io`].
    pub fn finish(mut self, wait: Duration) -> Result<(), OutOfBandError> {
        match self.stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() != ErrorKind::NotConnected => return Err(error.into()),
            _ => {}
        }
        match read(&mut self.stream, &mut [0], after(wait))? {
            Some(0) => Ok(()),
            Some(_) => Err(OutOfBandError::Long),
            None => Err(OutOfBandError::Late),
        }
    }
}

fn nobody(address: String, others: &[OutOfBand]) -> OutOfBandError {
    let more = if others.is_empty() { "" } else { "other " };
    OutOfBandError::NobodyConnected { address, more }
}

/// Returns true if an event occurs on one of these files within this time.
fn wait_for(files: &mut [PollFd<'_>], time: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(files, Some(&timeout)) {
        Ok(happened) => Ok(happened > 0),
        Err(rustix::io::Errno::INTR) => Ok(true), // the caller checks again
        Err(error) => Err(error.into()),
    }
}

/// Reads the bytes that are available. Returns `Some(0)` at the end of the stream, and `None` after
/// the deadline.
fn read(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<Option<usize>> {
    loop {
        stream.set_read_timeout(Some(left(deadline)))?;
        match stream.read(buffer) {
            Ok(count) => return Ok(Some(count)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Ok(None),
                ErrorKind::Interrupted => {}
                ErrorKind::ConnectionReset => return Ok(Some(0)),
                _ => return Err(error),
            },
        }
    }
}

/// Returns the time at which `wait` has passed. Limits `wait` to one year.
fn after(wait: Duration) -> Instant {
    Instant::now() + wait.min(Duration::from_secs(365 * 24 * 60 * 60))
}

/// Returns the time that remains until the deadline. It is at least a millisecond, so that bytes
/// that have already arrived can be read.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
