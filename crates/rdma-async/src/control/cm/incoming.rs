//! A client of rdma_cm that waits for the program to accept or reject it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, Weak};

use rdma_cm::{ConnectionRequest, End, EventChannel, IdToken, Step};
use rdma_connect::ConnectError;
use rdma_connect::cm::{self, CmClients, NO_QUEUE_PAIR, reject};
use tokio::time::timeout;

use super::{event_of, keep, locked, watch};
use crate::connection::Connection;
use crate::control::maker::Maker;
use crate::control::negotiate::blocking;
use crate::control::options::ConnectionOptions;
use crate::driver::Driver;
use crate::prepared::PreparedConnection;

/// A client of a [`CmListener`](crate::CmListener) that waits for the program to accept or reject it.
///
/// The client has no queue pair here before [`accept`](Self::accept). Dropping this value rejects the client.
///
/// # Examples
/// A server that checks the client's user bytes:
/// ```
/// use rdma_async::{ConnectError, ConnectionOptions, Driver};
///
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let context = rdma_mem::open_device("soft0")?;
/// let options = ConnectionOptions::new(&context.allocate_pd()?);
/// let driver = Driver::spawn(&context)?;
/// let listener = driver.listen_cm("localhost:0", options.clone()).await?;
/// let address = listener.local_addr();
///
/// // This could be another process, or another machine.
/// let client = tokio::spawn(async move {
///     let stranger = driver.connect_cm(address, options.clone().user_bytes(b"let me in")).await;
///     assert!(matches!(stranger, Err(ConnectError::Rejected(why)) if &*why == "no password"));
///     driver.connect_cm(address, options.user_bytes(b"swordfish")).await
/// });
///
/// let _connection = loop {
///     let client = listener.incoming().await?;
///     match client.user_bytes() {
///         b"swordfish" => break client.accept(b"welcome").await?,
///         _ => client.reject("no password"),
///     }
/// };
/// let (_connection, greeting) = client.await??;
/// assert_eq!(*greeting, *b"welcome");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(()) }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping it rejects the client"]
pub struct CmIncoming {
    request: ConnectionRequest,
    user_bytes: Box<[u8]>,
    events: EventChannel,
    undecided: Undecided,
    driver: Driver,
    options: ConnectionOptions,
}

/// Lets the listener receive the events of a client until this is dropped. It does not keep the listener.
pub(super) struct Undecided {
    id: IdToken,
    clients: Weak<Mutex<CmClients<Maker>>>,
}

impl Undecided {
    pub(super) const fn new(id: IdToken, clients: Weak<Mutex<CmClients<Maker>>>) -> Self {
        Self { id, clients }
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        if let Some(clients) = self.clients.upgrade() {
            locked(&clients).decide(self.id);
        }
    }
}

impl CmIncoming {
    pub(super) fn new(
        request: ConnectionRequest,
        undecided: Undecided,
        events: EventChannel,
        driver: Driver,
        options: &ConnectionOptions,
    ) -> Self {
        let user_bytes = cm::decode(request.private_data()).0.into();
        Self { request, user_bytes, events, undecided, driver, options: options.clone() }
    }

    /// Returns the address from which the client connected. On one host, the client chooses it.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        self.request.peer_address()
    }

    /// Returns the client's [`user_bytes`](ConnectionOptions::user_bytes), or all 56 bytes of the private data of a C
    /// program. The client is not authenticated.
    #[must_use]
    pub fn user_bytes(&self) -> &[u8] {
        &self.user_bytes
    }

    /// Accepts the client, whose [`connect_cm`](crate::Driver::connect_cm) returns these bytes, at most 192. Waits for the
    /// client's confirmation, for at most [`rendezvous_timeout`](ConnectionOptions::rendezvous_timeout). If the future is
    /// dropped early, the client is rejected.
    ///
    /// # Errors
    /// [`ConnectError::UserBytesTooLong`], which rejects the client; [`ConnectError::Closed`] if the client has withdrawn
    /// its request or ended; [`ConnectError::Timeout`] if it did not confirm in time; [`ConnectError::Verbs`] if no queue
    /// pair could be created or connected; [`ConnectError::Io`] if too many files are open.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    #[doc(alias = "rdma_accept")]
    pub async fn accept(self, user_bytes: &[u8]) -> Result<Connection, ConnectError> {
        let (address, clients) = (self.peer_addr(), self.undecided.clients.clone());
        let accepted = self.connect(user_bytes).await;
        accepted.inspect_err(|error| {
            if let Some(clients) = clients.upgrade() {
                locked(&clients).refuse(format!("{address}: {error}"));
            }
        })
    }

    async fn connect(self, user_bytes: &[u8]) -> Result<Connection, ConnectError> {
        let Self { request, events, undecided, driver, options, .. } = self;
        drop(undecided);
        let (address, limit) = (request.peer_address(), options.rendezvous_timeout);
        let data = match cm::reply(user_bytes) {
            Ok(data) => data,
            Err(error) => {
                reject(request, "its user bytes are too long", false);
                return Err(error);
            }
        };
        let failed = move |error| cm::not_accepted(error, address, limit);
        let qp = options.qp.clone();
        let accepts = async {
            let (accepted, room) = blocking(move || {
                let PreparedConnection { qp, room } = match driver.prepare(qp) {
                    Ok(prepared) => prepared,
                    Err(error) => {
                        reject(request, NO_QUEUE_PAIR, true);
                        return Err(error.into());
                    }
                };
                let accepted = request.prepare(qp).and_then(|accepting| accepting.accept(&data));
                Ok((accepted.map_err(failed)?, room))
            })
            .await?;
            let file = watch(accepted.file().map_err(failed)?, address)?;
            let event = event_of(accepted.id(), &events, &file, failed).await?;
            let (qp, id) = match accepted.advance(event) {
                Step::Next(connection) => connection.into_parts(),
                Step::Failed(error) => return Err(failed(error)),
                _ => return Err(failed(End::PeerGone.into())),
            };
            let file = watch(id.file().map_err(failed)?, address)?;
            let connection = room.connection(qp);
            keep(connection.inner(), (id, file), (address, false), &options);
            Ok(connection)
        };
        timeout(limit, accepts).await.map_err(|_| cm::unconfirmed(address, limit))?
    }

    /// Rejects the client. Its `connect_cm` returns [`ConnectError::Rejected`] with the first 144 bytes of this reason. A
    /// C program gets `RDMA_CM_EVENT_REJECTED`, whose private data begins with the reason.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, why: &str) {
        reject(self.request, why, false);
    }
}

impl fmt::Debug for CmIncoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmIncoming").field("peer_addr", &self.peer_addr()).finish_non_exhaustive()
    }
}
