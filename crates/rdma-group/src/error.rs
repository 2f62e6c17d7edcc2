//! Errors of groups.

use std::io::{self, ErrorKind};
use std::time::Duration;

use rdma_channel::ConnectError;

/// An error of a group.
///
/// After [`Error::Argument`], the group is still open. All other errors of a collective close it on all ranks. The
/// exception is the error of a forked child, [`Error::Device`], which does not affect the group.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No environment variable of a known launcher is set.
    #[error(
        "no launcher has stated the rank of this process: start it with `rdmatool run`, torchrun, srun or mpirun, or set \
         RDMA_RANK, RDMA_WORLD_SIZE and RDMA_MASTER"
    )]
    NoLauncher,
    /// The launcher has not set a variable that is needed.
    #[error("{launcher} has not set {variable}{}", remedy(.variable))]
    MissingVariable {
        /// The variable.
        variable: &'static str,
        /// The launcher whose other variables are set.
        launcher: &'static str,
    },
    /// A variable has an invalid value.
    #[error("{variable} is {value:?}, but it must be {expected}")]
    BadVariable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// Other hosts can reach the address of rank 0, but there is no secret.
    #[error(
        "rank 0 listens at {address}, which other hosts can reach: set RDMA_GROUP_SECRET to the same random text on all \
         ranks"
    )]
    SecretRequired {
        /// The address of rank 0.
        address: String,
    },
    /// The other ranks cannot connect to the address of rank 0, on any host.
    #[error("{stated_by} states that rank 0 listens at {address}, but this must be {expected}")]
    BadAddress {
        /// The address of rank 0.
        address: String,
        /// The variable that states the address, `the program`, or `the configuration`.
        stated_by: &'static str,
        /// A description of valid addresses.
        expected: &'static str,
    },
    /// Rank 0, which is this process, cannot listen at its address.
    #[error(
        "rank 0 on {host} cannot listen at {address}, which {stated_by} states: {source}{}", cure(.source)
    )]
    Listen {
        /// The address of rank 0.
        address: String,
        /// The variable that states the address, `the program`, or `the configuration`.
        stated_by: &'static str,
        /// The host of this process.
        host: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// No process accepted connections at the address of rank 0 within the time limit of joining.
    #[error(
        "rank {rank} could not connect to rank 0 at {address} within {limit:?}: {source}: check that rank 0 runs \
         with the same world size, and that this is its address on all hosts"
    )]
    Unreachable {
        /// The rank of this process.
        rank: usize,
        /// The address of rank 0.
        address: String,
        /// The limit.
        limit: Duration,
        /// The kernel's last error.
        source: io::Error,
    },
    /// Ranks were missing at the time limit of joining.
    #[error(
        "ranks {ranks:?} of {world_size} did not join within {limit:?}{}{}{}",
        of(.hosts), refused(.last_refused), after_semicolon(.local_only)
    )]
    Missing {
        /// The missing ranks.
        ranks: Vec<usize>,
        /// Their hosts; empty if these are unknown, because the launcher does not state them, and other hosts can reach
        /// the address of rank 0.
        hosts: Vec<String>,
        /// The size of the group.
        world_size: usize,
        /// The limit.
        limit: Duration,
        /// The last process that was refused, and the reason.
        last_refused: Option<String>,
        /// The reason why ranks on other hosts cannot join, if rank 0 listens at a loopback address.
        local_only: Option<String>,
    },
    /// Rank 0 refused this process.
    #[error("rank 0 at {address} did not accept rank {rank}: {reason}")]
    Refused {
        /// The address of rank 0.
        address: String,
        /// The rank of this process.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// Rank 0 ended, did not answer, or sent an invalid message.
    #[error("rank {rank} could not join at {address}: {reason}")]
    Join {
        /// The address of rank 0.
        address: String,
        /// The rank of this process.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// A socket failed.
    #[error("{tried}: {source}")]
    Io {
        /// The action that failed.
        tried: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] rdma_mem::Error),
    /// The connection to a rank could not be made.
    #[error("no connection to rank {rank} on {host}: {source}")]
    Connect {
        /// The rank.
        rank: usize,
        /// Its host.
        host: String,
        /// The error of the connection.
        source: ConnectError,
    },
    /// An argument of a collective is invalid, or the function of a reduction has made the call. The same if another call
    /// of this rank has not ended within the limit. Nothing was sent, and the group is still open.
    #[error("{0}")]
    Argument(String),
    /// A rank has died, or has left the group. The same if a connection to it has failed, for example because the network
    /// is down.
    #[error(
        "rank {rank} on {host} has died or left the group, or its device cannot be reached: check its output, and the \
         network"
    )]
    Lost {
        /// The rank.
        rank: usize,
        /// Its host.
        host: String,
    },
    /// A rank did not take part in the collective within the limit.
    #[error("rank {rank} on {host} did not take part in {call} within {limit:?}")]
    Timeout {
        /// The rank.
        rank: usize,
        /// Its host.
        host: String,
        /// A description of this rank's call.
        call: String,
        /// The limit.
        limit: Duration,
    },
    /// A rank has called another collective, or the same one with other arguments.
    #[error(
        "rank {rank} on {host} called {theirs}, but this rank called {ours}: all ranks must make equal calls in the same order"
    )]
    Mismatch {
        /// The other rank.
        rank: usize,
        /// Its host.
        host: String,
        /// A description of its call.
        theirs: String,
        /// A description of this rank's call.
        ours: String,
    },
    /// Another rank has closed the group because of an error.
    #[error("rank {rank} on {host} has closed the group: {reason}")]
    Failed {
        /// The rank.
        rank: usize,
        /// Its host.
        host: String,
        /// Its error.
        reason: String,
    },
    /// The group was closed by an earlier error.
    #[error("the group was closed by an earlier error: join again with the next epoch")]
    Closed,
}

rdma_types::debug_messages!(
    enum Error {
        NoLauncher,
        MissingVariable { variable, launcher },
        BadVariable { variable, value, expected },
        SecretRequired { address },
        BadAddress { address, stated_by, expected },
        Listen { address, stated_by, host, source },
        Unreachable { rank, address, limit, source },
        Missing { ranks, hosts, world_size, limit, last_refused, local_only },
        Refused { address, rank, reason },
        Join { address, rank, reason },
        Io { tried, source },
        Device(it),
        Connect { rank, host, source },
        Argument(it),
        Lost { rank, host },
        Timeout { rank, host, call, limit },
        Mismatch { rank, host, theirs, ours },
        Failed { rank, host, reason },
        Closed,
    }
);

impl Error {
    pub(crate) fn io(tried: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { tried: tried.into(), source }
    }

    /// Returns the text of this error of the rank `own`, for other ranks.
    pub(crate) fn told_by(&self, own: usize) -> String {
        match self {
            Self::Mismatch { rank, host, theirs, ours } => {
                format!("rank {rank} on {host} called {theirs}, but rank {own} called {ours}")
            }
            other => other.to_string(),
        }
    }
}

fn remedy(variable: &str) -> &'static str {
    match variable {
        "RDMA_MASTER" => ": set it to HOST:PORT of rank 0",
        _ => ": set it, or start the program with a launcher that does",
    }
}

fn cure(listening: &io::Error) -> &'static str {
    match listening.kind() {
        ErrorKind::AddrInUse => {
            ": another process uses this address: check that rank 0 was started only once, and that no other program \
             uses the port"
        }
        ErrorKind::AddrNotAvailable => {
            ": this host does not have the address: start rank 0 on the host that has it, or state an address of this \
             host"
        }
        _ => "",
    }
}

fn of(hosts: &[String]) -> String {
    match hosts {
        [] => String::new(),
        [first, rest @ ..] if rest.iter().all(|host| host == first) => {
            format!("; their host: {first}")
        }
        _ => format!("; their hosts: {}", hosts.join(", ")),
    }
}

pub(crate) fn refused(last: &Option<String>) -> String {
    let last = last.as_ref().map(|last| format!("the last process that was refused: {last}"));
    after_semicolon(&last)
}

pub(crate) fn after_semicolon(text: &Option<String>) -> String {
    text.as_ref().map(|text| format!("; {text}")).unwrap_or_default()
}
