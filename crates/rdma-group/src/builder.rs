//! The options of a group.

use std::env;
use std::time::Duration;

use rdma_mem::ProtectionDomain;

use crate::environment::{MOST_RANKS, Settings};
use crate::error::Error;
use crate::group::{Group, LIMIT};
use crate::world::World;

/// Joins a [`Group`], with options.
///
/// # Examples
/// Two ranks, which could be processes on two hosts:
/// ```
/// use std::time::Duration;
/// use rdma_group::Group;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let join = |rank| {
///     let builder = Group::builder(&pd, rank, 2, "127.77.0.1:7471").secret(b"swordfish");
///     builder.limit(Duration::from_secs(60)).join()
/// };
/// std::thread::scope(|threads| {
///     let other = threads.spawn(|| join(1)?.barrier());
///     join(0)?.barrier()?;
///     other.join().unwrap()
/// })?;
/// # Ok::<(), rdma_group::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct GroupBuilder<'a> {
    pd: &'a ProtectionDomain,
    settings: Settings,
    join_limit: Duration,
    limit: Duration,
}

impl<'a> GroupBuilder<'a> {
    /// Returns a builder for this rank. Same as [`Group::builder`].
    pub fn new(pd: &'a ProtectionDomain, rank: usize, world_size: usize, master: &str) -> Self {
        Self::with(pd, Settings::new(rank, world_size, master))
    }

    /// Returns a builder with the rank, size, address and secret of the environment. See [`Group::from_environment`].
    ///
    /// # Errors
    /// [`Error::NoLauncher`], [`Error::MissingVariable`] or [`Error::BadVariable`].
    pub fn from_environment(pd: &'a ProtectionDomain) -> Result<Self, Error> {
        Ok(Self::with(pd, Settings::from_variables(&|variable| env::var(variable).ok())?))
    }

    const fn with(pd: &'a ProtectionDomain, settings: Settings) -> Self {
        Self { pd, settings, join_limit: Duration::from_secs(120), limit: LIMIT }
    }

    /// Sets the number of this attempt to form the group, which must be the same on all ranks. After a failure, the
    /// ranks that join again pass the next number. Rank 0 then refuses processes of the failed group. Default: 0.
    ///
    /// # Examples
    /// Rank 2 leaves, and the others continue without it:
    /// ```
    /// use rdma_group::{Error, Group};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let join = |rank, size, epoch| {
    ///     Group::builder(&pd, rank, size, "127.77.0.3:7473").epoch(epoch).join()
    /// };
    /// let run = |rank| {
    ///     let mut group = join(rank, 3, 0)?;
    ///     group.barrier()?;
    ///     if rank == 2 {
    ///         return Ok(());
    ///     }
    ///     let lost = group.barrier();
    ///     assert!(matches!(lost, Err(Error::Lost { rank: 2, .. })), "{lost:?}");
    ///     drop(group);
    ///     join(rank, 2, 1)?.barrier()
    /// };
    /// std::thread::scope(|threads| {
    ///     let ranks = [0, 1, 2].map(|rank| threads.spawn(move || run(rank)));
    ///     ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    /// })?;
    /// # Ok::<(), rdma_group::Error>(())
    /// ```
    pub const fn epoch(mut self, epoch: u64) -> Self {
        self.settings.epoch = epoch;
        self
    }

    /// Sets the secret that all ranks share, for example 32 random bytes. A secret that is not empty is required if
    /// rank 0 does not listen at a loopback address.
    ///
    /// The secret authenticates all messages of joining, and the ranks that connect. It encrypts nothing: a process
    /// that can read or change packets can read or change the data.
    pub fn secret(mut self, secret: &[u8]) -> Self {
        self.settings.secret = Some(secret.to_vec());
        self
    }

    /// Sets the time limit of [`join`](Self::join). Default: 2 minutes. [`Duration::MAX`] means no limit.
    ///
    /// Rank 0 measures the limit from its own call. Another rank first waits for its connection to rank 0, at most for
    /// the limit. Then it waits for rank 0's decision, at most for the limit and 5 seconds.
    pub const fn join_limit(mut self, limit: Duration) -> Self {
        self.join_limit = limit;
        self
    }

    /// Sets the time limit of each collective, which includes waiting for the other ranks. Default: 10 minutes.
    ///
    /// Before a collective begins, it waits until another call of this rank has ended, for example one of a subgroup. After
    /// the same limit, it fails with [`Error::Argument`].
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Waits until all ranks have joined.
    ///
    /// Rank 0 listens at the address of the group. The other ranks connect to it, and receive the addresses of all
    /// ranks. Each of them then listens at the local address of its connection to rank 0. Rank 0 needs a file for each
    /// rank. If other processes connect, it drops them after at most 10 seconds.
    ///
    /// # Errors
    /// - [`Error::Argument`] if the rank is not less than the size, or the size is greater than 65,536;
    /// - [`Error::SecretRequired`] if there is no secret, but other hosts can reach the address;
    /// - [`Error::Missing`] on rank 0 if ranks are missing at the limit;
    /// - [`Error::Refused`] on other ranks if the epochs or sizes differ, another process has this rank, or ranks are
    ///   missing at the limit;
    /// - [`Error::BadAddress`] if no rank can connect to the address of rank 0, for example `0.0.0.0`;
    /// - [`Error::Listen`] on rank 0 if it cannot listen at its address, because another process uses it, or this
    ///   host does not have the address;
    /// - [`Error::Unreachable`] on other ranks if they cannot connect to rank 0 within the limit;
    /// - [`Error::Join`] if rank 0 ends, does not answer, or has another version or secret;
    /// - [`Error::Io`] if the name of rank 0's host cannot be looked up within the limit, or a socket fails;
    /// - [`Error::Connect`] if this rank cannot listen.
    pub fn join(self) -> Result<Group, Error> {
        let (pd, settings, limits) = self.check()?;
        Ok(Group::new(World::join(pd, &settings, limits)?))
    }

    /// Checks the options. Returns them, with the limits of joining and of collectives.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank, or the group is too large.
    pub(crate) fn check(self) -> Result<(&'a ProtectionDomain, Settings, [Duration; 2]), Error> {
        let Self { pd, settings, join_limit, limit } = self;
        let Settings { rank, world_size, .. } = settings;
        if rank >= world_size {
            let text = format!("rank {rank} is outside a group of {world_size} ranks");
            return Err(Error::Argument(text));
        }
        if world_size > MOST_RANKS {
            let text =
                format!("a group has at most {MOST_RANKS} ranks, but the size is {world_size}");
            return Err(Error::Argument(text));
        }
        Ok((pd, settings, [join_limit, limit]))
    }
}
