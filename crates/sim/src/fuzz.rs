//! Runs workloads that are decoded from arbitrary bytes, for a fuzzer.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::campaign::{Total, total_of};
use crate::generate;

/// A script decoded from the fuzzer's bytes, and the error that running it revealed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wrong {
    /// The script, one operation per line.
    pub script: String,
    /// The error.
    pub why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.script, self.why)
    }
}

impl std::error::Error for Wrong {}

/// A lock that allows one run at a time, because equal bytes give equal device names.
static ALONE: Mutex<()> = Mutex::new(());

/// Decodes a workload from the bytes, runs it, and checks the results. Equal bytes always cause the
/// same run. At most a few thousand packets are sent.
///
/// # Errors
///
/// Returns the script and the error. The script is not made smaller, because the fuzzer does that
/// with the bytes.
pub fn bytes(bytes: &[u8]) -> Result<Total, Wrong> {
    let script = generate::script_of(bytes);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    total_of(&script).map_err(|why| Wrong { script: script.to_string(), why })
}

/// Returns the script decoded from the bytes, one operation per line.
#[must_use]
pub fn script_of(bytes: &[u8]) -> String {
    generate::script_of(bytes).to_string()
}

/// The body of a fuzz target.
///
/// # Panics
///
/// Panics with the script if a check fails.
pub fn fuzz(data: &[u8]) {
    if let Err(wrong) = bytes(data) {
        panic!("{wrong}");
    }
}
