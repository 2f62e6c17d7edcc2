//! The outcome of a case on a device.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The device fulfils the sentence of the contract.
    Passed,
    /// The device fulfils the sentence, but only when no other case runs at the same time.
    PassedAlone,
    /// The device differs from the contract exactly as the documentation describes under these
    /// names.
    Differs {
        differences: Vec<String>,
    },
    /// The device lacks a feature that the case needs.
    Skipped {
        reason: String,
    },
    Failed {
        message: String,
    },
}
