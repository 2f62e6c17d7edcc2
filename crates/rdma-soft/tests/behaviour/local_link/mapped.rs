//! Memory of one process that another one maps, so that it executes requests there itself.

use std::net::Ipv4Addr;

use rdma_soft::{Builder, Peers, SoftDevice};
use rdma_sys::{
    ibv_gid, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type, ibv_wc_opcode as Done,
    ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::{in_own_process, is_emulated};
use test_support::rig::connect::{Knobs, Side, attributes};
use test_support::rig::memory::deregister;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, Pd, REMOTE_READ, REMOTE_WRITE, Size, until};

use crate::two_processes::near::{MAPPED, Near, PATIENT};
use crate::two_processes::peer::{LENGTH, Peer, read, simulate_earlier_kernel, sum};

/// Executes a command of the second process, besides the usual ones.
pub(crate) fn act(command: &str, words: &[&str], memory: &Mr, side: &mut Side) -> String {
    let number = |n: usize| words[n].parse::<usize>().unwrap();
    match command {
        // The process ends without destroying the region again.
        "deregister" => deregister(memory.mr),
        "fail" => assert_eq!(side.qp.to_state(ibv_qp_state::IBV_QPS_ERR), 0),
        "reset" => assert_eq!(side.qp.to_state(ibv_qp_state::IBV_QPS_RESET), 0),
        "destroy" => side.qp.destroy(),
        "permit" => {
            let access = u32::try_from(number(0)).unwrap();
            let attr = ibv_qp_attr { qp_access_flags: access, ..ibv_qp_attr::default() };
            assert_eq!(side.qp.modify(attr, ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0), 0);
        }
        // Works without the region.
        "receive_without_memory" => side.qp.post_receive(1, &[]),
        "port_down" => SoftDevice::find(words[0]).unwrap().set_port_up(false),
        "word" => return memory.word(number(0)).to_string(),
        "regions" => {
            let limit = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
            // The limit is that of the process.
            let other = Side::new("soft0", &Size::default(), 8);
            let wanted = |pd: &Pd| {
                let count = (0..100).take_while(|_| pd.wants_file(64 << 10, ALL_ACCESS));
                count.map(|_| pd.register_file(64 << 10, ALL_ACCESS)).collect::<Vec<_>>()
            };
            let regions = [&side.pd, &other.pd].map(wanted);
            return regions.map(|regions| regions.len().to_string()).join(" ");
        }
        _ => panic!("{command}"),
    }
    String::new()
}

/// Retries a few times, so that a request to a queue pair that does not listen fails soon.
const HASTY: Knobs = Knobs { timeout: 8, retries: 1, ..PATIENT };

/// A connection to a process whose memory can be mapped.
pub(crate) struct Pair {
    pub(crate) near: Near,
    device: SoftDevice,
}

impl Pair {
    /// Connects on a device with this name, which both processes share.
    pub(crate) fn new(name: &str, knobs: &Knobs) -> Self {
        Self::of_memory(name, knobs, ALL_ACCESS, LENGTH)
    }

    fn of_memory(name: &str, knobs: &Knobs, access: u32, length: usize) -> Self {
        Self::with(name, knobs, &[(MAPPED, &format!("{access} {length}"))])
    }

    pub(crate) fn with(name: &str, knobs: &Knobs, environment: &[(&str, &str)]) -> Self {
        let device = Builder::new(name).peers(Peers::SameUser).install().unwrap();
        let peer = Peer::start_with(&format!("/{name}"), environment);
        Self { near: Near::on(name, peer, ibv_qp_type::IBV_QPT_RC, knobs), device }
    }

    pub(crate) fn mapped_requests(&self) -> u64 {
        self.device.counters().mapped_requests
    }

    fn wr(&self, opcode: Opcode, length: usize) -> Wr {
        let wr = Wr::new(1, opcode, &[self.near.memory.sge(0, length)]);
        wr.remote(self.near.remote.0, self.near.remote.1)
    }

    fn request(&self, opcode: Opcode, length: usize) {
        self.near.side.qp.post(&self.wr(opcode, length));
        self.near.side.send_cq.expect_success(1);
    }

    /// Writes the same bytes until a grant has arrived.
    pub(crate) fn use_grant(&self) {
        let before = self.mapped_requests();
        until("a request without packets", || {
            self.request(Opcode::IBV_WR_RDMA_WRITE, 8);
            self.mapped_requests() > before
        });
    }

    /// Expects that a WRITE fails, and that it changes nothing.
    fn expect_refusal(&mut self, status: Status) {
        let (before, found) = (self.mapped_requests(), self.near.peer.sum(0, LENGTH));
        self.near.memory.copy_in(0, &[0x77; 64]);
        self.near.side.qp.post(&self.wr(Opcode::IBV_WR_RDMA_WRITE, 64));
        self.near.side.send_cq.expect(1, status);
        assert_eq!(self.near.peer.sum(0, LENGTH), found);
        assert_eq!(self.mapped_requests(), before);
    }
}

/// The other process is stopped meanwhile, so its processor does nothing.
#[test]
fn mapped_memory_is_used_without_its_process() {
    let mut pair = Pair::new("mapped-stopped", &PATIENT);
    pair.use_grant();
    let received = pair.near.peer.counter("rcvd_pkts");
    for length in [1, 7, 8, 1000, 4096, LENGTH] {
        pair.near.peer.stop();
        pair.near.fill(length as u8);
        pair.request(Opcode::IBV_WR_RDMA_WRITE, length);
        let written = read(&pair.near.memory, 0, length);
        pair.near.memory.fill(0);
        pair.request(Opcode::IBV_WR_RDMA_READ, length);
        assert_eq!(read(&pair.near.memory, 0, length), written);
        pair.near.peer.go_on();
        assert_eq!(pair.near.peer.sum(0, length), sum(&written));
    }
    pair.near.peer.stop();
    pair.near.atomics();
    pair.near.peer.go_on();
    assert_eq!(pair.near.peer.counter("rcvd_pkts"), received);
    pair.near.all_of_it();
    pair.near.peer.end();
}

/// A WRITE without packets is complete before the SEND that follows it arrives. A request after a SEND waits for it.
#[test]
fn requests_with_and_without_packets_keep_their_order() {
    const AT: usize = 8192;
    let mut pair = Pair::new("mapped-order", &PATIENT);
    pair.use_grant();
    let near = &mut pair.near;
    let remote = (near.remote.0 + AT as u64, near.remote.1);
    for round in 1..300_u64 {
        near.peer.receive();
        near.memory.copy_in(0, &round.to_ne_bytes());
        let [word, room] = [0, 64].map(|at| near.memory.sge(at, 8));
        let write = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[word]).remote(remote.0, remote.1);
        let send = Wr::send(2, &[word]);
        let add = Wr::new(3, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[room]);
        let add = add.atomic_at(remote.0, remote.1, 1 << 32, 0);
        near.side.qp.try_post_list(&[write, send, add]).unwrap();
        (1..=3).for_each(|wr_id| _ = near.side.send_cq.expect_success(wr_id));
        assert_eq!(read(&near.memory, 64, 8), round.to_ne_bytes());
        near.peer.completion();
        assert_eq!(near.peer.ask(&format!("word {AT}")), [u128::from(round | 1 << 32)]);
    }
    pair.near.peer.end();
}

/// The message finds no receive request until the peer posts one.
#[test]
fn a_request_without_packets_waits_for_a_message_before_it() {
    let mut pair = Pair::new("mapped-after-message", &PATIENT);
    pair.use_grant();
    let (before, word) = (pair.mapped_requests(), pair.near.peer.ask("word 0"));
    pair.near.memory.fill(0x5a);
    pair.near.side.qp.post(&pair.near.send(8));
    pair.near.side.qp.post(&pair.wr(Opcode::IBV_WR_RDMA_WRITE, 8));
    until("a refusal", || pair.device.counters().rcvd_rnr_err > 0);
    assert_eq!((pair.mapped_requests(), pair.near.peer.ask("word 0")), (before, word));
    pair.near.peer.receive();
    (0..2).for_each(|_| _ = pair.near.side.send_cq.expect_success(1));
    assert_eq!(pair.near.peer.ask("word 0"), [u128::from(u64::from_ne_bytes([0x5a; 8]))]);
    pair.near.peer.end();
}

/// The lengths are those of one packet, of the shortest request that is placed, and of longer ones. The last packet is
/// full, or not.
#[test]
fn a_long_write_with_immediate_is_executed_with_one_packet() {
    let mut pair = Pair::new("mapped-notice", &PATIENT);
    pair.use_grant();
    for (length, placed) in
        [(1024, 0), ((8 << 10) - 1, 0), (8 << 10, 1), (64 << 10, 1), (LENGTH, 1)]
    {
        let received = ["rcvd_pkts", "rcvd_bytes"].map(|name| pair.near.peer.counter(name));
        let before = pair.mapped_requests();
        pair.near.write(length, Some(0x1234_5678));
        assert_eq!(pair.mapped_requests(), before + placed, "{length} bytes");
        let found = ["rcvd_pkts", "rcvd_bytes"].map(|name| pair.near.peer.counter(name));
        assert_eq!(found, [received[0] + 1, received[1] + length as u64], "{length} bytes");
    }
    pair.near.peer.end();
}

/// Requests that a grant covers wait for such a WRITE. Others are sent after it.
#[test]
fn requests_keep_their_order_around_a_write_with_immediate() {
    const LONG: usize = 40_000;
    let mut pair = Pair::new("mapped-notice-order", &PATIENT);
    pair.use_grant();
    let near = &mut pair.near;
    for round in 0..100_u32 {
        near.peer.receive_all(4);
        near.memory.fill(round as u8);
        let part = |n: usize| near.memory.sge(n * 8, LONG);
        let wr = |wr_id, opcode, at: u64| {
            let wr = Wr::new(wr_id, opcode, &[part(wr_id as usize)]);
            wr.remote(near.remote.0 + at, near.remote.1)
        };
        let notice = |wr_id, at| wr(wr_id, Opcode::IBV_WR_RDMA_WRITE_WITH_IMM, at).with_imm(round);
        let add = Wr::new(3, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[near.memory.sge(90_000, 8)]);
        let wrs = [
            notice(0, 0),
            notice(1, 50_000),
            Wr::send(2, &[part(2)]),
            add.atomic_at(near.remote.0 + 99_992, near.remote.1, 1, 0),
            notice(4, 0),
        ];
        near.side.qp.try_post_list(&wrs).unwrap();
        (0..5).for_each(|wr_id| _ = near.side.send_cq.expect_success(wr_id));
        let sent =
            [Done::IBV_WC_RECV_RDMA_WITH_IMM.0; 4].map(|with_imm| (with_imm, LONG as u32, round));
        let found = [0; 4].map(|_| near.peer.completion());
        assert_eq!(found, [sent[0], sent[1], (Done::IBV_WC_RECV.0, LONG as u32, 0), sent[3]]);
        assert_eq!(read(&near.memory, 90_000, 8), u64::from(round).to_ne_bytes());
    }
    pair.near.peer.end();
}

/// Posts a WRITE with immediate data that finds no receive request. Returns its bytes.
fn post_unexpected(pair: &mut Pair) -> Vec<u8> {
    pair.use_grant();
    pair.near.fill(0x33);
    let before = pair.mapped_requests();
    pair.near.side.qp.post(&pair.wr(Opcode::IBV_WR_RDMA_WRITE_WITH_IMM, LENGTH).with_imm(5));
    // Not only sent: a refusal that arrives after the path has changed does not count.
    until("a refusal", || pair.device.counters().rcvd_rnr_err > 0);
    assert_eq!(pair.mapped_requests(), before + 1);
    read(&pair.near.memory, 0, LENGTH)
}

/// The bytes before the last packet are written, as those of a message that arrives in packets. The last packet is sent
/// again after each refusal.
#[test]
fn the_last_packet_of_a_write_with_immediate_waits_for_a_receive() {
    let mut pair = Pair::new("mapped-notice-wait", &PATIENT);
    let bytes = post_unexpected(&mut pair);
    let last = LENGTH / 1024 * 1024;
    assert_eq!(pair.near.peer.sum(8, last - 8), sum(&bytes[8..last]));
    assert_eq!(pair.near.peer.sum(last, LENGTH - last), sum(&vec![0; LENGTH - last]));
    pair.near.peer.receive();
    pair.near.side.send_cq.expect_success(1);
    let done = Done::IBV_WC_RECV_RDMA_WITH_IMM.0;
    assert_eq!(pair.near.peer.completion(), (done, LENGTH as u32, 5));
    assert_eq!(pair.near.peer.sum(0, LENGTH), sum(&bytes));
    pair.near.peer.end();
}

#[test]
fn a_write_with_immediate_fails_without_a_receive() {
    let mut pair = Pair::new("mapped-notice-rnr", &Knobs { rnr_retries: 1, ..PATIENT });
    post_unexpected(&mut pair);
    pair.near.side.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    pair.near.peer.receive();
    assert_eq!(pair.near.peer.counter("rdma_recvs"), 0);
    pair.near.peer.end();
}

/// The peer keeps the right to write, but loses that to read, and with it the grant.
#[test]
fn a_write_with_immediate_needs_no_right_to_read() {
    let mut pair = Pair::new("mapped-notice-unread", &HASTY);
    let bytes = post_unexpected(&mut pair);
    pair.near.peer.ask(&format!("permit {}", LOCAL_WRITE | REMOTE_WRITE));
    pair.near.peer.receive();
    pair.near.side.send_cq.expect_success(1);
    let done = Done::IBV_WC_RECV_RDMA_WITH_IMM.0;
    assert_eq!(pair.near.peer.completion(), (done, LENGTH as u32, 5));
    assert_eq!(pair.near.peer.sum(0, LENGTH), sum(&bytes));
    pair.near.peer.end();
}

/// The grant was valid when the bytes were written, but is revoked before the last packet is executed.
#[test]
fn the_last_packet_of_a_write_with_immediate_is_refused_after_a_revocation() {
    let permit = format!("permit {}", LOCAL_WRITE | REMOTE_READ);
    let cases = [
        ("mapped-notice-deregistered", "deregister", Status::IBV_WC_REM_ACCESS_ERR),
        ("mapped-notice-rights", &*permit, Status::IBV_WC_REM_INV_REQ_ERR),
        ("mapped-notice-error", "fail", Status::IBV_WC_RETRY_EXC_ERR),
    ];
    for (name, revoke, status) in cases {
        let mut pair = Pair::new(name, &HASTY);
        post_unexpected(&mut pair);
        pair.near.peer.ask(revoke);
        pair.near.peer.ask("receive_without_memory");
        pair.near.side.send_cq.expect(1, status);
        assert_eq!(pair.near.peer.counter("rdma_recvs"), 0, "{name}");
        pair.near.peer.kill();
    }
}

/// The last packet contains the number of bytes that this connection of two processes has written. Another route may
/// lead elsewhere, so the packet is not sent there. The peer is stopped and nothing limits the wait for its answer, but
/// the change of the route ends that wait.
#[test]
fn the_last_packet_of_a_write_with_immediate_takes_no_other_route() {
    let mut pair = Pair::new("mapped-notice-route", &PATIENT);
    post_unexpected(&mut pair);
    let near = &mut pair.near;
    near.peer.stop();
    assert_eq!(near.side.qp.to_state(ibv_qp_state::IBV_QPS_SQD), 0);
    let mut attr = attributes(&near.side.endpoint(), &near.far, &PATIENT);
    let nobody = Ipv4Addr::new(192, 0, 2, 77).to_ipv6_mapped().octets();
    attr.ah_attr.grh.dgid = ibv_gid { raw: nobody };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_AV;
    attr.qp_state = ibv_qp_state::IBV_QPS_SQD;
    assert_eq!(near.side.qp.modify(attr, mask.0), 0);
    near.side.send_cq.expect(1, Status::IBV_WC_LOC_QP_OP_ERR);
    near.peer.kill();
}

/// Many requests are in flight as packets when the grant arrives. Each is executed once, in order.
#[test]
fn a_stream_of_atomics_loses_and_repeats_none() {
    const DEPTH: usize = 8;
    let pair = Pair::new("mapped-stream", &PATIENT);
    let Near { side, memory, remote, .. } = &pair.near;
    let (mut posted, mut done) = (0, 0);
    let post = |posted: &mut usize| {
        // Each outstanding request has its own place for its result.
        let room = memory.sge(64 + 8 * (*posted % DEPTH), 8);
        let add = Wr::new(1, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[room]);
        side.qp.post(&add.atomic_at(remote.0, remote.1, 1, 0));
        *posted += 1;
    };
    let complete = |done: &mut usize| {
        side.send_cq.expect_success(1);
        let before = read(memory, 64 + 8 * (*done % DEPTH), 8);
        assert_eq!(before, (*done as u64).to_ne_bytes());
        *done += 1;
    };
    (0..DEPTH).for_each(|_| post(&mut posted));
    let mut left = None;
    until("requests without packets", || {
        complete(&mut done);
        post(&mut posted);
        if pair.mapped_requests() > 0 {
            left = Some(left.unwrap_or(100) - 1);
        }
        left == Some(0)
    });
    (0..DEPTH).for_each(|_| complete(&mut done));
    assert_eq!(posted, done);
    pair.near.peer.end();
}

/// A thread copies a part of them in each of its turns.
#[test]
fn long_messages_are_copied_in_parts() {
    const LONG: usize = (5 << 20) + 123;
    let mut pair = Pair::of_memory("mapped-long", &PATIENT, ALL_ACCESS, LONG);
    pair.use_grant();
    let bytes: Vec<u8> = (0..LONG).map(|at| (at % 251) as u8).collect();
    let memory = pair.near.side.pd.register_filled(bytes.clone(), ALL_ACCESS);
    let before = pair.mapped_requests();
    pair.near.peer.stop();
    let post = |opcode| {
        let wr = Wr::new(1, opcode, &[memory.sge(0, LONG)]);
        pair.near.side.qp.post(&wr.remote(pair.near.remote.0, pair.near.remote.1));
        // Later requests wait until all parts are copied.
        pair.request(Opcode::IBV_WR_RDMA_READ, 8);
    };
    let expect = || _ = pair.near.side.send_cq.expect_success(1);
    post(Opcode::IBV_WR_RDMA_WRITE);
    expect();
    assert_eq!(read(&pair.near.memory, 0, 8), bytes[..8]);
    memory.fill(0);
    post(Opcode::IBV_WR_RDMA_READ);
    expect();
    assert_eq!(memory.bytes(), bytes);
    assert_eq!(pair.mapped_requests(), before + 4);
    pair.near.peer.go_on();
    assert_eq!(pair.near.peer.sum(0, LONG), sum(&bytes));
    drop(memory);
    pair.near.peer.end();
}

/// The file of such a region cannot be written.
#[test]
fn a_region_to_read_is_mapped_for_reading_alone() {
    let mut pair = Pair::of_memory("mapped-read", &PATIENT, REMOTE_READ, LENGTH);
    until("a request without packets", || {
        pair.request(Opcode::IBV_WR_RDMA_READ, 8);
        pair.mapped_requests() > 0
    });
    pair.near.peer.stop();
    pair.request(Opcode::IBV_WR_RDMA_READ, LENGTH);
    pair.near.peer.go_on();
    pair.expect_refusal(Status::IBV_WC_REM_ACCESS_ERR);
    pair.near.peer.end();
}

#[test]
fn a_deregistered_region_is_not_written() {
    let mut pair = Pair::new("mapped-deregistered", &PATIENT);
    pair.use_grant();
    pair.near.peer.ask("deregister");
    pair.expect_refusal(Status::IBV_WC_REM_ACCESS_ERR);
    pair.near.peer.kill();
}

#[test]
fn memory_is_not_written_through_a_queue_pair_that_does_not_listen() {
    for (name, revoke) in
        [("mapped-error", "fail"), ("mapped-reset", "reset"), ("mapped-destroyed", "destroy")]
    {
        let mut pair = Pair::new(name, &HASTY);
        pair.use_grant();
        pair.near.peer.ask(revoke);
        pair.expect_refusal(Status::IBV_WC_RETRY_EXC_ERR);
        pair.near.peer.kill();
    }
}

#[test]
fn a_right_that_is_taken_away_is_not_used() {
    let mut pair = Pair::new("mapped-rights", &PATIENT);
    pair.use_grant();
    pair.near.peer.ask(&format!("permit {}", LOCAL_WRITE | REMOTE_READ));
    pair.expect_refusal(Status::IBV_WC_REM_INV_REQ_ERR);
    pair.near.peer.end();
}

/// A queue pair with fewer rights than the region gets no grant, because a process with the file could do whatever the
/// region permits.
#[test]
fn a_grant_conveys_no_more_than_the_queue_pair_permits() {
    let mut pair = Pair::new("mapped-fewer", &PATIENT);
    pair.near.peer.ask(&format!("permit {}", LOCAL_WRITE | REMOTE_WRITE));
    (0..100).for_each(|_| pair.near.write(1000, None));
    assert_eq!(pair.mapped_requests(), 0);
    pair.near.peer.ask(&format!("permit {ALL_ACCESS}"));
    pair.use_grant();
    // Each change revokes the grants, and another request gets new ones.
    pair.near.peer.ask(&format!("permit {ALL_ACCESS}"));
    pair.use_grant();
    pair.near.peer.end();
}

#[test]
fn nothing_is_written_past_a_port_that_is_down() {
    let name = "mapped-port";
    let mut pair = Pair::new(name, &HASTY);
    pair.use_grant();
    pair.near.peer.ask(&format!("port_down {name}"));
    pair.expect_refusal(Status::IBV_WC_RETRY_EXC_ERR);
    pair.near.peer.end();
}

#[test]
fn requests_fail_after_the_process_has_ended() {
    let mut pair = Pair::new("mapped-ended", &PATIENT);
    pair.use_grant();
    pair.near.peer.kill();
    let mut last = Status::IBV_WC_SUCCESS;
    until("a failure", || {
        pair.near.side.qp.post(&pair.wr(Opcode::IBV_WR_RDMA_WRITE, 8));
        last = pair.near.side.send_cq.next().status;
        last != Status::IBV_WC_SUCCESS
    });
    assert_eq!(last, Status::IBV_WC_RETRY_EXC_ERR);
}

/// The process of the region checks the address and the key.
#[test]
fn requests_that_no_grant_covers_are_refused() {
    for (name, past, key) in [("mapped-past", 1, 0), ("mapped-key", 0, 1)] {
        let pair = Pair::new(name, &PATIENT);
        pair.use_grant();
        let before = pair.mapped_requests();
        let wr = pair.wr(Opcode::IBV_WR_RDMA_WRITE, LENGTH);
        let (address, rkey) = pair.near.remote;
        pair.near.side.qp.post(&wr.remote(address + past, rkey ^ key));
        pair.near.side.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(pair.mapped_requests(), before);
        pair.near.peer.end();
    }
}

#[test]
fn a_process_whose_environment_forbids_it_maps_nothing() {
    let memory = format!("{ALL_ACCESS} {LENGTH}");
    let environment = [(MAPPED, &*memory), ("RDMA_SOFT_MAPPED", "0")];
    let mut pair = Pair::with("mapped-forbidden", &PATIENT, &environment);
    pair.near.all_of_it();
    assert_eq!(pair.mapped_requests(), 0);
    pair.near.peer.end();
}

/// Its kernel does not refuse the files with the memory of others.
#[test]
fn a_device_that_maps_nothing_ignores_grants() {
    in_own_process("local_link::mapped::a_device_that_maps_nothing_ignores_grants", || {
        if !is_emulated() {
            simulate_earlier_kernel();
        }
        let name = "mapped-ignored";
        let device = Builder::new(name).peers(Peers::SameUser).mapped(false).install().unwrap();
        let memory = format!("{ALL_ACCESS} {LENGTH}");
        let peer = Peer::start_with(&format!("/{name}"), &[(MAPPED, &memory)]);
        let mut near = Near::on(name, peer, ibv_qp_type::IBV_QPT_RC, &PATIENT);
        (0..10).for_each(|_| near.all_of_it());
        let counters = device.counters();
        assert_eq!((counters.mapped_requests, counters.unmapped_regions), (0, 0));
        near.peer.end();
    });
}

/// A program may keep the queue pair, which is in error.
#[test]
fn the_memory_of_a_process_that_has_ended_is_released() {
    in_own_process(
        "local_link::mapped::the_memory_of_a_process_that_has_ended_is_released",
        || {
            let mut pair = Pair::new("mapped-released", &PATIENT);
            pair.use_grant();
            let is_mapped = || {
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                maps.contains("/memfd:test ")
            };
            assert!(is_mapped());
            pair.near.peer.kill();
            until("released memory", || !is_mapped());
        },
    );
}

#[test]
fn without_descriptors_requests_go_as_packets() {
    let mut pair = Pair::new("mapped-limit", &PATIENT);
    // A quarter of the limit of open files, with the connection's own region.
    assert_eq!(pair.near.peer.ask("regions"), [15, 0]);
    assert_eq!(pair.near.peer.counter("unmapped_regions"), 1);
    pair.near.all_of_it();
    pair.near.peer.end();
}
