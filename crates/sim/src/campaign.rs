//! Runs one workload after another until enough was sent or a check fails.

use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic;
use std::time::Duration;

use crate::message::script::Script as MessageScript;
use crate::run::Outcome;
use crate::script::Script;
use crate::{generate, message, run, shrink};

/// The figures of a successful run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) packets: u64,
    pub(crate) time: Duration,
    pub(crate) trace: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) stream_bytes: u64,
}

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
    /// A hash of everything that happened. The same seed always gives the same hash.
    pub trace: u64,
    /// The number of messages, requests and replies that were received.
    pub messages: u64,
    /// The number of their bytes.
    pub bytes: u64,
    /// The number of bytes that were read from streams.
    pub stream_bytes: u64,
}

impl Total {
    fn add(&mut self, done: Done) {
        let Done { packets, time, trace, messages, bytes, stream_bytes } = done;
        let mut hasher = DefaultHasher::new();
        (self.trace, trace).hash(&mut hasher);
        *self = Self {
            workloads: self.workloads + 1,
            packets: self.packets + packets,
            time: self.time + time,
            trace: hasher.finish(),
            messages: self.messages + messages,
            bytes: self.bytes + bytes,
            stream_bytes: self.stream_bytes + stream_bytes,
        };
    }
}

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Requests of queue pairs.
    Verbs,
    /// Messages and streams of `rdma-async`.
    Messages,
}

impl Kind {
    /// Returns the option of `cargo xtask sim` that selects a workload of this kind by its seed.
    pub(crate) const fn option(self) -> &'static str {
        match self {
            Self::Verbs => "--workload",
            Self::Messages => "--conversation",
        }
    }
}

/// A workload that failed a check.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of the workload.
    pub kind: Kind,
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

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "workload {:#x}: {}", self.seed, self.first)?;
        writeln!(f, "of its {} operations {} are enough:", self.operations, self.left)?;
        writeln!(f, "{}", self.script)?;
        writeln!(f, "{}", self.why)?;
        write!(f, "to repeat: cargo xtask sim {} {:#x}", self.kind.option(), self.seed)
    }
}

/// A script of one kind.
trait Workload: Display + Sized {
    const KIND: Kind;
    fn of_seed(seed: u64) -> Self;
    fn run(&self) -> Outcome<Done>;
    fn operations(&self) -> usize;
    fn shrink(self, why: String) -> (Self, String);
}

impl Workload for Script {
    const KIND: Kind = Kind::Verbs;

    fn of_seed(seed: u64) -> Self {
        generate::script(seed)
    }

    fn run(&self) -> Outcome<Done> {
        run::run(self)
    }

    fn operations(&self) -> usize {
        self.operations.len()
    }

    fn shrink(self, why: String) -> (Self, String) {
        shrink::shrink(self, why)
    }
}

impl Workload for MessageScript {
    const KIND: Kind = Kind::Messages;

    fn of_seed(seed: u64) -> Self {
        message::generate::script(seed)
    }

    fn run(&self) -> Outcome<Done> {
        message::run::run(self)
    }

    fn operations(&self) -> usize {
        self.operations.len()
    }

    fn shrink(self, why: String) -> (Self, String) {
        shrink::shrink_messages(self, why)
    }
}

/// Returns the seed of workload `n`.
fn derive(seed: u64, n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, n).hash(&mut hasher);
    hasher.finish()
}

/// Runs workloads derived from this seed as long as `goes_on` returns true.
///
/// # Errors
///
/// Returns the first workload that fails, together with a smaller script that fails too.
pub fn campaign(
    kind: Kind,
    seed: u64,
    goes_on: impl Fn(&Total) -> bool,
) -> Result<Total, Box<Finding>> {
    let mut total = Total::default();
    while goes_on(&total) {
        total = one(kind, derive(seed, total.workloads), total)?;
    }
    Ok(total)
}

/// Runs the workload with this seed.
///
/// # Errors
///
/// If the workload fails, returns it together with a smaller script that fails too.
pub fn workload(kind: Kind, seed: u64) -> Result<Total, Box<Finding>> {
    one(kind, seed, Total::default())
}

fn one(kind: Kind, seed: u64, before: Total) -> Result<Total, Box<Finding>> {
    match kind {
        Kind::Verbs => run_script::<Script>(seed, before),
        Kind::Messages => run_script::<MessageScript>(seed, before),
    }
}

/// Runs a workload. Returns the totals with it.
fn run_script<W: Workload>(seed: u64, before: Total) -> Result<Total, Box<Finding>> {
    let script = W::of_seed(seed);
    let first = match script.run() {
        Ok(done) => {
            let mut total = before;
            total.add(done);
            return Ok(total);
        }
        Err(why) => why,
    };
    let operations = script.operations();
    // Print this first, because shrinking may take a long time.
    eprintln!("workload {seed:#x}: {first}");
    // Do not report a panic again when it repeats during shrinking.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let (script, why) = script.shrink(first.clone());
    panic::set_hook(hook);
    let (kind, left, script) = (W::KIND, script.operations(), script.to_string());
    Err(Box::new(Finding { kind, seed, first, operations, left, script, why, before }))
}

/// Runs a script. Returns its totals.
pub(crate) fn total_of(script: &Script) -> Outcome<Total> {
    let mut total = Total::default();
    total.add(script.run()?);
    Ok(total)
}
