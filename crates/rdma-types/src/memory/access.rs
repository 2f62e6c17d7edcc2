//! Access rights of registered memory.

use core::error::Error;
use core::fmt;

use crate::macros::flags_display;

bitflags::bitflags! {
    /// Access rights of registered memory and of queue pairs (`enum ibv_access_flags`).
    ///
    /// Local read is always allowed. Flags are added by name:
    ///
    /// ```
    /// use rdma_types::AccessFlags;
    ///
    /// let access = AccessFlags::new().with_local_write().with_remote_read();
    /// assert!(access.contains(AccessFlags::REMOTE_READ));
    /// assert_eq!(access.bits(), 0b101);
    /// assert_eq!(access.to_string(), "LOCAL_WRITE | REMOTE_READ");
    /// ```
    ///
    /// Bits without a name here are kept. See `man ibv_reg_mr`.
    #[doc(alias = "ibv_access_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    #[cfg_attr(feature = "serde", serde(transparent))]
    #[repr(transparent)]
    pub struct AccessFlags: u32 {
        /// The device may write the memory for this machine's own requests: for receives, and for
        /// responses to reads and atomics.
        const LOCAL_WRITE = 1;
        /// Peers may write the memory.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read the memory.
        const REMOTE_READ = 1 << 2;
        /// Peers may execute atomics on the memory.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses in requests are offsets from the start of the region, not virtual addresses.
        const ZERO_BASED = 1 << 5;
        /// Pages are not pinned; the device faults them in on access.
        const ON_DEMAND = 1 << 6;
        /// The region consists only of huge pages. The flag applies only together with
        /// [`ON_DEMAND`](Self::ON_DEMAND).
        const HUGETLB = 1 << 7;
        /// Peers may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// The device may write in any order, but all data has arrived when the request completes.
        /// A device without this feature ignores the bit.
        const RELAXED_ORDERING = 1 << 20;

        const _ = !0;
    }
}

impl AccessFlags {
    /// Returns flags that allow only local read.
    #[inline]
    pub const fn new() -> Self {
        Self::empty()
    }

    /// Adds [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    #[inline]
    #[must_use]
    pub const fn with_local_write(self) -> Self {
        self.union(Self::LOCAL_WRITE)
    }

    /// Adds [`REMOTE_READ`](Self::REMOTE_READ).
    #[inline]
    #[must_use]
    pub const fn with_remote_read(self) -> Self {
        self.union(Self::REMOTE_READ)
    }

    /// Adds [`REMOTE_WRITE`](Self::REMOTE_WRITE). Memory then also needs local write; see
    /// [`check`](Self::check).
    #[inline]
    #[must_use]
    pub const fn with_remote_write(self) -> Self {
        self.union(Self::REMOTE_WRITE)
    }

    /// Adds [`REMOTE_ATOMIC`](Self::REMOTE_ATOMIC). Memory then also needs local write; see
    /// [`check`](Self::check).
    #[inline]
    #[must_use]
    pub const fn with_remote_atomic(self) -> Self {
        self.union(Self::REMOTE_ATOMIC)
    }

    /// Adds [`MW_BIND`](Self::MW_BIND).
    #[inline]
    #[must_use]
    pub const fn with_mw_bind(self) -> Self {
        self.union(Self::MW_BIND)
    }

    /// Adds [`RELAXED_ORDERING`](Self::RELAXED_ORDERING).
    #[inline]
    #[must_use]
    pub const fn with_relaxed_ordering(self) -> Self {
        self.union(Self::RELAXED_ORDERING)
    }

    /// Adds [`ON_DEMAND`](Self::ON_DEMAND).
    #[inline]
    #[must_use]
    pub const fn with_on_demand(self) -> Self {
        self.union(Self::ON_DEMAND)
    }

    /// Adds [`ZERO_BASED`](Self::ZERO_BASED).
    #[inline]
    #[must_use]
    pub const fn with_zero_based(self) -> Self {
        self.union(Self::ZERO_BASED)
    }

    /// Adds [`HUGETLB`](Self::HUGETLB).
    #[inline]
    #[must_use]
    pub const fn with_huge_pages(self) -> Self {
        self.union(Self::HUGETLB)
    }

    /// Returns true if a peer that knows the rkey can read or change the memory.
    #[inline]
    pub const fn any_remote(self) -> bool {
        self.intersects(Self::REMOTE_READ.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC))
    }

    /// Checks whether memory can be registered with these flags.
    ///
    /// The rule does not apply to a queue pair's flags, because local write means nothing there.
    ///
    /// # Errors
    ///
    /// Returns an error for remote write or remote atomic without local write. `ibv_reg_mr` refuses
    /// both with `EINVAL`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma_types::{AccessError, AccessFlags};
    ///
    /// let access = AccessFlags::new().with_remote_write();
    /// assert_eq!(access.check(), Err(AccessError::RemoteWriteWithoutLocalWrite));
    /// assert_eq!(access.with_local_write().check(), Ok(()));
    /// ```
    pub const fn check(self) -> Result<(), AccessError> {
        if self.contains(Self::LOCAL_WRITE) {
            Ok(())
        } else if self.contains(Self::REMOTE_WRITE) {
            Err(AccessError::RemoteWriteWithoutLocalWrite)
        } else if self.contains(Self::REMOTE_ATOMIC) {
            Err(AccessError::RemoteAtomicWithoutLocalWrite)
        } else {
            Ok(())
        }
    }
}

flags_display!(AccessFlags);

/// The reason why verbs forbid a set of access flags.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessError {
    /// The flags contain remote write without local write.
    RemoteWriteWithoutLocalWrite,
    /// The flags contain remote atomic without local write.
    RemoteAtomicWithoutLocalWrite,
}

crate::debug_messages!(
    enum AccessError {
        RemoteWriteWithoutLocalWrite,
        RemoteAtomicWithoutLocalWrite,
    }
);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = match self {
            Self::RemoteWriteWithoutLocalWrite => "remote write",
            Self::RemoteAtomicWithoutLocalWrite => "remote atomic",
        };
        write!(
            f,
            "access flags: {right} requires local write, because memory that peers may change must be \
             writable by its own device too: add with_local_write()"
        )
    }
}

impl Error for AccessError {}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn bits_are_those_of_verbs_h() {
        type With = fn(AccessFlags) -> AccessFlags;
        let builders: [(With, u32); 9] = [
            (AccessFlags::with_local_write, 1),
            (AccessFlags::with_remote_write, 2),
            (AccessFlags::with_remote_read, 4),
            (AccessFlags::with_remote_atomic, 8),
            (AccessFlags::with_mw_bind, 16),
            (AccessFlags::with_zero_based, 32),
            (AccessFlags::with_on_demand, 64),
            (AccessFlags::with_huge_pages, 128),
            (AccessFlags::with_relaxed_ordering, 1 << 20),
        ];
        for (with, bit) in builders {
            assert_eq!(with(AccessFlags::new()).bits(), bit);
            let others = AccessFlags::from_bits_retain(!bit);
            assert_eq!(with(others).bits(), u32::MAX, "keeps what was set");
        }
        assert_eq!(AccessFlags::FLUSH_GLOBAL.bits(), 256);
        assert_eq!(AccessFlags::FLUSH_PERSISTENT.bits(), 512);
    }

    #[test]
    fn remote_write_and_atomic_need_local_write() {
        let new = AccessFlags::new;
        let atomic = new().with_remote_atomic().with_remote_read();
        assert_eq!(atomic.check(), Err(AccessError::RemoteAtomicWithoutLocalWrite));
        assert_eq!(
            new().with_remote_write().check(),
            Err(AccessError::RemoteWriteWithoutLocalWrite)
        );
        for allowed in [new(), new().with_remote_read(), new().with_mw_bind(), AccessFlags::all()] {
            assert_eq!(allowed.check(), Ok(()), "{allowed}");
        }
        let text = AccessError::RemoteAtomicWithoutLocalWrite.to_string();
        assert!(text.contains("remote atomic") && text.contains("with_local_write()"), "{text}");
    }

    #[test]
    fn any_remote_is_what_a_peer_can_use() {
        let local = AccessFlags::new().with_local_write().with_mw_bind();
        assert!(!local.any_remote());
        for flags in
            [local.with_remote_read(), local.with_remote_write(), local.with_remote_atomic()]
        {
            assert!(flags.any_remote(), "{flags}");
        }
    }

    #[test]
    fn unnamed_bits_are_kept_and_shown() {
        let flags = AccessFlags::from_bits_retain(1 | 1 << 25);
        assert_eq!(flags.with_remote_read().bits(), 5 | 1 << 25);
        assert_eq!(flags.to_string(), "LOCAL_WRITE | 0x2000000");
        assert_eq!(AccessFlags::new().to_string(), "none");
        assert_eq!(format!("{:?}", AccessFlags::MW_BIND), "AccessFlags(MW_BIND)");
    }
}
