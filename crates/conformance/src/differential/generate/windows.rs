//! The part of the generator that handles memory windows, and receive queues that several pairs
//! share.

use fastrand::Rng;

use super::super::program::*;
use super::super::windows::REMOTE_ACCESS;
use super::Generator;

/// Gives windows to reliable pairs, and lets some pairs share the receive queue of the first one.
pub(super) fn extend(rng: &mut Rng, pairs: &mut [Pair]) {
    let join = pairs.len() > 1 && pairs[0].transport == Transport::Rc && rng.bool();
    for (n, pair) in pairs.iter_mut().enumerate() {
        if pair.transport == Transport::Rc {
            pair.windows = true;
            pair.shared |= join;
            pair.joined = join && n > 0;
        }
    }
}

impl Generator {
    pub(super) fn bind_windows(&mut self) {
        for end in self.ends_with_windows() {
            for window in 0..WINDOWS {
                let bind = self.window_send(end, Opcode::Bind, window);
                if let Some(bind) = bind.filter(|_| self.rng.u8(0..4) > 0) {
                    self.add(Step::Phase(vec![ProgramRequest::Send(Send {
                        signaled: true,
                        ..bind
                    })]));
                }
            }
        }
    }

    /// Adds steps at the end of the program that show how the windows are bound. For each end,
    /// the peer reads through one window, which is usually unbound by then. Afterwards each end
    /// deregisters the regions that its windows were last bound to.
    pub(super) fn look_at_windows(&mut self) {
        for end in self.ends_with_windows() {
            let windows = self.model.end(end).windows;
            let gone = windows.iter().position(|window| window.bound.is_none());
            let chosen = gone.filter(|_| self.rng.u8(0..4) > 0).unwrap_or_default();
            let window = u8::try_from(chosen).expect("few windows");
            let Some(last) = windows[chosen].last else { continue };
            let place = self.place_in_window(window, last, 1);
            if let (Some(remote), Some(send)) = (place, self.send(end.peer(), true)) {
                let (slot, offset) = self.place(end.peer(), 1, 1).unwrap_or_default();
                let read = Send {
                    opcode: Opcode::Read,
                    elements: vec![Element { slot, offset, length: 1, key: Key::Own }],
                    remote: Some(remote),
                    inline: false,
                    ..send
                };
                self.add(Step::Phase(vec![ProgramRequest::Send(read)]));
            }
        }
        for end in self.ends_with_windows() {
            for window in self.model.end(end).windows {
                if let Some(Bind { slot, .. }) = window.last {
                    self.add(Step::Deregister { end, slot });
                }
            }
        }
    }

    fn ends_with_windows(&self) -> Vec<QpId> {
        let pairs = (0..).zip(&self.program.pairs).filter(|(_, plan)| plan.windows);
        pairs.flat_map(|(pair, _)| [Side::A, Side::B].map(|side| QpId { pair, side })).collect()
    }

    pub(super) fn has_windows(&self, end: QpId) -> bool {
        self.program.pairs[usize::from(end.pair)].windows
    }

    /// Returns a request that changes a window. Usually, the window can be changed in that way.
    pub(super) fn any_window_send(&mut self, end: QpId) -> Option<Send> {
        let opcode =
            [Opcode::Bind, Opcode::Invalidate, Opcode::SendInvalidate][self.rng.usize(0..3)];
        let owner = if opcode == Opcode::SendInvalidate { end.peer() } else { end };
        let windows = self.model.end(owner).windows;
        let mut window = self.rng.u8(0..WINDOWS);
        let bound = windows[usize::from(window)].bound.is_some();
        let again = opcode == Opcode::Bind && owner.is_type_1(window);
        let fits = again || bound == (opcode != Opcode::Bind);
        if !fits && self.rng.u8(0..8) > 0 {
            window = (window + 1) % WINDOWS;
        }
        self.window_send(end, opcode, window)
    }

    fn window_send(&mut self, end: QpId, opcode: Opcode, window: u8) -> Option<Send> {
        let mut send = Send {
            end,
            opcode,
            elements: Vec::new(),
            remote: None,
            signaled: self.rng.u8(0..4) > 0,
            inline: false,
            fenced: self.rng.u8(0..6) == 0,
            solicited: false,
            operands: (0, 0),
            good_qkey: true,
            bind: None,
            invalidates: (opcode != Opcode::Bind).then_some(Key::Window(window)),
        };
        match opcode {
            Opcode::Bind => {
                let length = if self.rng.bool() { 1024 } else { self.rng.u32(1..=4096) };
                let (slot, offset) = self.place(end, length, 1)?;
                let all = self.rng.u8(0..4) > 0;
                let access = if all { REMOTE_ACCESS } else { self.rng.u32(..) & REMOTE_ACCESS };
                let low = self.rng.u8(1..);
                let rare = if end.is_type_1(window) { 4 } else { 16 };
                let length = if self.rng.u8(0..rare) == 0 { 0 } else { length };
                send.bind = Some(Bind { window, slot, offset, length, access, low });
            }
            Opcode::SendInvalidate => {
                let length = self.length();
                send.elements = self.elements(end, length)?;
            }
            _ => {}
        }
        Some(send)
    }

    /// If the send binds a type 2 window, occasionally returns an invalidation of the window, which
    /// is posted later in the same phase.
    pub(super) fn invalidation_of(&mut self, send: &Send) -> Option<ProgramRequest> {
        let window = send.bind?.window;
        let chosen = !send.end.is_type_1(window) && self.rng.u8(0..8) == 0;
        let (bind, signaled) = (None, true);
        let (opcode, invalidates) = (Opcode::Invalidate, Some(Key::Window(window)));
        chosen.then(|| {
            ProgramRequest::Send(Send { opcode, bind, invalidates, signaled, ..send.clone() })
        })
    }

    pub(super) fn place_in_window(
        &mut self,
        window: u8,
        bound: Bind,
        length: u32,
    ) -> Option<Remote> {
        let (first, most) = (bound.offset.next_multiple_of(8), bound.offset + bound.length);
        let last = most.checked_sub(length).filter(|&last| first <= last)?;
        let offset = self.rng.u32(first..=last) / 8 * 8;
        Some(Remote { slot: bound.slot, offset, key: Key::Window(window) })
    }

    /// Introduces a mistake into those fields of the send that concern windows.
    pub(super) fn spoil_window(&mut self, send: &mut Send) {
        let key = Key::Window(self.rng.u8(0..WINDOWS));
        if let Some(bind) = &mut send.bind {
            let region = self.model.end(send.end).regions[usize::from(bind.slot)];
            bind.offset = region.map_or(0, |known| (known.length + 1).saturating_sub(bind.length));
        } else if send.opcode == Opcode::Invalidate {
            send.invalidates =
                Some([key, Key::Own, Key::Unknown, Key::Foreign][self.rng.usize(0..4)]);
        } else if let Some(remote) = &mut send.remote {
            remote.key = key;
        } else if let Some(element) = send.elements.first_mut() {
            element.key = key;
        }
    }
}
