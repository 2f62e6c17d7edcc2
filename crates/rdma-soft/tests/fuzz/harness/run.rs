//! The execution of an input from its beginning to its end.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use arbitrary::Unstructured;
use rdma_sys::{
    Errno, ibv_mtu, ibv_qp_create_send_ops_flags as Op, ibv_qp_state as State, ibv_qp_type,
    ibv_recv_wr, ibv_send_wr, ibv_wr_opcode as Opcode,
};
use test_support::fuzz::{number, trace};
use test_support::rig::connect::{self, Endpoint, Knobs};
use test_support::rig::datagram::{self, QKEY};
use test_support::rig::extended::{OPERATIONS, init};
use test_support::rig::post::Wr;
use test_support::rig::srq::Srq;
use test_support::rig::window::{TYPE_1, TYPE_2};
use test_support::rig::{ALL_ACCESS, Qp, Size};

use super::calls::{self, post_receive, post_send, post_shared_receive};
use super::end::{End, Receive};
use super::input::{Send, Setting, Tag};
use super::request::{Built, Form, Windows, elements, part};
use super::world::World;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let mut run = Run::new(Setting::read(&mut input));
    while !input.is_empty() {
        let (tag, more) = Tag::read(&mut input);
        run.step(tag, more, &mut input);
    }
    run.end();
}

/// Fields drop in order: the objects of the device before others may lock it.
struct Run {
    ends: [End; 2],
    shared: Option<Srq>,
    windows: Windows,
    /// The receives posted to the shared receive queue.
    shared_receives: BTreeMap<u64, Receive>,
    /// Whether some of them may be lost with a queue pair that was reset.
    some_lost: bool,
    setting: Setting,
    posted: u64,
    /// The number of times that both queue pairs were connected.
    lives: u32,
    world: MutexGuard<'static, World>,
}

/// The limit of events until everything is done.
const EVENTS: usize = 2_000_000;
/// The limit of events for a workload without end.
const LONG: usize = 3000;

impl Run {
    fn new(setting: Setting) -> Self {
        let world = World::lock(setting.device);
        world.prepare();
        let has = |flag| setting.flags & flag != 0;
        let qp_type = match setting.service % 4 {
            0 | 1 => ibv_qp_type::IBV_QPT_RC,
            2 => ibv_qp_type::IBV_QPT_UC,
            _ => ibv_qp_type::IBV_QPT_UD,
        };
        let requests = 1 + u32::from(setting.requests % 16);
        let size = Size {
            qp_type,
            send_wr: requests,
            receive_wr: requests,
            sge: u32::from(setting.sges % 8),
            inline: 4 * u32::from(setting.inline % 65),
            signal_all: has(Setting::SIGNAL_ALL),
        };
        let shared = has(Setting::SHARED).then(|| world.pd.srq(requests, size.sge));
        let windows = (qp_type != ibv_qp_type::IBV_QPT_UD && has(Setting::WINDOWS))
            .then(|| [TYPE_1, TYPE_2].map(|kind| world.pd.mw(kind)));
        let fetches = qp_type == ibv_qp_type::IBV_QPT_RC && !setting.rd_atomic.is_multiple_of(8);
        let ends = [0, 1].map(|number| {
            let qp = create(&world, &size, shared.as_ref(), number, has(Setting::EXTENDED));
            let size = match shared {
                Some(_) => Size { receive_wr: 0, ..size },
                None => size,
            };
            End::new(qp, size, fetches, number)
        });
        let shared_receives = BTreeMap::new();
        let (some_lost, posted, lives) = (false, 0, 0);
        let run = Self {
            ends,
            shared,
            windows,
            shared_receives,
            some_lost,
            setting,
            posted,
            lives,
            world,
        };
        if !has(Setting::APART) {
            (0..2).for_each(|end| run.connect(end));
        }
        run
    }

    fn has(&self, flag: u8) -> bool {
        self.setting.flags & flag != 0
    }

    fn step(&mut self, tag: Tag, more: u8, input: &mut Unstructured<'_>) {
        let (end, more) = (usize::from(more & 1), more >> 1);
        match tag {
            Tag::Send => self.send(end, 1 + more % 5, input),
            Tag::Call if self.has(Setting::EXTENDED) => self.call(end, more, input),
            Tag::Call | Tag::Receive => self.receive(end, 1 + more % 5, input),
            Tag::SharedReceive => self.receive_shared(1 + more % 5, input),
            Tag::Bind => self.bind(end, more, input),
            Tag::Poll => self.poll(end, more),
            Tag::Modify => self.modify(end, more),
            Tag::Pass => self.pass(end, more),
        }
    }

    /// Returns another number for each request, using all 64 bits.
    fn next_id(&mut self) -> u64 {
        self.posted += 1;
        self.posted.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn read(&mut self, end: usize, form: Form, input: &mut Unstructured<'_>) -> (Built, Send) {
        let (id, peer) = (self.next_id(), self.ends[end ^ 1].qp.number());
        Built::read(&self.world, &self.ends[end], &self.windows, (id, peer, form), input)
    }

    fn send(&mut self, end: usize, count: u8, input: &mut Unstructured<'_>) {
        let built: Vec<_> = (0..count).map(|_| self.read(end, Form::Listed, input).0).collect();
        let mut list: Vec<ibv_send_wr> = built.iter().map(Built::listed).collect();
        let own = &mut self.ends[end];
        let expects = |state| {
            built.iter().enumerate().find_map(|(n, built)| {
                let refusal = own.refusal(&built.judged, state, own.room().saturating_sub(n))?;
                Some((n, refusal.raw()))
            })
        };
        let mut state = own.qp.state();
        let mut expected = expects(state);
        let posted = post_send(&own.qp, &mut list).err();
        if posted != expected {
            // A request of the peer may have failed the queue pair just before.
            state = own.qp.state();
            expected = expects(state);
        }
        trace(&("posted", posted, state));
        // Either of two mistakes may be reported first: a datagram without a destination or a full
        // queue. It is also open whether a queue pair that was never ready to send has space for
        // READs.
        let is_open = |n: usize| match expected {
            Some((at, errno)) if at == n && errno == Errno::ENOMEM.raw() => {
                built[n].judged.goes_nowhere || built[n].fetches()
            }
            Some((at, _)) if at < n => false,
            _ => state == State::IBV_QPS_ERR && built[n].fetches(),
        };
        let expected = match posted {
            Some((n, errno)) if errno == Errno::EINVAL.raw() && is_open(n) => posted,
            _ => expected,
        };
        assert_eq!(posted, expected, "in {state:?}");
        let accepted = expected.map_or(built.len(), |(n, _)| n);
        built[..accepted].iter().for_each(|built| own.note_sent(built));
    }

    /// Posts requests by function calls, some of them out of order.
    fn call(&mut self, end: usize, more: u8, input: &mut Unstructured<'_>) {
        if more & 0x10 != 0 {
            // Without a batch; the calls must detect that.
            self.ends[end].qp.set(&[]);
        }
        self.ends[end].qp.start();
        let mut right = true;
        let mut built = Vec::new();
        for _ in 0..more % 4 {
            let (request, record) = self.read(end, Form::Called, input);
            right &= self.build(end, &request, &record);
            built.push(request);
        }
        let own = &mut self.ends[end];
        if more & 0x20 != 0 {
            own.qp.start();
            right = false;
        }
        if more & 0x40 != 0 {
            return own.qp.abort();
        }
        let (state, room) = (own.qp.state(), own.room());
        right &= built.len() <= room;
        right &= built.iter().all(|built| own.refusal(&built.judged, state, 1).is_none());
        let errno = own.qp.complete();
        trace(&("completed", errno, state));
        // Same exception as for a list.
        let is_open = state == State::IBV_QPS_ERR && built.iter().any(Built::fetches);
        let refused = is_open && errno == Errno::EINVAL.raw();
        assert_eq!(errno == 0, right && !refused, "{errno} in {state:?}");
        if errno == 0 {
            built.iter().for_each(|built| own.note_sent(built));
        }
    }

    /// Returns true if the calls were made correctly; their contents are judged later.
    fn build(&self, end: usize, request: &Built, record: &Send) -> bool {
        let End { qp, size, .. } = &self.ends[end];
        let wr = Wr { wr: request.wr, sges: request.sges.clone() };
        let operation = operation(wr.wr.opcode);
        let known = operation != 0;
        if known {
            qp.begin(&wr);
        } else {
            calls::begin_unknown(qp, record.opcode);
        }
        let mut right = operations(size.qp_type) & operation != 0;
        let datagrams = size.qp_type == ibv_qp_type::IBV_QPT_UD;
        if datagrams && record.other & 0x10 != 0 {
            // A datagram without a destination.
            right = false;
        } else if datagrams || record.other & 0x40 != 0 {
            let ud = calls::destination(&wr.wr);
            qp.set_address(ud.ah, ud.remote_qpn, ud.remote_qkey);
            right &= datagrams;
        }
        let is_inline = record.flags & 8 != 0;
        let count = wr.wr.num_sge;
        match usize::try_from(count).unwrap_or(usize::MAX) {
            count if count != wr.sges.len() => {
                calls::set_endless_list(qp, count);
                right = false;
            }
            _ if !is_inline => qp.set(&wr.sges),
            _ if wr.sges.iter().any(|sge| sge.length > size.inline) => {
                calls::set_endless_data(qp, size.inline as usize + 1);
                right = false;
            }
            _ => {
                let part = |(n, sge): (usize, &rdma_sys::ibv_sge)| {
                    (self.world.plain(n as u16, sge.length), sge.length)
                };
                let parts: Vec<_> = wr.sges.iter().enumerate().map(part).collect();
                calls::set_data(qp, &parts);
                // The data counts as one element, whatever its number of parts.
                right &= size.sge > 0;
            }
        }
        if record.other & 0x20 != 0 {
            qp.set(&[]);
            right = false;
        }
        right
    }

    /// Receives in their C form, their elements, and the expected outcome of each.
    fn receives(&mut self, count: u8, input: &mut Unstructured<'_>) -> Receives {
        let mut all = Receives::default();
        for _ in 0..count {
            let id = self.next_id();
            let code = number(input);
            let (said, _, sges) = elements(&self.world, input, code, &self.windows);
            let granted = |sge: &&rdma_sys::ibv_sge| {
                sge.length == 0 || self.world.grants(sge.lkey, sge.addr, sge.length, true)
            };
            let room = sges.iter().take_while(granted).map(|sge| u64::from(sge.length)).sum();
            let sg_list = sges.as_ptr().cast_mut();
            all.list.push(ibv_recv_wr { wr_id: id, num_sge: said, sg_list, ..Default::default() });
            all.notes.push(Receive { id, room });
            all.elements.push(sges);
        }
        all
    }

    fn receive(&mut self, end: usize, count: u8, input: &mut Unstructured<'_>) {
        let mut all = self.receives(count, input);
        let own = &mut self.ends[end];
        let state = own.qp.state();
        let most = if self.shared.is_some() { 0 } else { own.size.sge };
        let errno = |n: usize, wr: &ibv_recv_wr| {
            let counts = (0..=most.cast_signed()).contains(&wr.num_sge);
            if !counts || state == State::IBV_QPS_RESET {
                return Some(Errno::EINVAL);
            }
            let none = if self.shared.is_some() { Errno::EINVAL } else { Errno::ENOMEM };
            (own.receive_room() <= n).then_some(none)
        };
        let expected = all.refused(errno);
        let posted = post_receive(&own.qp, &mut all.list);
        trace(&("received", posted, state));
        assert_eq!(posted.err(), expected, "in {state:?}");
        all.accepted(expected).for_each(|receive| own.note_received(receive));
    }

    fn receive_shared(&mut self, count: u8, input: &mut Unstructured<'_>) {
        let mut all = self.receives(count, input);
        let Some(srq) = &self.shared else { return };
        let room = 1 + usize::from(self.setting.requests % 16);
        let most = i32::from(self.setting.sges % 8);
        let full = |n| self.shared_receives.len() + n >= room;
        let errno = |n: usize, wr: &ibv_recv_wr| {
            let counts = (0..=most).contains(&wr.num_sge);
            if counts { full(n).then_some(Errno::ENOMEM) } else { Some(Errno::EINVAL) }
        };
        let expected = all.refused(errno);
        let posted = post_shared_receive(srq, &mut all.list).err();
        trace(&("received", posted));
        // Receives lost with a queue pair have freed space that is not counted here.
        let more_room =
            self.some_lost && posted.is_none_or(|(at, _)| expected.is_some_and(|(n, _)| at > n));
        assert!(more_room || posted == expected, "{posted:?} {expected:?}");
        let accepted = all.accepted(posted).map(|receive| (receive.id, receive));
        self.shared_receives.extend(accepted);
    }

    /// Binds the window of type 1, by its separate call.
    fn bind(&mut self, end: usize, flags: u8, input: &mut Unstructured<'_>) {
        let record = Send::read(input);
        let id = self.next_id();
        let Some([window, other]) = &self.windows else { return };
        let window = if flags & 0x20 == 0 { window } else { other };
        let (own, key) = (&mut self.ends[end], window.key());
        let info = part(&self.world, &record);
        let flags = u32::from(flags & 0x0f);
        let errno = own.qp.try_bind(id, window, info, flags);
        trace(&("bound", errno));
        if errno == 0 {
            assert!(own.room() > 0 && flags & 0x0c == 0, "the bind must be refused");
            own.note_bound(id, flags & 2 != 0);
        } else {
            assert_eq!(window.key(), key, "a refused bind must not change the key");
        }
    }

    fn poll(&mut self, end: usize, times: u8) {
        for _ in 0..=times % 4 {
            let sends = self.ends[end].poll_sends(&self.world);
            if sends + self.poll_receives(end) == 0 {
                return;
            }
        }
    }

    fn poll_receives(&mut self, end: usize) -> usize {
        let polled = self.world.queues[end][1]
            .try_poll::<8>()
            .expect("the completion queue does not overflow");
        for wc in &polled {
            if self.shared.is_none() {
                self.ends[end].take_received(wc);
                continue;
            }
            let receive = self.shared_receives.remove(&wc.wr_id).expect("the receive was posted");
            self.ends[end].check_received(wc, receive);
        }
        polled.len()
    }

    fn poll_all(&mut self) {
        while (0..2)
            .map(|end| self.ends[end].poll_sends(&self.world) + self.poll_receives(end))
            .sum::<usize>()
            > 0
        {}
    }

    fn modify(&mut self, end: usize, how: u8) {
        let own = &mut self.ends[end];
        let before = own.qp.state();
        let errno = match how % 8 {
            0 => own.qp.to_state(State::IBV_QPS_ERR),
            1 => own.qp.to_state(State::IBV_QPS_SQD),
            2 | 3 => own.qp.to_state(State::IBV_QPS_RTS),
            4 => own.qp.to_state(State::IBV_QPS_RESET),
            _ => 0,
        };
        trace(&("modified", how % 8, before, errno));
        match how % 8 {
            2 | 3 if errno == 0 && before == State::IBV_QPS_SQE => own.revive(),
            4 => self.forget(end),
            5 => self.come_part_way(end, how >> 3),
            6 | 7 => {
                for end in [0, 1] {
                    self.ends[end].qp.to_reset();
                    self.forget(end);
                }
                self.lives += 1;
                (0..2).for_each(|end| self.connect(end));
            }
            _ => {}
        }
    }

    fn forget(&mut self, end: usize) {
        self.ends[end].forget();
        self.some_lost = true;
    }

    fn endpoint(&self, end: usize) -> Endpoint {
        Endpoint { qpn: self.ends[end].qp.number(), ..self.world.here }
    }

    fn knobs(&self) -> Knobs {
        let Setting { retries, mtu, rd_atomic, .. } = self.setting;
        let is_wire = self.world.network.is_some();
        let rnr_retries = match (self.has(Setting::PATIENT), is_wire) {
            (true, _) => 7,
            (false, true) => retries % 7,
            // The other devices use the real clock: no wait, or one without a limit.
            (false, false) => 0,
        };
        Knobs {
            access: ALL_ACCESS,
            mtu: ibv_mtu(u32::from(1 + mtu % 5)),
            // Different each time, so that an old packet is not taken for a new one.
            psn: 0x00ff_fff8_u32.wrapping_add(self.lives * 0x0035_7911) & 0x00ff_ffff,
            timeout: if is_wire { 1 + retries / 8 % 16 } else { 0 },
            retries: retries % 8,
            rnr_retries,
            min_rnr_timer: 1 + mtu / 8 % 31,
            rd_atomic: rd_atomic % 8,
        }
    }

    fn connect(&self, end: usize) {
        let (own, peer) = (self.endpoint(end), self.endpoint(end ^ 1));
        let End { qp, size, .. } = &self.ends[end];
        match size.qp_type {
            ibv_qp_type::IBV_QPT_RC => connect::connect(qp, &own, &peer, &self.knobs()),
            ibv_qp_type::IBV_QPT_UC => {
                connect::connect_unreliably(qp, &own, &peer, &self.knobs());
            }
            _ => datagram::activate(qp, QKEY),
        }
    }

    /// Brings it only to INIT or RTR, or connects it to a nonexistent queue pair.
    fn come_part_way(&mut self, end: usize, which: u8) {
        self.ends[end].qp.to_reset();
        self.forget(end);
        let End { qp, size, .. } = &self.ends[end];
        let mut peer = self.endpoint(end ^ 1);
        if size.qp_type != ibv_qp_type::IBV_QPT_RC {
            return;
        }
        if which % 4 == 3 {
            peer.qpn ^= 1;
            self.lives += 1;
            return connect::connect(qp, &self.endpoint(end), &peer, &self.knobs());
        }
        let attributes = connect::attributes(&self.endpoint(end), &peer, &self.knobs());
        connect::to_init(qp, &attributes);
        if !which.is_multiple_of(4) {
            connect::to_rtr(qp, &attributes);
        }
    }

    fn pass(&mut self, end: usize, how: u8) {
        let World { network, soft, held, .. } = &*self.world;
        let qpn = self.ends[end].qp.qpn();
        if let Some(network) = network {
            (0..=how).take_while(|_| network.step()).count();
        } else if *held && how % 4 == 3 {
            soft.release_half(qpn);
        } else if *held {
            soft.release(qpn, u32::from(how));
        }
    }

    /// Processes events up to the limit; all of them unless the workload has no end.
    fn settle(&self, has_end: bool) {
        self.world.soft.release_all();
        let Some(network) = &self.world.network else { return };
        let mut events = 0;
        while network.step() {
            events += 1;
            assert!(events < EVENTS, "the workload does not end");
            if events == LONG && !has_end {
                return;
            }
        }
    }

    fn in_flight(&self, end: usize) -> usize {
        self.world.soft.in_flight(self.ends[end].qp.qpn())
    }

    fn end(mut self) {
        let is_wire = self.world.network.is_some();
        let has_end = !self.has(Setting::PATIENT);
        self.settle(has_end);
        self.poll_all();
        for end in [0, 1] {
            let waits = self.ends[end].qp.state() == State::IBV_QPS_SQD;
            let done = self.in_flight(end) == 0 || waits;
            assert!(done || !has_end || !is_wire, "requests did not complete");
        }
        for end in [0, 1] {
            let left = self.in_flight(end);
            self.ends[end].completed = 0;
            // The reset state has no transition to the error state, and no posted requests.
            let is_reset = self.ends[end].qp.state() == State::IBV_QPS_RESET;
            assert!(is_reset || self.ends[end].qp.to_state(State::IBV_QPS_ERR) == 0);
            self.poll_all();
            assert_eq!(self.in_flight(end), 0, "in the error state, but not flushed");
            assert!(self.ends[end].completed <= left);
            assert!(is_wire || self.ends[end].completed == left);
        }
        self.settle(true);
        self.poll_all();
        self.ends.iter().for_each(End::check_end);
        self.world.check_memory();
    }
}

#[derive(Default)]
struct Receives {
    list: Vec<ibv_recv_wr>,
    notes: Vec<Receive>,
    elements: Vec<Vec<rdma_sys::ibv_sge>>,
}

impl Receives {
    /// The index of the first request to be refused, and the reason.
    fn refused(
        &self,
        errno: impl Fn(usize, &ibv_recv_wr) -> Option<Errno>,
    ) -> Option<calls::Refused> {
        let mut all = self.list.iter().enumerate();
        all.find_map(|(n, wr)| Some((n, errno(n, wr)?.raw())))
    }

    fn accepted(&self, refused: Option<calls::Refused>) -> impl Iterator<Item = Receive> {
        let count = refused.map_or(self.notes.len(), |(n, _)| n);
        self.notes[..count].iter().copied()
    }
}

fn create(world: &World, size: &Size, shared: Option<&Srq>, number: usize, extended: bool) -> Qp {
    let [send, receive] = &world.queues[number];
    if !extended {
        return match shared {
            Some(srq) => world.pd.qp_with_srq(send, receive, size, srq),
            None => world.pd.qp(send, receive, size),
        };
    }
    let mut init = init(&world.pd, send, receive, size, operations(size.qp_type));
    if let Some(srq) = shared {
        init.srq = srq.0;
    }
    world.context.try_qp_ex(&init).expect("it fits")
}

/// The operations that queue pairs of the type can post by function calls.
fn operations(qp_type: ibv_qp_type) -> u64 {
    let sends = Op::IBV_QP_EX_WITH_SEND | Op::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = Op::IBV_QP_EX_WITH_RDMA_WRITE | Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let local = Op::IBV_QP_EX_WITH_LOCAL_INV | Op::IBV_QP_EX_WITH_BIND_MW;
    match qp_type {
        ibv_qp_type::IBV_QPT_RC => OPERATIONS,
        ibv_qp_type::IBV_QPT_UC => (sends | writes | local).0.into(),
        _ => sends.0.into(),
    }
}

/// The flag of an opcode; 0 for those that the device does not support.
fn operation(opcode: Opcode) -> u64 {
    let flag = match opcode {
        Opcode::IBV_WR_SEND => Op::IBV_QP_EX_WITH_SEND,
        Opcode::IBV_WR_SEND_WITH_IMM => Op::IBV_QP_EX_WITH_SEND_WITH_IMM,
        Opcode::IBV_WR_SEND_WITH_INV => Op::IBV_QP_EX_WITH_SEND_WITH_INV,
        Opcode::IBV_WR_RDMA_WRITE => Op::IBV_QP_EX_WITH_RDMA_WRITE,
        Opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        Opcode::IBV_WR_RDMA_READ => Op::IBV_QP_EX_WITH_RDMA_READ,
        Opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        Opcode::IBV_WR_LOCAL_INV => Op::IBV_QP_EX_WITH_LOCAL_INV,
        Opcode::IBV_WR_BIND_MW => Op::IBV_QP_EX_WITH_BIND_MW,
        _ => return 0,
    };
    flag.0.into()
}
