//! The ends of a program's pairs on one device: their queue pairs, completion queues and memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use rdma_sys::{
    ibv_mr, ibv_mw_bind_info, ibv_qp_cap, ibv_qp_type, ibv_send_flags as Flags, ibv_sge,
    ibv_wc_status as Status, ibv_wr_opcode,
};
use test_support::rig::connect::{Endpoint, connect, connect_unreliably, endpoint};
use test_support::rig::datagram::{Ah, QKEY, activate};
use test_support::rig::memory::{deregister, key_of, try_deregister};
use test_support::rig::post::Wr;
use test_support::rig::srq::Srq;
use test_support::rig::window::{Mw, TYPE_1, TYPE_2};
use test_support::rig::{ALL_ACCESS, Context, Cq, Mr, Pd, Qp, Size};

use super::model::{ELEMENTS, HEADER, INLINE, Model, QUEUE, beginning};
use super::program::*;
use super::run::knobs;
use super::settle::imm;
use super::trace::Completion;

/// A key that no device assigns.
const UNKNOWN_KEY: u32 = 0xdead_0000;

/// The memory of a slot, and its registration. The fields of the types in this file are dropped in
/// the order of their declaration.
pub(super) struct MemorySlot {
    region: Option<*mut ibv_mr>,
    stale: u32,
    /// The whole memory of the slot. Its own registration, in another domain, has the foreign key.
    pub(super) memory: Mr,
    pub(super) seen: Vec<u8>,
}

/// A memory window, and the key of its last bind. `None` if it was never bound, and for a type 1
/// window, whose key is in the C struct.
struct Window {
    mw: Mw,
    key: Option<u32>,
}

impl Window {
    fn new(pd: &Pd, end: QpId, window: u8) -> Self {
        let kind = if end.is_type_1(window) { TYPE_1 } else { TYPE_2 };
        Self { mw: pd.mw(kind), key: None }
    }

    fn key(&self) -> u32 {
        self.key.unwrap_or_else(|| self.mw.key())
    }
}

pub(super) struct EndState {
    end: QpId,
    windows: Vec<Window>,
    ah: Option<Ah>,
    pub(super) qp: Qp,
    pub(super) caps: ibv_qp_cap,
    pub(super) srq: Option<Rc<Srq>>,
    pub(super) send_cq: Cq,
    pub(super) receive_cq: Cq,
    pub(super) slots: Vec<MemorySlot>,
    pub(super) pd: Rc<Pd>,
    /// The separate domain of the foreign registrations.
    _foreign_pd: Pd,
    /// Receives that have not completed, by ID.
    pub(super) posted: BTreeMap<u64, Vec<Element>>,
}

impl Drop for MemorySlot {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            deregister(region);
        }
    }
}

/// Returns the initial contents of a slot. They differ between slots, and between neighbouring
/// bytes.
fn pattern(end: QpId, slot: u8) -> Vec<u8> {
    let seed = u32::from(end.pair) * 6 + end.side as u32 * 3 + u32::from(slot) + 1;
    let byte = |at: u32| (at.wrapping_mul(seed.wrapping_mul(2_654_435_761)) >> 24) as u8;
    (0..SLOT_BYTES).map(byte).collect()
}

impl EndState {
    /// Creates an end. If `joined` is given, the new end uses the domain and the shared receive
    /// queue of `joined`.
    fn new(context: &Context, end: QpId, plan: Pair, joined: Option<&Self>) -> Self {
        let pd = joined.map_or_else(|| Rc::new(context.pd()), |other| Rc::clone(&other.pd));
        let foreign_pd = context.pd();
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
        let new = || Rc::new(pd.try_srq(QUEUE, ELEMENTS).expect("a shared receive queue").0);
        let srq = joined.map_or_else(|| shared.then(new), |other| other.srq.clone());
        if let Some(srq) = &srq {
            init.srq = srq.0;
        }
        let qp = pd.try_qp_of(&mut init).expect("a queue pair");
        let slot = |n| {
            let memory = foreign_pd.register_filled(pattern(end, n), ALL_ACCESS);
            MemorySlot { region: None, stale: UNKNOWN_KEY, seen: memory.bytes(), memory }
        };
        let slots = (0..SLOTS).map(slot).collect();
        // Windows are allocated only if the plan has any.
        let wanted = if plan.windows { WINDOWS } else { 0 };
        let windows = (0..wanted).map(|window| Window::new(&pd, end, window)).collect();
        let (ah, posted) = (None, BTreeMap::new());
        let _foreign_pd = foreign_pd;
        let caps = init.cap;
        Self {
            end,
            windows,
            ah,
            qp,
            caps,
            srq,
            send_cq,
            receive_cq,
            slots,
            pd,
            _foreign_pd,
            posted,
        }
    }

    /// Registers the first `length` bytes of a slot. Returns the error number, or 0.
    pub(super) fn register(&mut self, slot: u8, length: u32, access: u32) -> i32 {
        let slot = &mut self.slots[usize::from(slot)];
        match self.pd.try_register(slot.memory.start(), length as usize, access) {
            Ok(region) => {
                slot.memory.share_file(&self.pd, region, access);
                slot.region = Some(region);
                0
            }
            Err(errno) => errno.raw(),
        }
    }

    /// Deregisters a slot. Returns the error number, or 0.
    pub(super) fn deregister(&mut self, slot: u8) -> i32 {
        let slot = &mut self.slots[usize::from(slot)];
        let region = slot.region.expect("a fair program names registered slots");
        let key = key_of(region);
        let errno = try_deregister(region);
        if errno == 0 {
            (slot.region, slot.stale) = (None, key);
        }
        errno
    }

    /// Deallocates a window, and allocates another in its place.
    pub(super) fn renew(&mut self, window: u8) {
        drop(self.windows.remove(usize::from(window)));
        let new = Window::new(&self.pd, self.end, window);
        self.windows.insert(usize::from(window), new);
    }

    /// Returns the keys of the windows. For a window that does not exist, this is a key that no
    /// device assigns.
    pub(super) fn window_keys(&self) -> [u32; WINDOWS as usize] {
        let key = |window| self.windows.get(window).map_or(UNKNOWN_KEY, Window::key);
        std::array::from_fn(key)
    }

    fn key(&self, slot: u8, key: Key) -> u32 {
        let slot = &self.slots[usize::from(slot)];
        match key {
            Key::Own => key_of(slot.region.expect("a fair program names registered slots")),
            Key::Stale => slot.stale,
            Key::Foreign => slot.memory.key(),
            Key::Unknown => UNKNOWN_KEY,
            Key::Window(window) => self.window_keys()[usize::from(window)],
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

    /// Posts the requests as one list. Returns the number of accepted requests, and the error
    /// number or 0.
    pub(super) fn post_list(&self, wrs: &[Wr]) -> (usize, i32) {
        self.qp.try_post_list(wrs).map_or_else(|refused| refused, |()| (wrs.len(), 0))
    }

    pub(super) fn post_each(&self, wrs: &[Wr], sends: &[(u64, &Send)]) -> (usize, i32) {
        for (n, (wr, (_, send))) in wrs.iter().zip(sends).enumerate() {
            let errno = match send.bind {
                Some(bind) if self.end.is_type_1(bind.window) => {
                    let mw = &self.windows[usize::from(bind.window)].mw;
                    self.qp.try_bind(wr.wr.wr_id, mw, self.bind_info(bind), wr.wr.send_flags)
                }
                _ => self.qp.try_post(wr),
            };
            if errno != 0 {
                return (n, errno);
            }
        }
        (wrs.len(), 0)
    }

    fn bind_info(&self, bind: Bind) -> ibv_mw_bind_info {
        let region = self.slots[usize::from(bind.slot)].region;
        ibv_mw_bind_info {
            mr: region.expect("a fair program names registered slots"),
            addr: self.address(bind.slot, bind.offset),
            length: bind.length.into(),
            mw_access_flags: bind.access,
        }
    }

    /// Returns a request that binds a window. Requests created after this one use the window's new
    /// key.
    fn bind_request(&mut self, wr_id: u64, bind: Bind) -> Wr {
        let info = self.bind_info(bind);
        let window = &mut self.windows[usize::from(bind.window)];
        let first = window.mw.key();
        let key = window.mw.key_with(first.to_le_bytes()[0].wrapping_add(bind.low));
        if window.mw.kind() == TYPE_2 {
            window.key = Some(key);
        }
        Wr::bind(wr_id, &window.mw, key, info)
    }

    /// Clears the bytes of these elements, whose contents the devices may leave undefined.
    pub(super) fn clear(&self, elements: &[Element]) {
        for element in elements {
            let memory = &self.slots[usize::from(element.slot)].memory;
            memory.fill_part(element.offset as usize, element.length as usize, 0);
        }
    }

    /// Clears the bytes that a failed receive may have written, or the header of a received
    /// datagram.
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

/// All ends in a program.
pub(super) struct Ends<'a> {
    pub(super) context: &'a Context,
    states: BTreeMap<QpId, EndState>,
}

impl<'a> Ends<'a> {
    /// Connects all ends. No slot is registered yet.
    pub(super) fn new(context: &'a Context, program: &Program) -> Self {
        let mut states = BTreeMap::new();
        for (pair, plan) in (0..).zip(&program.pairs) {
            for side in [Side::A, Side::B] {
                let end = QpId { pair, side };
                let joined = plan.joined && side == Side::B;
                let owner = joined.then(|| &states[&QpId { pair: 0, side }]);
                let state = EndState::new(context, end, *plan, owner);
                states.insert(end, state);
            }
        }
        let mut ends = Self { context, states };
        for (pair, plan) in (0..).zip(&program.pairs) {
            ends.connect(pair, *plan);
        }
        ends
    }

    pub(super) fn get(&self, end: QpId) -> &EndState {
        &self.states[&end]
    }

    pub(super) fn get_mut(&mut self, end: QpId) -> &mut EndState {
        self.states.get_mut(&end).expect("the end belongs to the program")
    }

    /// Returns true if the registered slots are exactly the ones that the model expects.
    pub(super) fn are_registered_as(&self, model: &Model) -> bool {
        self.states.iter().all(|(&end, state)| {
            let expected = model.end(end).regions.iter().map(Option::is_some);
            expected.eq(state.slots.iter().map(|slot| slot.region.is_some()))
        })
    }

    /// Returns the end that posts the receives which this end consumes.
    pub(super) fn receiver(&mut self, end: QpId, plan: Pair) -> &mut EndState {
        let joined = plan.joined && end.side == Side::B;
        self.get_mut(if joined { QpId { pair: 0, ..end } } else { end })
    }

    pub(super) fn all(&self) -> Vec<QpId> {
        self.states.keys().copied().collect()
    }

    /// Returns the name of the object that reported an event.
    pub(super) fn name(&self, object: usize) -> String {
        let is_srq = |srq: &Rc<Srq>| srq.0.addr() == object;
        let of_queue_pair = self.states.iter().find(|(_, state)| state.qp.0.addr() == object);
        if let Some((end, _)) = of_queue_pair {
            return end.to_string();
        }
        let shared = self.states.values().any(|state| state.srq.as_ref().is_some_and(is_srq));
        if shared { "SRQ" } else { "another object" }.to_owned()
    }

    fn endpoint(&self, end: QpId) -> Endpoint {
        endpoint(self.context, &self.get(end).qp)
    }

    fn connect(&mut self, pair: u8, plan: Pair) {
        for side in [Side::A, Side::B] {
            let end = QpId { pair, side };
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
            let end = QpId { pair, side };
            let state = self.get_mut(end);
            let windows = 0..if plan.windows { WINDOWS } else { 0 };
            windows.filter(|&n| !end.is_type_1(n)).for_each(|n| state.renew(n));
            state.qp.to_reset();
            if state.srq.is_none() {
                state.posted.clear();
            }
        }
        self.connect(pair, plan);
    }

    /// Returns the request in the form of the C interface.
    pub(super) fn request(&mut self, wr_id: u64, send: &Send) -> Wr {
        let wr = match send.bind {
            Some(bind) => self.get_mut(send.end).bind_request(wr_id, bind),
            None => self.message(wr_id, send),
        };
        let flags = [
            (send.inline, Flags::IBV_SEND_INLINE),
            (send.fenced, Flags::IBV_SEND_FENCE),
            (send.solicited, Flags::IBV_SEND_SOLICITED),
        ];
        let wr = if send.signaled { wr } else { wr.unsignaled() };
        flags.iter().filter(|flag| flag.0).fold(wr, |wr, flag| wr.flags(flag.1))
    }

    fn message(&self, wr_id: u64, send: &Send) -> Wr {
        let (own, peer) = (self.get(send.end), self.get(send.end.peer()));
        match send.invalidates {
            Some(key) if send.opcode == Opcode::Invalidate => {
                return Wr::local_invalidate(wr_id, own.key(0, key));
            }
            Some(key) => {
                let sges = own.sges(&send.elements);
                return Wr::send_with_invalidate(wr_id, &sges, peer.key(0, key));
            }
            None => {}
        }
        let opcode = match send.opcode {
            Opcode::Bind => ibv_wr_opcode::IBV_WR_BIND_MW,
            Opcode::Invalidate => ibv_wr_opcode::IBV_WR_LOCAL_INV,
            Opcode::SendInvalidate => ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
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
        if send.opcode.has_imm() { wr.with_imm(imm(wr_id)) } else { wr }
    }
}
