//! What is asked of a queue pair, and the memory that it takes.

use rdma_sys::{ibv_send_flags as Flags, ibv_sge, ibv_wr_opcode as Opcode};
use test_support::rig::datagram::QKEY;
use test_support::rig::post::Wr;

use crate::host::{INLINE, Message, Sent, local_iova, target_iova};
use crate::memory::{self, Atomic, DATA, Placed};
use crate::run::{Outcome, World, ensure};
use crate::script::{Kind, Request, Service};

/// What is between the elements of a request, and around them.
const GAP: usize = 8;
const GAP_BYTE: u8 = 0xa5;
/// What is in memory that a READ writes to.
const SINK_BYTE: u8 = 0x5a;
/// The longest datagram.
const DATAGRAM: usize = 4096;

impl Request {
    /// Each element of the local memory: from where in the message on, and how long.
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

/// Where a part is in its block.
fn place(n: usize, from: usize) -> usize {
    from + GAP * (n + 1)
}

/// The bytes of a request in a block, or `None` if what is between them was touched.
pub(crate) fn unpack(request: &Request, block: &[u8]) -> Option<Vec<u8>> {
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
    /// Posts a request, if there is room for it.
    pub(crate) fn post(&mut self, end: usize, mut request: Request) -> Outcome {
        let own = &mut self.ends[end];
        let longest = self.script.settings.longest;
        match request.kind {
            Kind::FetchAdd | Kind::CompareSwap => (request.length, request.elements) = (8, 1),
            _ if own.service == Service::Datagram => {
                request.length = request.length.min(longest).min(DATAGRAM);
            }
            _ => request.length = request.length.min(longest),
        }
        request.at = request.at.min(longest);
        let moves = matches!(request.kind, Kind::Send | Kind::Write);
        request.inline &= moves && request.length <= INLINE;
        request.immediate &= moves;
        request.signaled |= own.silent + 1 >= own.capacity / 2;
        if own.qp.is_none() || own.pending.len() >= own.capacity {
            return Ok(());
        }
        let to = if own.service == Service::Datagram { request.to } else { own.peer };
        let Some((block, block_bytes)) = own.reserve(request.block_bytes()) else { return Ok(()) };
        self.message += 1;
        own.sequence += 1;
        let message = self.message;
        let placed = Placed { at: request.at, length: request.length, message };
        let compare = (request.kind == Kind::CompareSwap).then(|| self.guess(to, &request));
        let operand = memory::bytes(message, 8).try_into().map_or(0, u64::from_le_bytes);
        let atomic = Atomic { word: request.at % memory::WORDS, compare, operand };
        let is_atomic = matches!(request.kind, Kind::FetchAdd | Kind::CompareSwap);
        let sent = Sent {
            sequence: self.ends[end].sequence,
            message,
            request,
            block,
            block_bytes,
            placed: (request.kind == Kind::Write).then_some(placed),
            atomic: is_atomic.then_some(atomic),
            too_late: self.ends[to].target.is_none(),
        };
        self.give_out(end, to, &sent)?;
        self.expect(end, to, &sent);
        let own = &mut self.ends[end];
        own.silent = if request.signaled { 0 } else { own.silent + 1 };
        own.pending.push_back(sent);
        Ok(())
    }

    /// What a comparison expects: most times what there will be, if all goes well.
    fn guess(&self, to: usize, request: &Request) -> u64 {
        let word = request.at % memory::WORDS;
        let target = &self.ends[to].known;
        let pending = &self.ends[to ^ 1].pending;
        let atomics = pending.iter().filter_map(|sent| sent.atomic).filter(|it| it.word == word);
        let expected = atomics.fold(target.words[word], |value, atomic| atomic.result(value));
        expected ^ u64::from(request.immediate || self.message.is_multiple_of(4))
    }

    /// The memory of a request, and its post.
    fn give_out(&mut self, end: usize, to: usize, sent: &Sent) -> Outcome {
        let Sent { request, block, message, .. } = sent;
        let moves = matches!(request.kind, Kind::Send | Kind::Write);
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
        let mut wr = self.request(end, to, sent, &sges);
        if request.inline {
            // Inline data is taken where it is, without a key.
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
        };
        let own = &self.ends[end];
        let rkey = self.rkey(to);
        let mut wr = Wr::new(wr_id, opcode, sges);
        if let Some(atomic) = sent.atomic {
            let address = target_iova(to) + 8 * atomic.word as u64;
            let (first, second) = match atomic.compare {
                Some(compare) => (compare, atomic.operand),
                None => (atomic.operand, 0),
            };
            wr = wr.atomic_at(address, rkey, first, second);
        } else if request.kind != Kind::Send {
            wr = wr.remote(target_iova(to) + (DATA + request.at) as u64, rkey);
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

    /// Of a target that is registered, or of one that was.
    fn rkey(&self, end: usize) -> u32 {
        self.ends[end].target.as_ref().map_or(self.ends[end].last_rkey, |target| target.rkey())
    }

    /// Notes what the other end is to receive.
    fn expect(&mut self, end: usize, to: usize, sent: &Sent) {
        let request = &sent.request;
        if request.kind == Kind::Send || request.kind == Kind::Write && request.immediate {
            let message = Message {
                number: sent.message,
                source: self.ends[end].qp.as_ref().map_or(0, |qp| qp.number()),
                length: request.length,
                immediate: request.immediate.then_some(sent.message as u32),
                placed: sent.placed,
                came: 0,
            };
            self.ends[to].expected.push_back(message);
            self.note_starved(to);
        }
    }
}

fn parts_before(request: &Request, from: usize) -> usize {
    request.parts().iter().filter(|(begin, _)| *begin < from).count()
}
