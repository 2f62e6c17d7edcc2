//! Groups whose collectives are futures, on tokio.
//!
//! Their schedules and messages are equal to those of blocking groups. Ranks of both kinds can be in one group.

pub(crate) mod world;

use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytemuck::Pod;
use rdma_async::Connection;
use rdma_mem::ProtectionDomain;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use self::world::World;
use crate::builder::GroupBuilder;
use crate::error::Error;
use crate::group::buffer::{Buffer, Elements, Memory};
use crate::group::members::{Members, Plan};
use crate::reduction::{Combine, Number, Reduction, combine};
use crate::schedule::BarrierAlgorithm;
use crate::world::shared::{SharedWorld, busy};

/// A group of ranks whose collectives are futures. The counterpart of [`Group`](crate::Group).
///
/// A collective is ready when this rank has done its part, and the devices of its peers have received what it has sent.
///
/// The function of a [`Reduction::Custom`] runs within a poll. While it blocks, a runtime with a single thread does nothing
/// else, so the function must not wait for other tasks of this rank.
///
/// # Failures
/// See [`Group`](crate::Group#failures). If a call is dropped after its first poll, the group is closed. The calls of all
/// other ranks then fail with [`Error::Failed`], which names this rank.
///
/// # Examples
/// ```
/// use rdma_group::{Group, Reduction};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join_async().await?;
/// let mut gradient = [1.5, 2.5];
/// group.all_reduce(&mut gradient, Reduction::Sum).await?;
/// assert_eq!(gradient, [1.5, 2.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    shared: Arc<Shared>,
    members: Members,
}

type Shared = SharedWorld<Mutex<World>>;

impl Shared {
    /// Waits until no other call of this rank is in progress, within the limit of a collective. The call that is in
    /// progress may itself poll this one, in the function of its reduction, or may no longer be polled.
    async fn enter(&self) -> Result<MutexGuard<'_, World>, Error> {
        let mut locked = pin!(self.world.lock());
        let check = || self.check_process().and_then(|()| self.inside.check());
        let entered = poll_fn(|cx| match check() {
            Ok(()) => locked.as_mut().poll(cx).map(Ok),
            Err(error) => Poll::Ready(Err(error)),
        });
        timeout(self.limit, entered).await.unwrap_or_else(|_| Err(busy(self.limit)))
    }
}

impl GroupBuilder<'_> {
    /// Like [`join`](Self::join), without blocking the thread. If the future is dropped, this rank may still join, and
    /// then counts as lost.
    ///
    /// # Errors
    /// Same errors as [`join`](Self::join). [`Error::Io`] if no thread can be started.
    ///
    /// # Panics
    /// Panics if this is not called within a tokio runtime with I/O and time.
    pub async fn join_async(self) -> Result<Group, Error> {
        let (pd, settings, limits) = self.check()?;
        let world = World::join(pd, settings, limits).await?;
        Ok(Group::new(world))
    }
}

impl Group {
    /// Joins the group of the launcher. See [`Group::from_environment`](crate::Group::from_environment).
    ///
    /// # Errors
    /// Same errors as [`Group::from_environment`](crate::Group::from_environment).
    ///
    /// # Panics
    /// Panics if this is not called within a tokio runtime with I/O and time.
    pub async fn from_environment(pd: &ProtectionDomain) -> Result<Self, Error> {
        GroupBuilder::from_environment(pd)?.join_async().await
    }

    fn new(world: World) -> Self {
        let members = Members::all(world.ranks.own, world.ranks.entries.len());
        let (entries, limit) = (world.ranks.entries.clone(), world.ranks.limit);
        let (pd, pool) = (world.pd.clone(), world.pool.as_blocking().clone());
        let shared = Shared::new(entries, limit, pd, pool, Mutex::new(world));
        Self { shared: Arc::new(shared), members }
    }

    /// Returns the rank of this process in this group, counted from 0.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.members.member.rank
    }

    /// Returns the number of ranks in this group.
    #[must_use]
    pub const fn world_size(&self) -> usize {
        self.members.member.size
    }

    /// Returns the name of the host of a rank, or `None` if the group has no such rank.
    #[must_use]
    pub fn host(&self, rank: usize) -> Option<String> {
        self.members.ranks.get(rank).map(|rank| self.shared.host(*rank))
    }

    /// Allocates a registered buffer of `len` elements, which are zero. See [`Group::buffer`](crate::Group::buffer).
    ///
    /// # Errors
    /// [`Error::Device`] if the memory cannot be registered. The group stays open.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>, Error> {
        Ok(Buffer::allocate(&self.shared.pool, len)?)
    }

    /// Same as [`Group::barrier`](crate::Group::barrier).
    ///
    /// # Errors
    /// Same errors as [`Group::barrier`](crate::Group::barrier).
    pub async fn barrier(&mut self) -> Result<(), Error> {
        self.barrier_with(BarrierAlgorithm::default()).await
    }

    /// Same as [`Group::barrier_with`](crate::Group::barrier_with).
    ///
    /// # Errors
    /// Same errors as [`Group::barrier_with`](crate::Group::barrier_with).
    pub async fn barrier_with(&mut self, algorithm: BarrierAlgorithm) -> Result<(), Error> {
        self.run::<u8>(&Plan::barrier(algorithm), Elements::Slice(&mut []), None).await
    }

    /// Same as [`Group::broadcast`](crate::Group::broadcast).
    ///
    /// # Errors
    /// Same errors as [`Group::broadcast`](crate::Group::broadcast).
    pub async fn broadcast<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.broadcast(root, buffer.as_slice())?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::gather`](crate::Group::gather).
    ///
    /// # Errors
    /// Same errors as [`Group::gather`](crate::Group::gather).
    pub async fn gather<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.gather(root, buffer.as_slice(), None)?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::gather_v`](crate::Group::gather_v).
    ///
    /// # Errors
    /// Same errors as [`Group::gather_v`](crate::Group::gather_v).
    pub async fn gather_v<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
        counts: &[usize],
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.gather(root, buffer.as_slice(), Some(counts))?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::scatter`](crate::Group::scatter).
    ///
    /// # Errors
    /// Same errors as [`Group::scatter`](crate::Group::scatter).
    pub async fn scatter<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.scatter(root, buffer.as_slice(), None)?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::scatter_v`](crate::Group::scatter_v).
    ///
    /// # Errors
    /// Same errors as [`Group::scatter_v`](crate::Group::scatter_v).
    pub async fn scatter_v<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
        counts: &[usize],
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.scatter(root, buffer.as_slice(), Some(counts))?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::all_gather`](crate::Group::all_gather).
    ///
    /// # Errors
    /// Same errors as [`Group::all_gather`](crate::Group::all_gather).
    pub async fn all_gather<M: Memory + ?Sized>(&mut self, buffer: &mut M) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.all_gather(buffer.as_slice(), None)?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::all_gather_v`](crate::Group::all_gather_v).
    ///
    /// # Errors
    /// Same errors as [`Group::all_gather_v`](crate::Group::all_gather_v).
    pub async fn all_gather_v<M: Memory + ?Sized>(
        &mut self,
        buffer: &mut M,
        counts: &[usize],
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.all_gather(buffer.as_slice(), Some(counts))?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::all_to_all`](crate::Group::all_to_all).
    ///
    /// # Errors
    /// Same errors as [`Group::all_to_all`](crate::Group::all_to_all).
    pub async fn all_to_all<M: Memory + ?Sized>(&mut self, buffer: &mut M) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.all_to_all(buffer.as_slice())?;
        self.copy(&plan, buffer).await
    }

    /// Same as [`Group::all_to_all_v`](crate::Group::all_to_all_v).
    ///
    /// # Errors
    /// Same errors as [`Group::all_to_all_v`](crate::Group::all_to_all_v).
    pub async fn all_to_all_v<T: Pod>(
        &mut self,
        sent: &[T],
        send_counts: &[usize],
        received: &mut [T],
        receive_counts: &[usize],
    ) -> Result<(), Error> {
        let (from, into) = ((sent, send_counts), (&*received, receive_counts));
        let (plan, mut bytes) = self.members.all_to_all_v(from, into)?;
        self.copy(&plan, Elements::Slice(&mut bytes[..])).await?;
        bytemuck::cast_slice_mut(received).copy_from_slice(&bytes[size_of_val(sent)..]);
        Ok(())
    }

    /// Same as [`Group::reduce`](crate::Group::reduce).
    ///
    /// # Errors
    /// Same errors as [`Group::reduce`](crate::Group::reduce).
    pub async fn reduce<M: Memory<Element: Number> + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
        reduction: Reduction<'_, M::Element>,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.reduce(root, buffer.as_slice(), reduction)?;
        self.run(&plan, buffer, Some(&*combine(reduction))).await
    }

    /// Same as [`Group::all_reduce`](crate::Group::all_reduce).
    ///
    /// # Errors
    /// Same errors as [`Group::all_reduce`](crate::Group::all_reduce).
    pub async fn all_reduce<M: Memory<Element: Number> + ?Sized>(
        &mut self,
        buffer: &mut M,
        reduction: Reduction<'_, M::Element>,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = Members::all_reduce(buffer.as_slice(), reduction);
        self.run(&plan, buffer, Some(&*combine(reduction))).await
    }

    /// Same as [`Group::reduce_scatter`](crate::Group::reduce_scatter).
    ///
    /// # Errors
    /// Same errors as [`Group::reduce_scatter`](crate::Group::reduce_scatter).
    pub async fn reduce_scatter<M: Memory<Element: Number> + ?Sized>(
        &mut self,
        buffer: &mut M,
        reduction: Reduction<'_, M::Element>,
    ) -> Result<Range<usize>, Error> {
        let buffer = buffer.elements();
        let (plan, own) = self.members.reduce_scatter(buffer.as_slice(), reduction);
        self.run(&plan, buffer, Some(&*combine(reduction))).await?;
        Ok(own)
    }

    /// Same as [`Group::split`](crate::Group::split).
    ///
    /// # Errors
    /// Same errors as [`Group::split`](crate::Group::split).
    pub async fn split(&mut self, colour: u64, key: u64) -> Result<Self, Error> {
        let mut pairs = self.members.pairs(colour, key);
        self.all_gather(&mut pairs).await?;
        let members = self.members.split(&pairs, colour);
        Ok(Self { shared: Arc::clone(&self.shared), members })
    }

    /// Connects to another rank, for the program's own requests. Same as [`Group::connect`](crate::Group::connect), but
    /// returns a connection of rdma-async. The other end may be a channel.
    ///
    /// # Errors
    /// Same errors as [`Group::connect`](crate::Group::connect).
    pub async fn connect(&mut self, rank: usize) -> Result<Connection, Error> {
        let (rank, call) = self.members.connect(rank)?;
        self.shared.enter().await?.connect_to(rank, call).await
    }

    /// Runs a collective that only copies.
    async fn copy<T: Pod>(&mut self, plan: &Plan, buffer: Elements<'_, T>) -> Result<(), Error> {
        self.run(plan, buffer.into_bytes(), None).await
    }

    async fn run<T: Pod>(
        &mut self,
        plan: &Plan,
        buffer: Elements<'_, T>,
        combine: Option<&Combine<'_, T>>,
    ) -> Result<(), Error> {
        let mut world = self.shared.enter().await?;
        let inside = &self.shared.inside;
        // Polls of the future may be on different threads, but such a call is within one poll.
        let combine = combine.map(|combine| {
            move |own: &mut [T], bytes: &[u8], side| {
                let _stay = inside.enter();
                combine(own, bytes, side);
            }
        });
        let combine = combine.as_ref().map(|combine| combine as &Combine<'_, T>);
        let run = self.members.start(plan, buffer, combine);
        world.execute(run).await
    }
}

/// Formats the rank and the size.
impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank(), self.world_size())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_ends_at_the_limit_if_another_one_is_not_polled() {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let builder = GroupBuilder::new(&pd, 0, 1, "127.0.0.1:1");
            let mut group = builder.limit(Duration::from_millis(1)).join_async().await.unwrap();
            let other = group.split(0, 0).await.unwrap();
            let in_progress = other.shared.world.lock().await;
            let error = group.barrier().await.unwrap_err().to_string();
            assert!(error.starts_with("another call of this rank has not ended"), "{error}");
            drop(in_progress);
            group.barrier().await.unwrap();
        });
    }
}
