//! The ends of a program's pairs on a device: queue pairs, completion queues and memory.

use std::collections::BTreeMap;

use rdma_sys::{ibv_mr, ibv_qp_cap, ibv_qp_type, ibv_sge, ibv_wc_status as Status, ibv_wr_opcode};
use test_support::rig::connect::{Endpoint, connect, connect_unreliably, endpoint};
use test_support::rig::datagram::{Ah, QKEY, activate};
use test_support::rig::memory::{deregister, key_of};
use test_support::rig::post::Wr;
use test_support::rig::srq::Srq;
use test_support::rig::{ALL_ACCESS, Context, Cq, Mr, Pd, Qp, REMOTE_ATOMIC, Size};

use super::model::{ELEMENTS, HEADER, INLINE, QUEUE, beginning};
use super::program::*;
use super::run::knobs;
use super::settle::imm;
use super::trace::Completion;

/// Nobody gives out such a key.
const UNKNOWN_KEY: u32 = 0xdead_0000;

/// Memory, and its registration. Fields of all of these drop in order.
pub(super) struct Slot {
    region: Option<*mut ibv_mr>,
    stale: u32,
    /// Registered in another domain, all of it.
    pub(super) memory: Mr,
    pub(super) seen: Vec<u8>,
}

pub(super) struct EndState {
    ah: Option<Ah>,
    pub(super) qp: Qp,
    pub(super) caps: ibv_qp_cap,
    pub(super) srq: Option<Srq>,
    pub(super) send_cq: Cq,
    pub(super) receive_cq: Cq,
    pub(super) slots: Vec<Slot>,
    pub(super) pd: Pd,
    /// Keeps what is registered in it apart.
    _foreign_pd: Pd,
    /// Receives that have not completed.
    pub(super) posted: BTreeMap<u64, Vec<Element>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            deregister(region);
        }
    }
}

/// What a slot holds at first: no two slots the same, and no byte as its neighbours.
fn pattern(end: End, slot: u8) -> Vec<u8> {
    let seed = u32::from(end.pair) * 6 + end.side as u32 * 3 + u32::from(slot) + 1;
    let byte = |at: u32| (at.wrapping_mul(seed.wrapping_mul(2_654_435_761)) >> 24) as u8;
    (0..SLOT_BYTES).map(byte).collect()
}

impl EndState {
    fn new(context: &Context, end: End, plan: Pair) -> Self {
        let (pd, foreign_pd) = (context.pd(), context.pd());
        let entries = i32::try_from(4 * QUEUE).expect("a small queue");
        let (send_cq, receive_cq) = (context.cq(entries), context.cq(entries));
        let qp_type = match plan.transport {
            Transport::Rc => ibv_qp_type::IBV_QPT_RC,
            Transport::Uc => ibv_qp_type::IBV_QPT_UC,
            Transport::Ud => ibv_qp_type::IBV_QPT_UD,
        };
        let size = Size {
            qp_type,
            send_wr: QUEUE,
            receive_wr: QUEUE,
            sge: ELEMENTS,
            inline: INLINE,
            signal_all: plan.all_signaled,
        };
        let mut init = Pd::qp_init(&send_cq, &receive_cq, &size);
        let shared = plan.shared && end.side == Side::B;
        let srq = shared.then(|| pd.try_srq(QUEUE, ELEMENTS).expect("a shared receive queue").0);
        if let Some(srq) = &srq {
            init.srq = srq.0;
        }
        let qp = pd.try_qp_of(&mut init).expect("a queue pair");
        let access = ALL_ACCESS | REMOTE_ATOMIC;
        let slot = |n| {
            let memory = foreign_pd.register_filled(pattern(end, n), access);
            Slot { region: None, stale: UNKNOWN_KEY, seen: memory.bytes(), memory }
        };
        let slots = (0..SLOTS).map(slot).collect();
        let (ah, posted) = (None, BTreeMap::new());
        let _foreign_pd = foreign_pd;
        let caps = init.cap;
        Self { ah, qp, caps, srq, send_cq, receive_cq, slots, pd, _foreign_pd, posted }
    }

    /// The error number, or 0.
    pub(super) fn register(&mut self, slot: u8, length: u32, access: u32) -> i32 {
        let slot = &mut self.slots[usize::from(slot)];
        match self.pd.try_register(slot.memory.start(), length as usize, access) {
            Ok(region) => {
                slot.region = Some(region);
                0
            }
            Err(errno) => errno.raw(),
        }
    }

    pub(super) fn deregister(&mut self, slot: u8) {
        let slot = &mut self.slots[usize::from(slot)];
        let region = slot.region.take().expect("a fair program");
        slot.stale = key_of(region);
        deregister(region);
    }

    fn key(&self, slot: u8, key: Key) -> u32 {
        let slot = &self.slots[usize::from(slot)];
        match key {
            Key::Own => key_of(slot.region.expect("a fair program")),
            Key::Stale => slot.stale,
            Key::Foreign => slot.memory.key(),
            Key::Unknown => UNKNOWN_KEY,
        }
    }

    fn address(&self, slot: u8, offset: u32) -> u64 {
        self.slots[usize::from(slot)].memory.address() + u64::from(offset)
    }

    fn sges(&self, elements: &[Element]) -> Vec<ibv_sge> {
        let sge = |element: &Element| ibv_sge {
            addr: self.address(element.slot, element.offset),
            length: element.length,
            lkey: self.key(element.slot, element.key),
        };
        elements.iter().map(sge).collect()
    }

    pub(super) fn post_receive(&mut self, wr_id: u64, elements: &[Element]) -> i32 {
        let sges = self.sges(elements);
        let errno = match &self.srq {
            Some(srq) => srq.try_post(wr_id, &sges),
            None => self.qp.try_post_receive(wr_id, &sges),
        };
        if errno == 0 {
            self.posted.insert(wr_id, elements.to_vec());
        }
        errno
    }

    /// How many were accepted, and the error number or 0.
    pub(super) fn post_list(&self, wrs: &[Wr]) -> (usize, i32) {
        self.qp.try_post_list(wrs).map_or_else(|refused| refused, |()| (wrs.len(), 0))
    }

    pub(super) fn post_each(&self, wrs: &[Wr]) -> (usize, i32) {
        for (n, wr) in wrs.iter().enumerate() {
            let errno = self.qp.try_post(wr);
            if errno != 0 {
                return (n, errno);
            }
        }
        (wrs.len(), 0)
    }

    /// Makes bytes that devices may leave in any state the same everywhere.
    pub(super) fn clear(&self, elements: &[Element]) {
        for element in elements {
            let memory = &self.slots[usize::from(element.slot)].memory;
            memory.fill_part(element.offset as usize, element.length as usize, 0);
        }
    }

    /// What a receive that failed leaves, and the header of a datagram.
    pub(super) fn clear_undefined(
        &self,
        elements: &[Element],
        completion: &Completion,
        transport: Transport,
    ) {
        const TOUCHED: [Status; 3] =
            [Status::IBV_WC_LOC_LEN_ERR, Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_LOC_QP_OP_ERR];
        if TOUCHED.contains(&Status(completion.status)) {
            self.clear(elements);
        } else if completion.status == 0 && transport == Transport::Ud {
            self.clear(&beginning(elements, HEADER));
        }
    }
}

/// All ends of a program.
pub(super) struct Ends<'a> {
    pub(super) context: &'a Context,
    states: BTreeMap<End, EndState>,
}

impl<'a> Ends<'a> {
    /// Connected, with nothing registered.
    pub(super) fn new(context: &'a Context, program: &Program) -> Self {
        let mut states = BTreeMap::new();
        for (pair, plan) in (0..).zip(&program.pairs) {
            for side in [Side::A, Side::B] {
                let end = End { pair, side };
                states.insert(end, EndState::new(context, end, *plan));
            }
        }
        let mut ends = Self { context, states };
        for (pair, plan) in (0..).zip(&program.pairs) {
            ends.connect(pair, *plan);
        }
        ends
    }

    pub(super) fn get(&self, end: End) -> &EndState {
        &self.states[&end]
    }

    pub(super) fn get_mut(&mut self, end: End) -> &mut EndState {
        self.states.get_mut(&end).expect("an end of the program")
    }

    pub(super) fn all(&self) -> Vec<End> {
        self.states.keys().copied().collect()
    }

    fn endpoint(&self, end: End) -> Endpoint {
        endpoint(self.context, &self.get(end).qp)
    }

    fn connect(&mut self, pair: u8, plan: Pair) {
        for side in [Side::A, Side::B] {
            let end = End { pair, side };
            let (own, peer) = (self.endpoint(end), self.endpoint(end.peer()));
            let state = self.get_mut(end);
            match plan.transport {
                Transport::Rc => connect(&state.qp, &own, &peer, &knobs(plan)),
                Transport::Uc => connect_unreliably(&state.qp, &own, &peer, &knobs(plan)),
                Transport::Ud => {
                    activate(&state.qp, QKEY);
                    state.ah = Some(state.pd.ah_to(&own, &peer));
                }
            }
        }
    }

    pub(super) fn reconnect(&mut self, pair: u8, plan: Pair) {
        for side in [Side::A, Side::B] {
            let state = self.get_mut(End { pair, side });
            state.qp.to_reset();
            if state.srq.is_none() {
                state.posted.clear();
            }
        }
        self.connect(pair, plan);
    }

    /// The request as C has it.
    pub(super) fn request(&self, wr_id: u64, send: &Send) -> Wr {
        let (own, peer) = (self.get(send.end), self.get(send.end.peer()));
        let opcode = match send.opcode {
            Opcode::Send | Opcode::SendImm => ibv_wr_opcode::IBV_WR_SEND,
            Opcode::Write | Opcode::WriteImm => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Opcode::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
            Opcode::CompareSwap => ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
            Opcode::FetchAdd => ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        };
        let mut wr = Wr::new(wr_id, opcode, &own.sges(&send.elements));
        if let Some(remote) = send.remote {
            let address = peer.address(remote.slot, remote.offset);
            let key = peer.key(remote.slot, remote.key);
            wr = match send.opcode.is_atomic() {
                true => wr.atomic_at(address, key, send.operands.0, send.operands.1),
                false => wr.remote(address, key),
            };
        }
        if let Some(ah) = &own.ah {
            let qkey = if send.good_qkey { QKEY } else { QKEY + 1 };
            wr = wr.to(ah, peer.qp.number(), qkey);
        }
        if send.opcode.has_imm() {
            wr = wr.with_imm(imm(wr_id));
        }
        let wr = if send.signaled { wr } else { wr.unsignaled() };
        let wr = if send.inline { wr.inline() } else { wr };
        let wr = if send.fenced { wr.fenced() } else { wr };
        let solicited = rdma_sys::ibv_send_flags::IBV_SEND_SOLICITED;
        if send.solicited { wr.flags(solicited) } else { wr }
    }
}
