//! What a server is told, and why it is told nothing.

use std::net::SocketAddr;

use rdma_connect::{CloseReason, ConnectError, PeerId, Reported, TransportError, cause_of};
use rdma_mem::{AsyncEventKind, Buffer, Recovery};
use rdma_qp::{QueuePair, WorkErrorClass};

/// What has happened at a [`Server`](crate::Server).
///
/// # Examples
/// A server that counts the bytes of each client, from `Joined` to `Left`:
/// ```
/// use std::collections::HashMap;
/// use rdma_channel::{Channel, PeerId, Server, ServerEvent, prelude::*};
///
/// /// Handles one event; returns whether it was the end of a client.
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
///         _ => {} // this server sends nothing, and lends no memory
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
    /// A client has connected, and can be sent to.
    Joined {
        /// Which one.
        peer: PeerId,
        /// Where it connected from.
        address: SocketAddr,
        /// What it said in its [`user_bytes`](crate::ChannelBuilder::user_bytes). Who it is has not been checked.
        user_bytes: Box<[u8]>,
    },
    /// A client has sent a message.
    Message {
        /// Which one.
        peer: PeerId,
        /// The message is at its beginning. It is the program's: to be read, sent to anybody, kept, or dropped. Behind
        /// `length` bytes is what an earlier message has left, maybe another client's.
        buffer: Buffer,
        /// How many bytes the message has.
        length: usize,
        /// The immediate data that came with it.
        immediate: Option<u32>,
    },
    /// A client has written into memory of this machine that it was told of, and has said so with immediate data.
    Written {
        /// Which one.
        peer: PeerId,
        /// How many bytes it has written.
        length: usize,
        /// Its immediate data.
        immediate: u32,
    },
    /// What was sent to a client has arrived in its memory, and the buffer is the program's again.
    Sent {
        /// Which one.
        peer: PeerId,
        /// What was sent.
        buffer: Buffer,
    },
    /// One more send to a client is possible, after [`WouldBlock`](TransportError::WouldBlock): one without a buffer has
    /// arrived. Of one with a buffer [`Sent`](Self::Sent) says the same.
    Room {
        /// Which one.
        peer: PeerId,
    },
    /// A client has gone, or its connection has failed. It is the last event of this client. What was sent to it and
    /// not reported as [`Sent`](Self::Sent) may have arrived or not; its buffers are given back to their pool.
    Left {
        /// Which one.
        peer: PeerId,
        /// Why.
        reason: LeftReason,
    },
}

/// Why a client of a [`Server`](crate::Server) has left.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LeftReason {
    /// It has dropped its channel, its process has ended, or its machine is silent.
    #[error("the client is gone: {reason}")]
    Gone {
        /// How it has gone.
        reason: CloseReason,
    },
    /// The server has [disconnected](crate::Server::disconnect) it.
    #[error("the server has disconnected the client")]
    Disconnected,
    /// A request of the client was refused here, as the device says, which has ended the connection: it had a wrong key
    /// or length, or was of a kind that this end does not take. Of devices that do not say so, as SoftRoCE, it is
    /// [`Gone`](Self::Gone).
    #[error("the connection has failed{}", Reported::from(Some(*event)))]
    Refused {
        /// What the device says.
        event: AsyncEventKind,
    },
    /// The connection has failed.
    #[error(transparent)]
    Failed(TransportError),
}

impl LeftReason {
    /// The event that the device has reported, if this reason is a flushed request, which is only a consequence.
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

/// Why a [`Server`](crate::Server) was told nothing.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// New clients cannot be taken for now, mostly since too many files are open. Those that have joined are served, and
    /// the server tries again after a second, or when a client has left.
    #[error(transparent)]
    Clients(#[from] ConnectError),
    /// The server's own queues have failed, or there is no memory for receives. When its
    /// [`recovery`](Self::recovery) is to connect anew, make a new server.
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
    /// What a program can do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Clients(error) => error.recovery(),
            Self::Transport(error) => error.recovery(),
        }
    }
}
