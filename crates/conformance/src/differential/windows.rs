//! The part of the model for memory windows.
//!
//! A program is unfair if SoftRoCE would execute it differently from the contract
//! (`docs/rxe-differences.md`):
//!
//! - Access outside of a window (`window-bounds`).
//! - A second bind of a type 2 window (`second-bind-of-a-window`), or a bind under the key that the
//!   window already has (`bind-with-the-key-before`).
//! - A bind with local rights (`local-rights-of-a-window`), or to a region of another domain
//!   (`bind-to-another-domains-region`).
//! - The invalidation of an unbound window, which crashes the machine
//!   (`invalidation-of-an-unbound-window`).
//!
//! Before queue pairs are reset, their type 2 windows are reallocated
//! (`windows-outlive-their-queue-pair`).

use rdma_sys::ibv_access_flags as Access;

use super::model::{Fair, Fate, Model, Region, fair, named};
use super::program::*;

/// The rights that a window can grant.
pub(super) const REMOTE_ACCESS: u32 = Access::IBV_ACCESS_REMOTE_WRITE.0
    | Access::IBV_ACCESS_REMOTE_READ.0
    | Access::IBV_ACCESS_REMOTE_ATOMIC.0;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    pub(super) bound: Option<Bind>,
    /// The last bind of the window since it was allocated.
    pub(super) last: Option<Bind>,
}

impl Window {
    pub(super) fn is_bound_to(&self, slot: usize) -> bool {
        self.bound.is_some_and(|bound| usize::from(bound.slot) == slot)
    }

    /// Returns how many reasons there are to refuse an access through this window.
    pub(super) fn faults(
        self,
        place: Remote,
        length: u32,
        right: Access,
        region: Option<Region>,
    ) -> Fair<usize> {
        let (Some(bound), Some(region)) = (self.bound, region) else { return Ok(1) };
        fair(place.slot == bound.slot, "outside of the window")?;
        let refused = usize::from(bound.access & right.0 == 0);
        let end = place.offset + length;
        if end > region.length {
            return Ok(refused + 1);
        }
        let inside = bound.offset <= place.offset && end <= bound.offset + bound.length;
        fair(inside, "outside of the window")?;
        Ok(refused)
    }
}

impl Model {
    fn window(&mut self, end: QpId, window: u8) -> &mut Window {
        &mut self.end_mut(end).windows[usize::from(window)]
    }

    /// Reallocates the type 2 windows of the pair, which happens before its queue pairs are reset.
    pub(super) fn renew_windows(&mut self, pair: u8) {
        for end in [Side::A, Side::B].map(|side| QpId { pair, side }) {
            for window in (0..WINDOWS).filter(|&window| !end.is_type_1(window)) {
                *self.window(end, window) = Window::default();
            }
        }
    }

    /// Checks the parts of a send that concern windows. Rejects a send that devices may refuse, or
    /// that would break its receiver.
    pub(super) fn window_request(&self, send: &Send) -> Fair {
        let opcode = send.opcode;
        fair(send.bind.is_some() == (opcode == Opcode::Bind), "bind parameters do not fit")?;
        let names = matches!(opcode, Opcode::Invalidate | Opcode::SendInvalidate);
        fair(send.invalidates.is_some() == names, "the key to invalidate does not fit")?;
        let local = matches!(opcode, Opcode::Bind | Opcode::Invalidate);
        fair(!local || send.elements.is_empty() && !send.inline, "the request carries no data")?;
        if let Some(bind) = send.bind {
            self.bindable(send.end, bind)?;
        }
        match send.invalidates {
            Some(Key::Window(window)) => {
                let end = if opcode == Opcode::Invalidate { send.end } else { send.end.peer() };
                let bound = self.end(end).windows[usize::from(window)].bound.is_some();
                let is_type_1 = end.is_type_1(window);
                fair(bound || is_type_1, "the window is not bound")?;
                fair(!is_type_1 || opcode == Opcode::Invalidate, "it would break the receiver")
            }
            Some(_) if opcode == Opcode::SendInvalidate => Err("it would break the receiver"),
            Some(key) => named(self.end(send.end), 0, key),
            None => Ok(()),
        }
    }

    fn bindable(&self, end: QpId, bind: Bind) -> Fair {
        let state = self.end(end);
        fair(bind.window < WINDOWS, "the window does not exist")?;
        fair(state.regions[usize::from(bind.slot)].is_some(), "the slot has no region")?;
        fair(bind.offset + bind.length <= SLOT_BYTES, "beyond the memory")?;
        fair(bind.access & !REMOTE_ACCESS == 0, "not a right of a window")?;
        fair(bind.low != 0, "the bind would keep the present key")?;
        let window = state.windows[usize::from(bind.window)];
        let is_type_1 = end.is_type_1(bind.window);
        let again = window.last.is_some() && window.bound.is_none();
        fair(is_type_1 || !again, "a second bind")?;
        if is_type_1 {
            // The key of a type 1 window changes when the bind is posted, and does not change back
            // if the bind fails.
            fair(!self.pairs[usize::from(end.pair)].broken, "its key would be uncertain")?;
            fair(!self.is_wrong(end, bind), "its key would be uncertain")?;
        }
        Ok(())
    }

    /// Returns true if a bind must fail. The outcome is the same whatever the cause.
    fn is_wrong(&self, end: QpId, bind: Bind) -> bool {
        let state = self.end(end);
        let is_type_1 = end.is_type_1(bind.window);
        if bind.length == 0 {
            return !is_type_1;
        }
        let Some(region) = state.regions[usize::from(bind.slot)] else { return true };
        let changes = Access::IBV_ACCESS_REMOTE_WRITE.0 | Access::IBV_ACCESS_REMOTE_ATOMIC.0;
        let bound = state.windows[usize::from(bind.window)].bound.is_some();
        bound && !is_type_1
            || !region.allows(Access::IBV_ACCESS_MW_BIND)
            || bind.access & changes != 0 && !region.allows(Access::IBV_ACCESS_LOCAL_WRITE)
            || bind.offset + bind.length > region.length
    }

    /// Returns the fate of a bind or a local invalidation, and applies its effect.
    pub(super) fn change_window(&mut self, send: &Send) -> Fate {
        if let Some(bind) = send.bind {
            if self.is_wrong(send.end, bind) {
                return Fate::Fails;
            }
            let window = self.window(send.end, bind.window);
            window.bound = (bind.length > 0).then_some(bind);
            window.last = window.bound.or(window.last);
            return Fate::Done;
        }
        match send.invalidates {
            Some(key @ Key::Window(window)) if !send.end.is_type_1(window) => {
                self.invalidate(send.end, key);
                Fate::Done
            }
            _ => Fate::Fails,
        }
    }

    pub(super) fn invalidate(&mut self, end: QpId, key: Key) {
        if let Key::Window(window) = key {
            self.window(end, window).bound = None;
        }
    }
}
