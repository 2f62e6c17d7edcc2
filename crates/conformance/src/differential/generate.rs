//! Generates programs from seeds.
//!
//! This does not use proptest, because each step depends on all previous ones. What remains after
//! removing a part must be a fair program. So the generator proposes steps, and the model accepts
//! only fair ones. The shrinker uses the model in the same way.

mod windows;

use fastrand::Rng;
use rdma_sys::ibv_access_flags as Access;

use super::model::{DATAGRAM, HEADER, INLINE, Model, length};
use super::program::*;

pub(super) const ALL_ACCESS: u32 = Access::IBV_ACCESS_LOCAL_WRITE.0
    | Access::IBV_ACCESS_REMOTE_WRITE.0
    | Access::IBV_ACCESS_REMOTE_READ.0
    | Access::IBV_ACCESS_REMOTE_ATOMIC.0;

/// Returns the program for a seed. The same seed always gives the same program.
pub(super) fn program(seed: u64) -> Program {
    let mut rng = Rng::with_seed(seed);
    let mut pairs: Vec<Pair> = (0..rng.usize(1..=3)).map(|_| pair(&mut rng)).collect();
    // Every third program has windows. The code for windows does not affect the programs of other
    // seeds.
    let extended = seed.is_multiple_of(3);
    if extended {
        windows::extend(&mut rng, &mut pairs);
    }
    let steps = if extended { 6..=12 } else { 3..=9 };
    let model = Model::new(&pairs);
    let mut generator = Generator { rng, model, program: Program { pairs, steps: Vec::new() } };
    generator.register_slots();
    generator.bind_windows();
    for _ in 0..generator.rng.usize(steps) {
        generator.step();
    }
    generator.look_at_windows();
    generator.program
}

fn pair(rng: &mut Rng) -> Pair {
    let transport = match rng.u8(0..10) {
        0..7 => Transport::Rc,
        7..9 => Transport::Ud,
        _ => Transport::Uc,
    };
    let shared = transport != Transport::Uc && rng.u8(0..5) == 0;
    let all_signaled = rng.u8(0..5) == 0;
    let access = if rng.u8(0..8) == 0 { access(rng) } else { ALL_ACCESS };
    // Half of the numbers are near the end of the range, so that they wrap around.
    let psn = if rng.bool() { rng.u32(0xff_fff0..=0xff_ffff) } else { rng.u32(0..=0xff_ffff) };
    Pair { transport, shared, joined: false, windows: false, all_signaled, psn, access }
}

/// Returns random rights that can be requested together.
fn access(rng: &mut Rng) -> u32 {
    let rights = rng.u32(..) & ALL_ACCESS;
    let writes = Access::IBV_ACCESS_REMOTE_WRITE.0 | Access::IBV_ACCESS_REMOTE_ATOMIC.0;
    if rights & writes == 0 { rights } else { rights | Access::IBV_ACCESS_LOCAL_WRITE.0 }
}

fn key(rng: &mut Rng) -> Key {
    [Key::Stale, Key::Stale, Key::Foreign, Key::Unknown][rng.usize(0..4)]
}

struct Generator {
    rng: Rng,
    model: Model,
    program: Program,
}

impl Generator {
    fn register_slots(&mut self) {
        for pair in 0..self.program.pairs.len() {
            for side in [Side::A, Side::B] {
                for slot in 0..SLOTS {
                    let end = QpId { pair: u8::try_from(pair).expect("few pairs"), side };
                    if self.rng.u8(0..6) == 0 {
                        self.renew(end, slot);
                    }
                    let step = self.registration(end, slot);
                    self.add(step);
                }
            }
        }
    }

    /// Registers and deregisters a slot, so that the slot has a stale key.
    fn renew(&mut self, end: QpId, slot: u8) {
        let step = self.registration(end, slot);
        self.add(step);
        self.add(Step::Deregister { end, slot });
    }

    fn registration(&mut self, end: QpId, slot: u8) -> Step {
        let length = if self.rng.bool() { SLOT_BYTES } else { self.rng.u32(1..SLOT_BYTES) };
        let access = if self.rng.u8(0..6) == 0 { access(&mut self.rng) } else { ALL_ACCESS };
        let bindable = self.has_windows(end) && self.rng.u8(0..8) > 0;
        let access = if bindable { access | Access::IBV_ACCESS_MW_BIND.0 } else { access };
        Step::Register { end, slot, length, access }
    }

    /// Appends the step if it is fair. Returns true if it was appended.
    fn add(&mut self, step: Step) -> bool {
        let mut after = self.model.clone();
        if after.apply(&step).is_err() {
            return false;
        }
        self.model = after;
        self.program.steps.push(step);
        true
    }

    fn end(&mut self) -> QpId {
        let pair = u8::try_from(self.rng.usize(0..self.program.pairs.len())).expect("few pairs");
        QpId { pair, side: if self.rng.bool() { Side::A } else { Side::B } }
    }

    /// Appends one or more random steps, each of them only if it is fair.
    fn step(&mut self) {
        let end = self.end();
        let slot = self.rng.u8(0..SLOTS);
        if self.model.pairs[usize::from(end.pair)].broken && self.rng.u8(0..10) < 7 {
            self.add(Step::Reconnect { pair: end.pair });
            return;
        }
        if self.has_windows(end) && self.rng.u8(0..6) == 0 {
            let window = self.rng.u8(0..WINDOWS);
            self.add(Step::Renew { end, window });
        }
        match self.rng.u8(0..20) {
            0..12 => {
                let phase = self.phase();
                if !phase.is_empty() {
                    self.add(Step::Phase(phase));
                }
            }
            12..14 => {
                self.add(Step::Deregister { end, slot });
                let again = self.registration(end, slot);
                if self.rng.bool() {
                    self.add(again);
                }
            }
            14 => {
                if let Some(race) = self.race(end) {
                    self.add(Step::Race(race));
                }
            }
            15 => {
                let step = self.registration(end, slot);
                self.add(step);
            }
            16 => {
                self.add(Step::Fail { end });
            }
            17 => {
                self.add(Step::Reconnect { pair: end.pair });
            }
            _ => {
                let call = REFUSALS[self.rng.usize(0..REFUSALS.len())];
                self.add(Step::Refused { end, call });
            }
        }
    }

    fn race(&mut self, of: QpId) -> Option<Race> {
        let (a, b) = (QpId { side: Side::A, ..of }, QpId { side: Side::B, ..of });
        let length = self.rng.u32(1..=4096);
        let (written, read) = (self.place(a, length, 1)?, self.place(a, length, 1)?);
        let target = self.place(b, length, 1)?;
        Some(Race { pair: of.pair, length, written, read, target })
    }

    /// Generates requests that are posted together. The sends of each end are generated in reverse:
    /// first the last one, then the ones that precede it.
    fn phase(&mut self) -> Vec<ProgramRequest> {
        let mut requests = Vec::new();
        for pair in 0..self.program.pairs.len() {
            let pair = u8::try_from(pair).expect("few pairs");
            let state = &self.model.pairs[usize::from(pair)];
            let (broken, flushes) = (state.broken, state.flushes);
            if self.rng.u8(0..4) == 0 {
                continue;
            }
            for side in [Side::A, Side::B] {
                if self.rng.u8(0..3) == 0 || broken && !flushes[side as usize] {
                    continue;
                }
                let end = QpId { pair, side };
                for n in 0..self.rng.usize(1..=6) {
                    self.propose(&mut requests, end, n == 0);
                }
            }
        }
        requests
    }

    /// Inserts a random send by this end, and usually a receive for it, if they are fair.
    fn propose(&mut self, requests: &mut Vec<ProgramRequest>, end: QpId, last: bool) {
        for _ in 0..4 {
            let windows = self.has_windows(end) && self.rng.u8(0..3) == 0;
            let send = if windows { self.any_window_send(end) } else { self.send(end, last) };
            let Some(mut send) = send else { return };
            let mut receive = self.receive(&send);
            if self.rng.u8(0..8) == 0 {
                self.spoil(&mut send, receive.as_mut());
            }
            let mut longer = requests.clone();
            let broken = self.model.pairs[usize::from(end.pair)].broken;
            let received = !broken && self.rng.u8(0..20) > 0;
            if let Some(elements) = receive.filter(|_| received) {
                let end = self.model.receiver(end.peer());
                longer.insert(0, ProgramRequest::Receive { end, elements });
            }
            let of_end = |request: &ProgramRequest| matches!(request, ProgramRequest::Send(known) if known.end == end);
            let first = longer.iter().position(of_end).unwrap_or(longer.len());
            let behind = self.invalidation_of(&send);
            longer.insert(first, ProgramRequest::Send(send));
            longer.extend(behind);
            if self.model.clone().apply(&Step::Phase(longer.clone())).is_ok() {
                *requests = longer;
                return;
            }
        }
    }

    fn opcode(&mut self, transport: Transport, last: bool) -> Opcode {
        use Opcode::*;
        let choice: &[Opcode] = match (transport, last) {
            (Transport::Rc, _) => {
                &[Send, SendImm, Write, Write, WriteImm, Read, Read, CompareSwap, FetchAdd]
            }
            (Transport::Uc, false) => &[Send, SendImm, Write, WriteImm],
            (Transport::Uc, true) => &[SendImm, WriteImm],
            (Transport::Ud, false) => &[Send, SendImm],
            (Transport::Ud, true) => &[SendImm],
        };
        choice[self.rng.usize(0..choice.len())]
    }

    fn send(&mut self, end: QpId, last: bool) -> Option<Send> {
        let transport = self.program.pairs[usize::from(end.pair)].transport;
        let opcode = self.opcode(transport, last);
        let total = if opcode.is_atomic() { 8 } else { self.length() };
        let most = if transport == Transport::Ud { total.min(DATAGRAM) } else { total };
        let elements = self.elements(end, most)?;
        let length = length(&elements);
        let remote = match opcode {
            Opcode::Send | Opcode::SendImm => None,
            _ => Some(self.remote(end.peer(), length)?),
        };
        let inline = !opcode.fetches() && length <= INLINE && self.rng.u8(0..4) == 0;
        // Uses few different values, so that comparisons often succeed.
        let mut operand = || if self.rng.bool() { self.rng.u64(0..3) } else { self.rng.u64(..) };
        let operands = (operand(), operand());
        Some(Send {
            end,
            opcode,
            elements,
            remote,
            signaled: last || self.rng.bool(),
            inline,
            fenced: transport == Transport::Rc && self.rng.u8(0..6) == 0,
            solicited: self.rng.u8(0..6) == 0,
            operands,
            good_qkey: transport != Transport::Ud || last || self.rng.u8(0..8) > 0,
            bind: None,
            invalidates: None,
        })
    }

    fn length(&mut self) -> u32 {
        match self.rng.u8(0..20) {
            0 => 0,
            1..14 => self.rng.u32(1..=64),
            14..18 => self.rng.u32(1..=700),
            _ => self.rng.u32(1..=4096),
        }
    }

    /// Returns a few elements in registered slots, with a total length of `total` bytes.
    fn elements(&mut self, end: QpId, total: u32) -> Option<Vec<Element>> {
        let mut elements = Vec::new();
        let mut left = total;
        while left > 0 {
            let divided = elements.len() < 2 && total != 8 && self.rng.u8(0..4) == 0;
            let length = if divided { self.rng.u32(1..=left) } else { left };
            let (slot, offset) = self.place(end, length, 1)?;
            elements.push(Element { slot, offset, length, key: Key::Own });
            left -= length;
        }
        Some(elements)
    }

    fn remote(&mut self, peer: QpId, length: u32) -> Option<Remote> {
        if self.has_windows(peer) && self.rng.u8(0..3) > 0 {
            let window = self.rng.u8(0..WINDOWS);
            let state = self.model.end(peer).windows[usize::from(window)];
            let gone = state.last.filter(|_| self.rng.u8(0..3) == 0);
            if let Some(bound) = state.bound.or(gone) {
                return self.place_in_window(window, bound, length);
            }
        }
        let (slot, offset) = self.place(peer, length, 8)?;
        Some(Remote { slot, offset, key: Key::Own })
    }

    /// Returns a random location in a registered slot: the slot and an offset.
    fn place(&mut self, end: QpId, length: u32, alignment: u32) -> Option<(u8, u32)> {
        let slot = self.rng.u8(0..SLOTS);
        let region = self.model.end(end).regions[usize::from(slot)]?;
        let most = region.length.checked_sub(length)?;
        Some((slot, self.rng.u32(0..=most) / alignment * alignment))
    }

    /// Returns the elements of a receive that is long enough for the send, if it needs a receive.
    fn receive(&mut self, send: &Send) -> Option<Vec<Element>> {
        if !send.opcode.is_received() {
            return None;
        }
        let transport = self.program.pairs[usize::from(send.end.pair)].transport;
        let header = if transport == Transport::Ud { HEADER } else { 0 };
        let spare = self.rng.u32(0..64);
        self.elements(send.end.peer(), header + length(&send.elements) + spare)
    }

    /// Introduces a mistake into the send, or into the receive that it would consume.
    fn spoil(&mut self, send: &mut Send, receive: Option<&mut Vec<Element>>) {
        let beyond = |region: u32, length: u32| (region + 1).saturating_sub(length);
        if self.has_windows(send.end) && self.rng.bool() {
            self.spoil_window(send);
            return;
        }
        match (self.rng.u8(0..5), send.elements.first_mut(), &mut send.remote, receive) {
            (0, Some(element), ..) => element.key = key(&mut self.rng),
            (1, Some(element), ..) => {
                let region = self.model.end(send.end).regions[usize::from(element.slot)];
                element.offset = region.map_or(0, |known| beyond(known.length, element.length));
            }
            (2, _, Some(remote), _) => remote.key = key(&mut self.rng),
            (3, _, Some(remote), _) => {
                let known = self.model.end(send.end.peer()).regions[usize::from(remote.slot)];
                let length = length(&send.elements);
                remote.offset = known.map_or(0, |known| beyond(known.length, length)) / 8 * 8;
            }
            (_, _, _, Some(receive)) if !receive.is_empty() => {
                if self.rng.bool() {
                    receive.pop();
                } else {
                    receive[0].key = key(&mut self.rng);
                }
            }
            _ => {}
        }
    }
}

const REFUSALS: &[RefusedCall] = &[
    RefusedCall::SendElements,
    RefusedCall::ReceiveElements,
    RefusedCall::InlineBytes,
    RefusedCall::RemoteWriteAlone,
    RefusedCall::RemoteAtomicAlone,
    RefusedCall::Unmapped,
    RefusedCall::FullReceiveQueue,
    RefusedCall::FullSendQueue,
    RefusedCall::Backwards,
    RefusedCall::ForeignAttribute,
    RefusedCall::HugeQueuePair,
    RefusedCall::HugeCompletionQueue,
    RefusedCall::EmptyCompletionQueue,
    RefusedCall::DomainInUse,
    RefusedCall::CompletionQueueInUse,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_program() {
        for seed in 0..50 {
            assert_eq!(program(seed), program(seed));
        }
        assert_ne!(program(1), program(2));
    }

    #[test]
    fn every_program_is_fair() {
        for seed in 0..500 {
            assert_eq!(Model::check(&program(seed)), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn programs_survive_serialization() {
        for seed in 0..50 {
            let written = program(seed).to_json();
            assert_eq!(Program::from_json(&written).unwrap(), program(seed));
        }
    }

    /// Every CI run should include all of these, whatever its first seed is.
    #[test]
    fn two_hundred_programs_cover_every_feature() {
        let programs: Vec<String> = (0..200).map(|seed| format!("{:?}", program(seed))).collect();
        let wanted = [
            "SendImm",
            "WriteImm",
            "Read",
            "CompareSwap",
            "FetchAdd",
            "Rc",
            "Uc",
            "Ud",
            "Stale",
            "Foreign",
            "Unknown",
            "Deregister",
            "Race",
            "Fail",
            "Reconnect",
            "Refused",
            "shared: true",
            "inline: true",
            "signaled: false",
            "good_qkey: false",
            "joined: true",
            "Bind {",
            "opcode: Invalidate",
            "opcode: SendInvalidate",
            "Renew",
            "key: Window",
        ];
        for word in wanted {
            let count = programs.iter().filter(|text| text.contains(word)).count();
            assert!(count >= 2, "{word}: {count}");
        }
    }
}
