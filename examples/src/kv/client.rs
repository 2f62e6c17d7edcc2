//! A client of the store. It reads the server's table itself.

use std::collections::VecDeque;
use std::ops::Range;

use rdma::prelude::*;

use super::entry::{Entry, SLOT, check};
use super::{
    ANSWER, LIMIT, REQUEST, RING, SLOTS, STORED, can_count, channel, offset, places, read_greeting,
};
use rdma_examples_common::Failure;

/// The number of times that a slot is read if the server is writing to it each time.
pub(super) const TRIES: usize = 100;

/// A connection to a server, and the memory for requests and answers.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    table: RemoteMemoryRegion,
    /// Whether this client counts its operations. It does if both devices have atomics.
    counts: bool,
    request: OwnedRegion,
    answer: OwnedRegion,
    slots: OwnedRegion,
}

impl Client {
    /// Connects to a server, and receives the location of its table.
    ///
    /// # Errors
    /// Returns an error if no process is listening on this address, or if it is not a server of this
    /// store.
    pub fn connect(pd: &ProtectionDomain, address: &str) -> Result<Self, Failure> {
        let (channel, told) = channel(pd).watch(LIMIT).connect(address)?;
        let (table, counts) = read_greeting(&told, address)?;
        let counts = counts && can_count(pd)?;
        let (request, answer) = (pd.allocate_region(REQUEST)?, pd.allocate_region(ANSWER)?);
        let slots = pd.allocate_region(RING as usize * SLOT)?;
        Ok(Self { channel, table, counts, request, answer, slots })
    }

    /// Reads the value of a key from the server's memory.
    ///
    /// # Errors
    /// Returns an error if the key is empty or too long, or if a read fails. Also returns an error
    /// if the server is writing to a slot whenever it is read.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, Failure> {
        check(key.as_bytes(), &[])?;
        self.count()?;
        for slot in places(key.as_bytes()) {
            let entry = self.read(slot)?;
            if entry.key == key.as_bytes() {
                return Ok(Some(entry.value));
            }
            if entry.key.is_empty() {
                break;
            }
        }
        Ok(None)
    }

    /// Requests that the server store a value in its table.
    ///
    /// # Errors
    /// Returns an error if the key is empty, or if the key or the value is too long. Also returns
    /// an error if the server has no free slot for the key, or does not answer.
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        check(key.as_bytes(), value.as_bytes())?;
        self.count()?;
        let length = u8::try_from(key.len())?; // `check` ensures that it fits
        let request = [&[length], key.as_bytes(), value.as_bytes()].concat();
        let mut bytes = self.request.get_mut(0, request.len()).ok_or("the request is too long")?;
        bytes.copy_from_slice(&request);
        let length = self.channel.exchange_from(bytes, &mut self.answer)?;
        match self.answer.get(..length) {
            Some(STORED) => Ok(()),
            why => {
                let why = String::from_utf8_lossy(why.unwrap_or_default());
                Err(format!("the server has not stored it: {why}").into())
            }
        }
    }

    /// Reads these slots, as many at a time as the ring has space for. Returns the entries that
    /// they contain.
    ///
    /// # Errors
    /// Same errors as [`get`](Self::get). Also returns an error if the whole scan takes too long.
    pub fn scan(&mut self, slots: Range<usize>) -> Result<Vec<Entry>, Failure> {
        self.count()?;
        // The scope borrows the channel, and its closure borrows the memory, so each field is
        // borrowed separately.
        let Self { channel, table, slots: ring, .. } = self;
        let mut entries = Vec::new();
        let scanned = channel.scope_deadline(LIMIT, |s| {
            let mut free: Vec<_> = ring.as_slice_mut().into_chunks(SLOT).collect();
            let (mut reads, mut left) = (VecDeque::new(), slots);
            loop {
                for (buf, slot) in free.drain(..).zip(left.by_ref()) {
                    reads.push_back((slot, 1, s.read_into(buf, remote(table, slot)?)?));
                }
                let Some((slot, tries, read)) = reads.pop_front() else { return Ok(()) };
                let (buf, _) = read.done(LIMIT)?;
                match Entry::from_bytes(&buf) {
                    Some(entry) => {
                        entries.extend(Some(entry).filter(|entry| !entry.key.is_empty()));
                        free.push(buf);
                    }
                    None if tries == TRIES => return Err(always_written(slot)),
                    None => {
                        let again = s.read_into(buf, remote(table, slot)?)?;
                        reads.push_back((slot, tries + 1, again));
                    }
                }
            }
        });
        scanned.map_err(ScopeError::flatten)?;
        Ok(entries)
    }

    /// Returns the number of operations that clients have begun, including those of this client.
    /// Returns `None` if this client cannot count.
    ///
    /// # Errors
    /// Returns an error if the atomic fails.
    pub fn operations(&mut self) -> Result<Option<u64>, Failure> {
        self.add(0)
    }

    fn count(&mut self) -> Result<(), Failure> {
        self.add(1).map(drop)
    }

    /// Adds `more` to the server's counter, and returns the counter's previous value.
    fn add(&mut self, more: u64) -> Result<Option<u64>, Failure> {
        if !self.counts {
            return Ok(None);
        }
        let counter = self.table.typed::<u64>(0).ok_or("the table is too short")?;
        Ok(Some(self.channel.fetch_add(counter, more)?))
    }

    fn read(&mut self, slot: usize) -> Result<Entry, Failure> {
        for _ in 0..TRIES {
            let room = self.slots.get_mut(0, SLOT).ok_or("the ring is too short")?;
            self.channel.read_into(room, remote(&self.table, slot)?)?;
            if let Some(entry) = self.slots.get(..SLOT).and_then(Entry::from_bytes) {
                return Ok(entry);
            }
        }
        Err(always_written(slot))
    }
}

/// Returns the server's memory that contains this slot.
fn remote(table: &RemoteMemoryRegion, slot: usize) -> Result<RemoteMemoryRegion, Failure> {
    let begin = offset(slot);
    let memory = table.slice(begin..begin + SLOT);
    Ok(memory.ok_or_else(|| format!("slot {slot} does not exist: the table has {SLOTS}"))?)
}

pub(super) fn always_written(slot: usize) -> Failure {
    format!("slot {slot} was being written each of the {TRIES} times that it was read").into()
}
