//! Ends one side of a transfer when the other has failed, and limits the time of every wait.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, thread};

use rdma::channel::Scope;

use super::Error;
use super::process::frame::Kind;
use super::process::line::Line;

/// The first failure of a transfer, or its cancellation. Either ends both sides.
#[derive(Debug)]
pub(crate) struct Stop<'a> {
    /// Set by the caller to cancel the transfer.
    cancelled: &'a AtomicBool,
    patience: Duration,
    stopped: AtomicBool,
    first: Mutex<Option<Error>>,
    other: Other<'a>,
}

/// The kind of the other side.
#[derive(Debug)]
enum Other<'a> {
    /// A thread that uses the same `Stop`. The number counts the arrivals of both sides at
    /// meetings.
    Thread(AtomicU32),
    Process(&'a Line),
}

/// The points of a transfer at which the two sides wait for each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meeting {
    /// The side has posted its first receives.
    Begin = 1,
    /// The side no longer needs the other end of the connection. Without this meeting, a side could
    /// end before its last acknowledgement has arrived at the other side.
    End = 2,
}

impl<'a> Stop<'a> {
    pub(crate) fn new(cancelled: &'a AtomicBool, patience: Duration) -> Self {
        Self::with(cancelled, patience, Other::Thread(AtomicU32::new(0)))
    }

    /// Creates the `Stop` of a side whose other side is another process.
    pub(crate) fn between_processes(
        cancelled: &'a AtomicBool,
        patience: Duration,
        line: &'a Line,
    ) -> Self {
        Self::with(cancelled, patience, Other::Process(line))
    }

    fn with(cancelled: &'a AtomicBool, patience: Duration, other: Other<'a>) -> Self {
        let stopped = AtomicBool::new(false);
        Self { cancelled, patience, stopped, first: Mutex::new(None), other }
    }

    /// Ends the transfer with this error. Of several errors, keeps the first one that is not merely
    /// a consequence.
    pub(crate) fn fail(&self, error: Error) {
        if let (Other::Process(line), false) = (&self.other, error.may_be_consequence()) {
            line.report(&error);
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(Error::is_consequence) {
            *first = Some(error);
        }
        self.stopped.store(true, Ordering::Release);
    }

    /// Returns an error if the transfer must end.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let other_ended = matches!(self.other, Other::Process(line) if line.has_ended());
        match other_ended || self.stopped.load(Ordering::Acquire) {
            true => Err(Error::OtherSide),
            false => Ok(()),
        }
    }

    /// Calls `ready` until it returns a value. `ready` must not block.
    pub(crate) fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Result<T, Error> {
        let mut wait = Wait::new(self);
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            wait.pause()?;
        }
    }

    /// Waits until the other side has arrived at the same meeting.
    pub(crate) fn meet(&self, meeting: Meeting) -> Result<(), Error> {
        match &self.other {
            Other::Thread(met) => {
                let both = 2 * meeting as u32;
                met.fetch_add(1, Ordering::AcqRel);
                self.until(|| (met.load(Ordering::Acquire) >= both).then_some(()))
            }
            Other::Process(line) => {
                let kind = match meeting {
                    Meeting::Begin => Kind::Begin,
                    Meeting::End => Kind::End,
                };
                line.send(kind, &[])?;
                self.until(|| line.take(kind).map(drop))
            }
        }
    }

    /// Runs a side in its scope. If the side fails or panics, ends the other side too.
    ///
    /// The failure is recorded before the channel is closed. So errors that the closed channel
    /// causes on the other side do not count as the cause.
    pub(crate) fn on_a_side<T>(
        &self,
        scope: &Scope<'_, '_>,
        run: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _end = EndOfSide { stop: self, scope };
        run().map_err(|error| {
            self.fail(error.or_cause(scope.closed()));
            Error::OtherSide
        })
    }

    /// Returns the error that caused the transfer to fail, if it failed.
    pub(crate) fn into_result(self) -> Result<(), Error> {
        let first = self.first.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map_or(Ok(()), Err)
    }
}

/// When dropped, ends the transfer if this side has panicked. In any case, ends the requests that
/// this side still has in flight, because they are of no use any more.
struct EndOfSide<'a, 'scope, 'env> {
    stop: &'a Stop<'a>,
    scope: &'a Scope<'scope, 'env>,
}

impl Drop for EndOfSide<'_, '_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.stop.fail(Error::OtherSide);
        }
        self.scope.close();
    }
}

/// The number of empty polls after which the thread yields: about as long as a message between two
/// cores takes.
const SPINS: u32 = 256;

/// The state of one wait.
struct Wait<'a> {
    stop: &'a Stop<'a>,
    spins: u32,
    since: Option<Instant>,
}

impl<'a> Wait<'a> {
    fn new(stop: &'a Stop<'a>) -> Self {
        Self { stop, spins: 0, since: None }
    }

    /// Pauses for a moment after an empty poll. Returns an error if there is a reason to give up.
    fn pause(&mut self) -> Result<(), Error> {
        if self.spins < SPINS {
            self.spins += 1;
            hint::spin_loop();
            return Ok(());
        }
        self.stop.check()?;
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.stop.patience {
            return Err(Error::Stalled { patience: self.stop.patience });
        }
        thread::yield_now();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    #[test]
    fn the_first_failure_is_the_cause_and_ends_every_wait() {
        let stop = Stop::new(&NEVER, Duration::MAX);
        assert!(stop.check().is_ok());
        let mut wait = Wait::new(&stop);
        stop.fail(Error::Protocol("first".to_owned()));
        stop.fail(Error::Protocol("second".to_owned()));
        let ended = (0..=SPINS).find_map(|_| wait.pause().err());
        assert!(matches!(ended, Some(Error::OtherSide)));
        assert!(stop.into_result().unwrap_err().to_string().contains("first"));
    }

    #[test]
    fn a_cancelled_transfer_ends() {
        let cancelled = AtomicBool::new(false);
        let stop = Stop::new(&cancelled, Duration::MAX);
        assert!(stop.check().is_ok());
        cancelled.store(true, Ordering::Relaxed);
        assert!(matches!(stop.check(), Err(Error::Cancelled)));
    }
}
