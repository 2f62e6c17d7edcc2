//! The server: the table, and one thread for each client.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rdma::channel::Late;
use rdma::prelude::*;

use super::entry::{Entry, SLOT, check};
use super::{ACCESS, LIMIT, REQUEST, SLOTS, STORED, TABLE, channel, offset, places};
use crate::Failure;

/// How often a thread that waits for a client looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// After how long a client that says nothing is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(1);

/// A table, and who listens for its clients.
#[derive(Debug)]
pub struct Server {
    table: SharedRegion,
    listener: Mutex<ChannelListener>,
    /// What the client of each thread asks for comes here.
    requests: Vec<OwnedRegion>,
    writing: Mutex<()>,
}

impl Server {
    /// A table without entries. Its address is that of the listener.
    ///
    /// # Errors
    /// If the memory cannot be had, or nobody can listen there.
    pub fn new(pd: &ProtectionDomain, address: &str, clients: usize) -> Result<Self, Failure> {
        let table = pd.allocate_shared_region(TABLE, ACCESS)?;
        let free = Entry::default().to_bytes().ok_or("a free slot is a slot")?;
        for slot in 0..SLOTS {
            table.write(offset(slot), &free)?;
        }
        let requests =
            (0..clients).map(|_| pd.allocate_region(REQUEST)).collect::<Result<_, _>>()?;
        let listener = channel(pd).access(ACCESS).listen(address)?;
        Ok(Self { table, listener: Mutex::new(listener), requests, writing: Mutex::default() })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> String {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).local_addr().to_string()
    }

    /// Serves clients until it is told to stop. While each thread has a client, others wait until they are
    /// accepted.
    ///
    /// # Errors
    /// If the counter of the table cannot be read. What a client does wrong is no error: it is printed, and the
    /// server goes on.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<u64, Failure> {
        let Self { table, listener, requests, writing } = self;
        let (table, listener, writing) = (&*table, &*listener, &*writing);
        thread::scope(|threads| {
            for request in requests {
                threads.spawn(move || {
                    while !stop.load(Relaxed) {
                        let outcome = next(listener, table).and_then(|client| match client {
                            Some(mut channel) => serve(&mut channel, request, table, writing),
                            None => Ok(()),
                        });
                        if let Err(error) = outcome {
                            eprintln!("a client: {error}");
                            thread::sleep(LOOK); // if it is about this process, it comes again
                        }
                    }
                });
            }
        });
        Ok(self.table.atomic_u64(0)?.load(Acquire))
    }
}

/// The next client, if one comes soon. It is told where the table is.
fn next(
    listener: &Mutex<ChannelListener>,
    table: &SharedRegion,
) -> Result<Option<Channel>, Failure> {
    let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
    match listener.incoming(Some(LOOK)) {
        Ok(client) => Ok(Some(client.accept(&table.remote().to_bytes())?)),
        Err(ConnectError::Timeout { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn serve(
    channel: &mut Channel,
    request: &mut OwnedRegion,
    table: &SharedRegion,
    writing: &Mutex<()>,
) -> Result<(), Failure> {
    let served = channel.scope(|s| answer(s, request.as_slice_mut(), table, writing));
    Ok(served.map_err(ScopeError::flatten)?)
}

/// Answers the requests of a client until it leaves, which it says by an empty message.
fn answer<'scope>(
    s: &'scope Scope<'scope, '_>,
    request: SliceMut<'scope>,
    table: &SharedRegion,
    writing: &Mutex<()>,
) -> Result<(), TransportError> {
    let mut awaited = s.receive_into(request)?;
    loop {
        let message = match awaited.wait(SILENCE) {
            Ok(message) => message,
            Err(Late { handle, error: TransportError::Timeout { .. }, .. }) => {
                // A receive does not notice that its peer has died, a write does. This one has no bytes, so that
                // it needs no memory of the peer.
                s.write_inline(&[], RemoteMemoryRegion::new(0, 0, 0))?.wait(LIMIT)?;
                awaited = handle;
                continue;
            }
            Err(late) => return Err(late.error),
        };
        let (request, success) = message.ok()?;
        let outcome = match success.scattered_bytes() {
            None | Some(0) => return Ok(()),
            Some(length) => put(request.get(..length).unwrap_or_default(), table, writing),
        };
        awaited = s.receive_into(request)?; // before the client can ask again
        let said = outcome.as_ref().map_or_else(|why| why.as_bytes(), |()| STORED);
        s.send_inline(said)?.wait(LIMIT)?;
    }
}

/// Puts the entry of a request into the table, or says why not.
fn put(request: &[u8], table: &SharedRegion, writing: &Mutex<()>) -> Result<(), &'static str> {
    const BAD: &str = "the request is not one of `kv`";
    let (&length, rest) = request.split_first().ok_or(BAD)?;
    let (key, value) = rest.split_at_checked(length.into()).ok_or(BAD)?;
    check(key, value).map_err(|_| "key or value is too long")?;
    let _alone = writing.lock().unwrap_or_else(PoisonError::into_inner);
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
    Err("the slots for this key have other keys")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::client::Client;

    #[test]
    fn a_slot_that_is_half_written_is_read_again_and_no_longer_than_so_often() {
        let pd = open_device("soft0").and_then(|context| context.allocate_pd()).expect("a domain");
        let server = Server::new(&pd, "127.0.0.1:0", 1).expect("a server");
        let address = server.address();
        let (mut client, _channel) = thread::scope(|threads| {
            let client = threads.spawn(|| Client::connect(&pd, &address));
            let taken = || next(&server.listener, &server.table).expect("a listener");
            let channel = std::iter::repeat_with(taken).find_map(|channel| channel);
            (client.join().expect("no panic").expect("connected"), channel)
        });
        let place = offset(places(b"key").next().expect("a place"));
        let slot = |version, value: &[u8]| {
            Entry { version, key: b"key".into(), value: value.into() }.to_bytes().expect("it fits")
        };
        let (old, new) = (slot(1, &[1; 100]), slot(2, &[2; 100]));
        server.table.write(place, &old).expect("in the table");
        assert_eq!(client.get("key").expect("read"), Some(vec![1; 100]));
        // Each half may be new while the other one is old.
        for half in [0..SLOT / 2, SLOT / 2..SLOT] {
            server.table.write(place, &old).expect("in the table");
            server.table.write(place + half.start, &new[half]).expect("in the table");
            for error in [client.get("key").map(drop), client.scan(0..SLOTS).map(drop)] {
                let error = error.expect_err("half of an entry").to_string();
                assert!(error.contains("each of the 100 times"), "{error}");
            }
        }
        server.table.write(place, &new).expect("in the table");
        assert_eq!(client.get("key").expect("read"), Some(vec![2; 100]));
        assert_eq!(client.scan(0..SLOTS).expect("read").len(), 1);
    }
}
