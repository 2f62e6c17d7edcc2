//! The code of the fuzz targets `local_link` and `udp_link`: a stranger's data arrives at the sockets of a device, and
//! its queue pairs receive it.
//!
//! The sender is this process, too: it has the socket of the other end of each connection. An input is records of
//! numbers, see [`input`]. All of an input is processed before the next one begins, and the queue pairs are then reset.

mod input;
mod local;
mod memory;
mod packet;
mod run;
mod udp;
mod victim;
mod world;

pub(crate) use input::{Local, Packet, Post, Setting, Tag, Udp};
pub(crate) use local::run as local_link;
pub(crate) use udp::run as udp_link;
