//! Posts a queue pair's requests, and allocates the memory that they use.

use rdma_sys::{ibv_send_flags as Flags, ibv_sge, ibv_wr_opcode as Opcode};
use test_support::rig::datagram::QKEY;
use test_support::rig::post::Wr;

use crate::groups::EVERYBODY;
use crate::host::{INLINE, Message, Sent, local_iova, target_iova};
use crate::memory::{self, Atomic, DATA, Placed};
use crate::run::{Outcome, World, ensure};
use crate::script::{GROUPS, Kind, SLOTS, ScriptRequest, Service};
use crate::windows::{Use, is_first_type, part};

/// The number of bytes before, between and after the elements of a request.
const GAP: usize = 8;
const GAP_BYTE: u8 = 0xa5;
/// The value of the bytes of local memory before a READ or an atomic stores its result there.
const SINK_BYTE: u8 = 0x5a;
/// The maximum length of a datagram.
const DATAGRAM: usize = 4096;

impl ScriptRequest {
    /// Returns the local elements of a request, each as its offset in the message and its length.
    pub(crate) fn parts(&self) -> Vec<(usize, usize)> {
        let elements = if self.length < self.elements { 1 } else { self.elements.max(1) };
        let part = self.length / elements;
        let part =
            |n: usize| (n * part, if n + 1 == elements { self.length - n * part } else { part });
        (0..elements).map(part).filter(|(_, length)| *length > 0).collect()
    }

    pub(crate) fn block_bytes(&self) -> usize {
        (self.length + GAP * (self.parts().len() + 1)).next_multiple_of(8)
    }
}

/// Returns the offset in a request's block of element `n`, which starts at `from` in the message.
fn place(n: usize, from: usize) -> usize {
    from + GAP * (n + 1)
}

/// Extracts a request's bytes from its block of memory. Returns `None` if a gap between or around
/// the elements was changed.
pub(crate) fn unpack(request: &ScriptRequest, block: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut end) = (Vec::with_capacity(request.length), 0);
    let is_gap = |gap: &[u8]| gap.iter().all(|&byte| byte == GAP_BYTE);
    for (n, (from, length)) in request.parts().into_iter().enumerate() {
        let at = place(n, from);
        if !is_gap(&block[end..at]) {
            return None;
        }
        end = at + length;
        bytes.extend_from_slice(&block[at..end]);
    }
    is_gap(&block[end..]).then_some(bytes)
}

impl World<'_> {
    /// Posts the request. Skips it if the queue pair is destroyed, the queue or the local memory is
    /// full, or the request cannot use its window.
    pub(crate) fn post(&mut self, end: usize, mut request: ScriptRequest) -> Outcome {
        self.make_fair(end, &mut request);
        let own = &self.ends[end];
        // A bind or an invalidation needs a window, which `make_fair` removes unless the connection
        // is reliable.
        let of_none = request.kind.is_local() && request.window.is_none();
        if own.qp.is_none() || own.pending.len() >= own.capacity || of_none {
            return Ok(());
        }
        let room = own.has_room(request.block_bytes());
        let Some(through) = room.then(|| self.use_window(end, &mut request)).flatten() else {
            return Ok(());
        };
        let own = &mut self.ends[end];
        let to = if own.service == Service::Datagram { request.to } else { own.peer };
        let Some((block, block_bytes)) = own.reserve(request.block_bytes()) else { return Ok(()) };
        self.message += 1;
        own.sequence += 1;
        let message = self.message;
        let placed = Placed { at: request.at, length: request.length, message };
        let compare = (request.kind == Kind::CompareSwap).then(|| self.guess(to, &request));
        let operand = memory::bytes(message, 8).try_into().map_or(0, u64::from_le_bytes);
        let atomic = Atomic { word: request.at % memory::WORDS, compare, operand };
        let sent = Sent {
            sequence: self.ends[end].sequence,
            message,
            request,
            block,
            block_bytes,
            placed: (request.kind == Kind::Write).then_some(placed),
            atomic: request.kind.is_atomic().then_some(atomic),
            too_late: self.ends[to].target.is_none(),
            through,
        };
        self.give_out(end, to, &sent)?;
        self.expect(end, to, &sent);
        let own = &mut self.ends[end];
        own.silent = if request.signaled { 0 } else { own.silent + 1 };
        own.pending.push_back(sent);
        Ok(())
    }

    /// Changes a request so that this queue pair can post it.
    fn make_fair(&self, end: usize, request: &mut ScriptRequest) {
        let (own, settings) = (&self.ends[end], &self.script.settings);
        let longest = settings.longest;
        match request.kind {
            Kind::FetchAdd | Kind::CompareSwap => (request.length, request.elements) = (8, 1),
            Kind::Bind | Kind::Invalidate => (request.length, request.elements) = (0, 1),
            _ if own.service == Service::Datagram => {
                request.length = request.length.min(longest).min(DATAGRAM);
            }
            _ => request.length = request.length.min(longest),
        }
        request.at = request.at.min(longest);
        request.window = request.window.filter(|_| own.service == Service::Reliable);
        if let Some(window) = &mut request.window {
            let whole = own.known.known.len();
            window.from = window.from.min(whole - 1);
            window.bytes = window.bytes.clamp(1, whole - window.from);
        }
        let moves = request.kind.moves();
        request.inline &= moves && request.length <= INLINE;
        // A SEND can carry immediate data or a key, but not both.
        request.immediate &= moves && !(request.kind == Kind::Send && request.window.is_some());
        request.signaled |= own.silent + 1 >= own.capacity / 2;
    }

    /// Returns the value for a compare-and-swap to compare with: the expected value of the word.
    /// For every fourth message, it is a different value, so that no swap takes place.
    fn guess(&self, to: usize, request: &ScriptRequest) -> u64 {
        let word = request.at % memory::WORDS;
        let target = &self.ends[to].known;
        let pending = &self.ends[to ^ 1].pending;
        let atomics = pending.iter().filter_map(|sent| sent.atomic).filter(|it| it.word == word);
        let expected = atomics.fold(target.words[word], |value, atomic| atomic.result(value));
        expected ^ u64::from(request.immediate || self.message.is_multiple_of(4))
    }

    /// Fills the memory that is reserved for a request, and posts the request.
    fn give_out(&mut self, end: usize, to: usize, sent: &Sent) -> Outcome {
        let Sent { request, block, message, .. } = sent;
        let moves = request.kind.moves();
        let mut memory = vec![GAP_BYTE; request.block_bytes()];
        let mut sges = Vec::with_capacity(3);
        let own = &self.ends[end];
        for (n, (from, length)) in request.parts().into_iter().enumerate() {
            let at = place(n, from);
            let part = &mut memory[at..at + length];
            if moves {
                memory::fill(*message, from, part)
            } else {
                part.fill(SINK_BYTE)
            }
            let addr = local_iova(end) + (block + at) as u64;
            sges.push(ibv_sge { addr, length: length as u32, lkey: own.local.key() });
        }
        own.local.copy_in(*block, &memory);
        if let Some(used) = sent.through.filter(|_| request.kind.is_local()) {
            return self.post_local(end, sent, &used);
        }
        let mut wr = self.request(end, to, sent, &sges);
        if request.inline {
            // Inline data is read from the address in this process. The key is not used.
            for (sge, (from, length)) in wr.sges.iter_mut().zip(request.parts()) {
                debug_assert_eq!(sge.length as usize, length);
                let at = block + place(0, 0) + from + GAP * parts_before(request, from);
                sge.addr = own.local.address() + at as u64;
                sge.lkey = 0;
            }
            wr = wr.flags(Flags::IBV_SEND_INLINE);
        }
        let Some(qp) = &self.ends[end].qp else { return Ok(()) };
        let errno = qp.try_post(&wr);
        ensure!(errno == 0, "q{end}: a post was refused with {errno}");
        if request.inline {
            own.local.copy_in(*block, &vec![0; memory.len()]);
        }
        Ok(())
    }

    fn request(&self, end: usize, to: usize, sent: &Sent, sges: &[ibv_sge]) -> Wr {
        let Sent { request, message, .. } = sent;
        let wr_id = (end as u64) << 32 | u64::from(sent.sequence);
        let opcode = match request.kind {
            Kind::Send => Opcode::IBV_WR_SEND,
            Kind::Write => Opcode::IBV_WR_RDMA_WRITE,
            Kind::Read => Opcode::IBV_WR_RDMA_READ,
            Kind::FetchAdd => Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
            Kind::CompareSwap => Opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
            Kind::Bind | Kind::Invalidate => Opcode::IBV_WR_LOCAL_INV,
        };
        let own = &self.ends[end];
        let rkey = sent.through.map_or_else(|| self.rkey(to), |used| used.key);
        let mut wr = match sent.through {
            Some(used) if request.kind == Kind::Send => {
                Wr::send_with_invalidate(wr_id, sges, used.key)
            }
            _ => Wr::new(wr_id, opcode, sges),
        };
        if let Some(atomic) = sent.atomic {
            let address = target_iova(to) + 8 * atomic.word as u64;
            let (first, second) = match atomic.compare {
                Some(compare) => (compare, atomic.operand),
                None => (atomic.operand, 0),
            };
            wr = wr.atomic_at(address, rkey, first, second);
        } else if request.kind != Kind::Send {
            wr = wr.remote(target_iova(to) + (DATA + request.at) as u64, rkey);
        } else if let Some(ah) = request.group.and_then(|group| own.group_ways.get(group % GROUPS))
        {
            wr = wr.to(ah, EVERYBODY, QKEY);
        } else if let Some(ah) = own.ways.get(&to) {
            let number = self.ends[to].qp.as_ref().map_or(1 << 20, |qp| qp.number());
            wr = wr.to(ah, number, QKEY);
        }
        if request.immediate {
            wr = wr.with_imm(*message as u32);
        }
        if !request.signaled {
            wr = wr.unsignaled();
        }
        if request.fenced { wr.fenced() } else { wr }
    }

    /// Posts a bind or an invalidation of one of the queue pair's own windows.
    fn post_local(&mut self, end: usize, sent: &Sent, used: &Use) -> Outcome {
        let request = &sent.request;
        let own = &mut self.ends[end];
        let window = request.window.zip(own.qp.as_ref()).zip(own.target.as_ref());
        let Some(((window, qp), target)) = window else { return Ok(()) };
        let slot = window.slot % SLOTS;
        let Some(mw) = own.windows.known(slot) else { return Ok(()) };
        let wr_id = (end as u64) << 32 | u64::from(sent.sequence);
        let mut info = part(end, target, &window);
        let flag = |flag: Flags, is: bool| if is { flag.0 } else { 0 };
        let flags = flag(Flags::IBV_SEND_SIGNALED, request.signaled)
            | flag(Flags::IBV_SEND_FENCE, request.fenced);
        let errno = if is_first_type(slot) {
            if request.kind == Kind::Invalidate {
                info.length = 0;
            }
            qp.try_bind(wr_id, mw, info, flags)
        } else {
            let mut wr = match request.kind {
                Kind::Bind => Wr::bind(wr_id, mw, used.key, info),
                _ => Wr::local_invalidate(wr_id, used.key),
            };
            wr.wr.send_flags = flags;
            qp.try_post(&wr)
        };
        let key = mw.key();
        ensure!(errno == 0, "q{end}: a bind was refused with {errno}");
        if is_first_type(slot) && request.kind == Kind::Bind {
            own.windows.note_key(used.grant, key);
        }
        Ok(())
    }

    /// Returns the key of a target, or its last key if it is deregistered.
    fn rkey(&self, end: usize) -> u32 {
        self.ends[end].target.as_ref().map_or(self.ends[end].last_rkey, |target| target.rkey())
    }

    /// Records the message that the receiver of this request must get, if the request consumes a
    /// receive.
    fn expect(&mut self, end: usize, to: usize, sent: &Sent) {
        let request = &sent.request;
        if request.kind == Kind::Send || request.kind == Kind::Write && request.immediate {
            let group = request.group.filter(|_| self.ends[end].service == Service::Datagram);
            let message = Message {
                number: sent.message,
                source: self.ends[end].qp.as_ref().map_or(0, |qp| qp.number()),
                length: request.length,
                immediate: request.immediate.then_some(sent.message as u32),
                placed: sent.placed,
                came: 0,
                group: None,
                member: true,
                certain: true,
                invalidates: sent.through.filter(|_| request.kind == Kind::Send),
            };
            if let Some(group) = group {
                return self.expect_in_group(group % GROUPS, &message);
            }
            self.ends[to].expected.push_back(message);
            self.note_starved(to);
        }
    }
}

fn parts_before(request: &ScriptRequest, from: usize) -> usize {
    request.parts().iter().filter(|(begin, _)| *begin < from).count()
}
