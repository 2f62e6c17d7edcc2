//! Groups: the blocking driver of collectives.

pub(crate) mod buffer;
pub(crate) mod members;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytemuck::Pod;
use rdma_channel::Channel;
use rdma_mem::ProtectionDomain;

use self::buffer::{Buffer, Elements, Memory};
use self::members::{Members, Plan};
use crate::builder::GroupBuilder;
use crate::error::Error;
use crate::reduction::{Combine, Number, Reduction, combine};
use crate::schedule::BarrierAlgorithm;
use crate::world::World;
use crate::world::shared::SharedWorld;

/// A group of ranks, which are processes that call the same collectives in the same order.
///
/// A collective returns when this rank has done its part. It waits for all ranks only if it is a
/// [barrier](Self::barrier), or its result depends on all of them. It works in place on any [`Memory`]. Long blocks are
/// sent without a copy if the memory is a [`buffer`](Self::buffer).
///
/// Two ranks connect in the first collective in which they exchange messages, and stay connected. A connection has
/// about 0.6 MiB of registered memory at each end, and 0.5 MiB more once this rank receives long blocks.
/// [`all_to_all`](Self::all_to_all) connects all ranks to each other, and [`BarrierAlgorithm::Centralized`] connects rank
/// 0 to all. Other collectives connect a rank to few others.
///
/// # Failures
/// If a rank dies or leaves, calls of all others fail with [`Error::Lost`], which names it. If ranks call different
/// collectives, or with different lengths, a rank that notices this fails with [`Error::Mismatch`], and the others
/// with [`Error::Failed`]. A call that waits for a rank fails after the [limit](GroupBuilder::limit). After an error, the
/// group is closed on all ranks. To continue, the ranks join again with the next [epoch](GroupBuilder::epoch).
///
/// A process that ends without dropping its group counts as dead, even after its last collective.
///
/// # Examples
/// A group of one rank. With a launcher, each process has its own rank, and calls [`Group::from_environment`]:
/// ```
/// use rdma_group::{Group, Reduction};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
/// let mut gradient = [1.5, 2.5];
/// group.all_reduce(&mut gradient, Reduction::Sum)?;
/// assert_eq!(gradient, [1.5, 2.5]);
/// # Ok::<(), rdma_group::Error>(())
/// ```
pub struct Group {
    world: Arc<SharedWorld<Mutex<World>>>,
    members: Members,
}

impl Group {
    /// Joins the group of the launcher: `rdmatool run`, torchrun, Slurm, Open MPI, or another launcher with PMI.
    ///
    /// | launcher | rank and size | address of rank 0, unless `RDMA_MASTER` states it |
    /// |---|---|---|
    /// | `rdmatool run`, your own | `RDMA_RANK`, `RDMA_WORLD_SIZE` | `RDMA_MASTER` is required |
    /// | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR`, and the port after `MASTER_PORT` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | `RDMA_MASTER` is required |
    /// | PMI | `PMI_RANK`, `PMI_SIZE` | `RDMA_MASTER` is required |
    /// | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` | first host of `SLURM_STEP_NODELIST`, with a port that depends on the job |
    ///
    /// If several ranks are set, the first one in this table counts. The exception is `srun --mpi=pmi2`: if the variables
    /// of PMI equal those of Slurm, the launcher is Slurm. `RDMA_GROUP_SECRET` is the secret. The epoch is 0.
    ///
    /// # Errors
    /// [`Error::NoLauncher`], [`Error::MissingVariable`] or [`Error::BadVariable`]; otherwise the same errors as
    /// [`GroupBuilder::join`].
    ///
    /// # Examples
    /// ```no_run
    /// use rdma_group::Group;
    ///
    /// let pd = rdma_mem::open_default_device()?.allocate_pd()?;
    /// let mut group = Group::from_environment(&pd)?;
    /// println!("this is rank {} of {}", group.rank(), group.world_size());
    /// group.barrier()?;
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Init")]
    pub fn from_environment(pd: &ProtectionDomain) -> Result<Self, Error> {
        GroupBuilder::from_environment(pd)?.join()
    }

    /// Returns a builder for this rank of a group, whose rank 0 listens at the address `master`.
    pub fn builder<'a>(
        pd: &'a ProtectionDomain,
        rank: usize,
        world_size: usize,
        master: &str,
    ) -> GroupBuilder<'a> {
        GroupBuilder::new(pd, rank, world_size, master)
    }

    pub(crate) fn new(world: World) -> Self {
        let members = Members::all(world.ranks.own, world.ranks.entries.len());
        let (entries, limit) = (world.ranks.entries.clone(), world.ranks.limit);
        let (pd, pool) = (world.pd.clone(), world.pool.clone());
        let world = SharedWorld::new(entries, limit, pd, pool, Mutex::new(world));
        Self { world: Arc::new(world), members }
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
        self.members.ranks.get(rank).map(|rank| self.world.host(*rank))
    }

    /// Allocates a registered buffer of `len` elements, which are zero. Collectives send long blocks of it without
    /// copying them first.
    ///
    /// # Errors
    /// [`Error::Device`] if the memory cannot be registered. The group stays open.
    ///
    /// # Examples
    /// ```
    /// # use rdma_group::{Group, Reduction};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// let mut gradient = group.buffer::<f32>(1 << 20)?;
    /// gradient.fill(0.5);
    /// group.all_reduce(&mut gradient, Reduction::Sum)?;
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Alloc_mem")]
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>, Error> {
        Ok(Buffer::allocate(&self.world.pool, len)?)
    }

    /// Waits until all ranks have called a barrier, with [`BarrierAlgorithm::Dissemination`].
    ///
    /// # Errors
    /// See [failures](Self#failures).
    #[doc(alias = "MPI_Barrier")]
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.barrier_with(BarrierAlgorithm::default())
    }

    /// Waits until all ranks have called a barrier with the same algorithm.
    ///
    /// # Errors
    /// See [failures](Self#failures).
    pub fn barrier_with(&mut self, algorithm: BarrierAlgorithm) -> Result<(), Error> {
        self.run::<u8>(&Plan::barrier(algorithm), Elements::Slice(&mut []), None)
    }

    /// Copies the buffer of the rank `root` to all ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank; otherwise see [failures](Self#failures).
    ///
    /// # Examples
    /// ```
    /// # use rdma_group::Group;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// let mut weights = vec![0.0_f32; 1000];
    /// if group.rank() == 0 {
    ///     weights.fill(0.5);
    /// }
    /// group.broadcast(0, &mut weights)?;
    /// assert_eq!(weights[999], 0.5);
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Bcast")]
    pub fn broadcast<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.broadcast(root, buffer.as_slice())?;
        self.copy(&plan, buffer)
    }

    /// Copies a block of each rank to the rank `root`.
    ///
    /// On all ranks, the buffer has a block of the same length for each rank, in rank order. A rank provides its own
    /// block. Afterwards, the root has all blocks, and the other blocks of the other ranks have unspecified contents.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank, or the length is not a multiple of the number of ranks. Otherwise
    /// see [failures](Self#failures).
    #[doc(alias = "MPI_Gather")]
    pub fn gather<M: Memory + ?Sized>(&mut self, root: usize, buffer: &mut M) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.gather(root, buffer.as_slice(), None)?;
        self.copy(&plan, buffer)
    }

    /// Like [`gather`](Self::gather), for blocks of different lengths. All ranks pass the lengths of all blocks, in
    /// elements, and a buffer that has room for all blocks.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank, or the lengths do not fit. Otherwise see
    /// [failures](Self#failures).
    ///
    /// # Examples
    /// Each rank knows only the length of its own block at first:
    /// ```
    /// # use rdma_group::Group;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// let own = vec![1.5_f64; 3 + group.rank()];
    /// let mut counts = vec![0; group.world_size()];
    /// counts[group.rank()] = own.len();
    /// group.all_gather(&mut counts)?;
    /// let mut all = vec![0.0; counts.iter().sum()];
    /// let start: usize = counts[..group.rank()].iter().sum();
    /// all[start..][..own.len()].copy_from_slice(&own);
    /// group.gather_v(0, &mut all, &counts)?;
    /// # assert_eq!(all, own);
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather_v<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
        counts: &[usize],
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.gather(root, buffer.as_slice(), Some(counts))?;
        self.copy(&plan, buffer)
    }

    /// Copies blocks of the rank `root` to their ranks: the opposite of [`gather`](Self::gather). Afterwards, the other
    /// blocks of the other ranks have unspecified contents.
    ///
    /// # Errors
    /// Same errors as [`gather`](Self::gather).
    #[doc(alias = "MPI_Scatter")]
    pub fn scatter<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.scatter(root, buffer.as_slice(), None)?;
        self.copy(&plan, buffer)
    }

    /// Like [`scatter`](Self::scatter), for blocks of different lengths. All ranks pass the lengths of all blocks, and a
    /// buffer that has room for all blocks, as for [`gather_v`](Self::gather_v).
    ///
    /// # Errors
    /// Same errors as [`gather_v`](Self::gather_v).
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter_v<M: Memory + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
        counts: &[usize],
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.scatter(root, buffer.as_slice(), Some(counts))?;
        self.copy(&plan, buffer)
    }

    /// Copies a block of each rank to all ranks. The buffer has a block of the same length for each rank, in rank order,
    /// and each rank provides its own block.
    ///
    /// # Errors
    /// [`Error::Argument`] if the length is not a multiple of the number of ranks. Otherwise see
    /// [failures](Self#failures).
    ///
    /// # Examples
    /// ```
    /// # use rdma_group::Group;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// let mut processes = vec![0; group.world_size()];
    /// processes[group.rank()] = std::process::id();
    /// group.all_gather(&mut processes)?;
    /// assert!(!processes.contains(&0));
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Allgather")]
    pub fn all_gather<M: Memory + ?Sized>(&mut self, buffer: &mut M) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.all_gather(buffer.as_slice(), None)?;
        self.copy(&plan, buffer)
    }

    /// Like [`all_gather`](Self::all_gather), for blocks of different lengths. All ranks pass the lengths of all blocks, as
    /// for [`gather_v`](Self::gather_v).
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths do not fit. Otherwise see [failures](Self#failures).
    #[doc(alias = "MPI_Allgatherv")]
    pub fn all_gather_v<M: Memory + ?Sized>(
        &mut self,
        buffer: &mut M,
        counts: &[usize],
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.all_gather(buffer.as_slice(), Some(counts))?;
        self.copy(&plan, buffer)
    }

    /// Exchanges a block with each rank. The buffer has a block of the same length for each rank, in rank order. The
    /// block that this rank sends to another one is replaced by the block from that rank.
    ///
    /// # Errors
    /// Same errors as [`all_gather`](Self::all_gather).
    #[doc(alias = "MPI_Alltoall")]
    pub fn all_to_all<M: Memory + ?Sized>(&mut self, buffer: &mut M) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.all_to_all(buffer.as_slice())?;
        self.copy(&plan, buffer)
    }

    /// Like [`all_to_all`](Self::all_to_all), for blocks of different lengths.
    ///
    /// `sent` has a block for each rank with the length in `send_counts`, and `received` has one with the length in
    /// `receive_counts`. Both are also copied on this rank.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths do not fit. Otherwise see [failures](Self#failures). A block whose length
    /// differs at its two ends is an [`Error::Mismatch`].
    ///
    /// # Examples
    /// Ranks that first exchange the lengths:
    /// ```
    /// # use rdma_group::Group;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// // This rank sends as many words to a rank as the number of that rank, and one more.
    /// let send_counts: Vec<_> = (1..=group.world_size()).collect();
    /// let sent = vec![group.rank() as u64; send_counts.iter().sum()];
    /// let mut counts: Vec<_> = send_counts.iter().map(|count| *count as u64).collect();
    /// group.all_to_all(&mut counts)?;
    /// let receive_counts: Vec<_> = counts.iter().map(|count| *count as usize).collect();
    /// let mut received = vec![0; receive_counts.iter().sum()];
    /// group.all_to_all_v(&sent, &send_counts, &mut received, &receive_counts)?;
    /// assert!(received.is_sorted());
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Alltoallv")]
    pub fn all_to_all_v<T: Pod>(
        &mut self,
        sent: &[T],
        send_counts: &[usize],
        received: &mut [T],
        receive_counts: &[usize],
    ) -> Result<(), Error> {
        let (from, into) = ((sent, send_counts), (&*received, receive_counts));
        let (plan, mut bytes) = self.members.all_to_all_v(from, into)?;
        self.copy(&plan, Elements::Slice(&mut bytes[..]))?;
        bytemuck::cast_slice_mut(received).copy_from_slice(&bytes[size_of_val(sent)..]);
        Ok(())
    }

    /// Combines the buffers of all ranks, and writes the result to the buffer of the rank `root`. Afterwards, the
    /// buffers of the other ranks have unspecified contents.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank; otherwise see [failures](Self#failures).
    #[doc(alias = "MPI_Reduce")]
    pub fn reduce<M: Memory<Element: Number> + ?Sized>(
        &mut self,
        root: usize,
        buffer: &mut M,
        reduction: Reduction<'_, M::Element>,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = self.members.reduce(root, buffer.as_slice(), reduction)?;
        self.run(&plan, buffer, Some(&*combine(reduction)))
    }

    /// Combines the buffers of all ranks, and writes the result to all of them.
    ///
    /// For a short buffer, the ranks use recursive doubling, and each of them sends the whole buffer in each round. For a
    /// long one, they form a ring, which has more rounds. Each rank then sends about twice the length of the buffer. The
    /// limit depends on the number of ranks: for two ranks, it is 64 KiB, and for 1,024, about 6 MiB. With
    /// [`Reduction::Custom`], ranks always use doubling.
    ///
    /// # Errors
    /// See [failures](Self#failures).
    ///
    /// # Examples
    /// ```
    /// # use rdma_group::{Group, Reduction};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// let mut slowest = [17_u64];
    /// group.all_reduce(&mut slowest, Reduction::Max)?;
    /// let mut product = [3_i32];
    /// group.all_reduce(&mut product, Reduction::Custom(&|lower, higher| lower * higher))?;
    /// assert_eq!((slowest, product), ([17], [3]));
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Allreduce")]
    pub fn all_reduce<M: Memory<Element: Number> + ?Sized>(
        &mut self,
        buffer: &mut M,
        reduction: Reduction<'_, M::Element>,
    ) -> Result<(), Error> {
        let buffer = buffer.elements();
        let plan = Members::all_reduce(buffer.as_slice(), reduction);
        self.run(&plan, buffer, Some(&*combine(reduction)))
    }

    /// Combines the buffers of all ranks, and writes a block of the result to each buffer. Returns the range of the
    /// block. The rest of the buffer has unspecified contents afterwards. The lengths of the blocks differ by at most
    /// one element.
    ///
    /// # Errors
    /// See [failures](Self#failures).
    ///
    /// # Examples
    /// ```
    /// # use rdma_group::{Group, Reduction};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// let mut values = [1.0, 2.0, 3.0];
    /// let own = group.reduce_scatter(&mut values, Reduction::Sum)?;
    /// println!("the sums of this rank: {:?}", &values[own]);
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Reduce_scatter_block")]
    pub fn reduce_scatter<M: Memory<Element: Number> + ?Sized>(
        &mut self,
        buffer: &mut M,
        reduction: Reduction<'_, M::Element>,
    ) -> Result<Range<usize>, Error> {
        let buffer = buffer.elements();
        let (plan, own) = self.members.reduce_scatter(buffer.as_slice(), reduction);
        self.run(&plan, buffer, Some(&*combine(reduction)))?;
        Ok(own)
    }

    /// Divides the group: all ranks that pass the same colour form a new group. Their new ranks are in the order of
    /// `key`, and of their old ranks if the keys are equal.
    ///
    /// The new group shares the connections of this one. Its ranks must call the collectives of both groups in the same
    /// order. An error of one group closes both.
    ///
    /// # Errors
    /// See [failures](Self#failures).
    ///
    /// # Examples
    /// ```
    /// # use rdma_group::Group;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let mut group = Group::builder(&pd, 0, 1, "127.0.0.1:7471").join()?;
    /// // Eight ranks in each row.
    /// let mut row = group.split(group.rank() as u64 / 8, 0)?;
    /// row.barrier()?;
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    #[doc(alias = "MPI_Comm_split")]
    pub fn split(&mut self, colour: u64, key: u64) -> Result<Self, Error> {
        let mut pairs = self.members.pairs(colour, key);
        self.all_gather(&mut pairs)?;
        let members = self.members.split(&pairs, colour);
        Ok(Self { world: Arc::clone(&self.world), members })
    }

    /// Connects to another rank, for the program's own requests. Both ranks call this at the same place between their
    /// collectives; the others do not call it.
    ///
    /// The channel has the [default options](rdma_channel::ChannelBuilder), and is independent of the group: it stays open
    /// when the group is closed or dropped. If the rank dies, the channel notices it itself.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank, or it is this one; otherwise see [failures](Self#failures).
    ///
    /// # Examples
    /// ```
    /// use rdma_group::Group;
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let join = |rank| Group::builder(&pd, rank, 2, "127.77.0.2:7472").join();
    /// std::thread::scope(|threads| {
    ///     // In a real program, this would be another process.
    ///     let other = threads.spawn(|| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///         let mut channel = join(1)?.connect(0)?;
    ///         let mut data = pd.allocate_region(5)?;
    ///         data.copy_from_slice(b"hello");
    ///         Ok(channel.send_from(&data)?)
    ///     });
    ///     let mut channel = join(0)?.connect(1)?;
    ///     let mut buffer = pd.allocate_region(64)?;
    ///     let length = channel.receive_into(&mut buffer)?;
    ///     assert_eq!(&buffer[..length], b"hello");
    ///     other.join().unwrap()
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn connect(&mut self, rank: usize) -> Result<Channel, Error> {
        let (rank, call) = self.members.connect(rank)?;
        self.world.enter()?.connect_to(rank, call)
    }

    /// Runs a collective that only copies.
    fn copy<T: Pod>(&mut self, plan: &Plan, buffer: Elements<'_, T>) -> Result<(), Error> {
        self.run(plan, buffer.into_bytes(), None)
    }

    fn run<T: Pod>(
        &mut self,
        plan: &Plan,
        buffer: Elements<'_, T>,
        combine: Option<&Combine<'_, T>>,
    ) -> Result<(), Error> {
        let mut world = self.world.enter()?;
        let run = self.members.start(plan, buffer, combine);
        world.execute(run)
    }
}

/// Formats the rank and the size.
impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.members.member.rank, self.members.member.size)
    }
}

/// The default limit of a collective.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);
