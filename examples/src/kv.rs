//! A key-value store: clients read the table of the server by RDMA, and ask the server to change it by messages.
//!
//! The table is memory that peers may read and count in. A client learns where it is when it connects. So a
//! GET costs the server's processor nothing, and there is one writer, the server, which needs no lock that a
//! client could hold.
//!
//! The clients are trusted: a right is that of a region, so that the one to count is one to count in the slots, too.
//! For others the counter needs a region of its own.

pub mod client;
pub mod entry;
pub mod server;
pub mod tasks;

use std::time::Duration;

use rdma::channel::ChannelBuilder;
use rdma::prelude::*;

/// How many slots the table has.
pub const SLOTS: usize = 256;
/// In how many slots a key may be: from its own one on, the first that is free or has the key.
const PLACES: usize = 8;
/// Where the slots begin. Before them is a word that counts operations, alone in its cache line.
const FIRST_SLOT: usize = 64;
/// How long the table is, in bytes.
const TABLE: usize = FIRST_SLOT + SLOTS * entry::SLOT;
/// How many reads are outstanding, and how many requests the queues hold.
pub const RING: u32 = 16;
/// The longest request: a byte with the length of the key, the key, the value.
const REQUEST: usize = 1 + entry::KEY + entry::VALUE;
/// The longest answer to a request. It is sent inline, as long as a channel takes by default.
const ANSWER: usize = 64;
/// The answer if the entry is in the table. Another one says why it is not.
const STORED: &[u8] = b"stored";
/// How long one operation may take. What the other end does in it is little.
pub const LIMIT: Duration = Duration::from_secs(5);

/// What clients may do with the table: read, and count.
const ACCESS: AccessFlags =
    AccessFlags::new().with_local_write().with_remote_read().with_remote_atomic();

/// A channel all of whose operations have the limit.
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

/// The slots where this key may be, in order.
fn places(key: &[u8]) -> impl Iterator<Item = usize> {
    // Two of its bytes are more than there are slots.
    let [a, b, ..] = entry::hash(key).to_le_bytes();
    let first = usize::from(u16::from_le_bytes([a, b]));
    (0..PLACES).map(move |further| (first + further) % SLOTS)
}

/// Where a slot begins in the table.
const fn offset(slot: usize) -> usize {
    FIRST_SLOT + slot * entry::SLOT
}
