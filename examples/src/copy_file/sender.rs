//! The side that reads the file and writes it into the other's memory.

use std::io::{ErrorKind, Read};

use crc32fast::Hasher;
use rdma_mem::RemoteMemoryRegion;

use super::connection::{Arrival, Connection};
use super::message::{Kind, Trailer, immediate, kind_of};
use super::stop::Stop;
use super::{Error, Settings};

/// Reads the stream into its slots, writes each into the same slot of the receiver, and waits for
/// credits when all slots are in use.
#[derive(Debug)]
pub(crate) struct Sender {
    connection: Connection,
    /// The receiver's slots.
    remote: RemoteMemoryRegion,
    settings: Settings,
    sent: u64,
    credits: u64,
}

impl Sender {
    pub(crate) fn new(
        connection: Connection,
        remote: RemoteMemoryRegion,
        settings: Settings,
    ) -> Self {
        Self { connection, remote, settings, sent: 0, credits: 0 }
    }

    pub(crate) fn registered_bytes(&self) -> usize {
        self.connection.registered_bytes()
    }

    /// Sends all that the source gives, then the trailer; returns when the receiver has confirmed it.
    pub(crate) fn run(&mut self, source: &mut dyn Read, stop: &Stop<'_>) -> Result<Trailer, Error> {
        let mut hasher = Hasher::new();
        let mut bytes = 0;
        loop {
            self.free_slot(stop)?;
            let mut slot = self.connection.next_slot()?;
            let length = fill(source, &mut slot)?;
            if length == 0 {
                break;
            }
            hasher.update(&slot[..length]);
            bytes += length as u64;
            self.send(Kind::Data, length)?;
        }
        let trailer = Trailer { bytes, crc32: hasher.finalize() };
        self.connection.next_slot()?[..Trailer::SIZE].copy_from_slice(&trailer.to_bytes());
        self.send(Kind::End, Trailer::SIZE)?;
        while self.credits < self.sent {
            self.take_credit(stop)?;
        }
        Ok(trailer)
    }

    /// Waits until both sides are done with the next slot.
    fn free_slot(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        stop.check()?;
        while self.sent - self.credits >= self.settings.depth() as u64 {
            self.take_credit(stop)?;
        }
        self.connection.room(stop)
    }

    fn send(&mut self, kind: Kind, length: usize) -> Result<(), Error> {
        let start = self.connection.next_offset();
        let remote = self.remote.slice(start..start + length).ok_or(Error::NoSlot)?;
        self.connection.write_slot(length, remote, immediate(kind, self.sent))?;
        self.sent += 1;
        Ok(())
    }

    fn take_credit(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        let Arrival { immediate, .. } = self.connection.arrival(stop)?;
        match kind_of(immediate, self.credits)? {
            Kind::Credit if self.credits < self.sent => {
                self.credits += 1;
                self.connection.post_receive()
            }
            kind => Err(Error::Protocol(format!("{kind:?} came to the sender"))),
        }
    }
}

/// Reads until the slot is full or the stream ends.
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

    use rdma_soft::{Builder, Schedule};

    use super::*;
    use crate::copy_file::connect::connect;

    #[test]
    fn a_slot_is_not_handed_out_or_posted_while_it_is_in_flight() {
        let device = Builder::new("held_slots").schedule(Schedule::Held).install().unwrap();
        let cancelled = AtomicBool::new(false);
        let stop = Stop::new(&cancelled, Duration::ZERO);
        let (mut sender, _receiver) = connect("held_slots", Settings::new(64, 2).unwrap()).unwrap();
        for slot in [1, 2] {
            sender.connection.next_slot().unwrap().fill(slot);
            sender.send(Kind::Data, 64).unwrap();
        }
        assert!(matches!(sender.connection.next_slot(), Err(Error::NoSlot)));
        assert!(matches!(sender.send(Kind::Data, 64), Err(Error::NoSlot)));
        assert!(matches!(sender.connection.room(&stop), Err(Error::Stalled { .. })));

        assert_eq!(device.release_all(), 2, "both were in flight");
        sender.connection.room(&stop).unwrap();
        assert_eq!(sender.connection.next_slot().unwrap()[..], [1; 64]);
    }
}
