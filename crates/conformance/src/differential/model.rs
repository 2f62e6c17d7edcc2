//! Decides whether a program is fair, that is, whether the devices have no choice in executing it.
//!
//! The model keeps track of the registrations and the posted requests, and derives from them which
//! requests are faulty. It does not predict which error a fault causes: it is enough that the
//! devices agree.

use std::collections::VecDeque;

use rdma_sys::ibv_access_flags as Access;

use super::footprint::Footprints;
use super::program::*;
use super::windows::Window;

/// The size that a program requests for each queue.
pub(super) const QUEUE: u32 = 32;
/// The maximum number of elements in a request.
pub(super) const ELEMENTS: u32 = 3;
/// The maximum number of inline bytes in a request.
pub(super) const INLINE: u32 = 64;
/// The path MTU.
const PACKET: u32 = 1024;
/// The length of the longest datagram.
pub(super) const DATAGRAM: u32 = 1024;
/// The length of the header that precedes a received datagram.
pub(super) const HEADER: u32 = 40;

/// The reason why a program is unfair.
pub(super) type Unfair = &'static str;
pub(super) type Fair<T = ()> = Result<T, Unfair>;

pub(super) fn fair(condition: bool, otherwise: Unfair) -> Fair {
    if condition { Ok(()) } else { Err(otherwise) }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    pub(super) length: u32,
    pub(super) access: u32,
}

impl Region {
    pub(super) fn allows(self, flag: Access) -> bool {
        self.access & flag.0 != 0
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct EndState {
    pub(super) regions: [Option<Region>; SLOTS as usize],
    /// Whether each slot has a stale key, that of its previous registration.
    pub(super) stale: [bool; SLOTS as usize],
    pub(super) receives: VecDeque<Vec<Element>>,
    pub(super) windows: [Window; WINDOWS as usize],
}

#[derive(Debug, Clone)]
pub(super) struct PairState {
    pub(super) plan: Pair,
    pub(super) ends: [EndState; 2],
    /// Whether at least one of the pair's queue pairs is in error.
    pub(super) broken: bool,
    /// Whether each queue pair is known to be in error, so that its sends will be flushed.
    pub(super) flushes: [bool; 2],
}

impl PairState {
    fn shares(&self, side: Side) -> bool {
        self.plan.shared && side == Side::B
    }

    /// Forgets the receives of both queue pairs, except those in a shared queue, which remain
    /// posted.
    fn forget_receives(&mut self) {
        for side in [Side::A, Side::B] {
            if !self.shares(side) {
                self.ends[side as usize].receives.clear();
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) pairs: Vec<PairState>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// The request succeeds, but its message does not arrive.
    Lost,
    /// The request fails, and moves its queue pair to error.
    Fails,
}

impl Model {
    pub(super) fn new(pairs: &[Pair]) -> Self {
        let state = |plan: &Pair| PairState {
            plan: *plan,
            ends: Default::default(),
            broken: false,
            flushes: [false; 2],
        };
        Self { pairs: pairs.iter().map(state).collect() }
    }

    pub(super) fn check(program: &Program) -> Fair {
        let mut model = Self::new(&program.pairs);
        for (n, plan) in program.pairs.iter().enumerate() {
            let shares = |plan: &Pair| plan.shared && plan.transport == Transport::Rc;
            let joins = n > 0 && shares(plan) && shares(&program.pairs[0]);
            fair(!plan.joined || joins, "no queue exists to join")?;
            let connected = plan.transport == Transport::Rc;
            fair(!plan.windows || connected, "windows on an unconnected queue pair")?;
        }
        program.steps.iter().try_for_each(|step| model.apply(step))
    }

    pub(super) fn end(&self, end: QpId) -> &EndState {
        &self.pairs[usize::from(end.pair)].ends[end.side as usize]
    }

    pub(super) fn end_mut(&mut self, end: QpId) -> &mut EndState {
        &mut self.pairs[usize::from(end.pair)].ends[end.side as usize]
    }

    /// Returns the end that posts the receives which this end consumes.
    pub(super) fn receiver(&self, end: QpId) -> QpId {
        let joined = self.pairs[usize::from(end.pair)].plan.joined && end.side == Side::B;
        if joined { QpId { pair: 0, ..end } } else { end }
    }

    /// Applies the step if it is fair. After an error, the model must not be used any more.
    pub(super) fn apply(&mut self, step: &Step) -> Fair {
        match step {
            Step::Phase(requests) => self.phase(requests),
            Step::Register { end, slot, length, access } => {
                let place = &mut self.end_mut(*end).regions[usize::from(*slot)];
                fair(place.is_none(), "the slot is registered")?;
                *place = Some(Region { length: *length, access: *access });
                Ok(())
            }
            Step::Deregister { end, slot } => {
                let (state, slot) = (self.end_mut(*end), usize::from(*slot));
                if state.windows.iter().any(|window| window.is_bound_to(slot)) {
                    return Ok(()); // the device refuses to deregister it
                }
                fair(state.regions[slot].take().is_some(), "the slot is not registered")?;
                state.stale[slot] = true;
                // Posted receives that used the slot's own key now have a stale key.
                let posted = state.receives.iter_mut().flatten();
                let with_key =
                    |part: &&mut Element| usize::from(part.slot) == slot && part.key == Key::Own;
                posted.filter(with_key).for_each(|part| part.key = Key::Stale);
                Ok(())
            }
            Step::Renew { end, window } => {
                fair(self.pairs[usize::from(end.pair)].plan.windows, "there are no windows")?;
                self.end_mut(*end).windows[usize::from(*window)] = Window::default();
                Ok(())
            }
            Step::Race(race) => race.requests().into_iter().try_for_each(|request| {
                self.phase(&[request])?;
                fair(!self.pairs[usize::from(race.pair)].broken, "a race of a request that fails")
            }),
            Step::Fail { end } => {
                let pair = &mut self.pairs[usize::from(end.pair)];
                fair(!pair.broken, "the queue pair may be in error already")?;
                pair.broken = true;
                pair.flushes[end.side as usize] = true;
                pair.forget_receives();
                Ok(())
            }
            Step::Reconnect { pair } => {
                self.renew_windows(*pair);
                let pair = &mut self.pairs[usize::from(*pair)];
                pair.broken = false;
                pair.flushes = [false; 2];
                pair.forget_receives();
                Ok(())
            }
            Step::Refused { end, call } => {
                let broken = self.pairs[usize::from(end.pair)].broken;
                let connected = [RefusedCall::Backwards, RefusedCall::ForeignAttribute];
                fair(!broken || !connected.contains(call), "the state is uncertain")
            }
        }
    }

    /// Applies a phase. All receives are posted before all sends.
    fn phase(&mut self, requests: &[ProgramRequest]) -> Fair {
        for request in requests {
            if let ProgramRequest::Receive { end, elements } = request {
                fair(!self.pairs[usize::from(end.pair)].broken, "the pair is broken")?;
                fair(self.receiver(*end) == *end, "the queue belongs to another end")?;
                fair(elements.len() <= ELEMENTS as usize, "too many elements")?;
                self.nameable(*end, elements)?;
                let receives = &mut self.end_mut(*end).receives;
                fair(receives.len() < QUEUE as usize, "the queue may be full")?;
                receives.push_back(elements.clone());
            }
        }
        self.only_one_of_a_queue(requests)?;
        for n in 0..self.pairs.len() {
            let pair = u8::try_from(n).expect("few pairs");
            let of_pair = requests.iter().filter_map(|request| match request {
                ProgramRequest::Send(send) if send.end.pair == pair => Some(send),
                _ => None,
            });
            let sends: Vec<&Send> = of_pair.collect();
            if !sends.is_empty() {
                self.sends(&sends)?;
            }
        }
        Ok(())
    }

    /// Checks that no two pairs of a phase consume receives of one shared queue. Otherwise the
    /// devices could choose which message consumes which receive.
    fn only_one_of_a_queue(&self, requests: &[ProgramRequest]) -> Fair {
        let joined = |pair: u8| self.pairs[usize::from(pair)].plan.joined;
        let mut pairs: Vec<u8> = Vec::new();
        for request in requests {
            if let ProgramRequest::Send(send) = request {
                pairs.push(send.end.pair);
            }
        }
        let mut others = pairs.iter().filter(|&&pair| joined(pair));
        let Some(first) = others.next() else { return Ok(()) };
        let same = others.all(|pair| pair == first) && !pairs.contains(&0);
        fair(same, "two senders to one shared receive queue")
    }

    /// Applies the sends of one pair, from both of its ends.
    fn sends(&mut self, sends: &[&Send]) -> Fair {
        let index = usize::from(sends[0].end.pair);
        let plan = self.pairs[index].plan;
        if self.pairs[index].broken {
            return self.flushed(plan, sends);
        }
        let mut footprints = Footprints::default();
        for side in [Side::A, Side::B] {
            let own: Vec<&&Send> = sends.iter().filter(|send| send.end.side == side).collect();
            let Some(last) = own.last() else { continue };
            fair(own.len() <= QUEUE as usize / 2, "the queue may be full")?;
            let mut fate = Fate::Done;
            for (n, send) in own.iter().enumerate() {
                self.well_formed(plan, send)?;
                footprints.add(send)?;
                if self.pairs[index].broken {
                    continue;
                }
                let receives = &self.end(self.receiver(send.end.peer())).receives;
                let not_ready = send.opcode.is_received() && receives.is_empty();
                fate = self.execute(plan, send, &mut footprints)?;
                if fate == Fate::Fails {
                    fair(
                        n == 0 && own.len() == sends.len(),
                        "a failure must come first and alone",
                    )?;
                    // If storing the response fails, later requests may already have been executed.
                    let early = send.opcode.fetches() && self.local_faults(send) > 0;
                    fair(!early || own.len() == 1, "later requests may be executed")?;
                    // On SoftRoCE, a request that waits for a receive may never complete if a later
                    // request fails at the requester in the meantime, or if a later request is
                    // fenced.
                    let fenced = own.len() > 1 && own.iter().any(|send| send.fenced);
                    fair(!fenced, "a fence after a failure")?;
                    let wrong = own[1..].iter().any(|send| self.local_faults(send) > 0);
                    fair(!(not_ready && wrong), "a mistake after a request that waits")?;
                    let changes = own[1..].iter().any(|send| send.opcode.is_of_windows());
                    fair(!changes, "it may be executed before the failure")?;
                    self.pairs[index].broken = true;
                    self.pairs[index].flushes[side as usize] = true;
                }
            }
            if !self.pairs[index].broken {
                fair(last.signaled || plan.all_signaled, "the last completion would not be seen")?;
                let seen = plan.transport == Transport::Rc || last.opcode.has_imm();
                fair(seen && fate == Fate::Done, "its arrival would not be seen")?;
            }
        }
        if self.pairs[index].broken {
            self.pairs[index].forget_receives();
        }
        Ok(())
    }

    /// Applies the sends of a pair that is already broken. They are flushed.
    fn flushed(&self, plan: Pair, sends: &[&Send]) -> Fair {
        let flushes = self.pairs[usize::from(sends[0].end.pair)].flushes;
        fair(sends.len() <= QUEUE as usize / 2, "the queue may be full")?;
        for send in sends {
            fair(flushes[send.end.side as usize], "its state is uncertain")?;
            self.well_formed(plan, send)?;
        }
        Ok(())
    }

    /// Checks that every device must accept the send. Rejects one that devices may refuse.
    fn well_formed(&self, plan: Pair, send: &Send) -> Fair {
        let opcode = send.opcode;
        let carried = match plan.transport {
            Transport::Rc => plan.windows || !opcode.is_of_windows(),
            // See `no-local-invalidation-on-uc` in `docs/rxe-differences.md`.
            Transport::Uc => !opcode.fetches() && !opcode.is_of_windows(),
            Transport::Ud => matches!(opcode, Opcode::Send | Opcode::SendImm),
        };
        fair(carried, "the transport does not carry it")?;
        fair(send.elements.len() <= ELEMENTS as usize, "too many elements")?;
        self.nameable(send.end, &send.elements)?;
        self.window_request(send)?;
        let length = length(&send.elements);
        fair(
            !send.inline || length <= INLINE && !opcode.fetches(),
            "the request cannot be inline",
        )?;
        let one_word = send.elements.len() == 1 && length == 8;
        fair(!opcode.is_atomic() || one_word, "an atomic needs exactly eight bytes")?;
        fair(send.good_qkey || plan.transport == Transport::Ud, "only datagrams have a Q_Key")?;
        fair(plan.transport != Transport::Ud || length <= DATAGRAM, "longer than a datagram")?;
        if let Some(remote) = send.remote {
            fair(!opcode.is_atomic() || remote.offset % 8 == 0, "a misaligned atomic")?;
            let there = self.end(send.end.peer());
            let slot = usize::from(remote.slot);
            named(there, slot, remote.key)?;
            fair(remote.offset + length <= SLOT_BYTES, "beyond the memory")?;
        }
        let needs_remote =
            opcode == Opcode::Write || opcode == Opcode::WriteImm || opcode.fetches();
        fair(needs_remote == send.remote.is_some(), "a remote address is missing or superfluous")
    }

    /// Checks that the keys of the elements exist, and that the elements are within the slots and
    /// not empty.
    fn nameable(&self, end: QpId, elements: &[Element]) -> Fair {
        for element in elements {
            named(self.end(end), usize::from(element.slot), element.key)?;
            fair(element.offset + element.length <= SLOT_BYTES, "beyond the memory")?;
            fair(element.length > 0, "an element of no bytes")?;
        }
        Ok(())
    }

    /// Returns the fate of a request, and applies its effects. A request with two faults is unfair,
    /// because a device could report either one.
    fn execute(&mut self, plan: Pair, send: &Send, footprints: &mut Footprints) -> Fair<Fate> {
        if matches!(send.opcode, Opcode::Bind | Opcode::Invalidate) {
            return Ok(self.change_window(send));
        }
        let peer = send.end.peer();
        let local = self.local_faults(send);
        let remote = self.remote_faults(plan, send)? + usize::from(!send.good_qkey);
        fair(local + remote <= 1, "two faults")?;
        if local == 1 {
            // The first packets of a longer message may have arrived before the failure.
            let whole = send.opcode.fetches() || length(&send.elements) <= PACKET;
            fair(whole, "a mistake after the first packet")?;
            return Ok(Fate::Fails);
        }
        let reliable = plan.transport == Transport::Rc;
        if remote == 1 && !reliable {
            return Ok(Fate::Lost);
        }
        if !send.opcode.is_received() {
            return Ok(if remote == 1 { Fate::Fails } else { Fate::Done });
        }
        if remote == 1 {
            // A device may choose whether the refused message consumes a receive from a shared
            // queue.
            fair(
                !self.pairs[usize::from(peer.pair)].shares(peer.side),
                "a refused message to a shared queue",
            )?;
            fair(!self.end(peer).receives.is_empty(), "two faults")?;
            return Ok(Fate::Fails);
        }
        let receiver = self.receiver(peer);
        let Some(receive) = self.end_mut(receiver).receives.pop_front() else {
            fair(reliable, "the loss would not be reported")?;
            return Ok(Fate::Fails);
        };
        let carried = if send.opcode == Opcode::WriteImm { 0 } else { length(&send.elements) };
        let header = if plan.transport == Transport::Ud { HEADER } else { 0 };
        let short = length(&receive) < carried + header;
        let bad = self.faults(receiver, &beginning(&receive, carried + header), true);
        // A device may choose whether to check elements beyond the end of the message.
        fair(bad == self.faults(receiver, &receive, true), "a bad element that is not reached")?;
        fair(bad + usize::from(short) <= 1, "two faults")?;
        footprints.add_receive(receiver, &receive)?;
        fair(reliable || !short && bad == 0, "the loss would not be reported")?;
        if short || bad > 0 {
            return Ok(Fate::Fails);
        }
        if let Some(key) = send.invalidates {
            self.invalidate(peer, key);
        }
        Ok(Fate::Done)
    }

    fn local_faults(&self, send: &Send) -> usize {
        if send.inline { 0 } else { self.faults(send.end, &send.elements, send.opcode.fetches()) }
    }

    fn faults(&self, end: QpId, elements: &[Element], written: bool) -> usize {
        elements.iter().map(|element| self.element_faults(end, element, written)).sum()
    }

    fn element_faults(&self, end: QpId, element: &Element, written: bool) -> usize {
        let region = self.end(end).regions[usize::from(element.slot)];
        let (Some(region), Key::Own) = (region, element.key) else { return 1 };
        let outside = element.offset + element.length > region.length;
        let unwritable = written && !region.allows(Access::IBV_ACCESS_LOCAL_WRITE);
        usize::from(outside) + usize::from(unwritable)
    }

    fn remote_faults(&self, plan: Pair, send: &Send) -> Fair<usize> {
        let Some(remote) = send.remote else { return Ok(0) };
        let right = match send.opcode {
            Opcode::Read => Access::IBV_ACCESS_REMOTE_READ,
            opcode if opcode.is_atomic() => Access::IBV_ACCESS_REMOTE_ATOMIC,
            _ => Access::IBV_ACCESS_REMOTE_WRITE,
        };
        let refused = usize::from(plan.access & right.0 == 0);
        let length = length(&send.elements);
        if length == 0 {
            return Ok(refused);
        }
        let region = self.end(send.end.peer()).regions[usize::from(remote.slot)];
        if let Key::Window(window) = remote.key {
            let window = self.end(send.end.peer()).windows[usize::from(window)];
            return Ok(refused + window.faults(remote, length, right, region)?);
        }
        let (Some(region), Key::Own) = (region, remote.key) else { return Ok(refused + 1) };
        let outside = remote.offset + length > region.length;
        Ok(refused + usize::from(outside) + usize::from(!region.allows(right)))
    }
}

pub(super) fn length(elements: &[Element]) -> u32 {
    elements.iter().map(|element| element.length).sum()
}

/// Returns the elements that contain the first `bytes` bytes, the last one shortened to fit.
pub(super) fn beginning(elements: &[Element], mut bytes: u32) -> Vec<Element> {
    let mut parts = Vec::new();
    for element in elements {
        let length = element.length.min(bytes);
        if length > 0 {
            parts.push(Element { length, ..*element });
        }
        bytes -= length;
    }
    parts
}

pub(super) fn named(state: &EndState, slot: usize, key: Key) -> Fair {
    match key {
        Key::Own => fair(state.regions[slot].is_some(), "the slot has no key"),
        Key::Stale => fair(state.stale[slot], "the slot never had a key"),
        Key::Foreign | Key::Unknown => Ok(()),
        Key::Window(window) => fair(window < WINDOWS, "the window does not exist"),
    }
}
