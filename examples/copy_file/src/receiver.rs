//! The side that lends its memory to the sender and writes the file.

use std::collections::VecDeque;
use std::io::Write;

use crc32fast::Hasher;
use rdma::channel::{Channel, Scope, ScopedPendingWork};
use rdma::memory::SharedRegion;
use rdma::qp::WriteWorkRequest;

use super::inbox::{Arrival, Inbox};
use super::message::{Kind, Trailer, immediate, kind_of};
use super::stop::{Meeting, Stop};
use super::{Control, Error, Settings};

/// Copies each chunk out of its slot, writes it, and frees the slot with a credit.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(super) channel: Channel,
    /// The slots to which the sender writes.
    slots: SharedRegion,
    settings: Settings,
}

impl Receiver {
    pub(crate) fn new(channel: Channel, slots: SharedRegion, settings: Settings) -> Self {
        Self { channel, slots, settings }
    }

    pub(crate) fn registered_bytes(&self) -> usize {
        self.slots.len()
    }

    /// Writes all chunks to `sink`, until the trailer confirms that they are complete and correct.
    /// Reports a failure to `stop`.
    pub(crate) fn run(&mut self, sink: &mut dyn Write, control: Control<'_>, stop: &Stop<'_>) {
        let Self { channel, slots, settings } = self;
        // The error is ignored here, because `stop` has recorded it.
        let _ = channel.scope(|scope| {
            stop.on_a_side(scope, || {
                Receiving::new(scope, slots, *settings).run(sink, control, stop)
            })
        });
    }
}

/// A transfer in progress.
struct Receiving<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    slots: &'scope SharedRegion,
    inbox: Inbox<'scope>,
    credits: VecDeque<ScopedPendingWork<'scope>>,
    /// A copy of the current chunk, in memory that is not registered.
    chunk: Vec<u8>,
    settings: Settings,
    /// The number of messages that have been processed.
    taken: u64,
}

impl<'scope, 'env> Receiving<'scope, 'env> {
    fn new(
        scope: &'scope Scope<'scope, 'env>,
        slots: &'scope SharedRegion,
        settings: Settings,
    ) -> Self {
        let (inbox, credits) =
            (Inbox::new(settings.depth()), VecDeque::with_capacity(settings.depth()));
        Self { scope, slots, inbox, credits, chunk: vec![0; settings.chunk()], settings, taken: 0 }
    }

    fn run(
        mut self,
        sink: &mut dyn Write,
        control: Control<'_>,
        stop: &Stop<'_>,
    ) -> Result<(), Error> {
        for _ in 0..self.settings.depth() {
            self.inbox.post(self.scope)?;
        }
        stop.meet(Meeting::Begin)?;
        let mut hasher = Hasher::new();
        let mut bytes = 0;
        loop {
            stop.check()?;
            let (kind, length) = self.next_message(stop)?;
            let chunk = self.take(length)?;
            if kind == Kind::End {
                check(chunk, Trailer { bytes, crc32: hasher.finalize() })?;
                sink.flush().map_err(Error::Write)?;
                self.give_credit(stop)?;
                while !self.credits.is_empty() {
                    self.credit_arrived(stop)?;
                }
                return stop.meet(Meeting::End);
            }
            (control.arrival)(bytes, chunk);
            hasher.update(chunk);
            sink.write_all(chunk).map_err(Error::Write)?;
            bytes += length as u64;
            (control.progress)(bytes);
            self.inbox.post(self.scope)?; // before the credit, because the sender then sends a message that needs it
            self.give_credit(stop)?;
        }
    }

    fn next_message(&mut self, stop: &Stop<'_>) -> Result<(Kind, usize), Error> {
        let Arrival { immediate, bytes } = self.inbox.next(stop)?;
        match kind_of(immediate, self.taken)? {
            Kind::Credit => Err(Error::Protocol("a credit arrived at the receiver".to_owned())),
            kind => Ok((kind, bytes)),
        }
    }

    /// Copies the next message from its slot, because the peer may still write to the slot.
    fn take(&mut self, length: usize) -> Result<&mut [u8], Error> {
        let slot = usize::try_from(self.taken % self.settings.depth() as u64).unwrap_or(0);
        let chunk = self.chunk.get_mut(..length).filter(|chunk| !chunk.is_empty());
        let chunk =
            chunk.ok_or_else(|| Error::Protocol(format!("it sent a chunk of {length} bytes")))?;
        let within = self.slots.read(slot * self.settings.chunk(), chunk);
        within.map_err(|error| Error::Protocol(error.to_string()))?;
        Ok(chunk)
    }

    /// Sends a credit, which is a write of no bytes with immediate data.
    fn give_credit(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        if self.credits.len() == self.settings.depth() {
            self.credit_arrived(stop)?;
        }
        let credit = WriteWorkRequest::only_immediate(immediate(Kind::Credit, self.taken));
        self.credits.push_back(self.scope.post_write(credit)?);
        self.taken += 1;
        Ok(())
    }

    /// Waits until the oldest credit has completed.
    fn credit_arrived(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        stop.until(|| self.credits.front().and_then(ScopedPendingWork::poll))??;
        self.credits.pop_front();
        Ok(())
    }
}

/// Compares the trailer that the sender has sent with the data that arrived.
fn check(trailer: &[u8], arrived: Trailer) -> Result<(), Error> {
    let length = trailer.len();
    let trailer = trailer
        .try_into()
        .map_err(|_| Error::Protocol(format!("it sent a trailer of {length} bytes")))?;
    let sent = Trailer::from_bytes(trailer);
    if sent == arrived {
        return Ok(());
    }
    Err(Error::Corrupt {
        expected: sent.crc32,
        found: arrived.crc32,
        expected_bytes: sent.bytes,
        bytes: arrived.bytes,
    })
}
