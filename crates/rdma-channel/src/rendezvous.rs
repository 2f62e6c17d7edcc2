//! The rendezvous: two ends that know an address of TCP, and nothing else of each other, become a channel.
//!
//! A message is this preface, an endpoint if its kind has one, and so many bytes as the preface says. Numbers are in
//! network order.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `RDRV` |
//! | 4 | 2 | version, 2 |
//! | 6 | 2 | kind |
//! | 8 | 2 | how many bytes are at the end, at most 1,024 |
//! | 10 | 344 | of HELLO and ENDPOINT: [`QueuePairEndpoint::to_bytes`](rdma_qp::QueuePairEndpoint::to_bytes) |
//! | 10 or 354 | | of HELLO and ACCEPT the user bytes, of REJECT the reason in UTF-8, of others none |
//!
//! | | kind | from | when |
//! |---|---|---|---|
//! | 1 | HELLO | client | first |
//! | 2 | ENDPOINT | server | its queue pair is connected |
//! | 3 | READY | client | so is the client's |
//! | 4 | ACCEPT | server | the program has accepted; the end |
//! | 5 | REJECT | server | at any time instead; the end |
//!
//! An end that watches the stream adds 256 to the kind of its HELLO or ACCEPT: then both ends keep the stream as long as
//! the channel. Else both close it after ACCEPT. An end that adds 512 says and hears more on the stream if the other end
//! does so, too.
//!
//! The client says nothing that it was not asked for, so what comes early is a mistake. REJECT is the same in all
//! versions, so that a client of any version is told why it was turned away.

pub(crate) mod address;
pub(crate) mod builder;
mod client;
pub(crate) mod clients;
pub(crate) mod files;
pub(crate) mod half_open;
pub(crate) mod incoming;
pub(crate) mod listener;
mod room;
pub(crate) mod talk;
pub(crate) mod until;
