//! Server events, and the errors from waiting for one.

use std::net::SocketAddr;

use rdma_connect::{CloseReason, ConnectError, PeerId, Reported, TransportError, cause_of};
use rdma_mem::{AsyncEventKind, Buffer, Recovery};
use rdma_qp::{QueuePair, WorkErrorClass};

/// An event of a [`Server`](crate::Server).
///
/// # Examples
/// A server that counts the bytes of each client, from `Joined` to `Left`:
/// ```
/// use std::collections::HashMap;
/// use rdma_channel::{Channel, PeerId, Server, ServerEvent, prelude::*};
///
/// /// Handles one event. Returns true if a client has left.
/// fn count(event: ServerEvent, bytes: &mut HashMap<PeerId, usize>) -> bool {
///     match event {
///         ServerEvent::Joined { peer, .. } => {
///             bytes.insert(peer, 0);
///         }
///         ServerEvent::Message { peer, length, .. } => *bytes.entry(peer).or_default() += length,
///         ServerEvent::Left { peer, reason } => {
///             println!("{peer} has sent {:?} bytes: {reason}", bytes.remove(&peer));
///             return true;
///         }
///         _ => {} // this server sends nothing and writes no memory
///     }
///     false
/// }
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut server = Server::bind("127.0.0.1:0", &pd, 10)?;
/// let address = server.local_addr();
/// let client = std::thread::spawn(move || {
///     Channel::connect(address, &pd)?.send_from(&pd.allocate_region(5)?)?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// });
/// let mut bytes = HashMap::new();
/// while let Some(event) = server.next(None)? {
///     if count(event, &mut bytes) {
///         break;
///     }
/// }
/// client.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ServerEvent {
    /// A client has connected, and messages can be sent to it.
    Joined {
        /// The client.
        peer: PeerId,
        /// The address that the client connected from.
        address: SocketAddr,
        /// The client's [`user_bytes`](crate::ChannelBuilder::user_bytes). The client's identity has not been checked.
        user_bytes: Box<[u8]>,
    },
    /// A client has sent a message.
    Message {
        /// The client.
        peer: PeerId,
        /// The message, at the beginning of the buffer. The program may read, send, keep or drop the buffer. The bytes
        /// after `length` may come from an earlier message, possibly from another client.
        buffer: Buffer,
        /// The length of the message in bytes.
        length: usize,
        /// The immediate data of the message.
        immediate: Option<u32>,
    },
    /// A client has written to memory on this machine, with immediate data.
    Written {
        /// The client.
        peer: PeerId,
        /// The number of bytes written.
        length: usize,
        /// The immediate data.
        immediate: u32,
    },
    /// A message has arrived in the client's memory, and its buffer belongs to the program again.
    Sent {
        /// The client.
        peer: PeerId,
        /// The buffer that was sent.
        buffer: Buffer,
    },
    /// A message without a buffer has arrived, so one more send to the client is possible. This event is reported only
    /// if a send to the client has failed with [`WouldBlock`](TransportError::WouldBlock). For a message with a buffer,
    /// [`Sent`](Self::Sent) shows that another send is possible.
    Room {
        /// The client.
        peer: PeerId,
    },
    /// A client has gone, or its connection has failed. This is the client's last event. Messages to it that no
    /// [`Sent`](Self::Sent) has reported may or may not have arrived. Their buffers return to the pool.
    Left {
        /// The client.
        peer: PeerId,
        /// The reason.
        reason: LeftReason,
    },
}

/// The reason why a client of a [`Server`](crate::Server) has left.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LeftReason {
    /// The client has dropped its channel, its process has ended, or its machine no longer responds.
    #[error("the client is gone: {reason}")]
    Gone {
        /// The reason why the client's stream ended.
        reason: CloseReason,
    },
    /// The server has [disconnected](crate::Server::disconnect) the client.
    #[error("the server has disconnected the client")]
    Disconnected,
    /// The device reported that it refused a request of the client, which ends the connection. The request had a wrong
    /// key or length, or this end does not accept requests of that kind. On devices that do not report this, such as
    /// SoftRoCE, the reason is [`Gone`](Self::Gone).
    #[error("the connection has failed{}", Reported::from(Some(*event)))]
    Refused {
        /// The event that the device reported.
        event: AsyncEventKind,
    },
    /// The connection has failed.
    #[error(transparent)]
    Failed(TransportError),
}

impl LeftReason {
    /// Replaces the failure of a flushed request, which is only a consequence, with the event that the device reported.
    pub(super) fn explained(self, qp: &QueuePair) -> Self {
        match &self {
            Self::Failed(TransportError::WorkError(work))
                if work.class() == WorkErrorClass::Flushed =>
            {
                cause_of(qp).map_or(self, |event| Self::Refused { event })
            }
            _ => self,
        }
    }
}

rdma_types::debug_messages!(enum LeftReason {
    Gone { reason }, Disconnected, Refused { event }, Failed(it),
});

/// The reason why a [`Server`](crate::Server) did not return an event.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// New clients cannot be accepted for now, most often because too many files are open. Joined clients are still
    /// served. The server tries again after a second, or when a client leaves.
    #[error(transparent)]
    Clients(#[from] ConnectError),
    /// The server's own queues have failed, or there is no memory for receives. If the error's
    /// [`recovery`](Self::recovery) is to reconnect, create a new server.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

rdma_types::debug_messages!(
    enum ServerError {
        Clients(it),
        Transport(it),
    }
);

impl ServerError {
    /// The action that the program can take after this error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Clients(error) => error.recovery(),
            Self::Transport(error) => error.recovery(),
        }
    }
}
