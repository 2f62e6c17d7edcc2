//! A key-value store: clients read the table of the server by RDMA, and change it by messages to the server.
//!
//! The table is memory in which peers may read and count. A client learns its location when it connects. So a GET costs
//! the server's processor nothing. The server is the only writer, and needs no lock that a client could hold. If the
//! device of either end has no atomics, the client does not count.
//!
//! The clients are trusted: access rights apply to a whole region, so a client that may count may also count in the
//! slots. For untrusted clients, the counter needs a separate region.

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
/// The number of consecutive slots in which a key may be stored, in the first that is free or has the key.
const PLACES: usize = 8;
/// The offset of the slots. Before them is a word that counts operations, alone in its cache line.
const FIRST_SLOT: usize = 64;
/// The length of the table in bytes.
const TABLE: usize = FIRST_SLOT + SLOTS * entry::SLOT;
/// The number of outstanding reads, and the capacity of the queues.
pub const RING: u32 = 16;
/// The longest request: a byte with the length of the key, the key, the value.
const REQUEST: usize = 1 + entry::KEY + entry::VALUE;
/// The longest answer to a request. It is sent inline, so it has the default limit of a channel.
const ANSWER: usize = 64;
/// The answer if the entry is in the table. Any other answer is the reason why it is not.
const STORED: &[u8] = b"stored";
/// The limit of one operation. The other end does little in it.
pub const LIMIT: Duration = Duration::from_secs(5);

/// The access rights of clients to the table: read, and count.
fn access(counts: bool) -> AccessFlags {
    let reads = AccessFlags::new().with_local_write().with_remote_read();
    if counts { reads.with_remote_atomic() } else { reads }
}

/// Returns true if the device has the atomics with which clients count.
fn can_count(pd: &ProtectionDomain) -> Result<bool, Failure> {
    Ok(pd.context().query_device()?.atomic_capability != AtomicCapability::NONE)
}

/// The bytes that a server sends each client: the location of its table, and whether clients can count there.
fn greeting(table: &SharedRegion, counts: bool) -> Vec<u8> {
    [&table.remote().to_bytes()[..], &[counts.into()]].concat()
}

/// Parses the bytes of [`greeting`] that a client received.
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

/// Returns a builder of channels with the limit for all operations.
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

/// Returns the slots where this key may be, in order.
fn places(key: &[u8]) -> impl Iterator<Item = usize> {
    // Two bytes have more values than there are slots.
    let [a, b, ..] = entry::hash(key).to_le_bytes();
    let first = usize::from(u16::from_le_bytes([a, b]));
    (0..PLACES).map(move |further| (first + further) % SLOTS)
}

/// The offset of a slot in the table.
const fn offset(slot: usize) -> usize {
    FIRST_SLOT + slot * entry::SLOT
}
