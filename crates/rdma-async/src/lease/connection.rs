//! Connections that lend and borrow memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma_mem::{AccessFlags, CommonMemory, Error};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::borrower::Granted;
use super::error::{LeaseDenial, LeaseError, LendError};
use super::frame::Ask;
use super::lender::{Open, Opened, close_refused, deadline_after};
use super::own::Lease;
use super::remote::RemoteRegion;
use super::table::Leases;
use crate::connection::Connection;
use crate::control::shared::Member;
use crate::region::memory::Region;
use crate::region::reserve::{ReserveError, add_local_write, at_once};
use crate::sync::LONGEST;

impl Connection {
    /// Borrows `length` bytes of memory from the peer for the given time. The memory is zeroed, and no other memory
    /// shares its pages. The peer's control connection answers within the [limits](crate::LeaseLimits) that the peer's
    /// program set, without involving that program. `access` is what this end may do with the memory: at most what the
    /// peer's queue pair allows.
    ///
    /// The memory is new and registered on its own, so its key gives access to nothing else. When its time is up, the
    /// peer closes and frees it, even if this end is gone. If the future is dropped early, the memory is returned.
    ///
    /// # Errors
    /// [`LeaseError::NoControl`], [`LeaseError::Closed`], [`LeaseError::Denied`]; [`LeaseError::Timeout`] if no answer
    /// arrives within the [`rendezvous_timeout`](crate::ConnectionOptions::rendezvous_timeout);
    /// [`LeaseError::NotOpened`] for 0 bytes.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with time (`enable_time`).
    ///
    /// # Examples
    /// A client borrows memory from a server, writes into it, and hands it over to the server's program:
    /// ```
    /// use std::time::Duration;
    /// use rdma_async::{ConnectionOptions, Driver, LeaseLimits};
    /// use rdma_mem::{AccessFlags, BufferPool};
    ///
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = Driver::spawn(&context)?;
    /// let write = AccessFlags::new().with_remote_write();
    /// let limits = LeaseLimits::new(write).per_peer(1 << 20);
    /// let options = ConnectionOptions::new(&pd).lease_limits(limits);
    /// let listener = driver.listen("127.0.0.1:0", options).await?;
    /// let connect = driver.connect(listener.local_addr(), ConnectionOptions::new(&pd));
    /// let (client, server) = tokio::join!(connect, listener.accept());
    /// let ((client, _), server) = (client?, server?);
    ///
    /// let memory = client.borrow(4096, write, Duration::from_secs(5)).await?;
    /// let mut word = BufferPool::new(&pd).allocate(5)?;
    /// word.copy_from_slice(b"hello");
    /// memory.write(word).await?;
    /// memory.hand_over();
    ///
    /// let region = server.receive_region().await?;
    /// assert_eq!(region[..5], *b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "request_remote_mr")]
    pub async fn borrow(
        &self,
        length: usize,
        access: AccessFlags,
        time: Duration,
    ) -> Result<RemoteRegion, LeaseError> {
        self.borrow_aligned(length, 1, access, time).await
    }

    /// Like [`borrow`](Self::borrow), but the memory's address at the peer is a multiple of `alignment`, a power of two
    /// of at most 2 MiB. Memory from `borrow` starts at a multiple of 4 KiB.
    ///
    /// # Errors
    /// Same errors as [`borrow`](Self::borrow).
    ///
    /// # Panics
    /// Same panics as [`borrow`](Self::borrow).
    pub async fn borrow_aligned(
        &self,
        length: usize,
        alignment: usize,
        access: AccessFlags,
        time: Duration,
    ) -> Result<RemoteRegion, LeaseError> {
        if length == 0 {
            return Err(LeaseError::NotOpened(Box::new(Error::EmptyRegion)));
        }
        let (length, alignment, access) = (length as u64, alignment as u64, access & remote());
        let ask = Ask { ask: 0, lease: 0, access, length, alignment, time };
        let granted = self.ask(ask).await?;
        Ok(RemoteRegion::new(self.inner(), granted))
    }

    /// Lends memory to the peer for the given time. The peer can access the memory from now on, and its program can
    /// [receive](Self::receive_lease) it at any time. `access` is what the peer may do, at most what the queue pair
    /// allows. Any further rights that verbs require are added.
    ///
    /// The [`Lease`] returns the memory when the peer has returned it, its time is up, or the queue pair has ended,
    /// whichever comes first. After that, a late request of the peer fails with a remote access error and changes
    /// nothing. If the future is dropped early, the memory is freed.
    ///
    /// The time is measured by a task of the runtime in which the connection was made. The clock is the kernel's
    /// `CLOCK_MONOTONIC`, which stops while the machine is suspended. Memory of more than 1 MiB is opened and closed on
    /// tokio's blocking threads; one of them has to be free. When the control connection ends, its task closes all
    /// memory that is still lent.
    ///
    /// The key is valid on every connection of this domain, for any peer that knows it, and providers reuse keys. The
    /// peer's device may retransmit a request that was posted just before the lease ended. Such a request may reach
    /// memory that was opened since then.
    ///
    /// # Errors
    /// The following errors return the memory: [`LeaseError::NoControl`], [`LeaseError::Closed`],
    /// [`LeaseError::NotOpened`], and [`LeaseError::NotGranted`] if the queue pair does not give its peer these rights.
    /// The following do not: [`LeaseError::NotRevoked`], and [`LeaseError::RuntimeEnded`] for more than 1 MiB.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_async::{ConnectionOptions, Driver};
    /// # use rdma_mem::{AccessFlags, BufferPool};
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = Driver::spawn(&context)?;
    /// # let listener = driver.listen("127.0.0.1:0", ConnectionOptions::new(&pd)).await?;
    /// # let connect = driver.connect(listener.local_addr(), ConnectionOptions::new(&pd));
    /// # let (one, other) = tokio::join!(connect, listener.accept());
    /// # let ((one, _), other) = (one?, other?);
    /// use rdma_async::{LeaseEnd, Region};
    ///
    /// let mut region = Region::allocate(&pd, 4096)?;
    /// region[..5].copy_from_slice(b"hello");
    /// let read = AccessFlags::new().with_remote_read();
    /// let lease = one.lend(region, read, Duration::from_secs(5)).await?;
    ///
    /// let borrowed = other.receive_lease().await?;
    /// let word = BufferPool::new(&pd).allocate(5)?;
    /// let word = borrowed.slice(0..5).unwrap().read(word).await?;
    /// assert_eq!(*word, *b"hello");
    /// drop(borrowed);
    ///
    /// let ended = lease.await?;
    /// assert_eq!((ended.end, ended.region.len()), (LeaseEnd::Returned, 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Memory cannot be lent twice, and no other operation can use it until its lease returns it:
    /// ```compile_fail,E0382
    /// # use rdma_mem::AccessFlags;
    /// # async fn twice(one: rdma_async::Connection, region: rdma_async::Region, time: std::time::Duration) {
    /// let first = one.lend(region, AccessFlags::REMOTE_READ, time).await;
    /// let second = one.lend(region, AccessFlags::REMOTE_READ, time).await;
    /// # }
    /// ```
    ///
    /// A buffer cannot be lent, because it shares the memory of its pool with other buffers:
    /// ```compile_fail,E0308
    /// # use rdma_mem::AccessFlags;
    /// # async fn of_a_pool(one: rdma_async::Connection, buffer: rdma_mem::Buffer, time: std::time::Duration) {
    /// let lease = one.lend(buffer, AccessFlags::REMOTE_READ, time).await;
    /// # }
    /// ```
    #[doc(alias = "send_local_mr")]
    pub async fn lend(
        &self,
        region: Region,
        access: AccessFlags,
        time: Duration,
    ) -> Result<Lease, LendError> {
        let back = |region, error| LendError { region: Some(region), error };
        let (entry, leases) = match self.lends(access) {
            Ok(found) => found,
            Err(error) => return Err(back(region, error)),
        };
        let (length, pd) = (region.len(), self.pd().clone());
        let opened = at_once(length, move || region.open(Some(&pd), add_local_write(access)));
        let (memory, own) = match opened.await {
            Ok(Ok(opened)) => opened,
            Ok(Err((region, error))) => {
                return Err(back(region, LeaseError::NotOpened(Box::new(error))));
            }
            Err(_) => return Err(LendError { region: None, error: LeaseError::RuntimeEnded }),
        };
        let (who, mut ended) = oneshot::channel();
        match leases.lend(entry.open(access, time, Opened::Lent(memory, own, who))) {
            Ok(lease) => {
                Ok(Lease { leases: Arc::clone(leases), number: entry.number, lease, ended })
            }
            Err(open) => {
                // The connection ended in the meantime.
                close_refused(open);
                Err(match ended.try_recv() {
                    Ok(Ok(ended)) => back(ended.region, LeaseError::Closed(self.closed())),
                    Ok(Err(ReserveError::NotRevoked(error))) => {
                        LendError { region: None, error: LeaseError::NotRevoked(error) }
                    }
                    _ => LendError { region: None, error: LeaseError::RuntimeEnded },
                })
            }
        }
    }

    /// Like [`lend`](Self::lend), but lends a part of memory. Other leases may hold parts of the same memory at the
    /// same time, each with its own rights and key. `range` is in bytes from the start of the memory. Once all its
    /// leases have ended and all clones are dropped, [`CommonMemory::try_into_memory`] returns the memory.
    ///
    /// # Errors
    /// [`LeaseError::NoControl`], [`LeaseError::Closed`], [`LeaseError::NotGranted`], [`LeaseError::NotOpened`];
    /// [`LeaseError::RuntimeEnded`] for more than 1 MiB.
    ///
    /// # Panics
    /// If the range is not within the memory, or this is not called within a tokio runtime.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_async::{ConnectionOptions, Driver};
    /// # use rdma_mem::{AccessFlags, BufferPool};
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = Driver::spawn(&context)?;
    /// # let listener = driver.listen("127.0.0.1:0", ConnectionOptions::new(&pd)).await?;
    /// # let connect = driver.connect(listener.local_addr(), ConnectionOptions::new(&pd));
    /// # let (one, other) = tokio::join!(connect, listener.accept());
    /// # let ((one, _), other) = (one?, other?);
    /// use rdma_mem::{CommonMemory, RegionMemory};
    ///
    /// let board = CommonMemory::new(RegionMemory::allocate(8192)?);
    /// let (read, write) = (AccessFlags::new().with_remote_read(), AccessFlags::new().with_remote_write());
    /// let minute = Duration::from_secs(60);
    /// let all = one.lend_part(&board, 0..8192, read, minute).await?;
    /// let line = one.lend_part(&board, 64..128, write, minute).await?;
    ///
    /// let (to_read, to_write) = (other.receive_lease().await?, other.receive_lease().await?);
    /// let mut word = BufferPool::new(&pd).allocate(5)?;
    /// word.copy_from_slice(b"hello");
    /// let word = to_write.slice(0..5).unwrap().write(word).await?;
    /// let word = to_read.slice(64..69).unwrap().read(word).await?;
    /// assert_eq!(*word, *b"hello");
    /// drop((to_read, to_write));
    ///
    /// drop((all.await?, line.await?));
    /// let memory = board.try_into_memory().unwrap();
    /// assert_eq!(memory[64..69], *b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn lend_part(
        &self,
        memory: &CommonMemory,
        range: Range<usize>,
        access: AccessFlags,
        time: Duration,
    ) -> Result<Lease<CommonMemory>, LeaseError> {
        let is_within = range.start <= range.end && range.end <= memory.len();
        assert!(is_within, "{range:?} is not within {} bytes", memory.len());
        let (entry, leases) = self.lends(access)?;
        let (length, pd, memory) = (range.len(), self.pd().clone(), memory.clone());
        let opened =
            at_once(length, move || memory.open(&pd, range, add_local_write(access))).await;
        let part = opened.map_err(|_| LeaseError::RuntimeEnded)?;
        let part = part.map_err(|error| LeaseError::NotOpened(Box::new(error)))?;
        let (who, ended) = oneshot::channel();
        match leases.lend(entry.open(access, time, Opened::Part(part, who))) {
            Ok(lease) => {
                Ok(Lease { leases: Arc::clone(leases), number: entry.number, lease, ended })
            }
            Err(open) => {
                close_refused(open);
                Err(LeaseError::Closed(self.closed()))
            }
        }
    }

    /// Returns the state needed to lend memory with these rights, if the queue pair allows them.
    fn lends(&self, access: AccessFlags) -> Result<(QueuePairEpoch, &Arc<Leases>), LeaseError> {
        let (member, leases) = self.leases()?;
        let number = member.number;
        let epoch = leases.lender().epoch_of(number);
        let Some(epoch) = epoch.filter(|_| self.closed().is_none()) else {
            return Err(LeaseError::Closed(self.closed()));
        };
        let granted = member.qp.granted();
        if !granted.contains(access & remote()) {
            return Err(LeaseError::NotGranted { asked: access, granted });
        }
        Ok((QueuePairEpoch { number, epoch }, leases))
    }

    /// Receives the next memory that the peer has [lent](Self::lend), in the order of the leases, and waits if there is
    /// none. If the future is dropped early, the memory waits for the next call.
    ///
    /// At most 1,024 leases wait for the program. Further leases return to the peer at once, as if they had been
    /// dropped here.
    ///
    /// # Errors
    /// [`LeaseError::NoControl`], [`LeaseError::Closed`]; [`LeaseError::Timeout`] if the peer has lent memory and does
    /// not answer within the [`rendezvous_timeout`](crate::ConnectionOptions::rendezvous_timeout).
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with time (`enable_time`).
    ///
    /// # Examples
    /// See [`lend`](Self::lend).
    #[doc(alias = "receive_remote_mr")]
    pub async fn receive_lease(&self) -> Result<RemoteRegion, LeaseError> {
        let (member, leases) = self.leases()?;
        let number = member.number;
        loop {
            let awaits = || leases.borrower().awaits(number).then_some(());
            self.until_there(leases, number, || false, awaits).await?;
            let access = AccessFlags::new();
            let ask =
                Ask { ask: 0, lease: 0, access, length: 0, alignment: 1, time: Duration::ZERO };
            let next =
                || leases.borrower().next_announced(number).map(|lease| Ask { lease, ..ask });
            match self.ask_next(next).await {
                Ok(Some(granted)) => return Ok(RemoteRegion::new(self.inner(), granted)),
                // Another task received the lease, or the lease ended first.
                Ok(None) | Err(LeaseError::Denied(LeaseDenial::Ended)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next memory that the peer [borrowed](Self::borrow) and [handed over](RemoteRegion::hand_over) to
    /// this program, in the order of the handovers. Dropping the future early loses nothing.
    ///
    /// Memory that was handed over before the connection ended can still be received afterwards; it is freed with the
    /// last clone of the connection. For memory of more than 1 MiB, this call waits until a blocking thread has closed
    /// the memory to the peer.
    ///
    /// # Errors
    /// [`LeaseError::NoControl`]; [`LeaseError::Closed`] after the connection has ended and all its memory has been
    /// received.
    ///
    /// # Examples
    /// See [`borrow`](Self::borrow).
    #[doc(alias = "receive_local_mr")]
    pub async fn receive_region(&self) -> Result<Region, LeaseError> {
        let (member, leases) = self.leases()?;
        let number = member.number;
        let next = || leases.lender().given.get_mut(&number)?.1.pop_front();
        // Handed-over memory that is still being closed has yet to arrive.
        let is_handing_over = || leases.lender().is_handing_over(number);
        Ok(self.until_there(leases, number, is_handing_over, next).await?.region)
    }

    fn leases(&self) -> Result<(&Member, &Arc<Leases>), LeaseError> {
        let member = self.inner().member().filter(|member| member.shared.talks);
        let member = member.ok_or(LeaseError::NoControl)?;
        Ok((member, &member.shared.leases))
    }

    /// Waits until `find` returns a value.
    ///
    /// # Errors
    /// If the connection has ended, `is_to_come` returns false, and `find` returned no value.
    async fn until_there<R>(
        &self,
        leases: &Arc<Leases>,
        number: u32,
        is_to_come: impl Fn() -> bool,
        mut find: impl FnMut() -> Option<R>,
    ) -> Result<R, LeaseError> {
        let look = || {
            // The end of the connection also notifies this wait. If the connection has ended, one more look finds any
            // value that arrived before the end.
            let epoch = leases.lender().epoch_of(number);
            let is_up = (epoch.is_some() && self.closed().is_none()) || is_to_come();
            find().map(Ok).or_else(|| (!is_up).then_some(Err(())))
        };
        leases.until(look).await.map_err(|()| LeaseError::Closed(self.closed()))
    }

    async fn ask(&self, ask: Ask) -> Result<Granted, LeaseError> {
        let mut ask = Some(ask);
        let granted = self.ask_next(|| ask.take()).await?;
        granted.ok_or(LeaseError::Closed(None))
    }

    /// Waits until this end may have another request outstanding. Then sends the request that `next` returns, and waits
    /// for the answer. Returns `None` if `next` returns no request.
    async fn ask_next(
        &self,
        next: impl FnOnce() -> Option<Ask>,
    ) -> Result<Option<Granted>, LeaseError> {
        let (member, leases) = self.leases()?;
        let (number, limit) = (member.number, member.shared.limit);
        let closed = || LeaseError::Closed(self.closed());
        let asked = async {
            // The end of the connection also notifies this wait.
            let is_down = || leases.lender().epoch_of(number).is_none() || self.closed().is_some();
            let permit = tokio::select! {
                biased;
                permit = Arc::clone(&leases.outstanding).acquire_owned() => permit,
                () = leases.until_end(|| is_down().then_some(())) => return Err(closed()),
            };
            let permit = permit.map_err(|_| closed())?;
            if self.closed().is_some() {
                return Err(closed());
            }
            let Some(ask) = next() else { return Ok(None) };
            match leases.ask(number, ask, permit).await {
                Ok(Ok(granted)) => Ok(Some(granted)),
                Ok(Err(denial)) => Err(LeaseError::Denied(denial)),
                Err(_) => Err(closed()),
            }
        };
        timeout(limit.min(LONGEST), asked).await.unwrap_or(Err(LeaseError::Timeout { limit }))
    }
}

/// The number of a connection, and the epoch of its queue pair.
#[derive(Clone, Copy)]
struct QueuePairEpoch {
    number: u32,
    epoch: u32,
}

impl QueuePairEpoch {
    fn open(self, access: AccessFlags, time: Duration, opened: Opened) -> Open {
        let Self { number, epoch } = self;
        Open { number, epoch, until: deadline_after(time), access, opened }
    }
}

/// Returns the rights that both the queue pair and the memory must give to the peer.
const fn remote() -> AccessFlags {
    AccessFlags::new().with_remote_read().with_remote_write().with_remote_atomic()
}
