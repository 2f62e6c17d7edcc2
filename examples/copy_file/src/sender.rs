//! The side that reads the file and writes it to the memory of the other side.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};

use crc32fast::Hasher;
use rdma::channel::{Channel, InFlight, Prefix, Progress, Scope, TransportError};
use rdma::memory::{OwnedRegion, RemoteMemoryRegion, SliceMut};

use super::inbox::{Arrival, Inbox};
use super::message::{Kind, Trailer, immediate, kind_of};
use super::stop::{Meeting, Stop};
use super::{Error, Settings};

/// Reads the stream into its slots, and writes each slot to the receiver's slot with the same
/// index. Waits for credits when all slots are in use.
#[derive(Debug)]
pub(crate) struct Sender {
    channel: Channel,
    slots: OwnedRegion,
    /// The slots that the receiver lends.
    remote: RemoteMemoryRegion,
    settings: Settings,
}

impl Sender {
    pub(crate) fn new(
        channel: Channel,
        slots: OwnedRegion,
        remote: RemoteMemoryRegion,
        settings: Settings,
    ) -> Self {
        Self { channel, slots, remote, settings }
    }

    pub(crate) fn registered_bytes(&self) -> usize {
        self.slots.len()
    }

    /// Sends everything from the source, and then the trailer. Returns when the receiver has
    /// confirmed the trailer.
    pub(crate) fn run(&mut self, source: &mut dyn Read, stop: &Stop<'_>) -> Result<Trailer, Error> {
        let Self { channel, slots, remote, settings } = self;
        channel.manual_scope(|scope| {
            let slots = slots.as_slice_mut();
            stop.on_a_side(scope, || {
                Sending::new(scope, slots, *remote, *settings).run(source, stop)
            })
        })
    }
}

/// A transfer in progress.
struct Sending<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    inbox: Inbox<'scope>,
    /// The free slots. Slots are used in turn, and also become free in that order.
    free: VecDeque<SliceMut<'scope>>,
    in_flight: VecDeque<InFlight<'scope, Prefix<'scope>>>,
    remote: RemoteMemoryRegion,
    settings: Settings,
    sent: u64,
    credits: u64,
}

impl<'scope, 'env> Sending<'scope, 'env> {
    fn new(
        scope: &'scope Scope<'scope, 'env>,
        mut slots: SliceMut<'scope>,
        remote: RemoteMemoryRegion,
        settings: Settings,
    ) -> Self {
        let depth = settings.depth();
        let mut free = VecDeque::with_capacity(depth);
        while slots.len() >= settings.chunk() {
            let (slot, rest) = slots.split_at(settings.chunk());
            free.push_back(slot);
            slots = rest;
        }
        let (inbox, in_flight) = (Inbox::new(depth), VecDeque::with_capacity(depth));
        Self { scope, inbox, free, in_flight, remote, settings, sent: 0, credits: 0 }
    }

    fn run(mut self, source: &mut dyn Read, stop: &Stop<'_>) -> Result<Trailer, Error> {
        stop.meet(Meeting::Begin)?;
        let mut hasher = Hasher::new();
        let mut bytes = 0;
        let mut slot = loop {
            let mut slot = self.free_slot(stop)?;
            let length = fill(source, &mut slot)?;
            if length == 0 {
                break slot;
            }
            hasher.update(&slot[..length]);
            bytes += length as u64;
            self.send(slot, Kind::Data, length)?;
        };
        let trailer = Trailer { bytes, crc32: hasher.finalize() };
        slot[..Trailer::SIZE].copy_from_slice(&trailer.to_bytes());
        self.send(slot, Kind::End, Trailer::SIZE)?;
        while self.credits < self.sent {
            self.take_credit(stop)?;
        }
        while !self.in_flight.is_empty() {
            self.take_slot_back(stop)?;
        }
        stop.meet(Meeting::End)?;
        Ok(trailer)
    }

    /// Returns the next slot. Waits until neither side is using it any more.
    fn free_slot(&mut self, stop: &Stop<'_>) -> Result<SliceMut<'scope>, Error> {
        stop.check()?;
        while self.sent - self.credits >= self.settings.depth() as u64 {
            self.take_credit(stop)?;
        }
        loop {
            if let Some(slot) = self.free.pop_front() {
                return Ok(slot);
            }
            self.take_slot_back(stop)?;
        }
    }

    /// Writes the first `length` bytes of a slot to the receiver's slot with the same index.
    fn send(&mut self, slot: SliceMut<'scope>, kind: Kind, length: usize) -> Result<(), Error> {
        let place = usize::try_from(self.sent % self.settings.depth() as u64).unwrap_or(0);
        let start = place * self.settings.chunk();
        let remote = self.remote.slice(start..start + length).ok_or(Error::TooLong { length })?;
        let filled = Prefix::new(slot, length).map_err(|_| Error::TooLong { length })?;
        let immediate = immediate(kind, self.sent);
        self.inbox.post(self.scope)?; // for the credit
        let write = self.scope.write_from_with(filled, remote, |w| w.with_immediate(immediate));
        self.in_flight.push_back(write.map_err(TransportError::from)?);
        self.sent += 1;
        Ok(())
    }

    fn take_credit(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        let Arrival { immediate, .. } = self.inbox.next(stop)?;
        match kind_of(immediate, self.credits)? {
            Kind::Credit => self.credits += 1,
            kind => return Err(Error::Protocol(format!("a {kind} arrived at the sender"))),
        }
        Ok(())
    }

    /// Waits until the device has finished with the oldest slot in flight. Makes the slot free.
    fn take_slot_back(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        let written = stop.until(|| match self.in_flight.pop_front()?.poll() {
            Progress::Done(finished) => Some(finished.ok()),
            Progress::Pending(write) => {
                self.in_flight.push_front(write);
                None
            }
            Progress::Dead(late) => Some(Err(late.error)),
        })?;
        self.free.push_back(written?.0.into_whole());
        Ok(())
    }
}

/// Reads into the slot until it is full or the stream ends. Returns the number of bytes.
fn fill(source: &mut dyn Read, slot: &mut [u8]) -> Result<usize, Error> {
    let mut filled = 0;
    while filled < slot.len() {
        match source.read(&mut slot[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Read(error)),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use rdma::channel::ScopeError;
    use rdma::qp::{ReceiveWorkRequest, WorkErrorClass};
    use rdma::soft::{Builder, Schedule};

    use super::*;
    use crate::connect::connect;

    #[test]
    fn a_slot_is_not_handed_out_while_it_is_in_flight() {
        let device = Builder::new("held_slots").schedule(Schedule::Held).install().unwrap();
        let cancelled = AtomicBool::new(false);
        let stop = Stop::new(&cancelled, Duration::ZERO);
        let settings = Settings::new(64, 2).unwrap();
        let (mut near, mut far) = connect("held_slots", settings).unwrap();
        let ended = far.channel.scope(|far| {
            for _ in 0..2 {
                far.post_receive(ReceiveWorkRequest::only_immediate()).unwrap();
            }
            near.channel.scope(|scope| {
                let slots = near.slots.as_slice_mut();
                let mut sending = Sending::new(scope, slots, near.remote, settings);
                for byte in [1, 2] {
                    let mut slot = sending.free_slot(&stop).unwrap();
                    slot.fill(byte);
                    sending.send(slot, Kind::Data, 64).unwrap();
                }
                sending.credits = 2;
                assert!(matches!(sending.free_slot(&stop), Err(Error::Stalled { .. })));

                assert_eq!(device.release_all(), 2, "both were in flight");
                assert_eq!(sending.free_slot(&stop).unwrap()[..], [1; 64]);
                scope.close();
                Ok::<_, Error>(())
            })?;
            far.close();
            Ok::<_, ScopeError<Error>>(())
        });
        ended.unwrap();
    }

    #[test]
    fn a_flushed_request_reports_the_failure_that_caused_the_flush() {
        rdma::soft::install();
        let settings = Settings::new(64, 2).unwrap();
        let (mut near, _far) = connect("soft0", settings).unwrap(); // `_far` has no receive posted
        let cancelled = AtomicBool::new(false);
        let stop = Stop::new(&cancelled, Duration::from_secs(10));
        let ended = near.channel.scope(|scope| {
            stop.on_a_side(scope, || {
                let slots = near.slots.as_slice_mut();
                let mut sending = Sending::new(scope, slots, near.remote, settings);
                let slot = sending.free_slot(&stop)?;
                sending.send(slot, Kind::Data, 64)?;
                sending.take_credit(&stop) // the receive for it is flushed
            })
        });
        assert!(ended.is_err());
        let Err(Error::Completion(error)) = stop.into_result() else { panic!("{ended:?}") };
        assert_eq!(error.class(), WorkErrorClass::Transport, "{error}");
    }
}
