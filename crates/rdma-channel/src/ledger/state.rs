//! The state of the request in a slot.

/// A phase (one bit, or no bit for `FREE`), combined with flags.
///
/// | phase | contents of the slot |
/// |---|---|
/// | `FREE` | no request |
/// | `RESERVED` | reserved for a request of a batch that is not posted yet |
/// | `IN_FLIGHT` | a request with memory that the device may access |
/// | `DONE` | a completed request that no handle has reported |
/// | `REPORTED` | a completed request that its handle has reported; the handle still exists |
/// | `DEAD` | never a request: the cursors of a closed connection point here |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotState(u16);

impl SlotState {
    pub(super) const FREE: Self = Self(0);
    pub(super) const IN_FLIGHT: Self = Self(0x01);
    pub(super) const DONE: Self = Self(0x02);
    pub(super) const REPORTED: Self = Self(0x04);
    pub(super) const RESERVED: Self = Self(0x08);
    pub(super) const DEAD: Self = Self(0x10);
    const PHASE: u16 = 0x1f;

    /// The request has no handle, and had none in the current scope.
    const FORGOTTEN: u16 = 0x20;
    /// The handle was dropped before it reported a result.
    const DROPPED: u16 = 0x40;
    /// The request creates no completion if it succeeds.
    const UNSIGNALED: u16 = 0x80;
    /// The slot's `link` points to the previous unsignaled request, or to the dead slot.
    const LINKED: u16 = 0x100;
    /// The request has no memory. It was posted only in order to be flushed after unsignaled requests.
    const MARKER: u16 = 0x200;
    /// `arm` has already reported that the request is done.
    const ARM_REPORTED: u16 = 0x400;

    /// A request in flight whose handle was dropped, without other flags.
    pub(super) const IN_FLIGHT_DROPPED: Self = Self(Self::IN_FLIGHT.0 | Self::DROPPED);

    const fn has(self, bits: u16) -> bool {
        self.0 & bits != 0
    }

    #[inline(always)]
    pub(super) const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    #[inline(always)]
    pub(super) const fn is_in_flight(self) -> bool {
        self.has(Self::IN_FLIGHT.0)
    }

    #[inline(always)]
    pub(super) const fn is_done(self) -> bool {
        self.has(Self::DONE.0)
    }

    #[inline(always)]
    pub(super) const fn is_reported(self) -> bool {
        self.has(Self::REPORTED.0)
    }

    /// Returns true if the slot holds a request.
    pub(super) const fn is_occupied(self) -> bool {
        self.has(Self::IN_FLIGHT.0 | Self::DONE.0 | Self::REPORTED.0)
    }

    /// Returns the same flags with another phase.
    pub(super) const fn to(self, phase: Self) -> Self {
        Self(self.0 & !Self::PHASE | phase.0)
    }

    pub(super) const fn forgotten(self) -> Self {
        Self(self.0 & !Self::DROPPED | Self::FORGOTTEN)
    }

    pub(super) const fn dropped(self) -> Self {
        Self(self.0 | Self::DROPPED)
    }

    pub(super) const fn unsignaled(self) -> Self {
        Self(self.0 | Self::UNSIGNALED | Self::LINKED)
    }

    pub(super) const fn linked(self) -> Self {
        Self(self.0 | Self::LINKED)
    }

    pub(super) const fn marker(self) -> Self {
        Self(self.0 | Self::MARKER | Self::FORGOTTEN)
    }

    pub(super) const fn arm_reported(self) -> Self {
        Self(self.0 | Self::ARM_REPORTED)
    }

    /// Returns true if the request is done, and neither its handle nor `arm` has reported that.
    pub(super) const fn is_unreported(self) -> bool {
        self.is_done() && !self.has(Self::DROPPED | Self::FORGOTTEN | Self::ARM_REPORTED)
    }

    pub(super) const fn is_dropped(self) -> bool {
        self.has(Self::DROPPED)
    }

    /// Returns true if the request has no handle.
    pub(super) const fn has_no_handle(self) -> bool {
        self.has(Self::DROPPED | Self::FORGOTTEN)
    }

    pub(super) const fn is_unsignaled(self) -> bool {
        self.has(Self::UNSIGNALED)
    }

    pub(super) const fn is_linked(self) -> bool {
        self.has(Self::LINKED)
    }

    pub(super) const fn is_marker(self) -> bool {
        self.has(Self::MARKER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_do_not_change_the_phase() {
        let state = SlotState::IN_FLIGHT.unsignaled().dropped();
        assert!(state.is_in_flight() && state.is_unsignaled() && state.has_no_handle());
        assert!(state.is_linked() && state.is_occupied() && !state.is_done());
        let done = state.to(SlotState::DONE);
        assert!(done.is_done() && done.is_unsignaled() && done.is_dropped());
        assert!(!state.is(SlotState::IN_FLIGHT) && state.to(SlotState::FREE) != SlotState::FREE);
        assert_eq!(SlotState::IN_FLIGHT.dropped(), SlotState::IN_FLIGHT_DROPPED);
        assert!(
            SlotState::IN_FLIGHT.marker().has_no_handle()
                && !SlotState::IN_FLIGHT.marker().is_dropped()
        );
        assert!(!state.forgotten().is_dropped() && state.forgotten().has_no_handle());
        assert!(
            SlotState::DONE.is_unreported() && done.to(SlotState::DONE).arm_reported().is_done()
        );
        for state in
            [SlotState::DONE.arm_reported(), done, SlotState::DONE.forgotten(), SlotState::REPORTED]
        {
            assert!(!state.is_unreported() && state.is_occupied());
        }
        for phase in [SlotState::FREE, SlotState::DEAD, SlotState::RESERVED] {
            assert!(!phase.is_occupied() && !phase.is_in_flight() && !phase.is_reported());
        }
    }
}
