//! Connections by an address: how they are made, and how one end notices that the other is gone.

mod again;
mod bad_clients;
mod bad_peers;
#[cfg(feature = "cm")]
mod cm;
mod ends;
mod farewell;
mod graceful;
mod meeting;
mod port_flaps;
mod stream_addresses;

use crate::common::host::{Host, SHORT};
use crate::common::{HANG, WIRE, run};

const DEVICES: [&str; 3] = ["soft0", "softib0", WIRE];
