//! Connections by address of `rdma-cm` in virtual time, on links that lose, repeat and delay their messages.
//!
//! - `tally`: the fates of the messages.
//! - `end`: one end of a connection or query, as its program sees it.
//! - `host`: a device with a listener, which may die and return.
//! - `model`: which events are allowed, and by which time.
//! - `rest`: which QPNs are in use or rest.
//! - `run`: a random workload.
//! - `outcome`: the checks after the last operation.

mod end;
mod host;
mod model;
mod outcome;
mod rest;
mod run;
mod tally;

use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use self::run::Run;
use self::tally::Fates;

/// The totals of workloads of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connections {
    /// The number of workloads.
    pub workloads: u64,
    /// The number of requested connections.
    pub requested: u64,
    /// The number of connections that the passive end has established, after the active end.
    pub established: u64,
    /// The number of queries.
    pub queries: u64,
    /// The number of answers to queries.
    pub answered: u64,
    /// The number of deaths of hosts.
    pub deaths: u64,
    /// The virtual time that passed.
    pub time: Duration,
    /// A hash of everything that happened. The same seeds always give the same hash.
    pub trace: u64,
    fates: Fates,
}

impl Connections {
    /// Returns the messages that were never lost, never repeated or never delayed.
    #[must_use]
    pub fn unharmed(&self) -> Vec<String> {
        self.fates.missing()
    }

    fn add(&mut self, one: &Self) {
        let mut hasher = DefaultHasher::new();
        (self.trace, one.trace).hash(&mut hasher);
        self.trace = hasher.finish();
        self.workloads += 1;
        self.requested += one.requested;
        self.established += one.established;
        self.queries += one.queries;
        self.answered += one.answered;
        self.deaths += one.deaths;
        self.time += one.time;
        self.fates.add(&one.fates);
    }
}

impl Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workloads, requested, established, queries, answered, deaths, .. } = self;
        writeln!(
            f,
            "{workloads} workloads: {established} of {requested} connections established, {answered} of {queries} \
             queries answered, {deaths} deaths"
        )?;
        write!(f, "{}", self.fates)?;
        write!(f, "{:?} of virtual time, trace {:016x}", self.time, self.trace)
    }
}

/// Runs the workloads of some seeds.
///
/// # Errors
/// The first mistake, with the seed of its workload and the number of workloads before it.
pub fn connections(first: u64, workloads: u64) -> Result<Connections, String> {
    let mut total = Connections::default();
    for seed in first..first.saturating_add(workloads) {
        let one = Run::new(seed).finish().map_err(|mistake| {
            let before = seed - first;
            format!(
                "{mistake}\nto repeat: cargo xtask sim --connection {seed:#x}\nfound after {before} workloads"
            )
        })?;
        total.add(&one);
    }
    Ok(total)
}
