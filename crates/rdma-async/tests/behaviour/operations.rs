//! Operations: what they do, and what becomes of their memory when nobody waits for them.

mod cancelled;
mod done;
mod ended;
mod full;
mod limits;
mod rings;
mod spins;

use crate::common::{Count, DEVICES, HANG, HELD, Pair, all, domain, poll_for, poll_once, run};
