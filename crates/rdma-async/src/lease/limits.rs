//! Limits of the memory that a peer may borrow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdma_mem::AccessFlags;

use super::error::LeaseDenial;
use super::frame::Ask;

/// The unit in which lent memory is counted, in bytes.
const PAGE: usize = 4096;
/// The largest supported alignment, in bytes: the size of a huge page.
const LARGEST_ALIGNMENT: u64 = 2 << 20;

/// Limits of the memory that peers may [borrow](crate::Connection::borrow). If the
/// [options](crate::ConnectionOptions::lease_limits) of a connection set no limits, its peer may borrow nothing.
///
/// Borrowed memory counts against the limits until it is freed or the program has
/// [received](crate::Connection::receive_region) it. All connections of one control connection count as one peer.
/// Clones share the total limit for all peers, so that limit covers all connections of a listener, and of several
/// listeners with the same limits.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_async::{ConnectionOptions, LeaseLimits};
/// use rdma_mem::AccessFlags;
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let may = AccessFlags::new().with_remote_read().with_remote_write();
/// let limits = LeaseLimits::new(may).per_peer(1 << 20).in_total(64 << 20).longest(Duration::from_secs(5));
/// let options = ConnectionOptions::new(&pd).lease_limits(limits);
/// # let _ = options;
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LeaseLimits {
    access: AccessFlags,
    longest: Duration,
    per_peer: usize,
    regions: usize,
    total: Arc<Total>,
}

#[derive(Debug)]
struct Total {
    most: usize,
    used: AtomicUsize,
}

impl LeaseLimits {
    /// Allows peers to borrow memory with these rights for at most a minute. Each peer may borrow 64 regions at a time,
    /// with a total of 16 MiB; all peers together may borrow 1 GiB.
    pub fn new(access: AccessFlags) -> Self {
        let total = Total { most: 1 << 30, used: AtomicUsize::new(0) };
        let (longest, per_peer, regions) = (Duration::from_secs(60), 16 << 20, 64);
        Self { access, longest, per_peer, regions, total: Arc::new(total) }
    }

    /// Sets how many bytes a peer may borrow at a time, in whole pages of 4 KiB. The padding for a larger alignment
    /// counts, too.
    pub const fn per_peer(mut self, bytes: usize) -> Self {
        self.per_peer = bytes;
        self
    }

    /// Sets how many regions a peer may borrow at a time. Each region takes up one registration on the device.
    pub const fn regions_per_peer(mut self, regions: usize) -> Self {
        self.regions = regions;
        self
    }

    /// Sets how many bytes all peers together may borrow at a time, in whole pages. This starts a new count, which
    /// later clones share, so call it before cloning.
    pub fn in_total(mut self, bytes: usize) -> Self {
        self.total = Arc::new(Total { most: bytes, used: AtomicUsize::new(0) });
        self
    }

    /// Sets the longest time that a peer may borrow memory.
    pub const fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }
}

/// Returns how many bytes of padding this alignment may need.
fn padding(alignment: u64) -> usize {
    usize::try_from(alignment).ok().filter(|&alignment| alignment > PAGE).unwrap_or(0)
}

/// The memory that one peer has borrowed.
#[derive(Debug, Default)]
pub(crate) struct Account(Mutex<(usize, usize)>);

/// A share of the limits, released on drop.
#[derive(Debug)]
pub(crate) struct Counted {
    bytes: usize,
    account: Arc<Account>,
    total: Arc<Total>,
}

impl LeaseLimits {
    /// Counts a peer's request against the limits. `granted` are the rights that the queue pair gives the peer.
    ///
    /// # Errors
    /// The limit that the request exceeds.
    pub(crate) fn count(
        &self,
        account: &Arc<Account>,
        ask: &Ask,
        granted: AccessFlags,
    ) -> Result<Counted, LeaseDenial> {
        let allowed = self.access & granted;
        if !allowed.contains(ask.access) || ask.access.is_empty() {
            return Err(LeaseDenial::Access { allowed });
        }
        if ask.time > self.longest {
            return Err(LeaseDenial::Time { longest: self.longest });
        }
        if !ask.alignment.is_power_of_two() || ask.alignment > LARGEST_ALIGNMENT {
            return Err(LeaseDenial::Alignment { most: LARGEST_ALIGNMENT });
        }
        let most = self.per_peer.min(self.total.most).saturating_sub(padding(ask.alignment));
        let most = most / PAGE * PAGE;
        let length = usize::try_from(ask.length).ok().filter(|&length| length <= most);
        let bytes = length.and_then(|length| {
            length.max(1).next_multiple_of(PAGE).checked_add(padding(ask.alignment))
        });
        let bytes = bytes.ok_or(LeaseDenial::TooLong { most: most as u64 })?;
        let mut used = account.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.per_peer.saturating_sub(used.0);
        if used.1 >= self.regions {
            return Err(LeaseDenial::TooMany { most: self.regions as u64 });
        }
        let full = |left: usize| LeaseDenial::Full { left: (left / PAGE * PAGE) as u64 };
        if bytes > left {
            return Err(full(left));
        }
        let (all, relaxed) = (&self.total, Ordering::Relaxed);
        let more = |used: usize| used.checked_add(bytes).filter(|&used| used <= all.most);
        if let Err(used) = all.used.fetch_update(relaxed, relaxed, more) {
            return Err(full(left.min(all.most.saturating_sub(used))));
        }
        *used = (used.0 + bytes, used.1 + 1);
        drop(used);
        Ok(Counted { bytes, account: Arc::clone(account), total: Arc::clone(&self.total) })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut used = self.account.0.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(used.0 >= self.bytes && used.1 >= 1, "it was counted");
        *used = (used.0.saturating_sub(self.bytes), used.1.saturating_sub(1));
        drop(used);
        let before = self.total.used.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "it was counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: AccessFlags = AccessFlags::new().with_remote_read();

    fn ask(length: u64) -> Ask {
        let time = Duration::from_secs(1);
        Ask { ask: 1, lease: 0, access: READ, length, alignment: 64, time }
    }

    #[test]
    fn each_limit_is_enforced_and_released() {
        let account = Arc::new(Account::default());
        let limits = LeaseLimits::new(READ).per_peer(8192).in_total(3 * 4096).regions_per_peer(2);
        let count = |ask: Ask| limits.count(&account, &ask, READ);
        let one = count(ask(1)).unwrap();
        assert_eq!(count(ask(4097)).unwrap_err(), LeaseDenial::Full { left: 4096 });
        let two = count(ask(4096)).unwrap();
        assert_eq!(count(ask(1)).unwrap_err(), LeaseDenial::TooMany { most: 2 });
        let other = Arc::new(Account::default());
        assert_eq!(
            limits.count(&other, &ask(8192), READ).unwrap_err(),
            LeaseDenial::Full { left: 4096 }
        );
        drop((one, two));
        drop(count(ask(8192)).unwrap());
        assert_eq!(count(ask(8193)).unwrap_err(), LeaseDenial::TooLong { most: 8192 });
        assert_eq!(count(ask(u64::MAX)).unwrap_err(), LeaseDenial::TooLong { most: 8192 });
        // Because of the alignment, the memory may exceed the limit even if nothing else is borrowed.
        let aligned = |length| Ask { alignment: 8192, ..ask(length) };
        assert_eq!(count(aligned(1)).unwrap_err(), LeaseDenial::TooLong { most: 0 });
        let larger = LeaseLimits::new(READ).per_peer(5 * 4096);
        let most = larger.count(&account, &aligned(3 * 4096), READ).unwrap();
        let more = larger.count(&Arc::default(), &aligned(3 * 4096 + 1), READ).unwrap_err();
        assert_eq!(more, LeaseDenial::TooLong { most: 3 * 4096 });
        drop(most);
        assert_eq!(
            (limits.total.used.load(Ordering::Relaxed), *account.0.lock().unwrap()),
            (0, (0, 0))
        );
    }

    #[test]
    fn the_largest_limits_do_not_overflow() {
        let limits = LeaseLimits::new(READ).per_peer(usize::MAX).in_total(usize::MAX);
        for alignment in [1, 4096, LARGEST_ALIGNMENT] {
            for length in [u64::MAX, u64::MAX - 4095, u64::MAX - 4096, u64::MAX - (2 << 20)] {
                let counted =
                    limits.count(&Arc::default(), &Ask { alignment, ..ask(length) }, READ);
                assert!(
                    !matches!(counted, Err(LeaseDenial::Full { .. })),
                    "{length} of {alignment}"
                );
            }
        }
        assert_eq!(limits.total.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn requests_that_can_never_be_granted_are_denied() {
        let account = Arc::new(Account::default());
        let limits = LeaseLimits::new(READ).longest(Duration::from_secs(5));
        let count = |ask: Ask, granted| limits.count(&account, &ask, granted).unwrap_err();
        let write = AccessFlags::new().with_remote_write();
        let all = READ | write;
        assert_eq!(
            count(Ask { access: write, ..ask(1) }, all),
            LeaseDenial::Access { allowed: READ }
        );
        let none = AccessFlags::new();
        assert_eq!(count(ask(1), write), LeaseDenial::Access { allowed: none });
        assert_eq!(
            count(Ask { access: none, ..ask(1) }, all),
            LeaseDenial::Access { allowed: READ }
        );
        let longest = Duration::from_secs(5);
        assert_eq!(
            count(Ask { time: Duration::MAX, ..ask(1) }, all),
            LeaseDenial::Time { longest }
        );
        for alignment in [0, 3, u64::MAX, 4 << 20] {
            let most = LARGEST_ALIGNMENT;
            assert_eq!(count(Ask { alignment, ..ask(1) }, all), LeaseDenial::Alignment { most });
        }
    }
}
