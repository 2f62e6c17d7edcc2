//! Memory that is open to peers until a function has returned or a time is over.

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

/// The most bytes that are registered and deregistered within a poll. More takes time, and runs on another thread.
pub(crate) const AT_ONCE: usize = 1 << 20;

/// The result of [`Region::reserve`] and [`Region::reserve_for`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Reserved<T> {
    /// The memory, exclusive again, with the bytes that peers have written.
    pub region: Region,
    /// The value that the function has returned; `None` if something else ended the reservation.
    pub value: Option<T>,
    /// The event that ended the reservation.
    pub end: ReservedEnd,
}

/// The reason for the end of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReservedEnd {
    /// The function has returned.
    Done,
    /// The time was over.
    TimeOver,
    /// The connection of [`Region::reserve_for`] was closed, has failed, or has another
    /// [epoch](crate::Connection::epoch): the peer had access through the previous queue pair.
    Disconnected,
}

/// The error of memory that was not opened, or not closed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The memory was never open, and the function was not called.
    #[error("the memory was not opened to peers: {error}")]
    NotOpened {
        /// The memory.
        region: Region,
        /// The provider's error, or that the connection is closed.
        error: Box<TransportError>,
    },
    /// The region belongs to another protection domain than the connection of [`Region::reserve_for`]. The memory was
    /// never open, and the function was not called.
    #[error(
        "the region belongs to another protection domain than the connection: make it in `connection.pd()`, \
        for example with `Region::of` and the memory that `into_memory` returns"
    )]
    WrongDomain {
        /// The memory.
        region: Region,
    },
    /// The provider refuses to end the access. The memory is never used again. Peers may still reach it through the
    /// connections of its protection domain, until these are closed.
    #[error(
        "the memory could not be closed ({0}): close the connections of its domain, by which peers may still reach it"
    )]
    NotRevoked(Box<Error>),
    /// The runtime has ended, and with it the thread that would have called the provider. The memory is closed and
    /// freed, or never freed if the provider refuses to close it.
    #[error("the runtime has ended before the memory was closed: keep it running until then")]
    RuntimeEnded,
}

rdma_types::debug_messages!(enum ReserveError {
    NotOpened { region, error }, WrongDomain { region }, NotRevoked(it), RuntimeEnded,
});

impl ReserveError {
    /// Returns what a program can do about the error. After [`NotRevoked`](Self::NotRevoked), close *all* connections
    /// of the protection domain, because peers can reach the memory through them.
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
    /// Opens the memory to peers while `f` notifies them. Closes it when `f` has returned or the time is over,
    /// whichever is first, and not earlier. Then the memory is exclusive again: a late request of a peer fails with a
    /// remote access error and changes nothing.
    ///
    /// While it is open, the memory has its own registration, for every peer that has the key. `f` receives the
    /// [`Descriptor`] with the key, and sends it to a peer, or publishes it for many. `access` has the rights of peers;
    /// rights that the verbs also demand are added. Deregistering closes the memory, and waits for no peer.
    ///
    /// If the future is dropped, or `f` panics, the memory is closed, and then freed. The time is the kernel's
    /// `CLOCK_MONOTONIC`, which stops while the machine is suspended. Memory of more than 1 MiB is registered and
    /// deregistered on tokio's blocking threads. The memory stays open until one of them is free.
    ///
    /// When the time is over, `f` is dropped with its operations. A receive that it has posted stays posted, and
    /// matches the next message. Post such a receive before, or end the connection of a late peer.
    ///
    /// A peer may have posted a request just before the end, which its device sends again later, and providers reuse
    /// keys. So a peer checks that [enough time](Descriptor::remote) is left for its request. Before a program opens
    /// the same memory for another peer, it waits for the time that a connection retries.
    ///
    /// # Errors
    /// [`ReserveError::NotOpened`] with the memory; [`ReserveError::NotRevoked`] and [`ReserveError::RuntimeEnded`]
    /// without it.
    ///
    /// # Panics
    /// If this is not called within a runtime of tokio that has time (`enable_time`).
    ///
    /// # Examples
    /// A peer that writes into memory that is open to it for at most two seconds:
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

    /// Like [`reserve`](Self::reserve), but it also ends as soon as `lost` is ready.
    pub(super) async fn reserve_until<T>(
        self,
        access: AccessFlags,
        time: Duration,
        lost: impl Future<Output = ()>,
        f: impl AsyncFnOnce(Descriptor) -> T,
    ) -> Result<Reserved<T>, ReserveError> {
        let length = self.len();
        let (open, pd) = match at_once(length, move || self.open(None, local_too(access))).await? {
            Ok(open) => open,
            Err((region, error)) => return Err(not_opened(region, error.into())),
        };
        let descriptor = Descriptor::new(open.remote(), time);
        let (value, end) = until_over(f(descriptor), time, lost).await;
        // If the provider refuses, it is tried again. Memory that is still registered then is deregistered on drop, or
        // never freed.
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

/// Adds the local rights that the verbs demand for these.
pub(crate) fn local_too(access: AccessFlags) -> AccessFlags {
    let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(changes) { access.with_local_write() } else { access }
}

/// Waits until the function has returned, the time is over, or `lost` is ready.
pub(super) async fn until_over<T>(
    function: impl Future<Output = T>,
    time: Duration,
    lost: impl Future<Output = ()>,
) -> (Option<T>, ReservedEnd) {
    let mut function = pin!(function);
    // A function that has nothing to wait for needs no timer.
    let at_once = poll_fn(|cx| Poll::Ready(function.as_mut().poll(cx)));
    if let Poll::Ready(value) = at_once.await {
        return (Some(value), ReservedEnd::Done);
    }
    tokio::select! {
        // The result of the function counts, even if everything ends at once.
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

/// Calls the provider for that many bytes: at once, or on another thread if it may take time.
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
