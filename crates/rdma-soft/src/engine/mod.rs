//! The engine: queues, keys, the state machine, and the execution of requests as checked copies.
//!
//! # Lock order
//!
//! A thread that holds one of these locks takes only locks listed below it, and never two of one kind. So two queue
//! pairs that talk to each other cannot deadlock.
//!
//! 1. The lock with which a call of the program begins: its [critical region](critical_region), the contexts of a port,
//!    or the list of blocks. Programs know devices by these blocks.
//! 2. The receive side of a device: its holder executes packets that have arrived (`link/memory.rs`).
//! 3. A queue pair's attributes.
//! 4. A queue pair's send side.
//! 5. A responder.
//! 6. A receive queue, then a shared receive queue.
//! 7. The windows of a domain, then the places of the [region](crate::memory::region) table.
//! 8. A completion queue's pollers, then its producers.
//! 9. The list of devices, a device's table of queue pairs, its multicast [groups](group), or what has arrived at it.
//! 10. [Deferred](crate::fabric::deferred) work.
//! 11. The handle of a [reporter](events::report), then one of these: the state of an [event queue](events), or the
//!     buffered output of a capture (`link/pcap.rs`). Then the work left to do without locks (`fabric/run_queue.rs`), or
//!     the acknowledgements of an object.
//! 12. Leaves, under which no other lock is taken. Of the fabric: deadlines, and packets in flight in a simulated
//!     network. Of a device: the tally of its queue pairs, and its notices about packets. Of a completion queue: its
//!     users, and all its rings. Then the gate of a critical region, the domains of a context, and the list of threads
//!     of [grace periods](crate::memory::grace_period).
//!
//! One further lock is held while a system call writes the file of an event queue or of a capture. A thread takes it
//! only while it holds none of these locks. It comes before the queue's state, or the capture's.
//!
//! Some work touches another queue pair's send side: its error state, or a requester that waits for a receive. Such
//! work is done [after](aftermath::Aftermath) all locks are dropped. There is one exception: a queue pair makes a
//! peer's requester forget it. For this it locks that requester's send side under its own attributes, and under nothing
//! else.

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

/// The reason why the device refuses a call; the shims turn it into an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// An argument, or a call in a state that does not allow it: `EINVAL`.
    Invalid,
    /// An operation that the device does not support: `EOPNOTSUPP`.
    Unsupported,
    /// A queue is full or a limit is reached: `ENOMEM`.
    NoRoom,
    /// Memory that is not mapped, or not writable: `EFAULT`.
    Fault,
    /// An object made from this one still exists: `EBUSY`.
    Busy,
    /// A file descriptor that is not open: `EBADF`.
    NoFile,
    /// The process has reached its limit of open files: `EMFILE`.
    TooManyFiles,
    /// A file that may not be used in this way: `EACCES`.
    NotAllowed,
    /// The device does not provide what it was installed for: `EIO`.
    Unusable,
    /// The device no longer exists: `ENODEV`.
    Gone,
    /// No process on the host owns the queue pair number: `EHOSTUNREACH`.
    #[cfg_attr(loom, allow(dead_code))] // models are of one process
    NobodyThere,
}

impl Refusal {
    /// The refusal for a call that could not open file descriptors.
    pub(crate) fn without_files(errno: rustix::io::Errno) -> Self {
        if errno == rustix::io::Errno::MFILE { Self::TooManyFiles } else { Self::NoRoom }
    }
}
