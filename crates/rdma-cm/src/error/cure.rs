//! The parts of messages that state what to do.

use std::fmt;
use std::io;

use rdma_mem::LinkLayer;
use rdma_proto::cm::wire::Reason;

/// Returns what to do about an error of the system.
pub(super) fn of_system(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            "raise the limit of open files (`ulimit -n`), or close unneeded files"
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            "free memory, or raise the limit of locked memory (`ulimit -l`)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "check the permissions of /dev/infiniband, and the system calls that the container allows"
        }
        Some(libc::EINVAL) => {
            "if the address is link-local, add its scope, as in fe80::1%eth0; otherwise, look for the cause in the kernel's \
             log (`dmesg`)"
        }
        Some(libc::EAGAIN) => "raise the limit of processes and threads (`ulimit -u`)",
        _ => "look for the cause in the kernel's log (`dmesg`)",
    }
}

/// Returns what to do if a software device with this link layer reaches no other host.
pub(super) const fn reached_by(link_layer: LinkLayer) -> &'static str {
    match link_layer {
        LinkLayer::INFINIBAND => {
            "software devices of InfiniBand connect processes of one host; use one of RoCE that listens at an address of the \
             network (`soft0` with RDMA_SOFT_LISTEN), or an InfiniBand NIC"
        }
        _ => {
            "let the software device listen at an address of the network (RDMA_SOFT_LISTEN, `Builder::listen`), or use a NIC"
        }
    }
}

/// Returns what to do about a rejection.
pub(super) const fn of_rejection(reason: Reason) -> &'static str {
    match reason {
        Reason::INVALID_SERVICE_ID => {
            "check that the server's program listens at this address and port, on the same device and as the same user"
        }
        Reason::CONSUMER_DEFINED => "look for the cause in the output of the peer's program",
        Reason::NO_QUEUE_PAIR | Reason::NO_EE_CONTEXT | Reason::NO_RESOURCES => {
            "retry after connections of the peer have ended"
        }
        Reason::TIMEOUT => "call `next` or `wait` more often, and connect again",
        Reason::STALE_CONNECTION
        | Reason::DUPLICATE_COMM_ID
        | Reason::INVALID_COMM_ID
        | Reason::INVALID_COMM_INSTANCE => "connect again",
        Reason::INVALID_TRANSPORT => "use queue pairs of the same type at both ends",
        Reason::INVALID_MTU => {
            "use the same MTU at the interfaces of both hosts, or build the queue pair with the smaller `mtu`"
        }
        Reason::INSUFFICIENT_RESPONDER_RESOURCES => {
            "build the queue pair with a smaller `max_rd_atomic`"
        }
        Reason::INVALID_RNR_RETRY => "build the queue pair with another `max_rnr_retries`",
        Reason::REDIRECT_CM | Reason::REDIRECT_PORT => {
            "connect to the address of the responsible port, because redirections are not followed"
        }
        Reason::INVALID_TRAFFIC_CLASS => "build the queue pair without `traffic_class`",
        Reason::INVALID_GID
        | Reason::INVALID_LID
        | Reason::INVALID_SERVICE_LEVEL
        | Reason::INVALID_HOP_LIMIT
        | Reason::INVALID_PACKET_RATE
        | Reason::INVALID_FLOW_LABEL => {
            "check that an address of each device belongs to the same network (`ip route get`, `ibv_devinfo -v`)"
        }
        _ => "look for the cause in the documentation of the peer's device or program",
    }
}

/// Private data in a message: its beginning as text, or nothing if it consists of zeros.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

impl Shown<'_> {
    /// The number of bytes that are printed.
    const MOST: usize = 64;
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The field is padded with zeros.
        let length = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        if length == 0 {
            return Ok(());
        }
        let (shown, rest) = self.0[..length].split_at(length.min(Self::MOST));
        write!(f, ", with the private data \"{}\"", shown.escape_ascii())?;
        if rest.is_empty() { Ok(()) } else { write!(f, " and {} more bytes", rest.len()) }
    }
}
