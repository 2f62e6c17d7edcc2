//! The engine: queues, keys, the state machine, and the execution of requests as checked copies.
//!
//! # The order of locks
//!
//! Whoever holds one of these takes only such as stand below it, and never two of one kind. So two queue
//! pairs that talk to each other cannot wait for each other.
//!
//! 1. What a call of the program begins with: its [critical region](critical_region), the contexts of a port,
//!    or the list of blocks that programs know devices by.
//! 2. The receive side of a device: who has it executes packets that have arrived (`link/memory.rs`).
//! 3. A queue pair's attributes.
//! 4. A queue pair's send side.
//! 5. A responder.
//! 6. A receive queue, then a shared receive queue.
//! 7. The windows of a domain, then the places of the [region](crate::memory::region) table.
//! 8. A completion queue's pollers, then its producers.
//! 9. The list of devices, a device's table of queue pairs, its multicast [groups](group), or what has arrived
//!    at it.
//! 10. [Deferred](crate::fabric::deferred) work.
//! 11. The handle of a [reporter](events::report), then the state of an [event queue](events), or what a capture has
//!     not written yet (`link/pcap.rs`), then what is left to be done without locks (`fabric/overflow.rs`), or the
//!     acknowledgements of an object.
//! 12. Leaves, under which no other is taken: deadlines, what is in flight in a simulated network,
//!     a device's tally of its queue pairs, what it has to tell of packets, the users of a
//!     completion queue, all its rings, the gate of a critical region, the domains of a context,
//!     and the list of threads of [grace periods](crate::memory::grace_period).
//!
//! One more is taken only by who holds none of these: that under which the file of an event queue, or of
//! a capture, is written, by a system call. It comes before the queue's state, or the capture's.
//!
//! What must touch another queue pair's send side (its error state, a requester that waits for a receive) is
//! done [after](aftermath::Aftermath) all locks are dropped. Only to have a peer's requester forget it, a
//! queue pair locks that one's send side under its own attributes, and under nothing else.

pub(crate) mod adapter;
pub(crate) mod aftermath;
pub(crate) mod completion;
pub(crate) mod critical_region;
pub(crate) mod events;
pub(crate) mod group;
#[cfg(test)]
#[cfg(loom)]
mod models;
pub(crate) mod operation;
pub(crate) mod queue_pair;
pub(crate) mod receive_queue;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod station;
pub(crate) mod turn;
pub(crate) mod wire;

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
    /// The device has not what was asked for when it was installed: `EIO`.
    Unusable,
    /// The device is not there any more: `ENODEV`.
    Gone,
    /// No process of the host has the queue pair number: `EHOSTUNREACH`.
    #[cfg_attr(loom, allow(dead_code))] // models are of one process
    NobodyThere,
}

impl Refusal {
    /// The refusal of a call that got no file descriptors.
    pub(crate) fn without_files(errno: rustix::io::Errno) -> Self {
        if errno == rustix::io::Errno::MFILE { Self::TooManyFiles } else { Self::NoRoom }
    }
}
