//! Runs one workload after another until enough packets have been sent or a check fails.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic;
use std::time::Duration;

use crate::generate;
use crate::run::{Done, run};
use crate::shrink::shrink;

/// The totals over all workloads that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Total {
    /// The number of workloads.
    pub workloads: u64,
    /// The number of packets that were sent.
    pub packets: u64,
    /// The virtual time that passed.
    pub time: Duration,
    /// A hash of all packets and completions. The same seed always gives the same hash.
    pub trace: u64,
}

/// A workload that failed a check.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The seed of the workload.
    pub seed: u64,
    /// The error that the workload caused.
    pub first: String,
    /// The number of operations in the workload.
    pub operations: usize,
    /// The number of operations in the smaller script.
    pub left: usize,
    /// The smaller script, one operation per line.
    pub script: String,
    /// The error that the smaller script causes.
    pub why: String,
    /// The totals of the workloads before this one.
    pub before: Total,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "workload {:#x}: {}", self.seed, self.first)?;
        writeln!(f, "of its {} operations {} are enough:", self.operations, self.left)?;
        writeln!(f, "{}", self.script)?;
        writeln!(f, "{}", self.why)?;
        write!(f, "to repeat: cargo xtask sim --workload {:#x}", self.seed)
    }
}

/// Returns the seed of workload `n`.
fn derive(seed: u64, n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, n).hash(&mut hasher);
    hasher.finish()
}

/// Runs workloads derived from this seed until `packets` packets have been sent.
///
/// # Errors
///
/// Returns the first workload that fails, together with a smaller script that fails too.
pub fn campaign(seed: u64, packets: u64) -> Result<Total, Box<Finding>> {
    let (mut total, mut trace) = (Total::default(), DefaultHasher::new());
    while total.packets < packets {
        let done = one(derive(seed, total.workloads), total)?;
        total.workloads += 1;
        total.packets += done.packets;
        total.time += done.time;
        done.trace.hash(&mut trace);
        total.trace = trace.finish();
    }
    Ok(total)
}

/// Runs the workload with this seed.
///
/// # Errors
///
/// If the workload fails, returns it together with a smaller script that fails too.
pub fn workload(seed: u64) -> Result<Total, Box<Finding>> {
    let Done { packets, time, trace } = one(seed, Total::default())?;
    Ok(Total { workloads: 1, packets, time, trace })
}

fn one(seed: u64, before: Total) -> Result<Done, Box<Finding>> {
    let script = generate::script(seed);
    let first = match run(&script) {
        Ok(done) => return Ok(done),
        Err(why) => why,
    };
    let operations = script.operations.len();
    // Print this first, because shrinking may take a long time.
    eprintln!("workload {seed:#x}: {first}");
    // Do not report a panic again when it repeats during shrinking.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let (script, why) = shrink(script, first.clone());
    panic::set_hook(hook);
    let (left, script) = (script.operations.len(), script.to_string());
    Err(Box::new(Finding { seed, first, operations, left, script, why, before }))
}
