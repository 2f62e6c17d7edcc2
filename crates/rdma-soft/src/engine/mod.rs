//! The engine: queues, keys, the state machine, and the execution of requests as checked copies.
//!
//! # Lock order
//!
//! A thread that holds one of these locks takes only locks listed below it, and never two of the same kind. So two
//! connected queue pairs cannot deadlock.
//!
//! 1. The lock that a call of the program takes first: a [critical region](critical_region), the contexts of a port, or
//!    the list of blocks. Blocks are the C structs by which programs know devices. A thread that sends a device's
//!    [delayed](wire::faults::Delay) packets takes the lock of these packets first.
//! 2. The receive side of an inbox: its holder executes packets that have arrived there (`link/memory.rs`).
//!    Each device has several inboxes.
//! 3. A queue pair's attributes.
//! 4. A queue pair's send side.
//! 5. A responder.
//! 6. A receive queue, then a shared receive queue.
//! 7. The windows of a domain, then the places of the [region](crate::memory::region) table.
//! 8. A completion queue's pollers, then its producers.
//! 9. The list of devices, a device's table of queue pairs, its multicast [groups](group), or an inbox's list of
//!    arrived packets.
//! 10. [Deferred](crate::fabric::deferred) work.
//! 11. The handle of a [reporter](events::report), then one of these: the state of an [event queue](events), or the
//!     buffered output of a capture (`link/pcap.rs`). Then the work left to do without locks (`fabric/run_queue.rs`),
//!     or the acknowledgements of an object.
//! 12. Leaves, under which no other lock is taken. In the fabric: deadlines, and packets in flight in a simulated
//!     network. In a device: the tally of its queue pairs, its notices about packets, its injected faults, and its
//!     delayed packets. In a completion queue: its users, and the list of all its rings. Then the gate of a critical
//!     region, the domains of a context, and the list of threads of [grace periods](crate::memory::grace_period).
//!
//! One further lock is held while a system call writes to the file of an event queue or a capture. A thread takes this
//! lock only while it holds none of the above. It comes before the event queue's state, or the capture's.
//!
//! Two locks come after the first of these and before the others, and may be held during system calls. One is that of the
//! link's recently active sockets (`link/driver/near.rs`). A thread holds it while it looks at them, fetches events and
//! reads from UDP sockets. The other is that of a connection from another process (`link/local/inlet.rs`). A thread holds
//! it while it executes a message from the ring.
//!
//! The lock of a ring to another process (`link/local/neighbor.rs`) is taken after a send side or a responder only if it is
//! free. A thread that waits for it holds none of the locks after the receive side.
//!
//! Some work needs another queue pair's send side: moving that queue pair to error, or resuming a requester that waits
//! for a receive. Such work is done [after](aftermath::Aftermath) all locks are released. There is one exception: a
//! queue pair that leaves its connection makes the requester at the far end forget it. To do so, it locks that
//! requester's send side while it holds its own attributes, but no other lock.

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

/// The reason why the device refuses a call. `abi` converts it to an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// An invalid argument, or a call that the object's state does not allow: `EINVAL`.
    Invalid,
    /// An operation that the device does not support: `EOPNOTSUPP`.
    Unsupported,
    /// A queue is full, a limit is reached, or memory is lacking: `ENOMEM`.
    NoRoom,
    /// Memory that is not mapped, or not writable: `EFAULT`.
    Fault,
    /// The object is still in use, for example by an object created from it; or too many connections to the peer's
    /// process wait to be accepted: `EBUSY`.
    Busy,
    /// A file descriptor that is not open: `EBADF`.
    NoFile,
    /// The process has reached its limit of open files: `EMFILE`.
    TooManyFiles,
    /// A file would be longer than the process may create (`ulimit -f`): `EFBIG`.
    FileTooLong,
    /// A file whose permissions do not allow this use, or a queue pair of another user's process: `EACCES`.
    NotAllowed,
    /// Something that was requested for the device is missing: `EIO`.
    Unusable,
    /// The device no longer exists: `ENODEV`.
    Gone,
    /// No device of this process has the loopback address, or no packet can be sent to the address: `EHOSTUNREACH`.
    #[cfg_attr(loom, allow(dead_code))] // models have only one process
    Unreachable,
}

impl Refusal {
    /// Returns the refusal for a call that could not open files.
    pub(crate) fn without_files(errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::MFILE => Self::TooManyFiles,
            rustix::io::Errno::FBIG => Self::FileTooLong,
            _ => Self::NoRoom,
        }
    }
}
