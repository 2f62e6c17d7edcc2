//! Programs that end as soon as they have their last completion, in each way in which programs end.

use rdma_sys::ibv_wr_opcode as Opcode;
use test_support::rig::post::Wr;

use crate::two_processes::near::Near;
use crate::two_processes::peer::ENDINGS;

/// The environment variable with the number of processes that end in each way.
const RUNS: &str = "RDMA_TEST_ENDS";

/// A multiple of the number of [`Last`] operations.
fn runs() -> usize {
    std::env::var(RUNS).map_or(12, |runs| runs.parse().unwrap())
}

/// The requests sent to the process that ends; the last one completes there.
#[derive(Debug, Clone, Copy)]
enum Last {
    Send,
    WriteWithImmediate,
    ReadAndSend,
    AtomicAndSend,
}

impl Last {
    fn of(run: usize) -> Self {
        [Self::Send, Self::WriteWithImmediate, Self::ReadAndSend, Self::AtomicAndSend][run % 4]
    }

    /// The requests, numbered from 1 on. Each run uses another length, and the longest takes several packets.
    fn requests(self, near: &Near, run: usize) -> Vec<Wr> {
        let sge = [near.memory.sge(0, [8, 3000, 1024, 0][run / 4 % 4])];
        let (address, key) = near.remote;
        let one_sided = |opcode| Wr::new(1, opcode, &sge).remote(address, key);
        let atomic = Wr::new(1, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[near.memory.sge(0, 8)]);
        match self {
            Self::Send => vec![Wr::send(1, &sge)],
            Self::WriteWithImmediate => vec![one_sided(Opcode::IBV_WR_RDMA_WRITE).with_imm(5)],
            Self::ReadAndSend => vec![one_sided(Opcode::IBV_WR_RDMA_READ), Wr::send(2, &sge)],
            Self::AtomicAndSend => vec![atomic.atomic_at(address, key, 2, 0), Wr::send(2, &sge)],
        }
    }
}

/// The process that ends has received its last message. That message and everything sent before it complete.
pub(crate) fn receivers_end(connect: impl Fn() -> Near) {
    for (ending, run) in all(runs()) {
        let last = Last::of(run);
        println!("{ending}, {last:?}, run {run}");
        let mut near = connect();
        // Answers take a route that is already known, or a new one.
        if run % 2 == 0 {
            near.read(8);
        }
        near.peer.receive();
        near.peer.begin_last(&format!("completion_and_end {ending}"));
        let requests = last.requests(&near, run);
        requests.iter().for_each(|wr| near.side.qp.post(wr));
        // This program polls meanwhile, or only after the other process has ended.
        if run % 3 == 0 {
            near.peer.wait_for_end();
        }
        for wr_id in 1..=requests.len() as u64 {
            near.side.send_cq.expect_success(wr_id);
        }
    }
}

/// The process that ends has sent its last message, and that has completed: the message has arrived.
pub(crate) fn senders_end(connect: impl Fn() -> Near) {
    for (ending, run) in all(runs() / 2) {
        let last = ["send", "write"][run % 2];
        println!("{ending}, {last}, run {run}");
        let mut near = connect();
        near.side.qp.post_receive(3, &[near.memory.sge(0, 8)]);
        near.peer.begin_last(&format!("{last}_and_end {ending}"));
        if run % 3 == 0 {
            near.peer.wait_for_end();
        }
        near.side.receive_cq.expect_success(3);
    }
}

fn all(runs: usize) -> impl Iterator<Item = (&'static str, usize)> {
    ENDINGS.into_iter().flat_map(move |ending| (0..runs).map(move |run| (ending, run)))
}
