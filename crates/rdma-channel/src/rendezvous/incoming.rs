//! A client that a listener has, and that its program decides about.

use std::net::SocketAddr;
use std::time::Duration;

use rdma_connect::{Candidate, ConnectError, Greeting};
use tracing::field::display;

use super::files::Added;
use crate::channel::Channel;
use crate::ledger::watch::Watch;

/// A client of a [`ChannelListener`](crate::ChannelListener) that waits to be accepted or rejected.
///
/// Its queue pair and one of this server are connected to each other already, so that
/// [`accept`](Self::accept) waits for nothing. A client that is dropped without an answer is told that it was turned
/// away.
///
/// # Examples
/// A server that looks at what the client says, and tells it where to write:
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
///     let (mut channel, told) = builder.connect(address)?;
///     let board = RemoteMemoryRegion::from_bytes(told[..].try_into()?);
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
#[must_use = "a client that is dropped is told that it was turned away"]
#[derive(Debug)]
pub struct Incoming<'l> {
    pub(super) refused: &'l mut u64,
    pub(super) client: Candidate<Added, Channel>,
    pub(super) watch: Option<Duration>,
}

impl Incoming<'_> {
    /// Where the client connected from.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        self.client.address
    }

    /// What the client said in its [`user_bytes`](crate::ChannelBuilder::user_bytes); empty if it said nothing. Who it is
    /// has not been checked.
    #[must_use]
    pub fn user_bytes(&self) -> &[u8] {
        &self.client.greeting.user_bytes
    }

    /// Accepts the client, whose [`connect`](crate::ChannelBuilder::connect) returns these bytes, at most 1,024. It
    /// waits for nothing, and both ends can send at once.
    ///
    /// # Errors
    /// [`ConnectError::UserBytesTooLong`], after which the client is told that it was turned away;
    /// [`ConnectError::Closed`] if the client is known to be gone, and [`ConnectError::Garbled`] if it has said what
    /// it was not asked for. One that goes at this very time, or whose limit runs out now, is not known to be gone: then
    /// operations of the channel fail.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, user_bytes: &[u8]) -> Result<Channel, ConnectError> {
        ConnectError::check_user_bytes(user_bytes)?;
        let Self { refused, mut client, watch } = self;
        let qpn = client.end.qpn().map(display);
        let _span = tracing::debug_span!("accept", client = %client.address, qpn).entered();
        let watches = watch.is_some();
        let greeting = Greeting { user_bytes: user_bytes.into(), watches, talks: false };
        let stream = client.accept(greeting).inspect_err(|_| *refused += 1)?;
        if client.greeting.watches || watches {
            client.end.ledger.watch = Some(Box::new(Watch::of_rendezvous(stream.stream(), watch)));
        }
        Ok(client.end)
    }

    /// Turns the client away: its `connect` says [`ConnectError::Rejected`] with this reason, of which the first 1,024
    /// bytes are told.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, why: &str) {
        self.client.reject(why);
    }
}
