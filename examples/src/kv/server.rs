//! The server of the store: the table, and one thread that serves all clients.

use std::sync::atomic::Ordering::Acquire;

use rdma::channel::{ServerError, Waker};
use rdma::prelude::*;

use super::entry::{Entry, SLOT, check};
use super::{LIMIT, REQUEST, SLOTS, STORED, TABLE, access, can_count, greeting, offset, places};
use rdma_examples_common::{Failure, warn};

/// A table, and the server that its clients connect to.
#[derive(Debug)]
pub struct Store {
    table: SharedRegion,
    /// Whether clients can count in the table. They can if the device has atomics.
    counts: bool,
    server: Server,
}

impl Store {
    /// Creates an empty table for up to `clients` clients at the same time.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be allocated, or if the address cannot be used.
    pub fn new(pd: &ProtectionDomain, address: &str, clients: u32) -> Result<Self, Failure> {
        let counts = can_count(pd)?;
        let table = table(pd, counts)?;
        let server = pd
            .create_server()
            .max_peers(clients)
            .max_send_wr(1) // a client sends its next request only after the answer
            .message_size(REQUEST)
            .access(access(counts))
            .send_timeout(LIMIT)
            .user_bytes(&greeting(&table, counts)) // each client receives the location of the table
            .bind(address)?;
        Ok(Self { table, counts, server })
    }

    /// Returns the address to which clients connect.
    #[must_use]
    pub fn address(&self) -> String {
        self.server.local_addr().to_string()
    }

    /// Returns a waker that makes [`run`](Self::run) return.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.server.waker()
    }

    /// Serves clients until it is woken by the waker. Sleeps while there are no events. Returns the
    /// number of operations that the clients have counted, or `None` if the device has no atomics.
    ///
    /// # Errors
    /// Returns an error if the server's own queues fail. If a client fails, the error is printed
    /// and the server continues.
    pub fn run(&mut self) -> Result<Option<u64>, Failure> {
        loop {
            match self.server.next(None) {
                Ok(None) => {
                    let count = self.table.atomic_u64(0)?.load(Acquire);
                    return Ok(self.counts.then_some(count));
                }
                Ok(Some(ServerEvent::Message { peer, buffer, length, .. })) => {
                    let outcome = put(&buffer[..length], &self.table);
                    let said = outcome.map_or_else(str::as_bytes, |()| STORED);
                    if let Err(error) = self.server.send_inline(peer, said) {
                        warn(format_args!("a client: {error}"));
                        self.server.disconnect(peer);
                    }
                }
                // A client leaves when it has no further requests.
                Ok(Some(ServerEvent::Left { reason: LeftReason::Gone { .. }, .. })) => {}
                Ok(Some(ServerEvent::Left { reason, .. })) => {
                    warn(format_args!("a client: {reason}"))
                }
                Ok(Some(_)) => {}
                Err(error @ ServerError::Clients(_)) => {
                    warn(format_args!("no new clients: {error}"))
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Creates an empty table.
pub(super) fn table(pd: &ProtectionDomain, counts: bool) -> Result<SharedRegion, Failure> {
    let table = pd.allocate_shared_region(TABLE, access(counts))?;
    let free = Entry::default().to_bytes().ok_or("a free slot is a slot")?;
    for slot in 0..SLOTS {
        table.write(offset(slot), &free)?;
    }
    Ok(table)
}

/// Stores the entry from a request in the table. If it cannot be stored, returns the reason.
pub(super) fn put(request: &[u8], table: &SharedRegion) -> Result<(), &'static str> {
    const BAD: &str = "the request is not one of `kv`";
    let (&length, rest) = request.split_first().ok_or(BAD)?;
    let (key, value) = rest.split_at_checked(length.into()).ok_or(BAD)?;
    check(key, value).map_err(|_| "key or value is too long")?;
    for slot in places(key) {
        let mut bytes = [0; SLOT];
        table.read(offset(slot), &mut bytes).map_err(|_| BAD)?;
        let there = Entry::from_bytes(&bytes).ok_or("the table is damaged")?;
        if there.key.is_empty() || there.key == key {
            let version = there.version.wrapping_add(1);
            let entry = Entry { version, key: key.into(), value: value.into() };
            let bytes = entry.to_bytes().ok_or(BAD)?;
            return table.write(offset(slot), &bytes).map_err(|_| BAD);
        }
    }
    Err("the slots for this key hold other keys")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::kv::client::Client;

    #[test]
    fn a_half_written_slot_is_read_again_a_limited_number_of_times() {
        let pd = open_device("soft0").and_then(|context| context.allocate_pd()).expect("a domain");
        let mut store = Store::new(&pd, "127.0.0.1:0", 1).expect("a server");
        let address = store.address();
        let mut client = thread::scope(|threads| {
            let client = threads.spawn(|| Client::connect(&pd, &address));
            let joined = store.server.next(None).expect("a server").expect("a client");
            assert!(matches!(joined, ServerEvent::Joined { .. }));
            client.join().expect("no panic").expect("connected")
        });
        let place = offset(places(b"key").next().expect("a place"));
        let slot = |version, value: &[u8]| {
            Entry { version, key: b"key".into(), value: value.into() }.to_bytes().expect("it fits")
        };
        let (old, new) = (slot(1, &[1; 100]), slot(2, &[2; 100]));
        store.table.write(place, &old).expect("in the table");
        assert_eq!(client.get("key").expect("read"), Some(vec![1; 100]));
        // A reader may see a new first half and an old second half, or the opposite.
        for half in [0..SLOT / 2, SLOT / 2..SLOT] {
            store.table.write(place, &old).expect("in the table");
            store.table.write(place + half.start, &new[half]).expect("in the table");
            for error in [client.get("key").map(drop), client.scan(0..SLOTS).map(drop)] {
                let error = error.expect_err("half of an entry").to_string();
                assert!(error.contains("each of the 100 times"), "{error}");
            }
        }
        store.table.write(place, &new).expect("in the table");
        assert_eq!(client.get("key").expect("read"), Some(vec![2; 100]));
        assert_eq!(client.scan(0..SLOTS).expect("read").len(), 1);
    }
}
