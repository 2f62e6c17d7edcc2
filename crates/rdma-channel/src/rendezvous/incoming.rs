//! A client that waits for the listener's program to accept or reject it.

use std::net::SocketAddr;
use std::time::Duration;

#[cfg(feature = "cm")]
use rdma_cm::ConnectionRequest;
use rdma_connect::{Candidate, ConnectError, Greeting};
use tracing::field::display;

#[cfg(feature = "cm")]
use super::cm::accept;
use super::files::Added;
use super::source::Source;
use crate::channel::Channel;
use crate::channel::options::Options;
use crate::ledger::watch::Watch;

/// A client of a [`ChannelListener`](crate::ChannelListener) that waits for `accept` or `reject`.
///
/// Over TCP, the client's queue pair is already connected to a queue pair of this server, so [`accept`](Self::accept)
/// does not wait. If this value is dropped without an answer, the client is notified that it was rejected.
///
/// Through rdma_cm (`listen_cm`), `accept` connects the queue pair instead, and waits for the client's confirmation.
///
/// # Examples
/// A server that checks the client's user bytes, and answers with the location of writable memory:
/// ```
/// use std::thread;
///
/// use rdma_channel::{ConnectError, RemoteMemoryRegion, prelude::*};
/// use rdma_mem::AccessFlags;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut listener = pd.create_channel().listen("127.0.0.1:0")?;
/// let address = listener.local_addr();
///
/// // This could be another process, or another machine.
/// let client = thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
///     let stranger = pd.create_channel().user_bytes(b"let me in").connect(address);
///     assert!(matches!(stranger, Err(ConnectError::Rejected(why)) if &*why == "no password"));
///     let builder = pd.create_channel().user_bytes(b"swordfish").max_inline_data(16);
///     let (mut channel, greeting) = builder.connect(address)?;
///     let board = RemoteMemoryRegion::from_bytes(greeting[..].try_into()?);
///     channel.write_inline(b"here I am", board)?;
///     Ok(())
/// });
///
/// let access = AccessFlags::new().with_local_write().with_remote_write();
/// let board = pd.allocate_shared_region(64, access)?;
/// let _channel = loop {
///     let client = listener.incoming(None)?;
///     match client.user_bytes() {
///         b"swordfish" => break client.accept(&board.remote().to_bytes())?,
///         _ => client.reject("no password"),
///     }
/// };
/// client.join().unwrap()?;
/// let mut text = [0; 9];
/// board.read(0, &mut text)?;
/// assert_eq!(&text, b"here I am");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[must_use = "a client that is dropped is notified that it was rejected"]
#[derive(Debug)]
pub struct Incoming<'l> {
    pub(super) clients: &'l mut Source<Options>,
    pub(super) client: Arrived,
    pub(super) watch: Option<Duration>,
}

/// A client, by the kind of its rendezvous.
#[derive(Debug)]
pub(super) enum Arrived {
    Tcp(Box<Candidate<Added, Channel>>),
    /// A request. Its queue pair is not connected yet. The client has `limit` to confirm the connection.
    #[cfg(feature = "cm")]
    Cm {
        request: ConnectionRequest,
        user_bytes: Box<[u8]>,
        limit: Duration,
    },
}

#[cfg(feature = "cm")]
impl Arrived {
    pub(super) fn cm(request: ConnectionRequest, limit: Duration) -> Self {
        let user_bytes = rdma_connect::cm::decode(request.private_data()).0.into();
        Self::Cm { request, user_bytes, limit }
    }
}

impl Incoming<'_> {
    /// The address from which the client connected.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        match &self.client {
            Arrived::Tcp(client) => client.address,
            #[cfg(feature = "cm")]
            Arrived::Cm { request, .. } => request.peer_address(),
        }
    }

    /// The client's [`user_bytes`](crate::ChannelBuilder::user_bytes); empty if the client sent none. The client's
    /// identity has not been checked.
    #[must_use]
    pub fn user_bytes(&self) -> &[u8] {
        match &self.client {
            Arrived::Tcp(client) => &client.greeting.user_bytes,
            #[cfg(feature = "cm")]
            Arrived::Cm { user_bytes, .. } => user_bytes,
        }
    }

    /// Accepts the client, whose [`connect`](crate::ChannelBuilder::connect) returns these bytes: at most 1,024, or 192
    /// through rdma_cm. Both ends can send when it returns. Through rdma_cm, this waits for the client's confirmation,
    /// for at most the listener's [`rendezvous_timeout`](crate::ChannelBuilder::rendezvous_timeout). Over TCP, it does
    /// not wait.
    ///
    /// # Errors
    /// - [`ConnectError::UserBytesTooLong`]; the client is then notified that it was rejected;
    /// - [`ConnectError::Closed`] if the client is known to be gone;
    /// - [`ConnectError::Garbled`] if the client has sent unexpected bytes.
    ///
    /// Through rdma_cm, also [`ConnectError::Timeout`] if the client does not confirm the connection, and the errors of
    /// [`build`](crate::ChannelBuilder::build).
    ///
    /// `accept` cannot detect that the client ends, or that its time limit expires, during this call. In that case,
    /// operations of the channel fail later.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, user_bytes: &[u8]) -> Result<Channel, ConnectError> {
        let Self { clients, client, watch } = self;
        match client {
            Arrived::Tcp(client) => accept_by_tcp(*client, user_bytes, clients, watch),
            #[cfg(feature = "cm")]
            Arrived::Cm { request, limit, .. } => {
                let client = request.peer_address();
                let _span = tracing::debug_span!("accept", %client).entered();
                let accepted = accept(clients.maker(), request, user_bytes, (limit, watch));
                accepted.inspect_err(|error| clients.refuse(format!("{client}: {error}")))
            }
        }
    }

    /// Rejects the client. Its `connect` fails with [`ConnectError::Rejected`], which contains the first 1,024 bytes of
    /// this reason, or the first 144 through rdma_cm.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, why: &str) {
        match self.client {
            Arrived::Tcp(mut client) => client.reject(why),
            #[cfg(feature = "cm")]
            Arrived::Cm { request, .. } => rdma_connect::cm::reject(request, why, false),
        }
    }
}

fn accept_by_tcp(
    mut client: Candidate<Added, Channel>,
    user_bytes: &[u8],
    clients: &mut Source<Options>,
    watch: Option<Duration>,
) -> Result<Channel, ConnectError> {
    ConnectError::check_user_bytes(user_bytes)?;
    let qpn = client.end.qpn().map(display);
    let _span = tracing::debug_span!("accept", client = %client.address, qpn).entered();
    let watches = watch.is_some();
    let greeting = Greeting { user_bytes: user_bytes.into(), watches, talks: false };
    let stream = client.accept(greeting).inspect_err(|error| clients.refuse(error.to_string()))?;
    client.end.ledger.peer_addr = Some(client.address);
    if client.greeting.watches || watches {
        client.end.ledger.watch = Some(Box::new(Watch::of_rendezvous(stream.stream(), watch)));
    }
    Ok(client.end)
}
