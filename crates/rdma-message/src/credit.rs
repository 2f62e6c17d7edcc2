//! Credit, counted from the start of a connection.
//!
//! An end [grants](Grant) its peer receives and bytes by stating limits, and the peer keeps an
//! [`Allowance`]. All numbers wrap. A limit that arrives twice, or in another frame, means the same,
//! so that every frame can carry the current limits.

use crate::error::ConnectionError;

/// The largest credit that a peer may have. It is far below the range of the numbers, so that a
/// limit that goes back is not mistaken for a large step.
pub(crate) const MAX_CREDIT: u32 = 1 << 30;

/// The credit that this end grants its peer.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The number of units that this end has.
    size: u32,
    /// The limit that this end may state: `size` plus all released units.
    granted: u32,
    /// The limit in the last frame.
    stated: u32,
    /// The number of units that arrived.
    arrived: u32,
}

impl Grant {
    pub(crate) const fn new(size: u32) -> Self {
        Self { size, granted: size, stated: 0, arrived: 0 }
    }

    /// Returns the credit that the peer has, as far as it may know.
    pub(crate) const fn remaining(&self) -> u32 {
        self.stated.wrapping_sub(self.arrived)
    }

    /// Counts arrived units. Returns false if the peer has no credit for them.
    #[must_use]
    pub(crate) const fn arrive(&mut self, units: u32) -> bool {
        let has_credit = units <= self.remaining();
        if has_credit {
            self.arrived = self.arrived.wrapping_add(units);
        }
        has_credit
    }

    /// Returns the number of arrived units that were not released.
    pub(crate) const fn held(&self) -> u32 {
        self.size.wrapping_sub(self.granted.wrapping_sub(self.arrived))
    }

    /// Releases arrived units. Ignores what exceeds the held ones.
    pub(crate) fn release(&mut self, units: u32) {
        self.granted = self.granted.wrapping_add(units.min(self.held()));
    }

    /// Returns the limit for a frame.
    pub(crate) const fn state(&mut self) -> u32 {
        self.stated = self.granted;
        self.stated
    }

    /// Returns true if the peer should receive a new limit. This is so if a quarter has been released,
    /// or if the peer has no credit for a frame of `frame` units.
    pub(crate) const fn is_due(&self, frame: u32) -> bool {
        let released = self.granted.wrapping_sub(self.stated);
        released > 0 && (released >= self.size >> 2 || self.remaining() < frame)
    }
}

/// The credit that the peer grants this end.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    limit: u32,
    used: u32,
}

impl Allowance {
    /// Returns the available units.
    pub(crate) const fn available(&self) -> u32 {
        self.limit.wrapping_sub(self.used)
    }

    /// Applies a limit of the peer.
    pub(crate) const fn limit(&mut self, new: u32) -> Result<(), ConnectionError> {
        let is_step = new.wrapping_sub(self.limit) <= MAX_CREDIT;
        if !is_step || new.wrapping_sub(self.used) > MAX_CREDIT {
            return Err(ConnectionError::Limit { new, old: self.limit });
        }
        self.limit = new;
        Ok(())
    }

    /// Uses available units.
    pub(crate) fn take(&mut self, units: u32) {
        self.used = self.used.wrapping_add(units.min(self.available()));
    }
}

#[cfg(test)]
impl Grant {
    /// Counts from this number.
    pub(crate) const fn start_at(&mut self, number: u32) {
        (self.granted, self.stated) = (self.size.wrapping_add(number), number);
        self.arrived = number;
    }
}

#[cfg(test)]
impl Allowance {
    /// Counts from this number.
    pub(crate) const fn start_at(&mut self, number: u32) {
        (self.limit, self.used) = (number, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_beyond_the_stated_limit_does_not_exist() {
        let mut grant = Grant::new(4);
        assert!(!grant.arrive(1), "no limit was stated yet");
        assert_eq!(grant.state(), 4);
        assert!(grant.arrive(4));
        grant.release(2);
        assert!(!grant.arrive(1), "the new limit was not stated yet");
        assert_eq!(grant.state(), 6);
        assert!(!grant.arrive(3));
        assert!(grant.arrive(2));
        assert_eq!(grant.held(), 4);
    }

    #[test]
    fn only_held_units_are_released() {
        let mut grant = Grant::new(4);
        grant.release(9);
        assert_eq!(grant.state(), 4);
        assert!(grant.arrive(1));
        grant.release(9);
        assert_eq!(grant.state(), 5);
    }

    #[test]
    fn a_limit_is_due_after_a_quarter_or_if_the_peer_is_stuck() {
        let mut grant = Grant::new(16);
        grant.state();
        assert!(grant.arrive(15));
        grant.release(1);
        assert!(!grant.is_due(1), "the peer has one left");
        assert!(grant.is_due(2));
        grant.release(3);
        assert!(grant.is_due(1));
        grant.state();
        assert!(!grant.is_due(8));
    }

    #[test]
    fn limits_wrap_and_never_go_back() {
        let mut allowance = Allowance::default();
        let mut limit = 0_u32;
        for _ in 0..9 {
            limit = limit.wrapping_add(MAX_CREDIT);
            allowance.limit(limit).unwrap();
            assert_eq!(allowance.available(), MAX_CREDIT);
            allowance.take(MAX_CREDIT);
        }
        allowance.limit(limit).unwrap();
        let old = limit;
        let new = limit.wrapping_sub(1);
        assert_eq!(allowance.limit(new), Err(ConnectionError::Limit { new, old }));
        let new = limit.wrapping_add(MAX_CREDIT + 1);
        assert_eq!(allowance.limit(new), Err(ConnectionError::Limit { new, old }));
        let old = limit.wrapping_add(MAX_CREDIT);
        allowance.limit(old).unwrap();
        let new = old.wrapping_add(1);
        assert_eq!(allowance.limit(new), Err(ConnectionError::Limit { new, old }), "unused");
    }
}
