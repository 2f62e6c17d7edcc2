//! How two processes tell each other their endpoints, before there is RDMA between them: by TCP.
//!
//! Nothing here waits without a limit: not for a peer that does not come, nor for one that stalls,
//! closes early, or speaks something else.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::print;

/// Where the other process is; part of a command line.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub struct Peer {
    /// Wait here for the other process, which connects
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:18515")]
    listen: Option<String>,
    /// The other process, which listens there
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<String>,
}

impl Peer {
    /// Whether the command line names another process.
    #[must_use]
    pub const fn is_process(&self) -> bool {
        self.listen.is_some() || self.connect.is_some()
    }

    /// Meets the other process within that time; `None` if the command line names none.
    ///
    /// Who listens prints where, since port 0 is any that is free. Who connects tries again while nobody
    /// listens yet.
    ///
    /// # Errors
    /// Any [`OutOfBandError`].
    pub fn meet(&self, wait: Duration) -> Result<Option<OutOfBand>, OutOfBandError> {
        Ok(self.meet_all(1, wait)?.pop())
    }

    /// The same for who listens for so many processes. Who connects meets one. There is none if the command
    /// line names none.
    ///
    /// # Errors
    /// Any [`OutOfBandError`].
    pub fn meet_all(&self, count: usize, wait: Duration) -> Result<Vec<OutOfBand>, OutOfBandError> {
        let deadline = after(wait);
        match (&self.listen, &self.connect) {
            (Some(address), _) => OutOfBand::listen_for(address, count, deadline),
            (None, Some(address)) => Ok(vec![OutOfBand::connect(address, deadline)?]),
            (None, None) => Ok(Vec::new()),
        }
    }
}

/// A TCP connection to the other process, until a deadline.
#[derive(Debug)]
pub struct OutOfBand {
    stream: TcpStream,
    deadline: Instant,
    listens: bool,
}

/// Why the processes could not tell each other what they should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutOfBandError {
    /// No connection is possible at this address.
    #[error(
        "no connection at {address}: {source}; an address is HOST:PORT, such as 127.0.0.1:18515"
    )]
    Address {
        /// As it was given.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The other process did not connect.
    #[error(
        "nobody {more}connected to {address} in time: start the other process with `--connect`"
    )]
    NobodyConnected {
        /// Where this process listened.
        address: String,
        /// "else " if somebody did.
        more: &'static str,
    },
    /// The other process does not listen.
    #[error("nobody listens at {address}: start the other process with `--listen`")]
    NobodyListens {
        /// Where this process looked for it.
        address: String,
    },
    /// The peer speaks something else, or is gone.
    #[error("the peer {then} after {} of {expected} bytes (\"{}\"): what does it say itself?",
        .got.len(), .got.escape_ascii())]
    Short {
        /// What came.
        got: Vec<u8>,
        /// How many bytes were to come.
        expected: usize,
        /// What the peer did.
        then: &'static str,
    },
    /// The peer speaks something else.
    #[error("the peer sent more than was agreed on: is it the same program?")]
    Long,
    /// The peer neither finished nor ended.
    #[error("the peer did not finish in time")]
    Late,
    /// Where this process listens cannot be said.
    #[error(transparent)]
    Output(io::Error),
    /// The connection failed.
    #[error("the connection between the processes failed: {0}")]
    Io(#[from] io::Error),
}

impl OutOfBand {
    /// Waits for one process to connect.
    ///
    /// # Errors
    /// [`OutOfBandError::Address`], [`OutOfBandError::NobodyConnected`].
    pub fn listen(address: &str, deadline: Instant) -> Result<Self, OutOfBandError> {
        let one = Self::listen_for(address, 1, deadline)?.pop();
        one.ok_or_else(|| nobody(address.to_owned(), &[]))
    }

    /// Waits until so many processes are connected. One that ends meanwhile does not count.
    ///
    /// # Errors
    /// [`OutOfBandError::Address`], [`OutOfBandError::NobodyConnected`].
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

    /// Both sides of a connection, for two threads: who listens, who connects.
    ///
    /// # Errors
    /// [`OutOfBandError::Io`].
    pub fn pair(wait: Duration) -> Result<[Self; 2], OutOfBandError> {
        let deadline = after(wait);
        let (here, there) = UnixStream::pair()?;
        let side = |stream, listens| {
            // All that is done with the stream is the same for both kinds of sockets.
            Self { stream: TcpStream::from(OwnedFd::from(stream)), deadline, listens }
        };
        Ok([side(here, true), side(there, false)])
    }

    /// Connects to the process that listens there, or will do so before the deadline.
    ///
    /// # Errors
    /// [`OutOfBandError::Address`], [`OutOfBandError::NobodyListens`].
    pub fn connect(address: &str, deadline: Instant) -> Result<Self, OutOfBandError> {
        let wrong = |source| OutOfBandError::Address { address: address.to_owned(), source };
        let places: Vec<_> = address.to_socket_addrs().map_err(wrong)?.collect();
        loop {
            for place in &places {
                match TcpStream::connect_timeout(place, left(deadline)) {
                    // TCP connects a port with itself where nobody listens.
                    Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
                    Ok(stream) => return Ok(Self { stream, deadline, listens: false }),
                    Err(error) => match error.kind() {
                        // Reset is what a listener does that has not accepted, and goes.
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
            // Nothing tells when somebody begins to listen.
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it is the other process that connected.
    #[must_use]
    pub const fn listens(&self) -> bool {
        self.listens
    }

    /// This end's and the other one's, by which the ends find the network that they share. Two threads have none.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        Some((self.stream.local_addr().ok()?.ip(), self.stream.peer_addr().ok()?.ip()))
    }

    /// Whether the other process has ended, or does so within that time.
    #[must_use]
    pub fn has_ended(&self, wait: Duration) -> bool {
        let mut end = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        wait_for(&mut end, wait).unwrap_or(false)
    }

    /// What the processes talk through.
    #[must_use]
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The same, for who sees to deadlines by other means.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Tells the peer `own`, and connects with what it tells.
    ///
    /// Who listens connects first, and answers then: so what the other one sends as soon as it is connected
    /// finds a queue pair that is ready for it. It answers also if it failed, for the peer to find out
    /// as well what does not fit.
    ///
    /// # Errors
    /// Any [`OutOfBandError`], and what `connect` returns.
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

    /// Sends these bytes, at once.
    ///
    /// # Errors
    /// [`OutOfBandError::Io`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), OutOfBandError> {
        Ok(self.stream.write_all(bytes)?) // far less than what a socket holds without being read
    }

    /// Receives as many bytes as are agreed on.
    ///
    /// # Errors
    /// [`OutOfBandError::Short`], [`OutOfBandError::Io`].
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

    /// Says that this process has finished, and waits until the peer has, for so long at most: who leaves
    /// first would take its acknowledgement of the peer's last message along.
    ///
    /// # Errors
    /// [`OutOfBandError::Long`], [`OutOfBandError::Late`], [`OutOfBandError::Io`].
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
    let more = if others.is_empty() { "" } else { "else " };
    OutOfBandError::NobodyConnected { address, more }
}

/// Whether something happened to one of these within that time.
fn wait_for(files: &mut [PollFd<'_>], time: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(files, Some(&timeout)) {
        Ok(happened) => Ok(happened > 0),
        Err(rustix::io::Errno::INTR) => Ok(true), // it is for the caller to look
        Err(error) => Err(error.into()),
    }
}

/// What there is to read, nothing at the end of the stream; `None` when the deadline is over.
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

/// The time then, or in a year if it is later.
fn after(wait: Duration) -> Instant {
    Instant::now() + wait.min(Duration::from_secs(365 * 24 * 60 * 60))
}

/// The time until then, and a little in any case: what is there already is taken.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
