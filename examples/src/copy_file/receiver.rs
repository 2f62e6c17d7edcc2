//! The side whose memory is written, and which writes the file.

use std::io::Write;

use crc32fast::Hasher;
use rdma_mem::SharedRegion;

use super::connection::{Arrival, Connection};
use super::message::{Kind, Trailer, immediate, kind_of};
use super::stop::Stop;
use super::{Control, Error, Settings};

/// Takes each chunk out of its slot, writes it, and gives the slot back by a credit.
#[derive(Debug)]
pub(crate) struct Receiver {
    connection: Connection,
    /// The slots, which the sender writes.
    slots: SharedRegion,
    /// A chunk on its way out of the slots; this memory is not registered.
    chunk: Vec<u8>,
    settings: Settings,
    /// How many messages were taken.
    taken: u64,
}

impl Receiver {
    pub(crate) fn new(connection: Connection, slots: SharedRegion, settings: Settings) -> Self {
        Self { connection, slots, chunk: vec![0; settings.chunk()], settings, taken: 0 }
    }

    pub(crate) fn registered_bytes(&self) -> usize {
        self.slots.len() + self.connection.registered_bytes()
    }

    /// Writes all chunks to `sink`, until the trailer says that they were all, and right.
    pub(crate) fn run(
        &mut self,
        sink: &mut dyn Write,
        control: Control<'_>,
        stop: &Stop<'_>,
    ) -> Result<(), Error> {
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
                return self.connection.drained(stop);
            }
            (control.arrival)(bytes, chunk);
            hasher.update(chunk);
            sink.write_all(chunk).map_err(Error::Write)?;
            bytes += length as u64;
            (control.progress)(bytes);
            self.give_credit(stop)?;
        }
    }

    fn next_message(&mut self, stop: &Stop<'_>) -> Result<(Kind, usize), Error> {
        let Arrival { immediate, bytes } = self.connection.arrival(stop)?;
        match kind_of(immediate, self.taken)? {
            Kind::Credit => Err(Error::Protocol("a credit came to the receiver".to_owned())),
            kind => Ok((kind, bytes)),
        }
    }

    /// Copies the next slot's message out of the memory that the peer may write.
    fn take(&mut self, length: usize) -> Result<&mut [u8], Error> {
        let slot = usize::try_from(self.taken % self.settings.depth() as u64).unwrap_or(0);
        let chunk = self.chunk.get_mut(..length).filter(|chunk| !chunk.is_empty());
        let chunk =
            chunk.ok_or_else(|| Error::Protocol(format!("it sent a chunk of {length} bytes")))?;
        let within = self.slots.read(slot * self.settings.chunk(), chunk);
        within.map_err(|error| Error::Protocol(error.to_string()))?;
        Ok(chunk)
    }

    /// First the receive, then the credit for which the sender may use it.
    fn give_credit(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        self.connection.post_receive()?;
        self.connection.room(stop)?;
        self.connection.write_nothing(immediate(Kind::Credit, self.taken))?;
        self.taken += 1;
        Ok(())
    }
}

/// Compares what was sent, as its trailer says, with what arrived.
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
