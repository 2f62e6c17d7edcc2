//! A device that receives data from strangers, and the objects that all inputs use.

use rdma_soft::{Builder, Counters, SoftDevice};
use rdma_sys::ibv_qp_type;
use test_support::rig::connect::{Endpoint, Knobs, Side, connect_sides, endpoint};
use test_support::rig::datagram::{self, Ah};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Context, Cq, LOCAL_WRITE, Mr, Pd, Size, imm_of};

use super::input::{Post, Setting};
use super::memory::Memory;
use super::victim::Victim;

/// The Q_Key of the queue pair that detects when everything is processed.
pub(crate) const PROBE_QKEY: u32 = 0x0bad_cafe;

/// Fields drop in order.
pub(crate) struct World {
    /// A silent reliable queue pair, one with requests, an unreliable one, and one for datagrams.
    pub(crate) victims: [Victim; 4],
    pub(crate) memory: Memory,
    ah: Ah,
    good: Good,
    /// The memory of the probe's receives; each receives only a route header.
    route: Mr,
    probe: Side,
    /// The number of marks sent.
    pub(crate) marks: u32,
    inputs: u64,
    counters: Counters,
    sends: Cq,
    receives: Cq,
    _pds: [Pd; 2],
    /// The endpoints of the victims and of their sender.
    pub(crate) own: Endpoint,
    pub(crate) far: Endpoint,
    _context: Context,
    soft: SoftDevice,
}

impl World {
    /// `far` returns the endpoint that the victims are connected to.
    pub(crate) fn new(builder: Builder, far: impl FnOnce(&Endpoint) -> Endpoint) -> Self {
        let soft = builder.force_wire().install().expect("the name is unused");
        let context = Context::open(soft.name());
        let pds = [context.pd(), context.pd()];
        let (sends, receives) = (context.cq(1024), context.cq(1024));
        let good = Good::new(soft.name());
        let memory = Memory::new(&pds[0], &pds[1], good.to.rkey());
        let rc = ibv_qp_type::IBV_QPT_RC;
        let services = [rc, rc, ibv_qp_type::IBV_QPT_UC, ibv_qp_type::IBV_QPT_UD];
        let mut count = 0;
        let victims = services.map(|qp_type| {
            let size = Size { qp_type, ..Size::default() };
            count += 1;
            Victim::new(pds[0].qp(&sends, &receives, &size), count == 1)
        });
        let own = endpoint(&context, &victims[0].qp);
        let far = far(&own);
        let ah = pds[0].ah_to(&own, &far);
        let probe = Side::new(soft.name(), &datagram::size(), 64);
        datagram::activate(&probe.qp, PROBE_QKEY);
        let route = probe.pd.register(datagram::HEADER, LOCAL_WRITE);
        let receive = [route.sge(0, datagram::HEADER)];
        (0..32).for_each(|_| probe.qp.post_receive(0, &receive));
        let (marks, inputs, counters) = (0, 0, soft.counters());
        Self {
            victims,
            memory,
            ah,
            good,
            route,
            probe,
            marks,
            inputs,
            counters,
            sends,
            receives,
            _pds: pds,
            own,
            far,
            _context: context,
            soft,
        }
    }

    /// The queue pair number that a packet is addressed to.
    pub(crate) fn number(&self, to: u8) -> u32 {
        let number = match to % 8 {
            victim @ 0..4 => self.victims[usize::from(victim)].qp.number(),
            4 => 0x00ff_ffff,
            5 => u32::from(to >> 3 & 1),
            // A number in the slot of this process, and one in another slot.
            6 => self.own.qpn & !0xfff,
            _ => self.own.qpn ^ 0x0080_0000,
        };
        if self.is_apart(number) { 0 } else { number }
    }

    pub(crate) fn victim(&mut self, to: u8) -> &mut Victim {
        &mut self.victims[usize::from(to % 4)]
    }

    /// The number of the queue pair that receives marks.
    pub(crate) fn probe(&self) -> u32 {
        self.probe.qp.number()
    }

    /// Returns true if no input may name this queue pair number.
    pub(crate) fn is_apart(&self, number: u32) -> bool {
        [&self.probe, &self.good.a, &self.good.b].iter().any(|side| side.qp.number() == number)
    }

    /// Prepares the world for an input.
    pub(crate) fn prepare(&mut self, setting: &Setting) {
        self.inputs += 1;
        self.memory.prepare(self.inputs);
        for victim in 0..4 {
            self.connect(victim, setting);
        }
        for n in 0..setting.sends % 9 {
            let kind = (setting.kinds >> (2 * n)) as u8 % 4 * 2;
            let post = Post { kind, at: n.into(), length: setting.length };
            (1..4).for_each(|victim| self.send(victim, &post));
        }
    }

    pub(crate) fn connect(&mut self, victim: u8, setting: &Setting) {
        let (own, far) = (self.own, self.far);
        self.victim(victim).connect(setting, &own, &far);
        (0..setting.receives % 9).for_each(|_| self.receive(victim));
    }

    pub(crate) fn send(&mut self, victim: u8, post: &Post) {
        let victim = &mut self.victims[usize::from(victim % 4)];
        victim.send(&self.memory, &self.ah, &self.far, post);
    }

    pub(crate) fn receive(&mut self, victim: u8) {
        self.victims[usize::from(victim % 4)].receive(&self.memory);
    }

    /// Polls completions of both kinds, all that one poll returns.
    pub(crate) fn poll(&mut self) {
        for wc in self.sends.try_poll::<16>().expect("the completion queue does not overflow") {
            self.by_number(wc.qp_num).take_sent(&wc);
        }
        for wc in self.receives.try_poll::<16>().expect("the completion queue does not overflow") {
            let at = self.place_of(wc.qp_num);
            self.victims[at].take_received(&wc, &self.memory);
        }
    }

    fn place_of(&self, number: u32) -> usize {
        let found = self.victims.iter().position(|victim| victim.qp.number() == number);
        found.unwrap_or_else(|| panic!("a completion of unknown queue pair {number:#x}"))
    }

    fn by_number(&mut self, number: u32) -> &mut Victim {
        let at = self.place_of(number);
        &mut self.victims[at]
    }

    /// Returns true if the last mark has arrived.
    pub(crate) fn has_mark(&mut self) -> bool {
        let mut found = false;
        for wc in
            self.probe.receive_cq.try_poll::<8>().expect("the completion queue does not overflow")
        {
            assert_eq!(wc.status, rdma_sys::ibv_wc_status::IBV_WC_SUCCESS);
            found |= u32::from_be(imm_of(&wc)) == self.marks;
            self.probe.qp.post_receive(0, &[self.route.sge(0, datagram::HEADER)]);
        }
        found
    }

    /// Moves all queue pairs to the error state, where posted requests complete, and then to the reset state.
    pub(crate) fn end_requests(&mut self) {
        self.victims.iter().for_each(Victim::end);
        test_support::rig::until("completions of all requests", || {
            self.poll();
            self.victims.iter().all(Victim::is_done)
        });
        for victim in &mut self.victims {
            victim.reset();
        }
    }

    /// Checks that a WRITE of an undisturbed connection arrives, and that counters have only grown.
    pub(crate) fn check(&mut self) {
        self.memory.check();
        self.good.write(self.inputs, &self.memory.carry(self.inputs));
        let after = self.soft.counters();
        for ((name, before), (_, after)) in self.counters.iter().zip(after.iter()) {
            assert!(after >= before, "{name} has decreased: {before}, {after}");
        }
        self.counters = after;
    }
}

/// A connection that no input names.
struct Good {
    from: Mr,
    to: Mr,
    a: Side,
    b: Side,
}

const GOOD: usize = 6000;

impl Good {
    fn new(device: &str) -> Self {
        let [a, b] = [(); 2].map(|()| Side::new(device, &Size::default(), 64));
        // A second for each retry: the machine may be busy, and processes that do not receive lose packets.
        connect_sides(&a, &b, &Knobs { timeout: 18, ..Knobs::default() });
        let from = a.pd.register(GOOD, LOCAL_WRITE);
        let to = b.pd.register(GOOD, ALL_ACCESS);
        Self { from, to, a, b }
    }

    /// Writes these bytes several times.
    fn write(&self, input: u64, bytes: &[u8; 16]) {
        let length = [5000, 0, 1024, 8][input as usize % 4];
        let all: Vec<u8> = bytes.iter().copied().cycle().take(length).collect();
        self.from.copy_in(0, &all);
        self.to.fill(0x5a);
        self.a.qp.post(&Wr::write(input, &[self.from.sge(0, length)], &self.to, 100));
        self.a.send_cq.expect_success(input);
        let mut expected = vec![0x5a; GOOD];
        expected[100..100 + length].copy_from_slice(&all);
        assert!(self.to.bytes() == expected, "a WRITE of {length} bytes arrived damaged");
        assert!(self.b.receive_cq.is_empty());
    }
}
