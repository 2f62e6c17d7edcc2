//! Groups: the blocking driver of collectives.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use rdma_mem::ProtectionDomain;

use crate::builder::GroupBuilder;
use crate::call::{Call, checksum};
use crate::collective::Collective;
use crate::error::Error;
use crate::reduction::{Combine, Number, Reduction, combine};
use crate::run::Run;
use crate::schedule::{BarrierAlgorithm, Blocks, Member};
use crate::shared_world::SharedWorld;
use crate::world::World;

/// A group of ranks, which are processes that call the same collectives in the same order.
///
/// A collective returns when this rank has done its part. Only a [barrier](Self::barrier) waits for all ranks. Buffers
/// are ordinary memory: their bytes are copied to and from registered messages of up to 32 KiB.
///
/// Two ranks connect in the first collective in which they exchange messages, and stay connected. A connection has
/// about 0.6 MiB of registered memory at each end. [`all_to_all`](Self::all_to_all) connects all ranks to each other,
/// and [`BarrierAlgorithm::Centralized`] connects rank 0 to all. Other collectives connect a rank to few others.
///
/// # Failures
/// If a rank dies or leaves, calls of all others fail with [`Error::Lost`], which names it. If ranks call different
/// collectives, or with different lengths, the rank that notices this fails with [`Error::Mismatch`], and the others
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
    world: Arc<SharedWorld>,
    /// The ranks of the launcher's group that are members, in the order of their ranks in this group.
    members: Vec<usize>,
    member: Member,
    /// The identity of the group, which is the same on all its ranks.
    id: u64,
    /// The number of calls.
    generation: u64,
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
    /// If several ranks are set, the first one in this table counts. `TORCHELASTIC_RESTART_COUNT` of torchrun is the
    /// epoch, and `RDMA_GROUP_SECRET` is the secret.
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
        let (rank, size) = (world.rank, world.entries.len());
        let (members, member) = ((0..size).collect(), Member { rank, size });
        let world = Arc::new(SharedWorld::new(world));
        Self { world, members, member, id: 0, generation: 0 }
    }

    /// Returns the rank of this process in this group, counted from 0.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.member.rank
    }

    /// Returns the number of ranks in this group.
    #[must_use]
    pub const fn world_size(&self) -> usize {
        self.member.size
    }

    /// Returns the name of the host of a rank, or `None` if the group has no such rank.
    #[must_use]
    pub fn host(&self, rank: usize) -> Option<String> {
        self.members.get(rank).map(|rank| self.world.host(*rank))
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
        let details = Details { variant: algorithm as u8, ..Details::default() };
        self.run::<u8>(Collective::Barrier(algorithm), &mut [], details, None)
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
    pub fn broadcast<T: Pod>(&mut self, root: usize, buffer: &mut [T]) -> Result<(), Error> {
        self.check_root(root)?;
        self.copy(Collective::Broadcast { root }, buffer, 0)
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
    pub fn gather<T: Pod>(&mut self, root: usize, buffer: &mut [T]) -> Result<(), Error> {
        self.check_root(root)?;
        let blocks = self.equal_blocks(buffer)?;
        self.copy(Collective::Gather { root, blocks }, buffer, 0)
    }

    /// Like [`gather`](Self::gather), for blocks of different lengths. All ranks pass the lengths of all blocks.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank, or the lengths do not fit. Otherwise see
    /// [failures](Self#failures).
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather_v<T: Pod>(
        &mut self,
        root: usize,
        buffer: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        self.check_root(root)?;
        let blocks = self.blocks_of(buffer, counts)?;
        self.copy(Collective::Gather { root, blocks }, buffer, sum_of(counts))
    }

    /// Copies blocks of the rank `root` to their ranks: the opposite of [`gather`](Self::gather). Afterwards, the other
    /// blocks of the other ranks have unspecified contents.
    ///
    /// # Errors
    /// Same errors as [`gather`](Self::gather).
    #[doc(alias = "MPI_Scatter")]
    pub fn scatter<T: Pod>(&mut self, root: usize, buffer: &mut [T]) -> Result<(), Error> {
        self.check_root(root)?;
        let blocks = self.equal_blocks(buffer)?;
        self.copy(Collective::Scatter { root, blocks }, buffer, 0)
    }

    /// Like [`scatter`](Self::scatter), for blocks of different lengths. All ranks pass the lengths of all blocks.
    ///
    /// # Errors
    /// Same errors as [`gather_v`](Self::gather_v).
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter_v<T: Pod>(
        &mut self,
        root: usize,
        buffer: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        self.check_root(root)?;
        let blocks = self.blocks_of(buffer, counts)?;
        self.copy(Collective::Scatter { root, blocks }, buffer, sum_of(counts))
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
    pub fn all_gather<T: Pod>(&mut self, buffer: &mut [T]) -> Result<(), Error> {
        let blocks = self.equal_blocks(buffer)?;
        self.copy(Collective::AllGather { blocks }, buffer, 0)
    }

    /// Like [`all_gather`](Self::all_gather), for blocks of different lengths. All ranks pass the lengths of all blocks.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths do not fit. Otherwise see [failures](Self#failures).
    #[doc(alias = "MPI_Allgatherv")]
    pub fn all_gather_v<T: Pod>(
        &mut self,
        buffer: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        let blocks = self.blocks_of(buffer, counts)?;
        self.copy(Collective::AllGather { blocks }, buffer, sum_of(counts))
    }

    /// Exchanges a block with each rank. The buffer has a block of the same length for each rank, in rank order. The
    /// block that this rank sends to another one is replaced by the block from that rank.
    ///
    /// # Errors
    /// Same errors as [`all_gather`](Self::all_gather).
    #[doc(alias = "MPI_Alltoall")]
    pub fn all_to_all<T: Pod>(&mut self, buffer: &mut [T]) -> Result<(), Error> {
        let sent = self.equal_blocks(buffer)?;
        let received = sent.clone();
        self.copy(Collective::AllToAll { sent, received, offset: 0 }, buffer, 0)
    }

    /// Like [`all_to_all`](Self::all_to_all), for blocks of different lengths.
    ///
    /// `sent` has a block for each rank with the length in `send_counts`, and `received` has one with the length in
    /// `receive_counts`. Both are also copied on this rank.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths do not fit. Otherwise see [failures](Self#failures). A block whose length
    /// differs at its two ends is an [`Error::Mismatch`].
    #[doc(alias = "MPI_Alltoallv")]
    pub fn all_to_all_v<T: Pod>(
        &mut self,
        sent: &[T],
        send_counts: &[usize],
        received: &mut [T],
        receive_counts: &[usize],
    ) -> Result<(), Error> {
        let from = self.blocks_of(sent, send_counts)?;
        let into = self.blocks_of(received, receive_counts)?;
        let rank = self.member.rank;
        let own = (from.block(rank), into.block(rank));
        if own.0.len() != own.1.len() {
            let text = "the block of this rank to itself has two lengths";
            return Err(Error::Argument(text.to_owned()));
        }
        let offset = from.len();
        let mut bytes =
            [bytemuck::cast_slice(sent), bytemuck::cast_slice::<T, u8>(received)].concat();
        bytes.copy_within(own.0, own.1.start + offset);
        // The lengths of the buffers differ between ranks.
        let details = Details { element_bytes: size_of::<T>(), elements: 0, ..Details::default() };
        let collective = Collective::AllToAll { sent: from, received: into, offset };
        self.run(collective, &mut bytes, details, None)?;
        bytemuck::cast_slice_mut(received).copy_from_slice(bytes.get(offset..).unwrap_or_default());
        Ok(())
    }

    /// Combines the buffers of all ranks, and writes the result to the buffer of the rank `root`. Afterwards, the
    /// buffers of the other ranks have unspecified contents.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank; otherwise see [failures](Self#failures).
    #[doc(alias = "MPI_Reduce")]
    pub fn reduce<T: Number>(
        &mut self,
        root: usize,
        buffer: &mut [T],
        reduction: Reduction<'_, T>,
    ) -> Result<(), Error> {
        self.check_root(root)?;
        self.reduce_by(Collective::Reduce { root }, buffer, reduction)
    }

    /// Combines the buffers of all ranks, and writes the result to all of them.
    ///
    /// If a buffer is longer than 64 KiB, and the reduction is not [`Reduction::Custom`], the ranks form a ring. Each
    /// of them then sends about twice the length of the buffer. Otherwise, the ranks use recursive doubling, which has
    /// fewer rounds.
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
    pub fn all_reduce<T: Number>(
        &mut self,
        buffer: &mut [T],
        reduction: Reduction<'_, T>,
    ) -> Result<(), Error> {
        let is_commutative = reduction.is_commutative();
        self.reduce_by(Collective::AllReduce { is_commutative }, buffer, reduction)
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
    pub fn reduce_scatter<T: Number>(
        &mut self,
        buffer: &mut [T],
        reduction: Reduction<'_, T>,
    ) -> Result<Range<usize>, Error> {
        let blocks = Blocks::even(buffer.len(), self.member.size);
        let (own, is_commutative) = (blocks.block(self.member.rank), reduction.is_commutative());
        self.reduce_by(Collective::ReduceScatter { is_commutative, blocks }, buffer, reduction)?;
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
        let mut all = vec![[0; 2]; self.member.size];
        if let Some(own) = all.get_mut(self.member.rank) {
            *own = [colour, key];
        }
        let id = checksum([self.id, self.generation, colour]);
        self.all_gather(&mut all)?;
        let ranks = all.iter().enumerate().filter(|(_, [other, _])| *other == colour);
        let mut ranks: Vec<_> = ranks.map(|(rank, [_, key])| (*key, rank)).collect();
        ranks.sort_unstable();
        let rank = ranks.iter().position(|(_, rank)| *rank == self.member.rank).unwrap_or(0);
        let members = ranks.iter().filter_map(|(_, rank)| self.members.get(*rank).copied());
        Ok(Self {
            world: Arc::clone(&self.world),
            members: members.collect(),
            member: Member { rank, size: ranks.len() },
            id,
            generation: 0,
        })
    }

    fn check_root(&self, root: usize) -> Result<(), Error> {
        let size = self.member.size;
        if root < size {
            return Ok(());
        }
        Err(Error::Argument(format!("the root is rank {root}, but the group has {size} ranks")))
    }

    /// Divides a buffer into blocks of the same length, in bytes.
    fn equal_blocks<T: Pod>(&self, buffer: &[T]) -> Result<Blocks, Error> {
        let (len, size) = (buffer.len(), self.member.size);
        if len.is_multiple_of(size) {
            return Ok(Blocks::even(size_of_val(buffer), size));
        }
        Err(Error::Argument(format!(
            "{len} elements are no multiple of {size} ranks: pass as many for each rank, or the counts"
        )))
    }

    /// Divides a buffer into blocks of these lengths. The blocks are in bytes.
    fn blocks_of<T: Pod>(&self, buffer: &[T], counts: &[usize]) -> Result<Blocks, Error> {
        let (len, size) = (buffer.len(), self.member.size);
        let bytes: Option<Vec<_>> =
            counts.iter().map(|count| count.checked_mul(size_of::<T>())).collect();
        let blocks = bytes.and_then(|bytes| Blocks::of(&bytes));
        let fits = |blocks: &Blocks| counts.len() == size && blocks.len() == size_of_val(buffer);
        blocks.filter(fits).ok_or_else(|| {
            Error::Argument(format!(
                "{} counts do not divide a buffer of {len} elements between {size} ranks",
                counts.len()
            ))
        })
    }

    /// Runs a collective that only copies.
    fn copy<T: Pod>(
        &mut self,
        collective: Collective,
        buffer: &mut [T],
        counts: u64,
    ) -> Result<(), Error> {
        let (element_bytes, elements) = (size_of::<T>(), buffer.len());
        let details = Details { element_bytes, elements, counts, ..Details::default() };
        self.run(collective, bytemuck::cast_slice_mut::<T, u8>(buffer), details, None)
    }

    fn reduce_by<T: Number>(
        &mut self,
        collective: Collective,
        buffer: &mut [T],
        reduction: Reduction<'_, T>,
    ) -> Result<(), Error> {
        let details = Details {
            variant: reduction.code(),
            number: T::CODE,
            element_bytes: size_of::<T>(),
            elements: buffer.len(),
            counts: 0,
        };
        self.run(collective, buffer, details, Some(&*combine(reduction)))
    }

    fn run<T: Pod>(
        &mut self,
        collective: Collective,
        buffer: &mut [T],
        details: Details,
        combine: Option<&Combine<'_, T>>,
    ) -> Result<(), Error> {
        let call = Call {
            kind: collective.kind() as u8,
            variant: details.variant,
            number: details.number,
            root: u32::try_from(collective.root()).unwrap_or(u32::MAX),
            element_bytes: details.element_bytes as u64,
            group: self.id,
            generation: self.generation,
            elements: details.elements as u64,
            counts: details.counts,
        };
        let mut world = self.world.enter()?;
        self.generation += 1;
        let schedule = collective.schedule(self.member, buffer.len(), size_of::<T>());
        world.execute(&self.members, Run::new(call, schedule, buffer, combine))
    }
}

/// The parts of a [`Call`] that depend on the buffer and the reduction.
#[derive(Default)]
struct Details {
    variant: u8,
    number: u8,
    element_bytes: usize,
    elements: usize,
    counts: u64,
}

/// Formats the rank and the size.
impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.member.rank, self.member.size)
    }
}

/// Returns a checksum of the lengths of blocks.
fn sum_of(counts: &[usize]) -> u64 {
    checksum(counts.iter().map(|count| *count as u64))
}

/// The default limit of a collective.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);
