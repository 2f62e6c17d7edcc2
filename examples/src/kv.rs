//! A key-value store. Clients read the server's table by RDMA, and change it by sending messages to
//! the server.
//!
//! The table is memory that peers may read, and in which they may count. A client learns the
//! table's location when it connects. So a GET takes no processor time on the server. The server is
//! the only writer, and needs no lock that a client could hold. If the device of either end lacks
//! atomics, the client does not count.
//!
//! The clients are trusted: access rights apply to a whole region, so a client that may count could
//! also change the slots with atomics. For untrusted clients, the counter would need a separate
//! region.

pub mod client;
pub mod entry;
pub mod server;
pub mod tasks;

use std::time::Duration;

use rdma::channel::ChannelBuilder;
use rdma::device::AtomicCapability;
use rdma::prelude::*;

use rdma_examples_common::Failure;

/// The number of slots in the table.
pub const SLOTS: usize = 256;
/// The number of consecutive slots in which a key may be stored. It is stored in the first of them
/// that is free or already contains the key.
const PLACES: usize = 8;
/// The offset of the first slot. A word that counts operations precedes the slots, in a separate
/// cache line.
const FIRST_SLOT: usize = 64;
/// The length of the table, in bytes.
const TABLE: usize = FIRST_SLOT + SLOTS * entry::SLOT;
/// The maximum number of outstanding reads, and the capacity of the queues.
pub const RING: u32 = 16;
/// The maximum length of a request, in bytes. It consists of the length of the key (one byte), the
/// key and the value.
const REQUEST: usize = 1 + entry::KEY + entry::VALUE;
/// The maximum length of an answer, in bytes. Answers are sent inline, so this equals the default
/// limit of inline data.
const ANSWER: usize = 64;
/// The answer if the entry was stored. Any other answer is the reason why it was not.
const STORED: &[u8] = b"stored";
/// The time limit for one operation. The other end has little to do for it.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Returns the access rights that clients get to the table: to read it, and to count if `counts` is
/// set.
fn access(counts: bool) -> AccessFlags {
    let reads = AccessFlags::new().with_local_write().with_remote_read();
    if counts { reads.with_remote_atomic() } else { reads }
}

/// Returns true if the device supports the atomics that clients need to count.
fn can_count(pd: &ProtectionDomain) -> Result<bool, Failure> {
    Ok(pd.context().query_device()?.atomic_capability != AtomicCapability::NONE)
}

/// Returns the bytes that a server sends to each client: the location of its table, and whether
/// clients can count there.
fn greeting(table: &SharedRegion, counts: bool) -> Vec<u8> {
    [&table.remote().to_bytes()[..], &[counts.into()]].concat()
}

/// Parses the bytes from [`greeting`] that a server has sent.
fn read_greeting(bytes: &[u8], address: &str) -> Result<(RemoteMemoryRegion, bool), Failure> {
    let (table, counts) = match bytes.split_first_chunk() {
        Some((table, &[counts @ (0 | 1)])) => (RemoteMemoryRegion::from_bytes(*table), counts == 1),
        _ => return Err(no_table(address)),
    };
    if table.length() == TABLE { Ok((table, counts)) } else { Err(no_table(address)) }
}

fn no_table(address: &str) -> Failure {
    format!("the server at {address} has no such table: run the same `kv` at both ends").into()
}

/// Returns a builder of channels that use the time limit for all operations.
fn channel(pd: &ProtectionDomain) -> ChannelBuilder<'_> {
    pd.create_channel()
        .max_send_wr(RING)
        .send_timeout(LIMIT)
        .receive_timeout(LIMIT)
        .write_timeout(LIMIT)
        .read_timeout(LIMIT)
        .atomic_timeout(LIMIT)
        .drain_timeout(LIMIT)
}

/// Returns the slots in which this key may be stored, in the order in which they are used.
fn places(key: &[u8]) -> impl Iterator<Item = usize> {
    // Two bytes are enough, because they have more values than there are slots.
    let [a, b, ..] = entry::hash(key).to_le_bytes();
    let first = usize::from(u16::from_le_bytes([a, b]));
    (0..PLACES).map(move |further| (first + further) % SLOTS)
}

/// Returns the offset of a slot in the table.
const fn offset(slot: usize) -> usize {
    FIRST_SLOT + slot * entry::SLOT
}
