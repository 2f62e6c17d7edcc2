//! Workloads of any bytes, for a fuzzer.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::campaign::Total;
use crate::generate;
use crate::run::{Done, run};

/// What is wrong with the script that bytes stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wrong {
    /// The script, with an operation on each line.
    pub script: String,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.script, self.why)
    }
}

impl std::error::Error for Wrong {}

/// One run at a time: the names of devices come from the bytes.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the workload that bytes stand for, whatever they are, and checks it. The same bytes do the same each time.
/// Some thousand packets are sent at most.
///
/// # Errors
///
/// What is wrong, if something is. The script is not made smaller: that is what the fuzzer does.
pub fn bytes(bytes: &[u8]) -> Result<Total, Wrong> {
    let script = generate::script_of(bytes);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match run(&script) {
        Ok(Done { packets, time, trace }) => Ok(Total { workloads: 1, packets, time, trace }),
        Err(why) => Err(Wrong { script: script.to_string(), why }),
    }
}

/// The script that bytes stand for, with an operation on each line.
#[must_use]
pub fn script_of(bytes: &[u8]) -> String {
    generate::script_of(bytes).to_string()
}

/// What a fuzz target does with its bytes.
///
/// # Panics
///
/// If something is wrong, with the script.
pub fn fuzz(data: &[u8]) {
    if let Err(wrong) = bytes(data) {
        panic!("{wrong}");
    }
}
