//! The cases of the suite.

use std::time::Duration;

use rdma_sys::ibv_qp_type;

use crate::device::Device;

/// A case of the suite. It checks one sentence of the contract.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// The part of the contract that contains the sentence. Part and sentence form the case's name,
    /// such as `keys::wrong_rkey_is_refused`.
    pub(crate) part: &'static str,
    pub(crate) sentence: &'static str,
    pub(crate) run: fn(&Device),
    /// Whether the case overflows, exhausts or breaks something that other programs on this machine
    /// may need.
    pub(crate) destructive: bool,
}

/// The time limit for a case, far longer than any working device needs. It exceeds the rig's
/// deadline for a single wait, so that a case can report a wait that timed out.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The parts that do not run on a lossy network, because they use unreliable connections or
/// datagrams.
const UNRELIABLE: [&str; 9] = [
    "address_handles",
    "concurrency",
    "datagram_errors",
    "datagrams",
    "extended_posts",
    "multicast",
    "services",
    "unreliable",
    "unreliable_errors",
];

/// The parts among [`UNRELIABLE`] that use only unreliable connections.
const UNRELIABLE_CONNECTIONS: [&str; 2] = ["unreliable", "unreliable_errors"];
/// The parts among [`UNRELIABLE`] that use only datagrams.
const DATAGRAMS: [&str; 5] =
    ["address_handles", "datagram_errors", "datagrams", "multicast", "services"];

impl Case {
    /// Returns the unreliable type of queue pair that every case of this part needs. If there is
    /// none, returns `None`, and a case that needs such a type checks for it itself.
    pub(crate) fn qp_type(&self) -> Option<ibv_qp_type> {
        if UNRELIABLE_CONNECTIONS.contains(&self.part) {
            return Some(ibv_qp_type::IBV_QPT_UC);
        }
        DATAGRAMS.contains(&self.part).then_some(ibv_qp_type::IBV_QPT_UD)
    }

    pub(crate) fn name(&self) -> String {
        format!("{}::{}", self.part, self.sentence)
    }

    /// Returns true if the case requires that unacknowledged messages arrive.
    pub(crate) fn is_unreliable(&self) -> bool {
        UNRELIABLE.contains(&self.part)
    }

    pub(crate) const fn destructive(mut self) -> Self {
        self.destructive = true;
        self
    }
}

/// Lists the cases in a file. Cases after `destructive:` overflow, exhaust or break something.
macro_rules! cases {
    ($($sentence:ident),* $(,)? $(; destructive: $($breaks:ident),* $(,)?)?) => {
        pub(in crate::cases) const CASES: &[$crate::case::Case] = &[
            $($crate::case::case!($sentence),)*
            $($($crate::case::case!($breaks).destructive(),)*)?
        ];
    };
}

macro_rules! case {
    ($sentence:ident) => {
        $crate::case::Case {
            part: $crate::case::last_segment(module_path!()),
            sentence: stringify!($sentence),
            run: $sentence,
            destructive: false,
        }
    };
}

pub(crate) use {case, cases};

/// Returns the part of the path after the last `::`.
pub(crate) const fn last_segment(path: &'static str) -> &'static str {
    let (bytes, mut at) = (path.as_bytes(), path.len());
    while at > 0 && bytes[at - 1] != b':' {
        at -= 1;
    }
    path.split_at(at).1
}
