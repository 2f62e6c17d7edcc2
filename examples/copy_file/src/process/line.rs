//! The TCP connection to the other process, which tells whether that is there, and why not.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::Kind;
use crate::error::Error;

/// How often a process says that it runs.
const BEAT: Duration = Duration::from_millis(500);
/// After so many beats of this process without a word of the other one, that is given up. They are counted
/// here and not read from a clock: a process that was stopped itself has not waited.
const PATIENCE: u32 = 20;
/// How many beats the other one has for its end.
const CLOSING: u32 = 4;
/// How long one waits for the cause of what went wrong with RDMA.
const CAUSE: Duration = Duration::from_secs(2);

/// What the other process says, all of which a thread reads.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
    heard: Mutex<Heard>,
    news: Condvar,
    /// `heard` has a failure.
    over: AtomicBool,
    /// Whoever sends holds it; whether this process has told why it ends.
    told: Mutex<bool>,
    /// This process says no more.
    closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Heard {
    said: [Option<Vec<u8>>; Kind::COUNT],
    failure: Option<Error>,
}

impl Line {
    /// Runs `side` with a line to the other process, which learns how it ends.
    ///
    /// # Errors
    /// Those of `side`, and if they may come from the other process's end, what is known of that.
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
            heard: Mutex::default(),
            news: Condvar::new(),
            over: AtomicBool::new(false),
            told: Mutex::new(false),
            closing: AtomicBool::new(false),
        };
        thread::scope(|threads| {
            threads.spawn(|| line.listen());
            let _closing = Closing(&line);
            side(&line).map_err(|error| {
                let error = line.cause(error);
                line.tell(&error);
                error
            })
        })
    }

    /// This end's and the other one's.
    ///
    /// # Errors
    /// [`Error::Line`] if the stream has ended.
    pub(crate) fn addresses(&self) -> Result<(IpAddr, IpAddr), Error> {
        let both = self.stream.local_addr().and_then(|own| Ok((own, self.stream.peer_addr()?)));
        both.map(|(own, peer)| (own.ip(), peer.ip())).map_err(Error::Line)
    }

    /// Whether the other process is known to have ended, or has said that the copy ends.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Says something.
    ///
    /// # Errors
    /// [`Error::OtherSide`] if nobody is there; the thread that listens knows more.
    pub(crate) fn say(&self, kind: Kind, bytes: &[u8]) -> Result<(), Error> {
        let _one_at_a_time = unpoisoned(self.told.lock());
        (&self.stream).write_all(&kind.frame(bytes)).map_err(|_| Error::OtherSide)
    }

    /// Says why the copy ends, unless it has been said, or comes from the other process itself.
    pub(crate) fn tell(&self, error: &Error) {
        let mut told = unpoisoned(self.told.lock());
        if !*told && !self.is_over() {
            *told = true;
            // Who cannot be told has ended.
            let _ = (&self.stream).write_all(&Kind::Failed.frame(error.to_string().as_bytes()));
        }
    }

    /// What the other process has said, if it has.
    pub(crate) fn said(&self, kind: Kind) -> Option<Vec<u8>> {
        self.heard().said.get_mut(kind as usize).and_then(Option::take)
    }

    /// Waits until the other process has said something.
    ///
    /// # Errors
    /// [`Error::OtherSide`] if it ends before, [`Error::Cancelled`], [`Error::Stalled`].
    pub(crate) fn wait(
        &self,
        kind: Kind,
        cancelled: &AtomicBool,
        patience: Duration,
    ) -> Result<Vec<u8>, Error> {
        let begin = Instant::now();
        loop {
            if let Some(bytes) = self.said(kind) {
                return Ok(bytes);
            }
            if self.is_over() {
                return Err(Error::OtherSide);
            }
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if begin.elapsed() > patience {
                return Err(Error::Stalled { patience });
            }
            let heard = self.heard();
            if heard.said.get(kind as usize).is_some_and(Option::is_none) && heard.failure.is_none()
            {
                drop(self.news.wait_timeout(heard, BEAT / 5)); // a signal wakes nobody
            }
        }
    }

    /// Of an error that may only tell that the other process has ended, what is known of that.
    fn cause(&self, error: Error) -> Error {
        if !error.may_be_consequence() {
            return error;
        }
        let heard = self.heard();
        let unknown = |heard: &mut Heard| heard.failure.is_none();
        let (mut heard, _) = unpoisoned(self.news.wait_timeout_while(heard, CAUSE, unknown));
        heard.failure.take().unwrap_or(error)
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        unpoisoned(self.heard.lock())
    }

    /// Reads what the other process says until it ends, and says meanwhile that this one runs.
    fn listen(&self) {
        let failure = self.listen_to_the_end().err();
        if let Some(failure) = failure {
            self.heard().failure = Some(failure);
            self.over.store(true, Ordering::Release);
            self.news.notify_all();
        }
    }

    fn listen_to_the_end(&self) -> Result<(), Error> {
        let (mut came, mut next_beat) = (Vec::new(), Instant::now());
        let (mut silent, mut closing) = (0, 0);
        loop {
            let mut buffer = [0; 1024];
            match (&self.stream).read(&mut buffer) {
                Ok(0) => return Err(Error::Ended),
                Ok(count) => {
                    silent = 0;
                    came.extend(buffer.iter().take(count));
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Err(Error::Ended),
                    _ => return Err(Error::Line(error)),
                },
            }
            while let Some((kind, bytes)) = Kind::take(&mut came)? {
                if kind == Kind::Failed {
                    return Err(Error::Told(String::from_utf8_lossy(&bytes).into_owned()));
                }
                if let Some(place) = self.heard().said.get_mut(kind as usize) {
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
                // Who cannot be told has ended, which the next read tells.
                let _ = self.say(Kind::Alive, &[]);
            }
        }
    }
}

/// Says no more when it is dropped, so that both threads that listen end.
struct Closing<'a>(&'a Line);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::Release);
        let _ = self.0.stream.shutdown(Shutdown::Write); // it may be closed already
    }
}

/// The other threads do nothing that leaves something half done when they panic.
fn unpoisoned<T>(locked: Result<T, PoisonError<T>>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
