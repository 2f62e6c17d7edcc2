//! Providers with faults: a call that fails or lies must not take memory away that the device may use, and must leave
//! no task waiting.

mod destroy;
mod polls;
mod posts;

use crate::common::{DEFERRED, HELD};

/// Devices that execute requests at once, later, and only on release.
const DEVICES: [&str; 3] = ["soft0", DEFERRED, HELD];
