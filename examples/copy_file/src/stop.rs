//! How one side learns that the other has failed, and that nothing waits without a limit.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, thread};

use rdma::channel::Scope;

use super::Error;
use super::process::frame::Kind;
use super::process::line::Line;

/// The first failure of a transfer, or the wish to end it: ends both sides.
#[derive(Debug)]
pub(crate) struct Stop<'a> {
    /// Set from outside.
    cancelled: &'a AtomicBool,
    patience: Duration,
    stopped: AtomicBool,
    first: Mutex<Option<Error>>,
    other: Other<'a>,
}

/// How the other side is met.
#[derive(Debug)]
enum Other<'a> {
    /// It is a thread, which has the same `Stop`. How many times a side came to a meeting.
    Thread(AtomicU32),
    Process(&'a Line),
}

/// Where the sides wait for each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meeting {
    /// The receiver has posted receives for messages.
    Begin = 1,
    /// Neither needs the other's end of the connection any more. Its own last acknowledgement may have been
    /// on its way when the other had all that it needs.
    End = 2,
}

impl<'a> Stop<'a> {
    pub(crate) fn new(cancelled: &'a AtomicBool, patience: Duration) -> Self {
        Self::with(cancelled, patience, Other::Thread(AtomicU32::new(0)))
    }

    /// That of one side, whose other side is another process.
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

    /// Ends the transfer. The first error that tells a cause is kept.
    pub(crate) fn fail(&self, error: Error) {
        if let (Other::Process(line), false) = (&self.other, error.may_be_consequence()) {
            line.tell(&error);
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(Error::is_consequence) {
            *first = Some(error);
        }
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether the transfer goes on.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let other_ended = matches!(self.other, Other::Process(line) if line.is_over());
        match other_ended || self.stopped.load(Ordering::Acquire) {
            true => Err(Error::OtherSide),
            false => Ok(()),
        }
    }

    /// Waits until `ready` gives something, which does not wait.
    pub(crate) fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Result<T, Error> {
        let mut wait = Wait::new(self);
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            wait.pause()?;
        }
    }

    /// Waits for the other side.
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
                line.say(kind, &[])?;
                self.until(|| line.said(kind).map(drop))
            }
        }
    }

    /// Runs a side in its scope; its failure, or its panic, ends the other.
    ///
    /// That is before its channel is closed: what the other finds then is no cause.
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

    /// The cause, if the transfer failed.
    pub(crate) fn into_result(self) -> Result<(), Error> {
        let first = self.first.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map_or(Ok(()), Err)
    }
}

/// Ends the transfer if its side panics, and in any case what the side has in flight: that is of no
/// use to anybody any more.
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

/// Empty polls before the core is offered to others: about what a message between two cores takes.
const SPINS: u32 = 256;

/// A wait for one thing.
struct Wait<'a> {
    stop: &'a Stop<'a>,
    spins: u32,
    since: Option<Instant>,
}

impl<'a> Wait<'a> {
    fn new(stop: &'a Stop<'a>) -> Self {
        Self { stop, spins: 0, since: None }
    }

    /// After a look in vain: a moment's pause, or the reason to give up.
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
