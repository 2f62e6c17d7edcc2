//! Decides when to stop waiting: if the user interrupts, the peer leaves, or nothing makes progress
//! for too long.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::perf::protocol::PATIENCE;

/// The reason why a measurement ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    #[error("interrupted")]
    Interrupted,
    #[error("the peer closed the connection")]
    PeerLeft,
    #[error("nothing arrived from the peer for {} seconds: it may hang, or packets may be lost", PATIENCE.as_secs())]
    Late,
}

/// Converts an error on the connection to the peer to the [`Stop`] that it means, if any.
pub(crate) fn lost(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            Stop::PeerLeft.into()
        }
        // The socket's time limit has passed.
        ErrorKind::WouldBlock => Stop::Late.into(),
        _ => anyhow::Error::new(error).context("the connection to the peer failed"),
    }
}

/// Ends a wait for completions or messages, for the reasons in [`Stop`].
#[derive(Debug)]
pub(crate) struct Watch {
    stream: TcpStream,
    interrupted: Arc<AtomicBool>,
    /// The number of empty polls since the wait started, at most `SPINS`.
    empty: u32,
    /// When the wait started. `None` until the clock is first read during the wait.
    since: Option<Instant>,
    checked: Instant,
}

impl Watch {
    /// The interval between checks whether a wait must end.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(50);
    /// The number of empty polls after which each further one yields the processor to other threads
    /// and may read the clock.
    const SPINS: u32 = 1024;

    /// Creates a watch for the connection to the peer and for `interrupted`, a flag that a signal
    /// handler sets.
    ///
    /// # Errors
    /// Returns an error if the process has too many open files.
    pub(crate) fn new(stream: &TcpStream, interrupted: Arc<AtomicBool>) -> io::Result<Self> {
        let (stream, checked) = (stream.try_clone()?, Instant::now());
        Ok(Self { stream, interrupted, empty: 0, since: None, checked })
    }

    /// Marks the start of a wait.
    #[inline]
    pub(crate) const fn begin(&mut self) {
        self.empty = 0;
        self.since = None;
    }

    /// Records a poll that found no completion.
    ///
    /// # Errors
    /// Returns a [`Stop`].
    #[inline]
    pub(crate) fn idle(&mut self) -> Result<(), Stop> {
        self.empty += 1;
        if self.empty < Self::SPINS {
            std::hint::spin_loop();
            return Ok(());
        }
        // The count stays at this value, so that every further poll yields too.
        self.empty = Self::SPINS;
        thread::yield_now();
        if self.checked.elapsed() < Self::INTERVAL {
            return Ok(());
        }
        self.check()
    }

    /// Checks whether the wait must end.
    ///
    /// # Errors
    /// Returns a [`Stop`] if so.
    pub(crate) fn check(&mut self) -> Result<(), Stop> {
        self.patience()?;
        match wait(&self.stream, PollFlags::RDHUP, Duration::ZERO) {
            Ok(true) => Err(Stop::PeerLeft),
            _ => Ok(()),
        }
    }

    /// Like [`check`](Self::check), except that the peer may have left after it sent everything.
    ///
    /// # Errors
    /// Returns a [`Stop`].
    pub(crate) fn patience(&mut self) -> Result<(), Stop> {
        self.interruption()?;
        let now = Instant::now();
        self.checked = now;
        match now.duration_since(*self.since.get_or_insert(now)) > PATIENCE {
            true => Err(Stop::Late),
            false => Ok(()),
        }
    }

    /// Checks whether the user has interrupted the measurement.
    ///
    /// # Errors
    /// Returns [`Stop::Interrupted`].
    #[inline]
    pub(crate) fn interruption(&self) -> Result<(), Stop> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Stop::Interrupted),
            false => Ok(()),
        }
    }

    /// Returns true if the stream becomes readable within this time.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(crate) fn has_input(stream: &TcpStream, time: Duration) -> io::Result<bool> {
        wait(stream, PollFlags::IN, time)
    }
}

/// Returns true if the event occurs on the stream within this time.
fn wait(stream: &TcpStream, event: PollFlags, time: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(stream, event)], Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false), // a signal; the caller checks what it was
        Err(error) => Err(error.into()),
    }
}
