//! Errors from connecting the two ends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rdma_mem::Recovery;
use rustix::io::Errno;

use crate::message::{MOST, VERSION};

/// The error of a client that could not connect, or of a server that could not listen or accept a client.
///
/// # Examples
/// ```
/// use rdma_channel::{Channel, ConnectError};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// // No program listens here any more.
/// let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
/// let error = Channel::connect(address, &pd).unwrap_err();
/// assert!(matches!(error, ConnectError::NobodyListens { .. }));
/// assert!(error.to_string().contains("start the server first"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name could not be resolved.
    #[error(
        "the address could not be looked up: {source}; give it as HOST:PORT, and check the host's \
         name"
    )]
    Resolve {
        /// The error of the lookup.
        source: io::Error,
    },
    /// The name has no address.
    #[error("the name has no address: give an IP address and a port, such as 192.0.2.1:7471")]
    NoAddress,
    /// No program listens at any of the addresses.
    #[error("no process is listening on {}: start the server first, and check its address and port, and that both ends connect over TCP, or both through rdma_cm (on the same device and as the same user)", list(.tried))]
    NobodyListens {
        /// The addresses that were tried, in order.
        tried: Vec<SocketAddr>,
    },
    /// The user bytes are too long for the rendezvous.
    #[error(
        "{length} user bytes are too many for the rendezvous, which takes at most {most}: send \
         the rest over the channel"
    )]
    UserBytesTooLong {
        /// The length of the user bytes.
        length: usize,
        /// The maximum length of user bytes.
        most: usize,
    },
    /// The reason for a disconnection is longer than 64 bytes.
    #[error(
        "a reason of {length} bytes is too long: at most 64 bytes are sent; send the rest over \
         the connection itself"
    )]
    ReasonTooLong {
        /// The length of the reason.
        length: usize,
    },
    /// A socket failed.
    #[error("{tried}: {source}{}", hint(.source))]
    Io {
        /// The action that failed, with the address.
        tried: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The server rejected the client, with this text.
    #[error("the server did not accept this client: {}", reason(.0))]
    Rejected(Box<str>),
    /// The server has its maximum number of clients, or could not create a queue pair for this one. It sent this text.
    /// `rdma-async` also returns this if a client makes too many queue pairs at a time over one control connection.
    #[error("the server cannot accept this client now: {}", reason(.0))]
    Busy(Box<str>),
    /// The time limit expired.
    #[error("timed out after {limit:?} waiting for the {awaited}")]
    Timeout {
        /// The limit.
        limit: Duration,
        /// The event that did not happen, with likely causes.
        awaited: String,
    },
    /// The other end closed the stream early.
    #[error(
        "{address} closed the stream before {awaited}: it has failed or ended; check its output"
    )]
    Closed {
        /// The other end.
        address: SocketAddr,
        /// A description of the expected event.
        awaited: &'static str,
    },
    /// The program that listens at the address uses a different protocol.
    #[error(
        "the process at {address} uses another protocol: it began with \"{}\"; check that this is \
         the port of a listener of these crates",
        .received.escape_ascii()
    )]
    Foreign {
        /// The address.
        address: SocketAddr,
        /// The first bytes that it sent.
        received: Vec<u8>,
    },
    /// The server uses another version of the rendezvous.
    #[error(
        "the server at {address} has version {found} of the rendezvous, but this program has \
         {VERSION}: run the same version at both ends"
    )]
    Version {
        /// The address.
        address: SocketAddr,
        /// The server's version.
        found: u16,
    },
    /// The other end sent a message that is not allowed at this step.
    #[error(
        "the server at {address} does not follow the rendezvous protocol: {what}; run the same \
         version at both ends"
    )]
    Garbled {
        /// The other end.
        address: SocketAddr,
        /// A description of the violation.
        what: String,
    },
    /// The connection cannot negotiate another queue pair with its peer, because it was made without a control
    /// connection or the peer is a channel.
    #[error(
        "the connection was made without a control connection, or with a channel, so it cannot be \
         renewed: connect again"
    )]
    NoControl,
    /// A connection with this number already exists or is being made.
    #[error(
        "connection {number} already exists, or is being made: use another number, or drop that \
         one first"
    )]
    NumberTaken {
        /// The number. Connection 0 is the one that was made by address.
        number: u32,
    },
    /// The queues of the channel could not be created or connected to the peer's.
    #[error(transparent)]
    Verbs(Box<rdma_qp::Error>),
}

rdma_types::debug_messages!(enum ConnectError {
    Resolve { source }, NoAddress, NobodyListens { tried }, UserBytesTooLong { length, most },
    ReasonTooLong { length }, Io { tried, source }, Rejected(it), Busy(it),
    Timeout { limit, awaited }, Closed { address, awaited }, Foreign { address, received },
    Version { address, found }, Garbled { address, what }, NoControl, NumberTaken { number },
    Verbs(it),
});

impl ConnectError {
    /// Checks that the user bytes are short enough for a rendezvous.
    ///
    /// # Errors
    /// [`UserBytesTooLong`](Self::UserBytesTooLong).
    pub fn check_user_bytes(user_bytes: &[u8]) -> Result<(), Self> {
        match user_bytes.len() {
            length if length > MOST => Err(Self::UserBytesTooLong { length, most: MOST }),
            _ => Ok(()),
        }
    }
}

impl ConnectError {
    /// Returns the action that may help after this error.
    ///
    /// If no server is running yet, this is [`Retry`](Recovery::Retry).
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Resolve { .. }
            | Self::NobodyListens { .. }
            | Self::Timeout { .. }
            | Self::Busy(_)
            | Self::Closed { .. } => Recovery::Retry,
            Self::Io { source, .. } => {
                let errno = source.raw_os_error().map(Errno::from_raw_os_error);
                match errno {
                    Some(Errno::ACCESS | Errno::PERM) => Recovery::Permission,
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        Recovery::Resource
                    }
                    Some(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => Recovery::Programming,
                    // rdma_cm cannot reach the address with this device.
                    None if source.kind() == io::ErrorKind::Unsupported => Recovery::Programming,
                    _ => Recovery::Retry,
                }
            }
            Self::Verbs(error) => error.recovery(),
            Self::NoAddress
            | Self::UserBytesTooLong { .. }
            | Self::ReasonTooLong { .. }
            | Self::NoControl
            | Self::NumberTaken { .. }
            | Self::Rejected(_)
            | Self::Foreign { .. }
            | Self::Version { .. }
            | Self::Garbled { .. } => Recovery::Programming,
        }
    }
}

impl From<rdma_qp::Error> for ConnectError {
    fn from(error: rdma_qp::Error) -> Self {
        Self::Verbs(Box::new(error))
    }
}

impl From<rdma_mem::Error> for ConnectError {
    fn from(error: rdma_mem::Error) -> Self {
        rdma_qp::Error::from(error).into()
    }
}

fn list(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

fn reason(why: &str) -> &str {
    if why.trim().is_empty() { "it gave no reason" } else { why }
}

fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => {
            "; raise the limit of open files (`ulimit -n`), or close unneeded files"
        }
        Some(Errno::ADDRINUSE) => {
            "; another program listens there: end it, or listen at another port"
        }
        Some(Errno::ADDRNOTAVAIL) => {
            "; check that it is an address of this machine: `ip address` lists them"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "; ports below 1024 need a privilege, and a firewall may forbid others"
        }
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => {
            "; there is no route: check the address and the network"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_socket_states_what_to_do() {
        for (errno, remedy) in [
            (Errno::MFILE, "close unneeded files"),
            (Errno::ADDRINUSE, "listen at another port"),
            (Errno::ADDRNOTAVAIL, "check that it is an address of this machine"),
            (Errno::ACCESS, "ports below 1024 need a privilege"),
            (Errno::PERM, "a firewall may forbid others"),
            (Errno::HOSTUNREACH, "check the address and the network"),
        ] {
            let source = io::Error::from(errno);
            let error = ConnectError::Io { tried: "listening on port 7".into(), source };
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
