//! The engine: queues, keys, the state machine, and the execution of requests as checked copies.
//!
//! Lock order: a program's [critical region](critical_region), a queue pair's attributes, its send side,
//! a responder, then a receive queue, a shared receive queue, a completion queue, or the windows of a
//! domain; never two of one kind at once, so that two queue pairs that talk to each other cannot wait for
//! each other. Leaves, under which no other lock is taken: deadlines, deferred work, what is left to be done,
//! events, and the list of threads of [grace periods](grace_period). What must touch another queue pair's send side (its error state, a requester that waits
//! for a receive) is done [after](aftermath::Aftermath) all locks are dropped.

pub(crate) mod aftermath;
mod barrier;
pub(crate) mod capacity;
pub(crate) mod completion;
pub(crate) mod copy;
pub(crate) mod critical_region;
pub(crate) mod deferred;
pub(crate) mod events;
pub(crate) mod grace_period;
pub(crate) mod import;
pub(crate) mod memory;
#[cfg(test)]
#[cfg(loom)]
mod models;
pub(crate) mod modify;
pub(crate) mod operation;
pub(crate) mod probe;
pub(crate) mod protection;
pub(crate) mod psn;
pub(crate) mod qpn;
pub(crate) mod queue_pair;
pub(crate) mod queue_pair_table;
pub(crate) mod receive_queue;
pub(crate) mod region;
pub(crate) mod report;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod room;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod sge;
pub(crate) mod shared_receive_queue;
#[cfg(not(all(test, loom)))]
pub(crate) mod tokens;
pub(crate) mod transition;
pub(crate) mod window;
pub(crate) mod work_completion;

/// Why the device refuses a call; the shims turn it into an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// An argument, or a call in a state that does not allow it: `EINVAL`.
    Invalid,
    /// The device does not have this: `EOPNOTSUPP`.
    Unsupported,
    /// A queue is full or a limit is reached: `ENOMEM`.
    NoRoom,
    /// Memory that is not mapped, or not writable: `EFAULT`.
    Fault,
    /// Something that was made from the object is still there: `EBUSY`.
    Busy,
    /// A file descriptor that is not open: `EBADF`.
    NoFile,
    /// The process has as many files open as it may: `EMFILE`.
    TooManyFiles,
    /// A file that may not be used so: `EACCES`.
    NotAllowed,
}

impl Refusal {
    /// Of what needs descriptors, and did not get them.
    pub(crate) fn without_files(errno: rustix::io::Errno) -> Self {
        if errno == rustix::io::Errno::MFILE { Self::TooManyFiles } else { Self::NoRoom }
    }
}
