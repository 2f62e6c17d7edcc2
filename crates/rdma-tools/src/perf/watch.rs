//! The reasons to end a wait: the user has interrupted, the peer has left, or nothing happens for too long.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::perf::protocol::PATIENCE;

/// The reason to end a measurement early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    #[error("interrupted")]
    Interrupted,
    #[error("the peer closed the connection")]
    PeerLeft,
    #[error("nothing arrived from the peer for {} seconds: it may hang, or packets may be lost", PATIENCE.as_secs())]
    Late,
}

/// The reason for a failure of the connection to the peer.
pub(crate) fn lost(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            Stop::PeerLeft.into()
        }
        // The timeouts of the socket.
        ErrorKind::WouldBlock => Stop::Late.into(),
        _ => anyhow::Error::new(error).context("the connection to the peer failed"),
    }
}

/// Ends waits that no completion ends.
#[derive(Debug)]
pub(crate) struct Watch {
    stream: TcpStream,
    interrupted: Arc<AtomicBool>,
    /// Empty polls since the last success.
    empty: u32,
    /// The begin of the wait, once it was checked.
    since: Option<Instant>,
    checked: Instant,
}

impl Watch {
    /// The time between two checks.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(50);
    /// After this number of empty polls the clock is read, and other threads may have the processor.
    const SPINS: u32 = 1024;

    /// Watches the connection to the peer, and a flag that a signal sets.
    ///
    /// # Errors
    /// The process has too many files.
    pub(crate) fn new(stream: &TcpStream, interrupted: Arc<AtomicBool>) -> io::Result<Self> {
        let (stream, checked) = (stream.try_clone()?, Instant::now());
        Ok(Self { stream, interrupted, empty: 0, since: None, checked })
    }

    /// Begins a wait.
    #[inline]
    pub(crate) const fn begin(&mut self) {
        self.empty = 0;
        self.since = None;
    }

    /// Notes a poll that found nothing.
    ///
    /// # Errors
    /// A [`Stop`].
    #[inline]
    pub(crate) fn idle(&mut self) -> Result<(), Stop> {
        self.empty += 1;
        if self.empty < Self::SPINS {
            std::hint::spin_loop();
            return Ok(());
        }
        // Stays there, so that each further poll yields.
        self.empty = Self::SPINS;
        thread::yield_now();
        if self.checked.elapsed() < Self::INTERVAL {
            return Ok(());
        }
        self.check()
    }

    /// Returns an error if the wait is to end.
    ///
    /// # Errors
    /// A [`Stop`].
    pub(crate) fn check(&mut self) -> Result<(), Stop> {
        self.patience()?;
        match wait(&self.stream, PollFlags::RDHUP, Duration::ZERO) {
            Ok(true) => Err(Stop::PeerLeft),
            _ => Ok(()),
        }
    }

    /// Same as [`check`](Self::check), for a peer that may have left after it has sent all.
    ///
    /// # Errors
    /// A [`Stop`].
    pub(crate) fn patience(&mut self) -> Result<(), Stop> {
        self.interruption()?;
        let now = Instant::now();
        self.checked = now;
        match now.duration_since(*self.since.get_or_insert(now)) > PATIENCE {
            true => Err(Stop::Late),
            false => Ok(()),
        }
    }

    /// Returns an error if the user has interrupted.
    ///
    /// # Errors
    /// [`Stop::Interrupted`].
    #[inline]
    pub(crate) fn interruption(&self) -> Result<(), Stop> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Stop::Interrupted),
            false => Ok(()),
        }
    }

    /// Returns true if the stream can be read within that time.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn has_input(stream: &TcpStream, time: Duration) -> io::Result<bool> {
        wait(stream, PollFlags::IN, time)
    }
}

/// Returns true if the event happened within that time.
fn wait(stream: &TcpStream, event: PollFlags, time: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(stream, event)], Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false), // the caller looks for the reason
        Err(error) => Err(error.into()),
    }
}
