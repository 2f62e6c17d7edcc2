//! Memory that is open to one peer until a function returns or its time is up.

use rdma_connect::messaging::Window;
use std::time::Duration;

use rdma_connect::TransportError;
use rdma_mem::{AccessFlags, ProtectionDomain};

use super::descriptor::Descriptor;
use super::kinds::{Bind, Invalidate};
use super::memory::Region;
use super::probe;
use super::reserve::{ReserveError, Reserved, at_once, not_opened, run_until_end};
use crate::connection::Connection;
use crate::ledger::closed;
use crate::ledger::post::RequestSpec;
use crate::link::{Inner, Link};
use crate::operation::Op;
use crate::operation::failed::Failed;
use crate::operation::kinds::{Kind, take};
use crate::operation::posted::Posted;

/// The rights that a window can give.
const RIGHTS: AccessFlags =
    AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

impl Region {
    /// Opens the memory like [`reserve`](Self::reserve), but only to the peer of this connection, and faster. The
    /// memory stays registered without rights for peers. Binding a memory window of type 2 opens the memory, and
    /// invalidating the window closes it.
    ///
    /// The region keeps its registration and its window for the next call, which then needs only two requests on the
    /// connection's send queue. The bind executes after the requests that the connection posted earlier, and the time
    /// starts then. The invalidation never waits for other requests. If requests of the send queue are outstanding at
    /// the end, the window is deallocated instead, and the next call allocates another. If the memory is a
    /// [file](rdma_mem::RegionMemory::memfd), the call closes its descriptor.
    ///
    /// When the connection is closed, fails or has a new [epoch](Connection::epoch), the memory is closed, and `f` is
    /// dropped ([`ReservedEnd::Disconnected`](super::reserve::ReservedEnd::Disconnected)). The same happens if the
    /// device refuses an access of the peer, which closes all memory that this connection has opened. This end notices
    /// the refusal when a request of the connection fails; an operation in `f` may see the failure first. A peer that
    /// invalidates the key itself, with a send, ends the connection.
    ///
    /// Each bind increases the low byte of the key. For the same region and window, a closed key therefore becomes
    /// valid again after 255 more calls at the earliest. A device may give another window a key that was used before.
    /// The device refuses a request with a key that is not valid, which ends the connection. A peer must therefore
    /// check that [enough time](Descriptor::remote) is left for its request.
    ///
    /// Rights other than remote read, write and atomics need a registration like that of `reserve`. It is also needed
    /// if the device has no windows or does not enforce their range. In these cases, every peer that has the key can
    /// access the memory while it is open. The end of the connection still closes the memory.
    ///
    /// The first call for each [`Driver`](crate::Driver) tests the device; if the test fails, the next call repeats it.
    /// The test connects two queue pairs and tries an access beyond a window. It takes a few milliseconds on tokio's
    /// blocking threads. For the access that it refuses, the device may report an event on a queue pair that the
    /// program did not create. A device that does not answer for ten seconds counts as one without windows.
    ///
    /// If the future is dropped, or `f` panics, the window is deallocated, which closes the memory. The memory is then
    /// freed, but not before a request in flight that uses the window has completed.
    ///
    /// # Errors
    /// [`ReserveError::WrongDomain`] and [`ReserveError::NotOpened`] return the memory; [`ReserveError::NotRevoked`]
    /// and [`ReserveError::RuntimeEnded`] do not.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime that has time (`enable_time`).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_async::{Region, ReservedEnd};
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
    /// let mut region = Region::allocate(&pd, 4096)?;
    /// let may = AccessFlags::new().with_remote_write();
    /// for round in 0..3 {
    ///     let reserved = region.reserve_for(&here, may, Duration::from_secs(2), async |descriptor| {
    ///         // Notifies the peer, which writes:
    ///         let mut answer = pool.allocate(1)?;
    ///         answer[0] = round;
    ///         let open = descriptor.remote(Duration::ZERO).expect("two seconds");
    ///         peer.write(answer, open.slice(0..1).expect("4096 bytes")).await?;
    ///         Ok::<_, Box<dyn std::error::Error>>(())
    ///     });
    ///     let reserved = reserved.await?;
    ///     assert_eq!((reserved.end, reserved.region[0]), (ReservedEnd::Done, round));
    ///     region = reserved.region;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn reserve_for<T>(
        self,
        connection: &Connection,
        access: AccessFlags,
        time: Duration,
        f: impl AsyncFnOnce(Descriptor) -> T,
    ) -> Result<Reserved<T>, ReserveError> {
        let link = &**connection.inner();
        if !self.pd().is_same(&link.pd) {
            return Err(ReserveError::WrongDomain { region: self });
        }
        let rights = access.difference(AccessFlags::LOCAL_WRITE);
        let mut found = epoch(link);
        let by_window =
            found.is_ok() && RIGHTS.contains(rights) && probe::are_windows_bounded(link).await;
        if found.is_ok() {
            // Read again, because the test of the device takes time.
            found = epoch(link);
        }
        // Read before the bind. The bind is posted in this epoch or a later one; if in a later one, the reservation
        // ends.
        let epoch = match found {
            Ok(epoch) => epoch,
            Err(error) => return Err(not_opened(self, error)),
        };
        if !by_window {
            let open = self.reserve_until(access, time, ended(link, epoch), f);
            return Box::pin(open).await;
        }
        let (window, pd) = self.bind(link, rights).await?;
        let Some((_, remote)) = window.remote() else { unreachable!("it is bound") };
        let (value, end) =
            run_until_end(f(Descriptor::new(remote, time)), time, ended(link, epoch)).await;
        let region = match invalidate(link, epoch, window).await {
            Ok(window) => Self::of_window(pd, window),
            // The window may still be bound: its queue pair failed or was replaced, or the invalidation would have had
            // to wait.
            Err(window) => match window.close() {
                Ok(region) => Self::of_bindable(pd, region),
                // Dropping the window tries again; if that fails, the window is leaked.
                Err((_, error)) => return Err(ReserveError::NotRevoked(Box::new(error))),
            },
        };
        Ok(Reserved { region, value, end })
    }

    /// Binds the region's window to all of its memory.
    async fn bind(
        self,
        link: &Inner,
        rights: AccessFlags,
    ) -> Result<(Window, ProtectionDomain), ReserveError> {
        let length = self.len();
        let (window, pd) = match self.take_window() {
            Ok(has) => has,
            // Boxed, because this is rare and would enlarge the future.
            Err(region) => Box::pin(region.make_window()).await?,
        };
        let request = RequestSpec::Bind(0, length, rights);
        match Op::<Bind>::new(Link::Borrowed(link), window, request).await {
            Ok(bound) => Ok((bound, pd)),
            Err(failed) => Err(not_bound(failed, pd)),
        }
    }

    #[cold]
    async fn make_window(self) -> Result<(Window, ProtectionDomain), ReserveError> {
        let length = self.len();
        let made = at_once(length, move || self.into_window()).await?;
        made.map_err(|(region, error)| not_opened(region, error.into()))
    }
}

/// Handles a window whose bind failed.
#[cold]
fn not_bound(failed: Failed<Window>, pd: ProtectionDomain) -> ReserveError {
    let Failed { memory: Some(memory), error } = failed else {
        unreachable!("a bind has no time limit")
    };
    if !memory.is_bound() {
        return not_opened(Region::of_window(pd, memory), error);
    }
    // The device may or may not have executed the bind.
    match memory.close() {
        Ok(region) => not_opened(Region::of_bindable(pd, region), error),
        Err((_, error)) => ReserveError::NotRevoked(Box::new(error)),
    }
}

/// Returns the epoch of the connection's queue pair.
fn epoch(link: &Inner) -> Result<u32, TransportError> {
    link.look(|entry| match entry.closed() {
        None => Ok(entry.epoch),
        Some(reason) => Err(closed(reason, entry.peer)),
    })
}

/// Ready when the connection has ended or has a new queue pair.
async fn ended(link: &Inner, epoch: u32) {
    link.until(|entry| (entry.closed().is_some() || entry.epoch != epoch).then_some(())).await;
}

/// Invalidates a bound window.
///
/// # Errors
/// Returns the window if the request was not posted or failed. The window may still be bound, but none of its requests
/// is outstanding.
async fn invalidate(link: &Inner, epoch: u32, window: Window) -> Result<Window, Window> {
    let Some((key, _)) = window.remote() else { return Ok(window) };
    let (link, mut window) = (Link::Borrowed(link), Some(window));
    let request = RequestSpec::Invalidate(key);
    let outcome = match link.post_alone::<Invalidate>(&request, epoch, &mut window) {
        Ok(Ok((success, word))) => Ok(Invalidate::finish(take(&mut window), &success, word)),
        Ok(Err(id)) => Posted::<Invalidate>::new(link, id).await,
        Err(refusal) => Err(Failed::new(take(&mut window), refusal.into())),
    };
    outcome.map_err(|failed| match failed.memory {
        Some(window) => window,
        None => unreachable!("an invalidation has no time limit"),
    })
}
