//! How a case ended on a device.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The device does what the contract says.
    Passed,
    /// It did only when nothing ran beside it.
    PassedAlone,
    /// The device does something else, and exactly what is documented under these names.
    Differs {
        differences: Vec<String>,
    },
    /// The device lacks what the case is about.
    Skipped {
        reason: String,
    },
    Failed {
        message: String,
    },
}
