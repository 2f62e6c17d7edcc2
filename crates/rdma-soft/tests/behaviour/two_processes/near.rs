//! This process's side of connections to the second process, and the operations on them.

#![allow(dead_code)] // each test program uses a part of it

use rdma_sys::{
    ibv_qp_type, ibv_wc_opcode as Done, ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};
use test_support::rig::connect::{Endpoint, Knobs, Side};
use test_support::rig::post::Wr;
use test_support::rig::{Mr, Pd, Size};

use crate::two_processes::peer::{self, ACCESS, LENGTH, Peer, bring_up};

/// Waits without limit for an answer and for a receive request: only the end of the peer ends the
/// wait.
pub(crate) const PATIENT: Knobs = Knobs {
    access: ACCESS,
    mtu: rdma_sys::ibv_mtu::IBV_MTU_1024,
    psn: 7,
    timeout: 0,
    retries: 7,
    rnr_retries: 7,
    min_rnr_timer: 1,
    rd_atomic: 4,
};

/// The environment variable with which the memory of the second process is a file that others may map. Its value is the
/// access and the length of that memory, and optionally the address that requests use for it.
pub(crate) const MAPPED: &str = "RDMA_TEST_MAPPED";

/// Returns the memory of the second process, and the address that requests use for it.
pub(crate) fn memory(pd: &Pd) -> (Mr, u64) {
    let mapped = std::env::var(MAPPED).unwrap_or_default();
    let numbers: Vec<u64> = mapped.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let memory = match numbers[..] {
        [] => pd.register(LENGTH, ACCESS),
        [access, length, ref iova @ ..] => {
            pd.register_file_at(length as usize, iova.first().copied(), access as u32)
        }
        [_] => panic!("{mapped:?} has no length"),
    };
    let address = numbers.get(2).copied().unwrap_or(memory.address());
    (memory, address)
}

/// This side of a connection to another process.
pub(crate) struct Near {
    pub(crate) peer: Peer,
    /// Dropped before its domain.
    pub(crate) memory: Mr,
    pub(crate) side: Side,
    pub(crate) far: Endpoint,
    /// The address of the peer's memory, and its key.
    pub(crate) remote: (u64, u32),
}

impl Near {
    pub(crate) fn new(qp_type: ibv_qp_type) -> Self {
        rdma_soft::install();
        Self::on("soft0", Peer::start(), qp_type, &PATIENT)
    }

    pub(crate) fn on(device: &str, peer: Peer, qp_type: ibv_qp_type, knobs: &Knobs) -> Self {
        Self::between(device, peer, qp_type, [knobs, &PATIENT])
    }

    /// Connects with separate knobs for this side and the other.
    pub(crate) fn between(
        device: &str,
        peer: Peer,
        qp_type: ibv_qp_type,
        knobs: [&Knobs; 2],
    ) -> Self {
        let side = Side::new(device, &Size { qp_type, ..Size::default() }, 256);
        Self::with(side, peer, knobs)
    }

    /// Connects this side, whose queue pair is new.
    pub(crate) fn with(side: Side, mut peer: Peer, knobs: [&Knobs; 2]) -> Self {
        let qp_type = side.qp.service();
        let memory = side.pd.register(LENGTH, ACCESS);
        let (far, remote) = peer.make(qp_type);
        peer.connect_with(&side.endpoint(), knobs[1]);
        bring_up(&side, &far, knobs[0]);
        Self { peer, side, memory, far, remote }
    }

    pub(crate) fn fill(&self, first: u8) {
        let bytes: Vec<u8> = (0..LENGTH).map(|at| first.wrapping_add((at % 251) as u8)).collect();
        self.memory.copy_in(0, &bytes);
    }

    pub(crate) fn send(&self, length: usize) -> Wr {
        Wr::send(1, &[self.memory.sge(0, length)])
    }

    /// Checks that a message arrives whole.
    pub(crate) fn message(&mut self, length: usize, imm: Option<u32>) {
        self.fill(length as u8);
        self.peer.receive();
        let wr = self.send(length);
        self.side.qp.post(&imm.map_or(wr.clone(), |imm| wr.with_imm(imm)));
        self.side.send_cq.expect_success(1);
        let said = imm.unwrap_or(0);
        assert_eq!(self.peer.completion(), (Done::IBV_WC_RECV.0, length as u32, said));
        let same = self.peer.sum(0, length);
        assert_eq!(same, peer::sum(&peer::read(&self.memory, 0, length)), "{length} bytes");
    }

    pub(crate) fn write(&mut self, length: usize, imm: Option<u32>) {
        self.fill(length as u8 ^ 0x55);
        let wr = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[self.memory.sge(0, length)]);
        let wr = wr.remote(self.remote.0, self.remote.1);
        if let Some(imm) = imm {
            self.peer.receive();
            self.side.qp.post(&wr.with_imm(imm));
            self.side.send_cq.expect_success(1);
            let recv = Done::IBV_WC_RECV_RDMA_WITH_IMM.0;
            assert_eq!(self.peer.completion(), (recv, length as u32, imm));
        } else {
            self.side.qp.post(&wr);
            self.side.send_cq.expect_success(1);
        }
        let same = self.peer.sum(0, length);
        assert_eq!(same, peer::sum(&peer::read(&self.memory, 0, length)), "{length} bytes");
    }

    pub(crate) fn read(&mut self, length: usize) {
        let there = self.peer.sum(0, length);
        self.fill(1);
        let wr = Wr::new(1, Opcode::IBV_WR_RDMA_READ, &[self.memory.sge(0, length)]);
        self.side.qp.post(&wr.remote(self.remote.0, self.remote.1));
        self.side.send_cq.expect_success(1);
        assert_eq!(there, peer::sum(&peer::read(&self.memory, 0, length)), "{length} bytes");
    }

    pub(crate) fn atomics(&mut self) {
        let word =
            |near: &Self| u64::from_ne_bytes(peer::read(&near.memory, 0, 8).try_into().unwrap());
        let atomic = |near: &Self, opcode, operand, swap| {
            let wr = Wr::new(1, opcode, &[near.memory.sge(0, 8)]);
            near.side.qp.post(&wr.atomic_at(near.remote.0, near.remote.1, operand, swap));
            near.side.send_cq.expect_success(1);
            word(near)
        };
        self.memory.copy_in(0, &40_u64.to_ne_bytes());
        let wr = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[self.memory.sge(0, 8)]);
        self.side.qp.post(&wr.remote(self.remote.0, self.remote.1));
        self.side.send_cq.expect_success(1);
        assert_eq!(atomic(self, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0), 40);
        assert_eq!(atomic(self, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 42, 7), 42);
        assert_eq!(atomic(self, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 42, 8), 7);
    }

    /// Checks all operations of a reliable connection.
    pub(crate) fn all_of_it(&mut self) {
        for length in [0, 1, 1024, 16 << 10, (16 << 10) + 1, LENGTH] {
            self.message(length, None);
            self.message(length, Some(0x1234_5678));
            self.write(length, None);
            self.write(length, Some(77));
            self.read(length);
        }
        self.atomics();
    }

    /// Posts a request that only the end of the peer completes.
    pub(crate) fn wait(&self) {
        self.side.qp.post(&self.send(8));
        assert!(self.side.send_cq.is_empty());
    }

    pub(crate) fn expect_end(&self) {
        self.side.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    }
}
