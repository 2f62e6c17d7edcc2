//! Workload after workload, until enough packets were sent or something is wrong.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic;
use std::time::Duration;

use crate::generate;
use crate::run::{Done, run};
use crate::shrink::shrink;

/// What all workloads came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Total {
    /// How many workloads there were.
    pub workloads: u64,
    /// How many packets were sent.
    pub packets: u64,
    /// How much time passed in them.
    pub time: Duration,
    /// A number made of all packets and completions: the same for the same seed.
    pub trace: u64,
}

/// Something that is wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Of the workload.
    pub seed: u64,
    /// What is wrong with the workload.
    pub first: String,
    /// How many operations it has.
    pub operations: usize,
    /// How many the smaller script has.
    pub left: usize,
    /// The smaller script, with an operation on each line.
    pub script: String,
    /// What is wrong with the smaller script.
    pub why: String,
    /// What was done before.
    pub before: Total,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "workload {:#x}: {}", self.seed, self.first)?;
        writeln!(f, "of its {} operations {} are enough:", self.operations, self.left)?;
        writeln!(f, "{}", self.script)?;
        writeln!(f, "{}", self.why)?;
        write!(f, "again: cargo xtask sim --workload {:#x}", self.seed)
    }
}

/// The seed of a workload.
fn derive(seed: u64, n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, n).hash(&mut hasher);
    hasher.finish()
}

/// Runs the workloads of a seed until so many packets were sent.
///
/// # Errors
///
/// What is wrong, if something is.
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

/// Runs one workload, by its own seed.
///
/// # Errors
///
/// What is wrong, if something is.
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
    // It may take long to make it smaller.
    eprintln!("workload {seed:#x}: {first}");
    // What panics again and again says so once.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let (script, why) = shrink(script, first.clone());
    panic::set_hook(hook);
    let (left, script) = (script.operations.len(), script.to_string());
    Err(Box::new(Finding { seed, first, operations, left, script, why, before }))
}
