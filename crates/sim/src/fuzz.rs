//! Workloads made of any bytes, for a fuzzer.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::campaign::Total;
use crate::generate;
use crate::run::{Done, run};

/// The error of the script that bytes encode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wrong {
    /// The script, with an operation on each line.
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

/// One run at a time: the names of devices depend on the bytes.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs and checks the workload that any bytes encode. The same bytes do the same each time. At most some thousand
/// packets are sent.
///
/// # Errors
///
/// Returns the error and the script. The script is not shrunk: that is the fuzzer's task.
pub fn bytes(bytes: &[u8]) -> Result<Total, Wrong> {
    let script = generate::script_of(bytes);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match run(&script) {
        Ok(Done { packets, time, trace }) => Ok(Total { workloads: 1, packets, time, trace }),
        Err(why) => Err(Wrong { script: script.to_string(), why }),
    }
}

/// The script that bytes encode, with an operation on each line.
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
