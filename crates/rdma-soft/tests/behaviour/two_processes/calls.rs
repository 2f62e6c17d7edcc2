//! The system calls of requests between two processes that poll: none.

use std::ffi::c_long;
use std::hint::spin_loop;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rdma_sys::{ibv_wc_status as Status, ibv_wr_opcode as Opcode};
use test_support::program::{is_emulated, this_program};
use test_support::rig::Cq;
use test_support::rig::post::Wr;
use test_support::system_calls::traced::{be_traced, begin_round, trace};

use crate::local_link::mapped::Pair;
use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::ACCESS;

/// The environment variable of the traced process: what it repeats.
const TRACED: &str = "RDMA_TEST_TRACED";
/// On a busy machine, a process whose peer gets no processor calls the kernel, often for thousands of rounds.
const ROUNDS: usize = 500_000;

#[test]
fn polling_processes_make_no_system_call() {
    if let Ok(work) = std::env::var(TRACED) {
        return repeat(&work);
    }
    if is_emulated() || available_parallelism().is_ok_and(|count| count == NonZeroUsize::MIN) {
        return println!("skipped: this needs two processors and a kernel that traces");
    }
    for work in ["send", "write", "read", "add", "page"] {
        let mut program = this_program();
        program.args(["--exact", "two_processes::calls::polling_processes_make_no_system_call"]);
        program.args(["--nocapture", "--test-threads=1"]).env(TRACED, work);
        // Requests on mapped memory need no peer that runs at the same time.
        let enough = if work == "send" { 1 } else { 16 };
        let (mut rounds, mut last, mut without_calls) = (0, Vec::new(), 0);
        trace(&mut program, |calls: &[c_long]| {
            rounds += 1;
            last = calls.to_vec();
            without_calls = if calls.is_empty() { without_calls + 1 } else { 0 };
            without_calls == enough || rounds == ROUNDS
        });
        assert_eq!(last, [], "{work}: the system calls of each of {rounds} rounds");
    }
}

/// Repeats rounds of one request, or of a message and its answer, until the tracer ends this process.
fn repeat(work: &str) {
    let (opcode, length) = match work {
        "send" => return repeat_messages(),
        "write" => (Opcode::IBV_WR_RDMA_WRITE, 8),
        "read" => (Opcode::IBV_WR_RDMA_READ, 8),
        "add" => (Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
        _ => (Opcode::IBV_WR_RDMA_WRITE, 4096),
    };
    let pair = Pair::new("mapped-calls", &PATIENT);
    let Near { side, remote, .. } = &pair.near;
    // The bytes of other memory are copied by the kernel.
    let memory = side.pd.register(length, ACCESS).mapped();
    let wr = Wr::new(1, opcode, &[memory.sge(0, length)]);
    let wr = match opcode {
        Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => wr.atomic_at(remote.0, remote.1, 1, 0),
        _ => wr.remote(remote.0, remote.1),
    };
    // The first requests go through the ring.
    pair.use_grant();
    run_rounds(|| {
        side.qp.post(&wr);
        complete(&side.send_cq);
    });
}

fn repeat_messages() {
    let mut pair = Pair::new("polled-calls", &PATIENT);
    pair.near.peer.begin(&format!("trips {}", 2 * ROUNDS));
    let side = &pair.near.side;
    let memory = side.pd.register(8, ACCESS).mapped();
    let wr = Wr::send(1, &[memory.sge(0, 8)]);
    run_rounds(|| {
        side.qp.post_receive(1, &[memory.sge(0, 8)]);
        side.qp.post(&wr);
        complete(&side.send_cq);
        complete(&side.receive_cq);
    });
}

fn run_rounds(mut trip: impl FnMut()) {
    be_traced();
    while begin_round() {
        trip();
    }
}

/// Polls without pause until a request is complete.
fn complete(cq: &Cq) {
    // Far more polls than the completion needs on a busy machine.
    for _ in 0..200_000_000 {
        match cq.try_poll::<1>().unwrap()[..] {
            [] => spin_loop(),
            ref polled => return assert_eq!(polled[0].status, Status::IBV_WC_SUCCESS),
        }
    }
    panic!("no completion");
}
