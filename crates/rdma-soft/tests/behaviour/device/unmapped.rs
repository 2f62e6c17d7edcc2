//! Memory that is unmapped while it is registered: a request executed after its post, or by another thread, fails as
//! with a bad key. A direct access by the device would end the process.
// AddressSanitizer needs copies by the device's own instructions, and these tests need copies by the kernel.
#![cfg(not(rdma_visible_copies))]

use rdma_soft::{Builder, Peers, Schedule, SoftDevice};
use rdma_sys::{ibv_mr, ibv_qp_type, ibv_sge, ibv_wc_status as Status, ibv_wr_opcode};

use test_support::program::is_emulated;

use crate::device::rig::connect::{Knobs, Side, connect_unreliably, pair, pair_with};
use crate::device::rig::datagram;
use crate::device::rig::map::Mapping;
use crate::device::rig::memory::{Mr, deregister, key_of};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Pd, Size, on_each_held_device, soft};

const LENGTH: u32 = 8192;

/// Memory that is unmapped before its registration ends.
struct Lent {
    memory: Mapping,
    mr: *mut ibv_mr,
}

impl Lent {
    fn new(pd: &Pd) -> Self {
        let memory = Mapping::writable(LENGTH as usize);
        let mr = pd.try_register(memory.start(), LENGTH as usize, ALL_ACCESS).unwrap();
        Self { memory, mr }
    }

    fn address(&self) -> u64 {
        self.memory.start().expose_provenance() as u64
    }

    fn sge(&self) -> ibv_sge {
        ibv_sge { addr: self.address(), length: LENGTH, lkey: key_of(self.mr) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        deregister(self.mr);
    }
}

/// The loss of the memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Loss {
    All,
    /// The memory can still be read.
    Writes,
}

/// The owner of the lost memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Whose {
    Requester,
    Responder,
}

/// Two ends, each with memory. Fields drop in order.
struct Stage {
    here: Lent,
    there: Lent,
    a: Side,
    b: Side,
}

impl Stage {
    fn new(a: Side, b: Side) -> Self {
        Self { here: Lent::new(&a.pd), there: Lent::new(&b.pd), a, b }
    }

    fn connected(device: &str) -> Self {
        let (a, b) = pair(device);
        Self::new(a, b)
    }

    fn one_sided(&self, opcode: ibv_wr_opcode) -> Wr {
        let (address, key) = (self.there.address(), key_of(self.there.mr));
        Wr::new(1, opcode, &[self.here.sge()]).remote(address, key)
    }

    /// Makes the device execute the posted requests after the memory is gone.
    fn release(&self, device: &SoftDevice, whose: Whose) {
        self.release_after(device, whose, Loss::All);
    }

    fn release_after(&self, device: &SoftDevice, whose: Whose, loss: Loss) {
        let lent = if whose == Whose::Requester { &self.here } else { &self.there };
        match loss {
            Loss::All => lent.memory.take_away(),
            Loss::Writes => lent.memory.take_writes_away(),
        }
        assert_eq!(device.release(self.a.qp.qpn(), 1), 1, "{whose:?}");
    }
}

fn for_each(name: &str, test: impl Fn(&SoftDevice, Whose)) {
    if is_emulated() {
        return; // the emulator has no `process_vm_readv`
    }
    on_each_held_device(name, |device| {
        [Whose::Requester, Whose::Responder].into_iter().for_each(|whose| test(device, whose));
    });
}

fn by_whose(whose: Whose, responder: Status) -> Status {
    if whose == Whose::Requester { Status::IBV_WC_LOC_PROT_ERR } else { responder }
}

#[test]
fn one_sided_requests_fail_as_with_a_bad_key() {
    for_each("unmapped", |device, whose| {
        for opcode in [ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_RDMA_READ] {
            let stage = Stage::connected(device.name());
            stage.a.qp.post(&stage.one_sided(opcode));
            stage.release(device, whose);
            stage.a.send_cq.expect(1, by_whose(whose, Status::IBV_WC_REM_ACCESS_ERR));
        }
    });
}

#[test]
fn an_atomic_fails_as_with_a_bad_key() {
    atomics_fail("unmapped-atomic", Loss::All);
}

/// Also where the word could still be read, before the change or after it.
#[test]
fn an_atomic_on_memory_turned_read_only_fails_like_a_write() {
    atomics_fail("unmapped-atomic-ro", Loss::Writes);
    for_each("unmapped-write-ro", |device, whose| {
        let stage = Stage::connected(device.name());
        stage.a.qp.post(&stage.one_sided(ibv_wr_opcode::IBV_WR_RDMA_WRITE));
        stage.release_after(device, whose, Loss::Writes);
        let own_is_read = (whose == Whose::Requester).then_some(Status::IBV_WC_SUCCESS);
        stage.a.send_cq.expect(1, own_is_read.unwrap_or(Status::IBV_WC_REM_ACCESS_ERR));
    });
}

fn atomics_fail(name: &str, loss: Loss) {
    for_each(name, |device, whose| {
        for (opcode, [compare_add, swap]) in [
            (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, [1, 0]),
            (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, [0, 1]),
        ] {
            let stage = Stage::connected(device.name());
            let word = ibv_sge { length: 8, ..stage.here.sge() };
            let (address, key) = (stage.there.address(), key_of(stage.there.mr));
            let wr = Wr::new(1, opcode, &[word]);
            stage.a.qp.post(&wr.atomic_at(address, key, compare_add, swap));
            stage.release_after(device, whose, loss);
            stage.a.send_cq.expect(1, by_whose(whose, Status::IBV_WC_REM_ACCESS_ERR));
        }
    });
}

/// Devices that send packets between queue pairs of one process, by copies in memory or by the link between processes.
fn wire_devices(name: &str) -> [String; 2] {
    let [wire, link] = ["wire", "link"].map(|way| format!("{name}-{way}"));
    Builder::new(&wire).force_wire().install().unwrap();
    Builder::new(&link).peers(Peers::SameUser).force_wire().install().unwrap();
    [wire, link]
}

/// The responder's memory disappears while packets may be in flight. The requester's disappears after the post of a
/// READ, whose response it was to receive.
#[test]
fn packets_for_memory_that_is_gone_fail_as_with_a_bad_key() {
    if is_emulated() {
        return;
    }
    for device in wire_devices("unmapped-packets") {
        for opcode in [ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_RDMA_READ] {
            let stage = Stage::connected(&device);
            stage.there.memory.take_away();
            stage.a.qp.post(&stage.one_sided(opcode));
            stage.a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        }
        let stage = Stage::connected(&device);
        stage.b.qp.post_receive(2, &[stage.there.sge()]);
        stage.there.memory.take_away();
        stage.a.qp.post(&Wr::send(1, &[stage.here.sge()]));
        stage.a.send_cq.expect(1, Status::IBV_WC_REM_OP_ERR);
        stage.b.receive_cq.expect(2, Status::IBV_WC_LOC_PROT_ERR);
        let stage = Stage::connected(&device);
        stage.here.memory.take_away();
        stage.a.qp.post(&stage.one_sided(ibv_wr_opcode::IBV_WR_RDMA_READ));
        stage.a.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
        let device = soft(&device);
        assert!(device.counters().guarded_copies > 0, "{}", device.name());
    }
}

/// One end's memory is not declared to stay: the kernel copies for it, with one call for several packets.
#[test]
fn the_kernel_copies_memory_that_may_be_gone_by_one_call_for_many_packets() {
    const PACKETS: usize = 64;
    if is_emulated() {
        return;
    }
    let length = PACKETS * 4096;
    let knobs = Knobs { mtu: rdma_sys::ibv_mtu::IBV_MTU_4096, ..Knobs::default() };
    for name in wire_devices("unmapped-bursts") {
        let device = soft(&name);
        for noted in [Whose::Requester, Whose::Responder] {
            let (a, b) = pair_with(&name, &Size::default(), &knobs);
            let note = |mr: Mr, whose| if whose == noted { mr.mapped() } else { mr };
            let here = note(a.pd.register(length, ALL_ACCESS), Whose::Requester);
            let there = note(b.pd.register_filled(vec![5; length], ALL_ACCESS), Whose::Responder);
            let before = device.counters().guarded_copies;
            a.qp.post(&Wr::read(1, &[here.sge(0, length)], &there, 0));
            a.send_cq.expect_success(1);
            let calls = device.counters().guarded_copies - before;
            here.assert_filled(5);
            assert!((1..PACKETS as u64 / 4).contains(&calls), "{name}: {calls} calls");
        }
    }
}

/// The device accesses the word of an atomic packet in the same way.
#[test]
fn an_atomic_that_comes_by_a_packet_fails_as_with_a_bad_key() {
    if is_emulated() {
        return;
    }
    for loss in [Loss::All, Loss::Writes] {
        let name = format!("unmapped-atomic-wire-{loss:?}");
        Builder::new(&name).force_wire().install().unwrap();
        let stage = Stage::connected(&name);
        let word = ibv_sge { length: 8, ..stage.here.sge() };
        let add = Wr::new(1, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[word]);
        match loss {
            Loss::All => stage.there.memory.take_away(),
            Loss::Writes => stage.there.memory.take_writes_away(),
        }
        let (address, key) = (stage.there.address(), key_of(stage.there.mr));
        stage.a.qp.post(&add.atomic_at(address, key, 1, 0));
        stage.a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

#[test]
fn a_send_fails_at_both_ends_or_at_its_own() {
    for_each("unmapped-send", |device, whose| {
        let stage = Stage::connected(device.name());
        stage.b.qp.post_receive(2, &[stage.there.sge()]);
        stage.a.qp.post(&Wr::send(1, &[stage.here.sge()]));
        stage.release(device, whose);
        stage.a.send_cq.expect(1, by_whose(whose, Status::IBV_WC_REM_OP_ERR));
        if whose == Whose::Responder {
            stage.b.receive_cq.expect(2, Status::IBV_WC_LOC_PROT_ERR);
        } else {
            stage.b.qp.assert_ready();
        }
    });
}

/// On a device with the immediate schedule, posting a receive request makes a thread of the receiver execute its peer's
/// requests.
#[test]
fn requests_started_by_a_receive_fail_as_with_a_bad_key() {
    if is_emulated() {
        return;
    }
    for (name, schedule) in
        [("unmapped-turn", Schedule::Immediate), ("unmapped-step", Schedule::Deferred { seed: 9 })]
    {
        Builder::new(name).schedule(schedule).install().unwrap();
        let stage = Stage::connected(name);
        stage.a.qp.post(&Wr::send(1, &[stage.here.sge()]));
        stage.there.memory.take_away();
        stage.b.qp.post_receive(2, &[stage.there.sge()]);
        stage.a.send_cq.expect(1, Status::IBV_WC_REM_OP_ERR);
        stage.b.receive_cq.expect(2, Status::IBV_WC_LOC_PROT_ERR);
        assert_eq!(soft(name).in_flight(stage.a.qp.qpn()), 0);
    }
}

#[test]
fn unacknowledged_requests_are_lost_or_fail_at_their_own_end() {
    for_each("unmapped-uc", |device, whose| {
        let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
        let [a, b] = [(); 2].map(|()| Side::new(device.name(), &size, 64));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
        connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
        let stage = Stage::new(a, b);
        stage.a.qp.post(&stage.one_sided(ibv_wr_opcode::IBV_WR_RDMA_WRITE));
        stage.release(device, whose);
        stage.a.send_cq.expect(1, by_whose(whose, Status::IBV_WC_SUCCESS));
    });
}

/// A case met by UCX: a datagram arrives late, into a receive request whose memory is gone.
#[test]
fn a_datagram_into_memory_that_is_gone_fails_its_receive() {
    for_each("unmapped-ud", |device, whose| {
        let [a, b] = [(); 2].map(|()| datagram::side(device.name()));
        let stage = Stage::new(a, b);
        let to = stage.b.endpoint();
        let ah = stage.a.pd.ah_to(&stage.a.endpoint(), &to);
        stage.b.qp.post_receive(2, &[stage.there.sge()]);
        let data = ibv_sge { length: 100, ..stage.here.sge() };
        stage.a.qp.post(&Wr::send(1, &[data]).to(&ah, to.qpn, datagram::QKEY));
        stage.release(device, whose);
        stage.a.send_cq.expect(1, by_whose(whose, Status::IBV_WC_SUCCESS));
        if whose == Whose::Responder {
            stage.b.receive_cq.expect(2, Status::IBV_WC_LOC_PROT_ERR);
        } else {
            assert!(stage.b.receive_cq.is_empty());
        }
        ah.destroy();
    });
}
