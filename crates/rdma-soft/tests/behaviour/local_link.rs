//! The link between processes: the traffic that it carries, and the harm that a process of the same user can do to
//! others. The second process is another instance of this program, and executes commands from its standard input.
#![allow(clippy::cast_possible_truncation)]
#![allow(clippy::disallowed_methods)] // Tests measure on their own.

mod attacker;
mod awaited;
mod fuse;
mod garbage;
mod grants;
mod hostile;
pub(crate) mod mapped;
mod names;
mod neighbours;
mod not_ready;
mod order;
mod random;
mod receiver;
mod ring;
mod stopped;
mod with_files;

use std::collections::BTreeSet;
use std::time::Instant;

use rdma_sys::{
    Errno, ibv_qp_attr, ibv_qp_state, ibv_qp_type, ibv_wc_opcode as Done, ibv_wr_opcode as Opcode,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::{in_own_process, is_emulated};
use test_support::rig::connect::{Endpoint, Knobs, RTR, Side, attributes, connect, to_init};
use test_support::rig::datagram::{self, QKEY};
use test_support::rig::post::Wr;
use test_support::rig::{Size, imm_of};

use crate::two_processes::ends;
use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{self, ACCESS, LENGTH, Peer};
use crate::two_processes::process::memory_in_use;
use hostile::{Head, Single, name_of, slot_of};
use ring::{Connection, connect_to, wait_until_closed};

#[test]
fn a_reliable_connection_executes_every_operation() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.all_of_it();
    near.peer.end();
}

/// Each thread polls its own completion queues, and executes what arrives for any of them. They read from several rings at
/// the same time, and from one ring in turns.
#[test]
fn threads_with_a_process_each_execute_every_operation_at_the_same_time() {
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
                (0..5).for_each(|_| near.all_of_it());
                near.peer.end();
            });
        }
    });
}

#[test]
fn an_unreliable_connection_sends_and_writes() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_UC);
    for length in [0, 1, 4096, LENGTH] {
        near.message(length, None);
        near.message(length, Some(9));
        near.write(length, Some(8));
    }
    near.peer.end();
}

#[test]
fn datagrams_arrive_with_their_source() {
    rdma_soft::install();
    let mut peer = Peer::start();
    let side = datagram::side("soft0");
    let memory = side.pd.register_filled(vec![0xa5; datagram::MTU], ACCESS);
    let (far, _) = peer.make(ibv_qp_type::IBV_QPT_UD);
    peer.connect(&side.endpoint());
    let ah = side.pd.ah_to(&side.endpoint(), &far);
    for length in [0, 1, datagram::MTU] {
        peer.receive();
        let wr = Wr::send(1, &[memory.sge(0, length)]).with_imm(5);
        side.qp.post(&wr.to(&ah, far.qpn, QKEY));
        side.send_cq.expect_success(1);
        let in_all = (datagram::HEADER + length) as u32;
        assert_eq!(peer.completion(), (Done::IBV_WC_RECV.0, in_all, 5));
        assert_eq!(peer.sum(datagram::HEADER, length), peer::sum(&vec![0xa5; length]));
    }
    // To a number that no process has, which is no error for the sender.
    let nobody = nobody();
    side.qp.post(&Wr::send(2, &[]).to(&ah, nobody, QKEY));
    side.send_cq.expect_success(2);
    peer.end();
}

/// More datagrams at once than the link has space for: they wait until the receiving process has read them.
#[test]
fn datagrams_arrive_that_are_sent_faster_than_they_are_read() {
    const COUNT: usize = 500;
    rdma_soft::install();
    let mut peer = Peer::start();
    let size = Size { send_wr: 512, ..datagram::size() };
    let side = Side::new("soft0", &size, 1024);
    datagram::activate(&side.qp, QKEY);
    let memory = side.pd.register_filled(vec![0xa5; 1024], ACCESS);
    let (far, _) = peer.make(ibv_qp_type::IBV_QPT_UD);
    peer.connect(&side.endpoint());
    let ah = side.pd.ah_to(&side.endpoint(), &far);
    peer.receive_all(COUNT);
    let wr = Wr::send(1, &[memory.sge(0, 1024)]).to(&ah, far.qpn, QKEY);
    side.qp.try_post_list(&vec![wr; COUNT]).unwrap();
    (0..COUNT).for_each(|_| _ = side.send_cq.expect_success(1));
    peer.complete_all(COUNT);
    peer.end();
}

/// A queue pair number of a slot that no process has.
fn nobody() -> u32 {
    let taken = std::fs::read_to_string("/proc/net/unix").unwrap();
    let free = |slot: &u32| !taken.contains(&name_of(*slot));
    ((0..0x1000).rev().find(free).unwrap() << 12) | 5
}

/// Connecting succeeds, as it would have done just before the process ended.
#[test]
fn requests_to_a_number_that_no_process_has_fail() {
    rdma_soft::install();
    let mut peer = Peer::start();
    let (ended, _) = peer.make(ibv_qp_type::IBV_QPT_RC);
    peer.end();
    for number in [ended.qpn, nobody()] {
        let side = Side::new("soft0", &Size::default(), 8);
        let far = Endpoint { qpn: number, ..side.endpoint() };
        connect(&side.qp, &side.endpoint(), &far, &Knobs::prompt());
        side.expect_unreachable();
    }
}

/// The system would end a process that creates a longer file (`ulimit -f`).
#[test]
fn a_connection_whose_ring_is_longer_than_a_file_may_be_is_refused() {
    let test = "local_link::a_connection_whose_ring_is_longer_than_a_file_may_be_is_refused";
    in_own_process(test, || {
        rdma_soft::install();
        let mut peer = Peer::start();
        let (far, _) = peer.make(ibv_qp_type::IBV_QPT_RC);
        let side = Side::new("soft0", &Size::default(), 8);
        let attr = attributes(&side.endpoint(), &far, &PATIENT);
        to_init(&side.qp, &attr);
        let limit = getrlimit(Resource::Fsize);
        for (current, result) in [(ring::SIZE - 1, Errno::EFBIG.raw()), (ring::SIZE, 0)] {
            setrlimit(Resource::Fsize, Rlimit { current: Some(current), ..limit }).unwrap();
            let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..attr };
            assert_eq!(side.qp.modify(attr, RTR), result, "{current} bytes");
        }
        peer.end();
    });
}

/// One of each kind. The connection is closed and counted, and no other is affected.
#[test]
fn invalid_messages_end_only_their_own_connection() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let name = name_of(slot_of(near.far.qpn));
    let fine = Head::new(near.far.qpn);
    let mut kinds: Vec<Vec<u8>> = [1, 16, 95].map(|length| fine.bytes(0)[..length].to_vec()).into();
    kinds.push(vec![0; 96]);
    kinds.push(vec![0xff; 96]);
    kinds.push(Head { version: 1, ..fine }.bytes(0));
    kinds.push(Head { flags: 0x80, ..fine }.bytes(0));
    kinds.push(Head { flags: 2, ..fine }.bytes(0));
    kinds.push(Head { indices: [0xff, 0], ..fine }.bytes(0));
    kinds.push(Head { said: 5, ..fine }.bytes(4));
    kinds.push(Head { said: u32::MAX, ..fine }.bytes(0));
    kinds.push(Head { segments: 0, ..fine }.bytes(0));
    kinds.push(Head { segments: 5, ..fine }.bytes(0));
    kinds.push(Head { flags: 1, segments: 5, segment: 0, said: 9, ..fine }.bytes(9));
    kinds.push(Head { flags: 1, segments: 2, segment: 5000, said: 5001, ..fine }.bytes(5001));
    kinds.push(Head { segment: 4097, said: 4097, ..fine }.bytes(4097));
    let long = (64 << 10) + 1;
    let packets = Head { flags: 1, segment: 1024, segments: 65, ..fine };
    kinds.push(Head { said: long, ..packets }.bytes(long as usize));
    kinds.push(fine.bytes(100_000));
    // After a burst that a device could have sent: nothing of the message is accepted.
    let whole = Head { qpn: 0x00ab_cdef, ..fine }.bytes(0);
    let behind = |bytes: &[u8]| [&whole, bytes].concat();
    kinds.extend([1, 95].map(|length| behind(&whole[..length])));
    kinds.push(behind(&[0; 96]));
    kinds.push(behind(&[0xff; 96]));
    kinds.push(behind(&Head { said: 5, ..fine }.bytes(4)));
    kinds.push(behind(&Head { said: u32::MAX, ..fine }.bytes(0)));
    kinds.push(behind(&fine.bytes(1)));
    kinds.push(whole.repeat(9));
    let kinds = kinds.iter().map(|kind| [&[0; 16], &kind[..]].concat());
    // Each begins in the gap.
    let fine_single = Single::new(near.far.qpn, 0);
    let (single, with_data) = (Single::bytes, |length| fine_single.bytes(&vec![0; length]));
    let singles = [
        single(&Single { flags: 8 | Single::FLAG, ..fine_single }, &[]),
        single(&Single { flags: Single::WITH_IMMEDIATE, ..fine_single }, &[]),
        single(&Single { reserved: 1, ..fine_single }, &[]),
        single(&Single { indices: [0xff, 0], ..fine_single }, &[]),
        single(&Single { indices: [0, 0xff], ..fine_single }, &[]),
        single(&Single { qpn: 0x00ff_ffff, ..fine_single }, &[]),
        single(&Single { qpn: near.far.qpn | 1 << 24, ..fine_single }, &[]),
        single(&Single { psn: 1 << 24, ..fine_single }, &[]),
        single(&Single { word: 0, ..fine_single }, &[]),
        with_data(4097),
        with_data(100_000),
        with_data(0)[..Single::HEAD - 1].to_vec(),
        with_data(0)[..16].to_vec(),
    ];
    let mut count = 0;
    for kind in kinds.chain(singles) {
        let mut to = Connection::to(&name);
        // The connection may be closed before the notification.
        to.try_send_with_gap(&kind);
        to.wait_until_closed();
        near.message(3000, None);
        count += 1;
    }
    assert_eq!(near.peer.counter("malformed"), count);
    assert_eq!(near.peer.counter("unknown_qp"), 0);
    // Empty messages, before the first message and after it.
    let before = near.peer.files();
    let socket = connect_to(&name).unwrap();
    assert!(ring::say(&socket, &[], &[]));
    wait_until_closed(&socket);
    let to = Connection::to(&name);
    assert!(ring::say(&to.socket, &[], &[]));
    to.wait_until_closed();
    assert_eq!(near.peer.counter("malformed"), count);
    near.peer.until_files(before);
    // Files with a notification.
    let mut to = Connection::to(&name);
    let message = Head { qpn: 0x00ab_cdef, ..fine }.bytes(0);
    assert!(to.send_with_files(&message));
    to.wait_until_closed();
    near.peer.until_counter("unknown_qp", 1);
    near.peer.until_files(before);
    assert_eq!(near.peer.counter("malformed"), count + 1);
    let mut to = Connection::to(&name);
    to.send_all(&message);
    near.peer.until_counter("unknown_qp", 2);
    // The maximum number of bursts.
    to.send_all(&whole.repeat(8));
    near.peer.until_counter("unknown_qp", 10);
    near.all_of_it();
    near.peer.end();
}

/// Heads that a device could have sent, with random contents, for queue pairs of each kind.
#[test]
fn packets_of_any_content_touch_only_granted_memory() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let name = name_of(slot_of(near.far.qpn));
    let victims = near.peer.victims(&near.side.endpoint());
    let mut random = hostile::Random(0x9e37_79b9_7f4a_7c15);
    let mut to = Connection::to(&name);
    for round in 0..30_000_u32 {
        let qpn = victims[round as usize % victims.len()];
        let mut bytes = [&[0; 16], &hostile::plausible(&mut random, qpn)[..]].concat();
        for _ in 0..random.below(4) {
            bytes.extend(hostile::plausible(&mut random, qpn));
        }
        if random.below(4) == 0 {
            bytes = hostile::plausible_single(&mut random, qpn);
        }
        if to.is_closed() || !to.try_send_with_gap(&bytes) {
            to = Connection::patiently_to(&name);
        }
        if round % 5000 == 0 {
            near.message(5000, Some(round));
            near.read(LENGTH);
        }
    }
    drop(to);
    near.all_of_it();
    near.peer.expect_untouched();
    near.peer.end();
}

#[test]
fn endless_connections_get_only_their_share() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let name = name_of(slot_of(near.far.qpn));
    // The valid connection exists.
    near.message(1, None);
    let before = near.peer.files();
    // Some of them with rings, some silent.
    let mut open = (Vec::new(), Vec::new());
    for _ in 0..100 {
        open.0.push(ring::connect_patiently(&name));
        open.1.push(Connection::patiently_to(&name));
    }
    // The limit for this process includes its valid connection.
    near.peer.until_counter("refused_connections", 200 - 63);
    near.peer.until_files(before + 63);
    near.all_of_it();
    drop(open);
    near.peer.until_files(before);
    for _ in 0..1500 {
        drop(ring::connect_patiently(&name));
        drop(Connection::patiently_to(&name));
    }
    near.peer.until_files(before);
    near.all_of_it();
    near.peer.end();
}

/// A process at its descriptor limit sleeps, and continues when descriptors are available.
#[test]
fn connections_that_find_no_descriptor_wait() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.all_of_it();
    near.peer.allow_files(false);
    let name = name_of(slot_of(near.far.qpn));
    let waiting = connect_to(&name).unwrap();
    let used = near.peer.processor_time(1000);
    assert!(used <= 20 || is_emulated(), "{used} of 100 ticks");
    near.all_of_it();
    near.peer.allow_files(true);
    let mut to = Connection::new(waiting);
    to.send_all(&Head { qpn: 0x00ab_cdef, ..Head::new(0) }.bytes(0));
    near.peer.until_counter("unknown_qp", 1);
    near.peer.end();
}

#[test]
fn an_idle_connection_uses_no_processor() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.all_of_it();
    let used = near.peer.processor_time(2000);
    assert!(used <= 4 || is_emulated(), "{used} of 200 ticks");
    near.all_of_it();
    near.peer.end();
}

/// The data that waits for the stopped process is bounded, and a connection to another process continues. The stopped
/// process gets everything after it continues.
#[test]
fn a_stopped_process_holds_up_no_other() {
    let (mut stopped, mut other) =
        (Near::new(ibv_qp_type::IBV_QPT_RC), Near::new(ibv_qp_type::IBV_QPT_RC));
    stopped.peer.stop();
    let before = memory_in_use();
    let wr = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[stopped.memory.sge(0, LENGTH)]);
    let wr = wr.remote(stopped.remote.0, stopped.remote.1);
    let posted = (0..).take_while(|_| stopped.side.qp.try_post(&wr) == 0).take(1000).count();
    assert!(posted > 0);
    other.all_of_it();
    assert!(stopped.side.send_cq.is_empty());
    let more = memory_in_use().saturating_sub(before);
    // Other tests of this process run meanwhile.
    assert!(more < 64 << 20, "{more} bytes");
    stopped.peer.go_on();
    for _ in 0..posted {
        stopped.side.send_cq.expect_success(1);
    }
    stopped.all_of_it();
    // It ends while it is stopped, in the middle of incoming data.
    stopped.peer.stop();
    stopped.side.qp.post(&wr);
    stopped.peer.kill();
    stopped.expect_end();
    other.all_of_it();
    other.peer.end();
}

#[test]
fn the_end_of_a_process_fails_the_requests_that_wait_for_it() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.all_of_it();
    near.wait();
    let begin = Instant::now();
    near.peer.kill();
    near.expect_end();
    println!("the end of a process is reported {:?} after it was killed", begin.elapsed());
}

/// The child does not keep the slot either.
#[test]
fn a_forked_child_does_not_hide_the_end_of_its_parent() {
    if is_emulated() {
        return; // a child that a process of several threads forks may hang there
    }
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.all_of_it();
    near.peer.fork();
    near.wait();
    near.peer.kill();
    near.expect_end();
    assert!(connect_to(&name_of(slot_of(near.far.qpn))).is_err(), "the child has the slot");
}

/// Each process has its own slots, and a device of the same name and address.
#[test]
fn processes_have_separate_numbers_and_a_common_address() {
    let nears = [(); 4].map(|()| Near::new(ibv_qp_type::IBV_QPT_RC));
    let slots: BTreeSet<u32> = nears.iter().map(|near| slot_of(near.far.qpn)).collect();
    assert_eq!(slots.len(), nears.len());
    for near in &nears {
        let own = near.side.endpoint();
        assert_eq!(datagram::gid_of(&own.gid), datagram::gid_of(&near.far.gid));
    }
    nears.into_iter().for_each(|near| near.peer.end());
}

/// The completion of a message contains its length and immediate data.
#[test]
fn messages_are_echoed() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.side.qp.post_receive(3, &[near.memory.sge(0, LENGTH)]);
    near.peer.send(LENGTH, 0x0102_0304);
    let wc = near.side.receive_cq.expect_success(3);
    assert_eq!((wc.byte_len as usize, imm_of(&wc)), (LENGTH, 0x0102_0304));
    assert_eq!(near.peer.sum(0, LENGTH), peer::sum(&peer::read(&near.memory, 0, LENGTH)));
    near.peer.end();
}

/// The program receives a message by its first poll, and then makes no post and no other poll. It stays idle, destroys
/// its queue pair, or exits.
#[test]
fn a_received_message_is_acknowledged_without_further_polls() {
    for ending in ["completion", "completion_and_destroy", "completion_and_exit"] {
        let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
        for _ in 0..3 {
            near.peer.receive();
            near.side.qp.post(&near.send(8));
            near.peer.completion();
            near.side.send_cq.expect_success(1);
        }
        near.peer.receive();
        near.side.qp.post(&near.send(8));
        near.peer.begin_last(ending);
        near.side.send_cq.expect_success(1);
    }
}

/// Each of them sends after it has received the other's message: its acknowledgement leaves with that.
#[test]
fn messages_go_back_and_forth() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    near.peer.begin("trips 500");
    let sge = [near.memory.sge(0, 8)];
    for _ in 0..500 {
        near.side.qp.post_receive(3, &sge);
        near.side.qp.post(&Wr::send(1, &sge));
        near.side.receive_cq.expect_success(3);
        near.side.send_cq.expect_success(1);
    }
    near.peer.finish();
    near.peer.end();
}

#[test]
fn messages_received_by_a_process_before_it_ends_are_acknowledged() {
    ends::receivers_end(|| Near::new(ibv_qp_type::IBV_QPT_RC));
}

#[test]
fn messages_sent_by_a_process_before_it_ends_arrive() {
    ends::senders_end(|| Near::new(ibv_qp_type::IBV_QPT_RC));
}
