//! Sends and receives a message at the same time.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::{ExchangeError, PREFACE, TimedStream, VERSION};

/// The capacity of the smallest pipe.
const BLOCK: usize = 4096;

/// Sends a message and returns the peer's message. The peer's preface must equal this end's preface, so both messages
/// have the same length.
///
/// The message is transferred in blocks. The stream can hold a whole block that the peer has not read yet, so this end
/// always gets to read the peer's block.
pub(super) fn swap(
    stream: &mut dyn TimedStream,
    own: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, ExchangeError> {
    let mut theirs = vec![0; own.len()];
    let mut transfer =
        Transfer { stream, own, sent: 0, received: 0, begin: Instant::now(), timeout, over: false };
    while transfer.received < own.len() {
        let end = own.len().min(transfer.received + BLOCK);
        let sent = transfer.send(end);
        // A peer that stopped reading may have sent bytes that show the reason. Receiving them leads to a better error.
        transfer.over = sent.is_err();
        match (sent, transfer.receive(&mut theirs, end)) {
            (Err(error), Ok(()) | Err(ExchangeError::Timeout { .. })) => return Err(error),
            (_, received) => received?,
        }
    }
    Ok(theirs)
}

struct Transfer<'a> {
    stream: &'a mut dyn TimedStream,
    own: &'a [u8],
    sent: usize,
    received: usize,
    begin: Instant,
    timeout: Duration,
    /// Whether to act as if the time had expired, whatever the clock shows.
    over: bool,
}

impl Transfer<'_> {
    /// Sends the bytes up to `end`.
    fn send(&mut self, end: usize) -> Result<(), ExchangeError> {
        while self.sent < end {
            let rest = self.own.get(self.sent..end).unwrap_or_default();
            let time = self.left();
            let outcome = self.stream.write_within(rest, time);
            self.sent += self.count(outcome, rest.len())?;
        }
        Ok(())
    }

    /// Receives bytes up to `end`. Stops as soon as they differ from what is expected.
    fn receive(&mut self, theirs: &mut [u8], end: usize) -> Result<(), ExchangeError> {
        while self.received < end {
            let rest = theirs.get_mut(self.received..end).unwrap_or_default();
            let (most, time) = (rest.len(), self.left());
            let outcome = self.stream.read_within(rest, time);
            self.received += self.count(outcome, most)?;
            check(self.own, theirs.get(..self.received).unwrap_or_default())?;
        }
        Ok(())
    }

    fn left(&self) -> Duration {
        match self.over {
            true => Duration::ZERO,
            false => self.timeout.saturating_sub(self.begin.elapsed()),
        }
    }

    /// Returns the number of bytes transferred; 0 if the operation should be retried.
    fn count(&self, outcome: io::Result<usize>, most: usize) -> Result<usize, ExchangeError> {
        let Self { sent, received, timeout, .. } = *self;
        let expected = self.own.len();
        let closed = ExchangeError::Closed { sent, received, expected };
        let late = ExchangeError::Timeout { timeout, sent, received, expected };
        match outcome {
            Ok(0) => Err(closed),
            Ok(count) => Ok(count.min(most)),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted if !self.left().is_zero() => Ok(0),
                ErrorKind::Interrupted | ErrorKind::TimedOut | ErrorKind::WouldBlock => Err(late),
                ErrorKind::BrokenPipe
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::UnexpectedEof
                | ErrorKind::WriteZero => Err(closed),
                _ => Err(error.into()),
            },
        }
    }
}

/// Rejects a message as soon as its beginning cannot match this end's message.
fn check(own: &[u8], theirs: &[u8]) -> Result<(), ExchangeError> {
    let (magic, expected) = (theirs.get(..4).unwrap_or(theirs), own.get(..4).unwrap_or(own));
    if !expected.starts_with(magic) {
        let (received, expected) = (theirs.get(..SHOWN).unwrap_or(theirs), expected);
        return Err(ExchangeError::Foreign {
            received: received.to_vec(),
            expected: expected.to_vec(),
        });
    }
    if let Some(found) = number(theirs, 4).filter(|&found| found != VERSION) {
        return Err(ExchangeError::Version { found });
    }
    match (number(own, 6), number(theirs, 6)) {
        (Some(own), Some(peer)) if own != peer => Err(ExchangeError::Count { own, peer }),
        _ => Ok(()),
    }
}

/// The maximum number of foreign bytes that an error shows.
const SHOWN: usize = 32;

fn number(preface: &[u8], at: usize) -> Option<u16> {
    let bytes = preface.get(at..PREFACE.min(at + 2))?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}
