//! Packet sequence numbers and their circular arithmetic.

use core::cmp::Ordering;

use crate::macros::number24;

/// A packet sequence number (PSN): 24 bits, counted modulo 2^24.
///
/// The type is not `Ord`, because on a circle "less" depends on a reference point, and a derived
/// order would be wrong after each wrap. [`serial_cmp`](Self::serial_cmp) compares two numbers that
/// are less than half the circle apart. All numbers in flight on one queue pair are that close
/// (IBTA vol 1, section 9.7.2).
///
/// # Examples
///
/// ```
/// use rdma_types::Psn;
///
/// let last = Psn::MAX;
/// let next = last.wrapping_add(1);
/// assert_eq!(next.get(), 0);
/// assert!(last.is_before(next));
/// assert_eq!(last.offset_from(next), -1);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u32", into = "u32"))]
#[repr(transparent)]
pub struct Psn(u32);

number24!(Psn, "PSN");

impl Psn {
    /// Returns the PSN `count` packets later.
    #[inline]
    #[must_use]
    pub const fn wrapping_add(self, count: u32) -> Self {
        Self::masked(self.0.wrapping_add(count))
    }

    /// Returns the PSN `count` packets earlier.
    #[inline]
    #[must_use]
    pub const fn wrapping_sub(self, count: u32) -> Self {
        Self::masked(self.0.wrapping_sub(count))
    }

    /// Returns the number of packets from `origin` forward to `self`, in `0..2^24`.
    #[inline]
    pub const fn distance_from(self, origin: Self) -> u32 {
        Self::masked(self.0.wrapping_sub(origin.0)).0
    }

    /// Returns the signed distance from `origin` to `self` along the shorter way round. The
    /// distance is in `-2^23..2^23`, and negative if `self` is before `origin`.
    #[inline]
    pub const fn offset_from(self, origin: Self) -> i32 {
        // The left shift moves bit 23 to the sign bit; the arithmetic right shift extends it.
        (self.0.wrapping_sub(origin.0) << 8).cast_signed() >> 8
    }

    /// Compares two PSNs that are less than 2^23 apart. If they are exactly 2^23 apart, each is
    /// before the other.
    #[inline]
    pub const fn serial_cmp(self, other: Self) -> Ordering {
        match self.offset_from(other) {
            ..0 => Ordering::Less,
            0 => Ordering::Equal,
            1.. => Ordering::Greater,
        }
    }

    /// Returns true if `self` comes before `other`; see [`serial_cmp`](Self::serial_cmp).
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.offset_from(other) < 0
    }

    /// Returns true if `self` comes after `other`; see [`serial_cmp`](Self::serial_cmp).
    #[inline]
    pub const fn is_after(self, other: Self) -> bool {
        self.offset_from(other) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u32 = 1 << 23;

    #[test]
    fn arithmetic_wraps_at_24_bits() {
        assert_eq!(Psn::MAX.wrapping_add(1), Psn::default());
        assert_eq!(Psn::default().wrapping_sub(1), Psn::MAX);
        assert_eq!(Psn::masked(5).wrapping_add(1 << 24), Psn::masked(5));
        assert_eq!(Psn::masked(5).wrapping_add(u32::MAX), Psn::masked(4));
        assert_eq!(Psn::masked(5).wrapping_sub(u32::MAX), Psn::masked(6));
    }

    #[test]
    fn distance_goes_forward_and_offset_the_nearer_way() {
        let (early, late) = (Psn::masked(0xff_fffe), Psn::masked(3));
        assert_eq!((late.distance_from(early), late.offset_from(early)), (5, 5));
        assert_eq!((early.distance_from(late), early.offset_from(late)), ((1 << 24) - 5, -5));
    }

    #[test]
    fn half_the_circle_is_the_last_that_is_before() {
        let origin = Psn::masked(0xab_cdef);
        assert_eq!(origin.wrapping_add(HALF - 1).serial_cmp(origin), Ordering::Greater);
        assert_eq!(origin.wrapping_add(HALF).serial_cmp(origin), Ordering::Less);
        assert_eq!(origin.serial_cmp(origin.wrapping_add(HALF)), Ordering::Less);
        assert_eq!(origin.serial_cmp(origin), Ordering::Equal);
    }

    #[test]
    fn more_than_24_bits_are_refused_or_masked() {
        assert_eq!(Psn::new(1 << 24), None);
        assert!(Psn::try_from(u32::MAX).is_err());
        assert_eq!(Psn::masked(0x1200_0034).get(), 0x34);
    }
}
