//! The TCP connection to the other process. It shows whether that process is still running, and why
//! it has ended.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::Kind;
use crate::error::Error;

/// The interval between two signs of life.
const BEAT: Duration = Duration::from_millis(500);
/// The number of beats without a frame from the other process after which that process counts as
/// lost. This process counts its own beats instead of reading a clock, so that a time in which it
/// was itself stopped does not count.
const PATIENCE: u32 = 20;
/// The number of beats that the other process has to close its side.
const CLOSING: u32 = 4;
/// The time limit for the other process to report the cause of an RDMA failure.
const CAUSE: Duration = Duration::from_secs(2);

/// The connection. A thread reads all frames that the other process sends.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
    received: Mutex<Received>,
    news: Condvar,
    /// Whether `received` contains a failure.
    ended: AtomicBool,
    /// Whether this process has reported why it ends. The lock is held while a frame is sent.
    reported: Mutex<bool>,
    /// Whether this process will send nothing more.
    closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Received {
    frames: [Option<Vec<u8>>; Kind::COUNT],
    failure: Option<Error>,
}

impl Line {
    /// Runs `side` with a connection to the other process. Reports a failure to the other process.
    ///
    /// # Errors
    /// Returns the error of `side`, or that of the other process if it is the cause.
    pub(crate) fn run<T>(
        stream: TcpStream,
        side: impl FnOnce(&Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let prepared = stream.set_nodelay(true).and_then(|()| {
            stream.set_write_timeout(Some(BEAT))?;
            stream.set_read_timeout(Some(BEAT))
        });
        prepared.map_err(Error::Line)?;
        let line = Self {
            stream,
            received: Mutex::default(),
            news: Condvar::new(),
            ended: AtomicBool::new(false),
            reported: Mutex::new(false),
            closing: AtomicBool::new(false),
        };
        thread::scope(|threads| {
            threads.spawn(|| line.listen());
            let _closing = Closing(&line);
            side(&line).map_err(|error| {
                let error = line.cause(error);
                line.report(&error);
                error
            })
        })
    }

    /// Returns the addresses of this end and of the other one.
    ///
    /// # Errors
    /// Returns [`Error::Line`] if the stream has ended.
    pub(crate) fn addresses(&self) -> Result<(IpAddr, IpAddr), Error> {
        let both = self.stream.local_addr().and_then(|own| Ok((own, self.stream.peer_addr()?)));
        both.map(|(own, peer)| (own.ip(), peer.ip())).map_err(Error::Line)
    }

    /// Returns true if the other process is known to have ended, or has reported why it ends.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Returns [`Error::OtherSide`] if the other process has ended. The thread that reads will find
    /// out why.
    pub(crate) fn send(&self, kind: Kind, bytes: &[u8]) -> Result<(), Error> {
        let _one_at_a_time = unpoisoned(self.reported.lock());
        (&self.stream).write_all(&kind.frame(bytes)).map_err(|_| Error::OtherSide)
    }

    /// Reports why this process ends. Does nothing if it has already reported that, or if the other
    /// process has ended or failed.
    pub(crate) fn report(&self, error: &Error) {
        let mut reported = unpoisoned(self.reported.lock());
        if !*reported && !self.has_ended() {
            *reported = true;
            // If this fails, the other process has ended.
            let _ = (&self.stream).write_all(&Kind::Failed.frame(error.to_string().as_bytes()));
        }
    }

    /// Returns the bytes of the last frame of this kind, if one has arrived since the previous
    /// call.
    pub(crate) fn take(&self, kind: Kind) -> Option<Vec<u8>> {
        self.received().frames.get_mut(kind as usize).and_then(Option::take)
    }

    /// Waits until a frame of this kind has arrived. Returns its bytes.
    ///
    /// # Errors
    /// Returns [`Error::OtherSide`] if the other process ends first, [`Error::Cancelled`], or
    /// [`Error::Stalled`].
    pub(crate) fn wait(
        &self,
        kind: Kind,
        cancelled: &AtomicBool,
        patience: Duration,
    ) -> Result<Vec<u8>, Error> {
        let begin = Instant::now();
        loop {
            if let Some(bytes) = self.take(kind) {
                return Ok(bytes);
            }
            if self.has_ended() {
                return Err(Error::OtherSide);
            }
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if begin.elapsed() > patience {
                return Err(Error::Stalled { patience });
            }
            let received = self.received();
            if received.frames.get(kind as usize).is_some_and(Option::is_none)
                && received.failure.is_none()
            {
                drop(self.news.wait_timeout(received, BEAT / 5)); // signals do not wake this wait
            }
        }
    }

    /// If the error may be a consequence of the other process having ended, waits until that
    /// process's failure is known, and returns the failure instead. Returns `error` if none becomes
    /// known within [`CAUSE`].
    fn cause(&self, error: Error) -> Error {
        if !error.may_be_consequence() {
            return error;
        }
        let received = self.received();
        let unknown = |received: &mut Received| received.failure.is_none();
        let (mut received, _) = unpoisoned(self.news.wait_timeout_while(received, CAUSE, unknown));
        received.failure.take().unwrap_or(error)
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        unpoisoned(self.received.lock())
    }

    /// Reads frames until the other process ends, and sends signs of life. Records the failure of
    /// the other process, if any.
    fn listen(&self) {
        let failure = self.listen_to_the_end().err();
        if let Some(failure) = failure {
            self.received().failure = Some(failure);
            self.ended.store(true, Ordering::Release);
            self.news.notify_all();
        }
    }

    fn listen_to_the_end(&self) -> Result<(), Error> {
        let (mut unread, mut next_beat) = (Vec::new(), Instant::now());
        let (mut silent, mut closing) = (0, 0);
        loop {
            let mut buffer = [0; 1024];
            match (&self.stream).read(&mut buffer) {
                Ok(0) => return Err(Error::Ended),
                Ok(count) => {
                    silent = 0;
                    unread.extend(buffer.iter().take(count));
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Err(Error::Ended),
                    _ => return Err(Error::Line(error)),
                },
            }
            while let Some((kind, bytes)) = Kind::take(&mut unread)? {
                if kind == Kind::Failed {
                    return Err(Error::Reported(String::from_utf8_lossy(&bytes).into_owned()));
                }
                if let Some(place) = self.received().frames.get_mut(kind as usize) {
                    *place = Some(bytes);
                }
                self.news.notify_all();
            }
            if Instant::now() < next_beat {
                continue;
            }
            next_beat = Instant::now() + BEAT;
            silent += 1;
            if self.closing.load(Ordering::Acquire) {
                closing += 1;
                if closing > CLOSING {
                    return Ok(());
                }
            } else if silent > PATIENCE {
                return Err(Error::Silent { patience: PATIENCE * BEAT });
            } else {
                // If this fails, the other process has ended, which the next read will report.
                let _ = self.send(Kind::Alive, &[]);
            }
        }
    }
}

/// When dropped, closes the sending direction, so that the reading threads of both processes end.
struct Closing<'a>(&'a Line);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::Release);
        let _ = self.0.stream.shutdown(Shutdown::Write); // it may already be closed
    }
}

/// Ignores poisoning, because a panic in another thread leaves no inconsistent state.
fn unpoisoned<T>(locked: Result<T, PoisonError<T>>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
