//! Operations: their effects, and the memory of operations that are not awaited.

mod cancelled;
mod done;
mod ended;
mod full;
mod limits;
mod rings;
mod spins;

use crate::common::{Count, DEVICES, HANG, HELD, Pair, all, domain, poll_for, poll_once, run};
