//! The memory that the requests of a phase touch: what one writes, no other touches.

use super::model::{Unfair, fair, length};
use super::program::{Element, End, Send};

#[derive(Debug, Clone, Copy)]
struct Footprint {
    end: End,
    slot: u8,
    from: u32,
    to: u32,
    written: bool,
}

#[derive(Debug, Default)]
pub(super) struct Footprints(Vec<Footprint>);

impl Footprints {
    pub(super) fn add(&mut self, send: &Send) -> Result<(), Unfair> {
        let fetches = send.opcode.fetches();
        self.add_elements(send.end, &send.elements, fetches)?;
        let Some(remote) = send.remote else { return Ok(()) };
        let to = remote.offset + length(&send.elements);
        let written = !fetches || send.opcode.is_atomic();
        let end = send.end.peer();
        self.push(Footprint { end, slot: remote.slot, from: remote.offset, to, written })
    }

    pub(super) fn add_receive(&mut self, end: End, elements: &[Element]) -> Result<(), Unfair> {
        self.add_elements(end, elements, true)
    }

    fn add_elements(
        &mut self,
        end: End,
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
        fair(!self.0.iter().any(clash), "the order would matter")?;
        self.0.push(new);
        Ok(())
    }
}
