//! Processes that are stopped, as by a debugger or a busy machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::time::{Duration, Instant};

use rdma_soft::{Builder, Peers, SoftDevice};
use rdma_sys::{
    ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type, ibv_wc_opcode as Done,
    ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};
use test_support::program::in_own_process_with;
use test_support::rig::connect::{Knobs, attributes};
use test_support::rig::post::Wr;

use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{LENGTH, Peer};

/// Gives up after two timeouts of eight microseconds.
const HASTY: Knobs = Knobs { timeout: 1, retries: 1, ..PATIENT };

fn near(device: &str, peer: Peer) -> Near {
    Near::on(device, peer, ibv_qp_type::IBV_QPT_RC, &HASTY)
}

/// Posts one request of each kind, numbered from `first` on.
fn post_each(near: &Near, first: u64) {
    let (address, key) = near.remote;
    let one = |n, opcode| Wr::new(first + n, opcode, &[near.memory.sge(0, LENGTH)]);
    near.side.qp.post(&one(0, Opcode::IBV_WR_RDMA_WRITE).remote(address, key));
    near.side.qp.post(&one(1, Opcode::IBV_WR_SEND));
    near.side.qp.post(&one(2, Opcode::IBV_WR_RDMA_READ).remote(address, key));
    let word = Wr::new(first + 3, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[near.memory.sge(0, 8)]);
    near.side.qp.post(&word.atomic_at(address, key, 1, 0));
}

/// The sender waits for a stopped process, however short its timeout: an adapter would answer.
fn stop_and_go_on(rounds: u64, stopped: impl Fn(&mut Near)) {
    rdma_soft::install();
    let mut near = near("soft0", Peer::start());
    // Its polls let time pass.
    let mut other = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.all_of_it();
    for round in 0..rounds {
        near.peer.receive();
        near.peer.stop();
        // Some of this exceeds the capacity of the link.
        (0..4).for_each(|n| post_each(&near, 100 * round + 10 * n));
        stopped(&mut other);
        assert!(near.side.send_cq.is_empty());
        near.peer.go_on();
        near.peer.receive_all(3);
        for number in (0..4).flat_map(|n| (0..4).map(move |one| 10 * n + one)) {
            near.side.send_cq.expect_success(100 * round + number);
        }
        near.peer.complete_all(4);
        near.all_of_it();
    }
    near.peer.end();
    other.peer.end();
}

#[test]
fn a_stopped_process_loses_nothing_when_it_goes_on() {
    stop_and_go_on(3, Near::all_of_it);
}

/// A request in flight is reported by a word in the ring. Setting the same path keeps the word.
#[test]
fn the_same_path_while_draining_keeps_the_requests_in_flight() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.all_of_it();
    near.peer.receive();
    near.peer.stop();
    near.side.qp.post(&near.send(8));
    assert_eq!(near.side.qp.to_state(State::IBV_QPS_SQD), 0);
    let mut attr = attributes(&near.side.endpoint(), &near.far, &PATIENT);
    attr.qp_state = State::IBV_QPS_SQD;
    assert_eq!(near.side.qp.modify(attr, (Mask::IBV_QP_STATE | Mask::IBV_QP_AV).0), 0);
    near.peer.go_on();
    near.side.send_cq.expect_success(1);
    assert_eq!(near.peer.completion().0, Done::IBV_WC_RECV.0);
    assert_eq!(near.side.qp.to_state(State::IBV_QPS_RTS), 0);
    near.all_of_it();
    near.peer.end();
}

/// For the full tier.
#[test]
#[ignore = "takes half a minute"]
fn a_process_that_is_stopped_for_half_a_minute_loses_nothing() {
    stop_and_go_on(1, |other| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) {
            other.all_of_it();
        }
    });
}

/// The running process no longer has a queue pair of that number: the timeout and the retries count.
#[test]
fn a_process_that_runs_and_does_not_answer_is_given_up_by_timeout_and_retries() {
    rdma_soft::install();
    let counter = || SoftDevice::find("soft0").unwrap().counters().local_ack_timeout_err;
    let mut near = near("soft0", Peer::start());
    near.all_of_it();
    near.peer.receive();
    near.side.qp.post(&near.send(8));
    near.side.send_cq.expect_success(1);
    near.peer.begin_last("completion_and_destroy");
    near.peer.finish();
    let before = counter();
    let begin = Instant::now();
    near.side.qp.post(&near.send(8));
    near.expect_end();
    assert!(counter() >= before + 2, "first the timeout, then that of the retry");
    // Half of the time after which a process that does not run is given up.
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    near.peer.end();
}

/// Fails all requests that wait for the process, and those posted then. Requests posted after it continues arrive.
#[test]
fn a_process_that_is_silent_for_too_long_is_given_up() {
    let limit = Duration::from_millis(50);
    let device = Builder::new("hasty-local").peers(Peers::SameUser).peer_limit(limit);
    let device = device.install().unwrap();
    let mut nears = [(); 2].map(|()| near(device.name(), Peer::start_at("/hasty-local")));
    for (near, fill) in nears.iter_mut().zip([false, true]) {
        near.peer.stop();
        // Few enough to be all in flight, or more than the link has space for.
        let write = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[near.memory.sge(0, LENGTH)]);
        let write = write.remote(near.remote.0, near.remote.1);
        let posted = (0..if fill { 40 } else { 1 }).map(|_| near.side.qp.post(&write)).count();
        near.side.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        (1..posted).for_each(|_| _ = near.side.send_cq.expect(1, Status::IBV_WC_WR_FLUSH_ERR));
    }
    assert!(device.counters().silent >= 2);
    let [near, other] = nears;
    near.peer.go_on();
    near.peer.end();
    // A new connection to the same process, as patient as a busy machine needs.
    other.peer.go_on();
    let mut again = Near::on(device.name(), other.peer, ibv_qp_type::IBV_QPT_RC, &PATIENT);
    again.all_of_it();
    again.peer.end();
}

/// Runs a case in a process with that environment variable, which its child processes inherit.
fn with(test: &str, (name, value): (&str, &str), case: impl FnOnce()) {
    let test = format!("local_link::stopped::{test}");
    in_own_process_with(&test, |program| _ = program.env(name, value), case);
}

#[test]
fn the_environment_sets_the_time_limit_for_a_silent_process() {
    let test = "the_environment_sets_the_time_limit_for_a_silent_process";
    with(test, ("RDMA_SOFT_PEER_LIMIT", "0.05"), || {
        rdma_soft::install();
        let near = near("soft0", Peer::start());
        near.peer.stop();
        let write = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[near.memory.sge(0, LENGTH)]);
        let begin = Instant::now();
        near.side.qp.post(&write.remote(near.remote.0, near.remote.1));
        near.side.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        // Half of the time that applies without the variable.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        near.peer.go_on();
        near.peer.end();
    });
}

#[test]
fn the_environment_sets_the_directory_of_the_processes() {
    let path = std::env::temp_dir().join(format!("rdma-soft-meets-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&path).unwrap();
    let test = "the_environment_sets_the_directory_of_the_processes";
    with(test, ("RDMA_SOFT_DIRECTORY", path.to_str().unwrap()), || {
        let path = std::env::var_os("RDMA_SOFT_DIRECTORY").unwrap();
        rdma_soft::install();
        let mut near = near("soft0", Peer::start());
        near.all_of_it();
        assert!(std::fs::read_dir(path).unwrap().count() >= 2, "there is a file of each process");
        near.peer.end();
    });
    std::fs::remove_dir_all(path).unwrap();
}
