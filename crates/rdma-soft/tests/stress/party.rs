//! One of two communicating threads: it posts, polls, and destroys objects that its peer uses.

use std::ops::Range;
use std::sync::Arc;

use rdma_sys::{ibv_mr, ibv_send_flags, ibv_sge, ibv_wr_opcode as Opcode};

use crate::link::{Link, Request, Score};
use crate::meeting::{Desk, Meeting, Sink, deed};
use crate::memory::{Dice, Memory, SLOT, length_of};
use test_support::rig::connect::{Endpoint, Knobs, connect, endpoint};
use test_support::rig::memory::{deregister, key_of};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Context, Cq, LOCAL_WRITE, Pd, Size, until};

const LINKS: usize = 4;
const SINKS: usize = 3;
/// Slots of each link in each sink.
const WRITABLE: usize = 4;
const SIZE: Size = Size {
    qp_type: rdma_sys::ibv_qp_type::IBV_QPT_RC,
    send_wr: 32,
    receive_wr: 16,
    sge: 2,
    inline: 64,
    signal_all: false,
};
/// Slots of each link for sources: twice what can be in flight.
const LOCAL: usize = 64;
const RECEIVES: usize = 32;
const ENOMEM: i32 = 12;
/// The minimum length of a completion queue.
const ENTRIES: i32 = 2 * (LINKS * 32) as i32;

pub(crate) struct Plan<'a> {
    pub(crate) device: &'a str,
    pub(crate) meeting: &'a Meeting,
    pub(crate) pair: usize,
    /// 0 or 1.
    pub(crate) side: usize,
    pub(crate) round: u64,
    /// Whether objects are destroyed while in use.
    pub(crate) wild: bool,
    pub(crate) steps: usize,
    pub(crate) seed: u64,
}

impl Plan<'_> {
    fn own(&self) -> &Desk {
        &self.meeting.desks[self.side]
    }

    fn peer(&self) -> &Desk {
        &self.meeting.desks[1 - self.side]
    }

    /// The common prefix of all tags of a link of a side; the low 36 bits are free.
    fn tag(&self, side: usize, link: usize) -> u64 {
        let who = (self.pair * 2 + side + 1) as u64;
        who << 56 | (self.round & 0xffff) << 40 | (link as u64) << 36
    }
}

pub(crate) struct Region {
    pub(crate) memory: Arc<Memory>,
    pub(crate) mr: *mut ibv_mr,
}

impl Region {
    pub(crate) fn new(pd: &Pd, slots: usize, access: u32) -> Self {
        Self::of(pd, &Arc::new(Memory::new(slots)), access)
    }

    pub(crate) fn of(pd: &Pd, memory: &Arc<Memory>, access: u32) -> Self {
        let mr = pd.try_register(memory.start(), memory.length(), access).unwrap();
        Self { memory: Arc::clone(memory), mr }
    }

    fn key(&self) -> u32 {
        key_of(self.mr)
    }

    pub(crate) fn sge(&self, slot: usize, from: usize, to: usize) -> ibv_sge {
        let addr = self.memory.address_of(slot) + from as u64;
        ibv_sge { addr, length: u32::try_from(to - from).unwrap(), lkey: self.key() }
    }

    /// Returns the memory to its owner: later writes are detected.
    pub(crate) fn end(self) -> Arc<Memory> {
        deregister(self.mr);
        self.memory.take_back();
        self.memory
    }
}

/// The first slot of the message of a request of a link.
fn local_slot(index: usize, number: u64) -> usize {
    index * LOCAL + (number % LOCAL as u64) as usize
}

pub(crate) struct Party<'a> {
    plan: &'a Plan<'a>,
    dice: Dice,
    links: Vec<Link>,
    sinks: Vec<Region>,
    local: Region,
    receive: Region,
    /// Revoked memory, and slots of links that ended.
    ended: Vec<Arc<Memory>>,
    ended_slots: Vec<(Arc<Memory>, Range<usize>)>,
    send_cq: Cq,
    receive_cq: Cq,
    pd: Pd,
    _context: Context,
}

impl<'a> Party<'a> {
    fn new(plan: &'a Plan<'a>) -> Self {
        let context = Context::open(plan.device);
        let cq = || context.cq(ENTRIES);
        let (send_cq, receive_cq, pd) = (cq(), cq(), context.pd());
        let qp = |_| pd.qp(&send_cq, &receive_cq, &SIZE);
        let qps: Vec<_> = (0..LINKS).map(qp).collect();
        *plan.own().endpoints.lock().unwrap() =
            qps.iter().map(|qp| endpoint(&context, qp)).collect();
        let link = |(n, qp)| Link::new(qp, plan.tag(1 - plan.side, n));
        let mut party = Self {
            plan,
            dice: Dice::new(plan.seed),
            links: qps.into_iter().enumerate().map(link).collect(),
            sinks: Vec::new(),
            local: Region::new(&pd, LINKS * LOCAL, LOCAL_WRITE),
            receive: Region::new(&pd, LINKS * RECEIVES, LOCAL_WRITE),
            ended: Vec::new(),
            ended_slots: Vec::new(),
            send_cq,
            receive_cq,
            pd,
            _context: context,
        };
        (0..SINKS).for_each(|_| party.add_sink());
        party
    }

    fn connect(&mut self) {
        let endpoints = |desk: &Desk| -> Vec<Endpoint> { desk.endpoints.lock().unwrap().clone() };
        let (own, peer) = (endpoints(self.plan.own()), endpoints(self.plan.peer()));
        let impatient = self.plan.wild && self.dice.one_in(2);
        let (rnr_retries, min_rnr_timer) = if impatient { (1, 1) } else { (7, 1) };
        if impatient {
            self.plan.own().did(deed::IMPATIENT);
        }
        let knobs = Knobs { rnr_retries, min_rnr_timer, ..Knobs::default() };
        for (link, (own, peer)) in self.links.iter().zip(own.iter().zip(&peer)) {
            connect(link.qp.as_ref().unwrap(), own, peer, &knobs);
        }
    }

    /// Runs one round, from creation to the end of everything. Returns the memory that must not be written to any
    /// longer.
    pub(crate) fn attend(plan: &Plan<'_>) -> (Score, Vec<Arc<Memory>>) {
        let mut party = Party::new(plan);
        plan.meeting.wait();
        party.connect();
        plan.meeting.wait();
        (0..plan.steps).for_each(|_| party.step());
        if !plan.wild {
            party.finish_in_peace();
        }
        party.drain();
        *plan.own().tallies.lock().unwrap() = party.links.iter().map(Link::tally).collect();
        plan.meeting.wait();
        party.check();
        plan.meeting.wait();
        party.end()
    }

    fn step(&mut self) {
        match self.dice.below(100) {
            0..50 => self.post(),
            50..75 => self.poll(),
            75..97 => self.top_up(),
            _ if self.plan.wild && self.dice.one_in(5) => self.take_away(),
            _ => {
                let entries = ENTRIES + self.dice.below(ENTRIES as usize) as i32;
                let resized = [&self.send_cq, &self.receive_cq].map(|cq| cq.try_resize(entries));
                assert_eq!(resized, [0; 2]);
            }
        }
    }

    fn post(&mut self) {
        let index = self.dice.below(LINKS);
        let link = &self.links[index];
        // Requests posted in the error state are only flushed; a few of them are enough.
        if link.dropped || link.has_failed() && !self.dice.one_in(16) {
            return;
        }
        let (mut wr, request, tag) = self.request(index);
        let reads = matches!(request, Request::Read { .. });
        let (number, length) = (self.links[index].posted, length_of(tag));
        let local_slot = local_slot(index, number);
        let middle = self.dice.below(length + 1);
        let local = &self.local;
        wr.sges = match self.dice.one_in(2) {
            true => vec![local.sge(local_slot, 0, length)],
            false => {
                [(0, middle), (middle, length)].map(|(a, b)| local.sge(local_slot, a, b)).into()
            }
        };
        if !reads {
            local.memory.write(local_slot, tag);
        }
        let inline = !reads && length <= SIZE.inline as usize && self.dice.one_in(2);
        wr = if inline { wr.inline() } else { wr };
        let signaled = number % 8 == 7 || self.dice.one_in(2);
        wr = if signaled { wr } else { wr.unsignaled() };
        let link = &mut self.links[index];
        match link.qp.as_ref().unwrap().try_post(&wr) {
            0 => link.note(signaled, request),
            errno => {
                assert_eq!(errno, ENOMEM);
                return self.poll();
            }
        }
        if inline {
            // The device has copied the inline data.
            local.memory.poison(local_slot..local_slot + 1);
        }
    }

    /// A request for a link, without its local elements, and the tag of its message.
    fn request(&mut self, index: usize) -> (Wr, Request, u64) {
        let link = &self.links[index];
        let (number, base) = (link.posted, self.plan.tag(self.plan.side, index));
        let message = base + link.messages;
        let imm = (message & 0xffff_ffff) as u32;
        let sink = {
            let sinks = self.plan.peer().sinks.lock().unwrap();
            let sinks = if self.dice.one_in(3) { &[] } else { &sinks[..] };
            (!sinks.is_empty()).then(|| sinks[self.dice.below(sinks.len())].clone())
        };
        let Some(Sink { memory, key }) = sink else {
            let wr = Wr::send(number, &[]);
            let wr = if self.dice.one_in(2) { wr.with_imm(imm) } else { wr };
            return (wr, Request::Send, message);
        };
        let slot = index * WRITABLE + self.dice.below(WRITABLE);
        let is_message = self.dice.one_in(4);
        let (opcode, tag) = match self.dice.one_in(3) {
            true => (Opcode::IBV_WR_RDMA_READ, link.last_written(&memory, slot)),
            false if is_message => (Opcode::IBV_WR_RDMA_WRITE_WITH_IMM, message),
            false => (Opcode::IBV_WR_RDMA_WRITE, base | 1 << 35 | number),
        };
        let wr = Wr::new(number, opcode, &[]).remote(memory.address_of(slot), key);
        if opcode == Opcode::IBV_WR_RDMA_READ {
            let local = Arc::clone(&self.local.memory);
            return (wr, Request::Read { local, slot: local_slot(index, number), tag }, tag);
        }
        let wr = if is_message { wr.with_imm(imm) } else { wr };
        (wr, Request::Write { sink: memory, slot, tag, is_message }, tag)
    }

    fn poll(&mut self) {
        let (own, peer) = (self.plan.own(), self.plan.peer());
        for wc in self.send_cq.try_poll::<16>().unwrap() {
            // The peer records an action before it performs it, and so before this completion.
            self.link_of(wc.qp_num).complete(&wc, own.deeds(), peer.deeds());
        }
        for wc in self.receive_cq.try_poll::<16>().unwrap() {
            self.link_of(wc.qp_num).complete_receive(&wc, own.deeds());
        }
    }

    fn link_of(&mut self, qpn: u32) -> &mut Link {
        self.links
            .iter_mut()
            .find(|link| link.qpn == qpn)
            .expect("a completion of an unknown queue pair")
    }

    /// Posts receive requests, to one link or to all.
    fn top_up(&mut self) {
        let only = self.dice.below(2 * LINKS);
        for (index, link) in self.links.iter_mut().enumerate() {
            let skip = link.receive_has_failed() && !self.dice.one_in(64);
            if link.dropped || skip || only < LINKS && only != index {
                continue;
            }
            let room = SIZE.receive_wr as usize - link.receives_open();
            for _ in 0..room {
                let number = link.next_receive();
                let slot = index * RECEIVES + (number % RECEIVES as u64) as usize;
                let middle = self.dice.below(SLOT);
                let sges =
                    [self.receive.sge(slot, 0, middle), self.receive.sge(slot, middle, SLOT)];
                link.qp.as_ref().unwrap().post_receive(number, &sges);
                link.note_receive(Arc::clone(&self.receive.memory), slot);
            }
        }
    }

    fn add_sink(&mut self) {
        let sink = Region::new(&self.pd, LINKS * WRITABLE, ALL_ACCESS);
        let entry = Sink { memory: Arc::clone(&sink.memory), key: sink.key() };
        self.plan.own().sinks.lock().unwrap().push(entry);
        self.sinks.push(sink);
    }

    fn take_away(&mut self) {
        let own = self.plan.own();
        match self.dice.below(20) {
            0..5 if !self.sinks.is_empty() => {
                own.did(deed::DEREGISTERED_SINK);
                let sink = self.sinks.swap_remove(self.dice.below(self.sinks.len()));
                // A thread that has already looked up the sink continues to use it.
                own.sinks.lock().unwrap().retain(|other| other.key != sink.key());
                self.ended.push(sink.end());
            }
            0..10 if self.sinks.len() < SINKS => self.add_sink(),
            10..13 => {
                own.did(deed::REPLACED_RECEIVE_MEMORY);
                let new = Region::new(&self.pd, LINKS * RECEIVES, LOCAL_WRITE);
                self.ended.push(std::mem::replace(&mut self.receive, new).end());
            }
            13..16 => {
                own.did(deed::REPLACED_LOCAL_MEMORY);
                let new = Region::new(&self.pd, LINKS * LOCAL, LOCAL_WRITE);
                self.ended.push(std::mem::replace(&mut self.local, new).end());
            }
            16..19 => {
                own.did(deed::ENDED);
                let index = self.dice.below(LINKS);
                self.end_link(index);
            }
            _ => {}
        }
    }

    fn end_link(&mut self, index: usize) {
        let link = &mut self.links[index];
        if link.dropped {
            return;
        }
        let qp = link.qp.as_ref().unwrap();
        match self.dice.below(3) {
            0 => return qp.to_error(),
            1 => qp.to_reset(),
            _ => link.qp = None,
        }
        link.drop_requests();
        for (memory, each) in [(&self.local.memory, LOCAL), (&self.receive.memory, RECEIVES)] {
            let slots = index * each..(index + 1) * each;
            memory.poison(slots.clone());
            self.ended_slots.push((Arc::clone(memory), slots));
        }
    }

    /// Finishes a round without destruction: each request succeeds, and the peer is served until it has finished.
    fn finish_in_peace(&mut self) {
        for index in 0..LINKS {
            let wr = Wr::new(self.links[index].posted, Opcode::IBV_WR_RDMA_WRITE, &[]);
            self.post_when_there_is_room(index, &wr, Request::Nothing);
        }
        let mut said = false;
        until("the end of all requests", || {
            self.top_up();
            self.poll();
            if !said && self.links.iter().all(Link::has_sent_all) {
                self.plan.own().finish();
                said = true;
            }
            said && self.plan.peer().is_finished()
        });
        // Both have finished before either moves anything to the error state.
        self.plan.meeting.wait();
    }

    fn post_when_there_is_room(&mut self, index: usize, wr: &Wr, request: Request) {
        until("room for a request", || {
            self.top_up();
            self.poll();
            match self.links[index].qp.as_ref().unwrap().try_post(wr) {
                0 => true,
                errno => {
                    assert_eq!(errno, ENOMEM);
                    false
                }
            }
        });
        self.links[index].note(true, request);
    }

    /// Moves all queue pairs to the error state, and polls every outstanding completion.
    fn drain(&mut self) {
        self.plan.own().did(deed::ENDED);
        for index in 0..LINKS {
            if !self.links[index].dropped {
                self.links[index].qp.as_ref().unwrap().to_error();
                let mut wr = Wr::send(self.links[index].posted, &[]);
                wr.wr.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
                self.post_when_there_is_room(index, &wr, Request::Sentinel);
            }
        }
        until("the last completions", || {
            self.poll();
            self.links.iter().all(|link| link.dropped || link.is_done())
        });
        assert!(self.send_cq.is_empty() && self.receive_cq.is_empty(), "one too many");
    }

    /// Checks the memory after both have drained, so that nothing is in flight.
    fn check(&self) {
        let peer_sinks = self.plan.peer().sinks.lock().unwrap();
        let peer_sinks: Vec<_> = peer_sinks.iter().map(|sink| Arc::clone(&sink.memory)).collect();
        self.links.iter().for_each(|link| link.check_written(&peer_sinks));
        let peer_tallies = self.plan.peer().tallies.lock().unwrap();
        for (link, peer) in self.links.iter().zip(peer_tallies.iter()) {
            if let (Some((sent, received)), Some((peer_sent, peer_received))) =
                (link.tally(), *peer)
            {
                assert_eq!(
                    (sent, received),
                    (peer_received, peer_sent),
                    "messages lost or doubled"
                );
            }
        }
        for (memory, slots) in &self.ended_slots {
            memory.assert_poisoned(slots.clone());
        }
        self.ended.iter().for_each(|memory| memory.assert_all_poisoned());
    }

    fn end(self) -> (Score, Vec<Arc<Memory>>) {
        let mut score = Score::default();
        for link in self.links {
            score += link.score;
        }
        let mut ended = self.ended;
        let regions = self.sinks.into_iter().chain([self.local, self.receive]);
        ended.extend(regions.map(Region::end));
        (score, ended)
    }
}
