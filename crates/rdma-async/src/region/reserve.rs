//! Memory that is open to peers until a function returns or its time is up.

use std::future::{Future, pending, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rdma_connect::TransportError;
use rdma_mem::{AccessFlags, Error, Recovery};
use tokio::time::sleep;

use super::descriptor::Descriptor;
use super::memory::Region;
use crate::sync::LONGEST;

/// The maximum number of bytes to register or deregister within a poll. Larger memory takes longer, so another thread
/// handles it.
pub(crate) const AT_ONCE: usize = 1 << 20;

/// The result of [`Region::reserve`] and [`Region::reserve_for`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Reserved<T> {
    /// The memory, exclusive again, with what peers wrote into it.
    pub region: Region,
    /// The value that the function returned, or `None` if something else ended the reservation.
    pub value: Option<T>,
    /// The event that ended the reservation.
    pub end: ReservedEnd,
}

/// The event that ends a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReservedEnd {
    /// The function returned.
    Done,
    /// The time was up.
    TimeOver,
    /// The connection of [`Region::reserve_for`] was closed, failed, or has a new [epoch](crate::Connection::epoch).
    Disconnected,
}

/// An error from opening or closing memory.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The memory was never open, and the function was not called.
    #[error("the memory was not opened to peers: {error}")]
    NotOpened {
        /// The memory.
        region: Region,
        /// The provider's error, or the error of a closed connection.
        error: Box<TransportError>,
    },
    /// The region belongs to a different protection domain from the connection of [`Region::reserve_for`]. The memory
    /// was never open, and the function was not called.
    #[error(
        "the region belongs to a different protection domain from the connection's: create it in \
         `connection.pd()`, for example with `Region::of` and the memory that `into_memory` \
         returns"
    )]
    WrongDomain {
        /// The memory.
        region: Region,
    },
    /// The provider refuses to end the access. The memory is never used again. Peers may still reach it through the
    /// connections of its protection domain, until these are closed.
    #[error(
        "the memory could not be closed ({0}): close the connections of its domain, through which \
         peers may still reach it"
    )]
    NotRevoked(Box<Error>),
    /// The runtime has shut down, and with it the thread that would have called the provider. The memory is closed and
    /// freed, or leaked if the provider refuses to close it.
    #[error("the runtime ended before the memory was closed: keep it running until then")]
    RuntimeEnded,
}

rdma_types::debug_messages!(enum ReserveError {
    NotOpened { region, error }, WrongDomain { region }, NotRevoked(it), RuntimeEnded,
});

impl ReserveError {
    /// Returns how a program can recover from the error. After [`NotRevoked`](Self::NotRevoked), close *all*
    /// connections of the protection domain, because peers can reach the memory through them.
    ///
    /// ```
    /// use rdma_async::ReserveError;
    /// use rdma_mem::Recovery;
    ///
    /// assert_eq!(ReserveError::RuntimeEnded.recovery(), Recovery::Programming);
    /// ```
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::NotOpened { error, .. } => error.recovery(),
            Self::NotRevoked(_) => Recovery::Reconnect,
            Self::WrongDomain { .. } | Self::RuntimeEnded => Recovery::Programming,
        }
    }
}

impl Region {
    /// Opens the memory to peers while `f` runs. Closes it when `f` returns or the time is up, whichever comes first,
    /// and not earlier. Then the memory is exclusive again: a late request of a peer fails with a remote access error
    /// and changes nothing.
    ///
    /// While it is open, the memory has its own registration, and every peer that has the key can access it. `f`
    /// receives the [`Descriptor`] with the key, and sends it to a peer, or publishes it for many. `access` is what
    /// peers may do; any further rights that verbs require are added. Deregistering closes the memory without waiting
    /// for any peer.
    ///
    /// If the future is dropped, or `f` panics, the memory is closed and then freed. The time is measured by the
    /// kernel's `CLOCK_MONOTONIC`, which stops while the machine is suspended. Memory of more than 1 MiB is registered
    /// and deregistered on tokio's blocking threads, and stays open until one of them is free.
    ///
    /// When the time is up, `f` is dropped with its operations. A receive that it has posted stays posted, and matches
    /// the next message. Post such a receive before this call, or end the connection to a late peer.
    ///
    /// A peer may post a request just before the end, and its device may retransmit the request later. The provider may
    /// have reused the key by then. A peer must therefore check that [enough time](Descriptor::remote) is left for its
    /// request. Before a program opens the same memory to another peer, it must wait as long as a connection retries.
    ///
    /// # Errors
    /// [`ReserveError::NotOpened`] returns the memory; [`ReserveError::NotRevoked`] and [`ReserveError::RuntimeEnded`]
    /// do not.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime that has time (`enable_time`).
    ///
    /// # Examples
    /// A peer writes into memory that is open to it for at most two seconds:
    /// ```
    /// use std::time::Duration;
    /// use rdma_async::Region;
    /// use rdma_mem::{AccessFlags, BufferPool};
    ///
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(&context)?;
    /// # let options = rdma_async::ConnectionOptions::new(&pd);
    /// # let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
    /// # let (peer, here) = tokio::join!(driver.connect(listener.local_addr(), options), listener.accept());
    /// # let ((peer, _), here) = (peer?, here?);
    /// # let pool = BufferPool::new(&pd);
    /// # let asked = peer.receive(pool.allocate(64)?).into_owned(&peer).post().await?;
    /// # let peer = tokio::spawn({ let pool = pool.clone(); async move {
    /// #     let asked = asked.await.unwrap();
    /// #     let bytes = asked.memory[..asked.length].try_into().unwrap();
    /// #     let descriptor = rdma_async::Descriptor::from_bytes(bytes);
    /// #     let mut answer = pool.allocate(6).unwrap();
    /// #     answer.copy_from_slice(b"answer");
    /// #     peer.write_with_imm(answer, descriptor.remote(Duration::ZERO).unwrap().slice(0..6).unwrap(), 6).await.unwrap();
    /// # }});
    /// let region = Region::allocate(&pd, 4096)?;
    /// let may = AccessFlags::new().with_remote_write();
    /// let done = here.receive_imm().post().await?;
    /// let reserved = region.reserve(may, Duration::from_secs(2), async |descriptor| {
    ///     let mut message = pool.allocate(rdma_async::Descriptor::BYTES)?;
    ///     message.copy_from_slice(&descriptor.to_bytes());
    ///     here.send(message).await?;
    ///     // The peer writes, and sends the length.
    ///     Ok::<_, Box<dyn std::error::Error>>(done.await?)
    /// });
    /// let reserved = reserved.await?;
    /// let length = reserved.value.expect("in time")?;
    /// assert_eq!(length, Some(6));
    /// assert_eq!(reserved.region[..6], *b"answer");
    /// # peer.await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn reserve<T>(
        self,
        access: AccessFlags,
        time: Duration,
        f: impl AsyncFnOnce(Descriptor) -> T,
    ) -> Result<Reserved<T>, ReserveError> {
        self.reserve_until(access, time, pending(), f).await
    }

    /// Like [`reserve`](Self::reserve), but the reservation also ends when `lost` is ready.
    pub(super) async fn reserve_until<T>(
        self,
        access: AccessFlags,
        time: Duration,
        lost: impl Future<Output = ()>,
        f: impl AsyncFnOnce(Descriptor) -> T,
    ) -> Result<Reserved<T>, ReserveError> {
        let length = self.len();
        let (open, pd) =
            match at_once(length, move || self.open(None, add_local_write(access))).await? {
                Ok(open) => open,
                Err((region, error)) => return Err(not_opened(region, error.into())),
            };
        let descriptor = Descriptor::new(open.remote(), time);
        let (value, end) = run_until_end(f(descriptor), time, lost).await;
        // If the provider refuses, this tries again. Memory that is still registered after that is deregistered on
        // drop, or leaked.
        #[allow(clippy::result_large_err)] // it is the memory
        let close = move || {
            let closed = open.close().or_else(|(open, _)| open.close());
            closed.map_err(|(_, error)| error)
        };
        let closed = at_once(length, close);
        match closed.await? {
            Ok(memory) => Ok(Reserved { region: Self::of_plain(pd, memory), value, end }),
            Err(error) => Err(ReserveError::NotRevoked(Box::new(error))),
        }
    }
}

/// Adds local write access if these rights require it.
pub(crate) fn add_local_write(access: AccessFlags) -> AccessFlags {
    let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(changes) { access.with_local_write() } else { access }
}

/// Waits until the function returns, the time is up, or `lost` is ready.
pub(super) async fn run_until_end<T>(
    function: impl Future<Output = T>,
    time: Duration,
    lost: impl Future<Output = ()>,
) -> (Option<T>, ReservedEnd) {
    let mut function = pin!(function);
    // A function that never has to wait needs no timer.
    let at_once = poll_fn(|cx| Poll::Ready(function.as_mut().poll(cx)));
    if let Poll::Ready(value) = at_once.await {
        return (Some(value), ReservedEnd::Done);
    }
    tokio::select! {
        // The function's result takes precedence if several events happen at once.
        biased;
        value = function => (Some(value), ReservedEnd::Done),
        () = sleep(time.min(LONGEST)) => (None, ReservedEnd::TimeOver),
        () = lost => (None, ReservedEnd::Disconnected),
    }
}

#[cold]
pub(super) fn not_opened(region: Region, error: TransportError) -> ReserveError {
    ReserveError::NotOpened { region, error: Box::new(error) }
}

/// Makes a call to the provider for memory of this length, on another thread if the call may take long.
pub(crate) async fn at_once<R: Send + 'static>(
    length: usize,
    call: impl FnOnce() -> R + Send + 'static,
) -> Result<R, ReserveError> {
    if length <= AT_ONCE {
        return Ok(call());
    }
    tokio::task::spawn_blocking(call).await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => ReserveError::RuntimeEnded,
    })
}
