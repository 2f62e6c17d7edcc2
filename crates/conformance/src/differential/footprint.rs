//! The memory and the windows that the requests of a phase touch. If a request writes memory, no
//! other request may touch it. If a request changes a window, another one may touch the window only
//! if the window's owner posts both, because their order is certain then.

use super::model::{Unfair, fair, length};
use super::program::{Element, Key, Opcode, QpId, Send};

#[derive(Debug, Clone, Copy)]
struct Footprint {
    end: QpId,
    slot: u8,
    from: u32,
    to: u32,
    written: bool,
}

/// A request's use of a window, or its change of one.
#[derive(Debug, Clone, Copy)]
struct Touch {
    owner: QpId,
    window: u8,
    by_owner: bool,
    changed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Footprints {
    memory: Vec<Footprint>,
    windows: Vec<Touch>,
}

impl Footprints {
    pub(super) fn add(&mut self, send: &Send) -> Result<(), Unfair> {
        let fetches = send.opcode.fetches();
        self.add_windows(send)?;
        self.add_elements(send.end, &send.elements, fetches)?;
        let Some(remote) = send.remote else { return Ok(()) };
        let to = remote.offset + length(&send.elements);
        let written = !fetches || send.opcode.is_atomic();
        let end = send.end.peer();
        self.push(Footprint { end, slot: remote.slot, from: remote.offset, to, written })
    }

    pub(super) fn add_receive(&mut self, end: QpId, elements: &[Element]) -> Result<(), Unfair> {
        self.add_elements(end, elements, true)
    }

    fn add_elements(
        &mut self,
        end: QpId,
        elements: &[Element],
        written: bool,
    ) -> Result<(), Unfair> {
        elements.iter().try_for_each(|&Element { slot, offset, length, .. }| {
            self.push(Footprint { end, slot, from: offset, to: offset + length, written })
        })
    }

    fn push(&mut self, new: Footprint) -> Result<(), Unfair> {
        let clash = |old: &Footprint| {
            let same = (old.end, old.slot) == (new.end, new.slot);
            same && old.from < new.to && new.from < old.to && (old.written || new.written)
        };
        fair(!self.memory.iter().any(clash), "the order would matter")?;
        self.memory.push(new);
        Ok(())
    }

    fn add_windows(&mut self, send: &Send) -> Result<(), Unfair> {
        let (own, peer) = (send.end, send.end.peer());
        let owner = if send.opcode == Opcode::SendInvalidate { peer } else { own };
        let bound = send.bind.map(|bind| (own, bind.window, true));
        let invalidated = match send.invalidates {
            Some(Key::Window(window)) => Some((owner, window, true)),
            _ => None,
        };
        let used = match send.remote.map(|remote| remote.key) {
            Some(Key::Window(window)) => Some((peer, window, false)),
            _ => None,
        };
        for (owner, window, changed) in [bound, invalidated, used].into_iter().flatten() {
            let new = Touch { owner, window, by_owner: owner == own, changed };
            let clash = |old: &Touch| {
                let same = (old.owner, old.window) == (new.owner, new.window);
                same && (old.changed || new.changed) && !(old.by_owner && new.by_owner)
            };
            fair(!self.windows.iter().any(clash), "the order would matter")?;
            self.windows.push(new);
        }
        Ok(())
    }
}
