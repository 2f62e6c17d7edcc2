//! Providers with faults: what fails, or lies, takes no memory from the device that it may use, and leaves nobody waiting.

mod destroy;
mod polls;
mod posts;

use crate::common::{DEFERRED, HELD};

/// Those that execute requests at once, later, and when they are told.
const DEVICES: [&str; 3] = ["soft0", DEFERRED, HELD];
