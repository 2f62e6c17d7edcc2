//! The link to other hosts, between two processes of this host, each at an address of the loopback interface. The tests
//! cover the traffic that it carries, and the harm that a stranger can do.
#![allow(clippy::cast_possible_truncation)]
#![allow(clippy::disallowed_methods)] // The programs' side has a clock of its own.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdma_soft::{Builder, InstallError, Link, Network, SoftDevice};
use rdma_sys::{
    Errno, ibv_qp_attr, ibv_qp_state, ibv_qp_type, ibv_wc_opcode as Done, ibv_wc_status as Status,
    ibv_wr_opcode,
};
use rdma_types::Gid;
use test_support::program::{in_own_process_with, is_emulated};
use test_support::rig::connect::{
    Endpoint, Knobs, RTR, Side, attributes, pair, pair_with, to_init,
};
use test_support::rig::datagram::{self, QKEY};
use test_support::rig::post::Wr;
use test_support::rig::{LOCAL_WRITE, Size, until};

use crate::two_processes::ends;
use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{self, ACCESS, LENGTH, Peer, network};

const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;

/// The kernel drops what does not fit into a socket buffer: packets are sent again after 67 ms.
const KNOBS: Knobs = Knobs { timeout: 14, ..PATIENT };

/// Returns unused addresses of the loopback interface, a new one for each call of this process.
pub(crate) fn address() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::from_bits(0x7f00_0000 | (std::process::id() & 0xffff) << 7 | count).to_string()
}

/// A device that listens, and a second process that listens too.
fn near(name: &'static str, qp_type: ibv_qp_type) -> Near {
    let peer = Peer::start_at(&address());
    Near::on(network(name, &address()), peer, qp_type, &KNOBS)
}

#[test]
fn a_reliable_connection_executes_every_operation() {
    let mut near = near("rc", RC);
    near.all_of_it();
    near.peer.end();
}

/// The sender waits for the configured retry time, however short its own timeout.
#[test]
fn a_stopped_process_loses_nothing_within_the_retry_time() {
    let time = Duration::from_secs(60);
    let device = Builder::new("patient").gids([]).listen(address()).retry_time(time);
    let hasty = Knobs { timeout: 1, retries: 1, ..PATIENT };
    let name = device.install().unwrap().name();
    let mut near = Near::on(name, Peer::start_at(&address()), RC, &hasty);
    near.message(8, None);
    near.peer.receive();
    near.peer.stop();
    near.side.qp.post(&near.send(8));
    // Its polls let time pass.
    let mut other = Near::new(RC);
    other.all_of_it();
    assert!(near.side.send_cq.is_empty());
    near.peer.go_on();
    near.side.send_cq.expect_success(1);
    near.peer.end();
    other.peer.end();
}

/// Sends to a stopped process, from a queue pair that would give up at once but retries for at least `least`.
fn is_retried_for(name: &'static str, least: Duration) {
    Builder::new(name).gids([]).listen(address()).install().unwrap();
    let hasty = Knobs { timeout: 1, retries: 1, ..PATIENT };
    let near = Near::on(name, Peer::start_at(&address()), RC, &hasty);
    near.peer.stop();
    let begin = Instant::now();
    near.side.qp.post(&near.send(8));
    near.side.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    near.peer.go_on();
    near.peer.end();
}

#[test]
fn a_request_to_a_silent_process_is_retried_for_two_seconds_by_default() {
    is_retried_for("usual", Duration::from_secs(2));
}

/// Longer than by default, which rounds to at most four seconds.
#[test]
fn the_environment_sets_the_retry_time() {
    let test = "udp_link::the_environment_sets_the_retry_time";
    let says = |program: &mut Command| _ = program.env("RDMA_SOFT_RETRY_TIME", "4.5");
    in_own_process_with(test, says, || is_retried_for("told", Duration::from_millis(4500)));
}

/// Each batch has the maximum size of one call. Both ends are in this process and share its socket.
#[test]
fn the_largest_packets_are_sent_in_batches() {
    let device = Builder::new("largest").gids([]).listen(address()).force_wire();
    device.install().unwrap();
    let knobs = Knobs { mtu: rdma_sys::ibv_mtu::IBV_MTU_4096, ..KNOBS };
    let (a, b) = pair_with("largest", &Size::default(), &knobs);
    let length = 1 << 20;
    let from = a.pd.register_filled((0..length as u32).map(|n| n as u8).collect(), LOCAL_WRITE);
    let (to, back) = (b.pd.register(length, ACCESS), a.pd.register(length, ACCESS));
    a.qp.post(&Wr::write(1, &[from.sge(0, length)], &to, 0));
    a.send_cq.expect_success(1);
    let read = Wr::new(2, ibv_wr_opcode::IBV_WR_RDMA_READ, &[back.sge(0, length)]);
    a.qp.post(&read.remote(to.address(), to.rkey()));
    a.send_cq.expect_success(2);
    let [there, here] = [&to, &back].map(|memory| peer::sum(&peer::read(memory, 0, length)));
    let sent = peer::sum(&peer::read(&from, 0, length));
    assert_eq!((there, here), (sent, sent));
    // Nothing was too long to send.
    assert_eq!(SoftDevice::find("largest").unwrap().counters().send_err, 0);
}

#[test]
fn an_unreliable_connection_sends_and_writes() {
    let mut near = near("uc", ibv_qp_type::IBV_QPT_UC);
    for length in [0, 1, 4096, LENGTH] {
        near.message(length, None);
        near.message(length, Some(9));
        near.write(length, Some(8));
    }
    near.peer.end();
}

#[test]
fn datagrams_arrive_with_their_source() {
    let own: Ipv4Addr = address().parse().unwrap();
    let device = network("ud", &own.to_string());
    let mut peer = Peer::start_at(&address());
    let side = datagram::side(device);
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
        // The source address in an IPv4 header.
        assert_eq!(peer.sum(32, 4), peer::sum(&own.octets()));
    }
    peer.end();
}

/// Each member in either process receives one copy.
#[test]
fn datagrams_to_a_group_reach_its_members_in_all_processes() {
    let device = network("groups", &address());
    // Of the peer's two addresses at one interface, one receives the group's datagrams.
    let mut peer = Peer::start_at(&format!("{},{}", address(), address()));
    let [sender, member] = [(); 2].map(|()| datagram::side(device));
    let memory = sender.pd.register_filled(vec![0xa5; 8], LOCAL_WRITE);
    let sink = member.pd.register(LENGTH, LOCAL_WRITE);
    let (far, _) = peer.make(ibv_qp_type::IBV_QPT_UD);
    peer.connect(&sender.endpoint());
    let group = Ipv4Addr::new(239, 255, 78, (std::process::id() & 0xff) as u8).to_ipv6_mapped();
    let group: Gid = group.octets().into();
    let raw = rdma_sys::ibv_gid { raw: group.to_bytes() };
    peer.join(group, true);
    assert_eq!(member.qp.attach(&raw, 0), 0);
    let ah = sender.pd.ah_to(&sender.endpoint(), &Endpoint { gid: raw, ..far });
    for imm in [1, 2] {
        peer.receive();
        member.qp.post_receive(2, &[sink.sge(0, LENGTH)]);
        let wr = Wr::send(1, &[memory.sge(0, 8)]).with_imm(imm);
        sender.qp.post(&wr.to(&ah, 0x00ff_ffff, QKEY));
        sender.send_cq.expect_success(1);
        assert_eq!(peer.completion(), (Done::IBV_WC_RECV.0, 48, imm));
        assert_eq!(peer.sum(datagram::HEADER, 8), peer::sum(&[0xa5; 8]));
        member.receive_cq.expect_success(2);
    }
    // The peer is no longer a member: the next message is addressed to it alone.
    peer.join(group, false);
    peer.receive();
    let to_far = sender.pd.ah_to(&sender.endpoint(), &far);
    let send = |to, qpn, imm| {
        sender.qp.post(&Wr::send(1, &[memory.sge(0, 8)]).with_imm(imm).to(to, qpn, QKEY));
        sender.send_cq.expect_success(1);
    };
    send(&ah, 0x00ff_ffff, 3);
    send(&to_far, far.qpn, 4);
    assert_eq!(peer.completion(), (Done::IBV_WC_RECV.0, 48, 4));
    assert_eq!(member.qp.detach(&raw, 0), 0);
    assert!(member.receive_cq.is_empty(), "without a receive request");
    peer.end();
}

/// The loopback interface has one IPv6 address: both ends are in this process and share its socket.
#[test]
fn connections_go_over_ipv6() {
    let device = Builder::new("v6").gids([]).listen("::1").force_wire().install();
    let device = match device {
        Err(InstallError::CannotListen { reason, .. }) if reason.contains("no such address") => {
            return eprintln!("this machine has no IPv6: {reason}");
        }
        device => device.unwrap(),
    };
    assert_eq!(device.gids()[0].to_string(), "::1");
    let (a, b) = pair("v6");
    let from = a.pd.register_filled((0..100_000_u32).map(|n| n as u8).collect(), LOCAL_WRITE);
    let to = b.pd.register(100_000, ACCESS);
    a.qp.post(&Wr::write(1, &[from.sge(0, 100_000)], &to, 0));
    a.send_cq.expect_success(1);
    let copied = peer::read(&to, 0, 100_000);
    assert_eq!(peer::sum(&copied), peer::sum(&peer::read(&from, 0, 100_000)));
}

/// One packet in twenty is lost.
#[test]
fn lost_packets_are_sent_again() {
    let peer = Peer::start_at(&address());
    let device = Builder::new("lossy").gids([]).listen(address()).lossy(0.05, 1);
    let device = device.retry_time(Duration::from_secs(60));
    let device = device.install().unwrap();
    let mut near = Near::on(device.name(), peer, RC, &KNOBS);
    // In an emulator each round takes seconds.
    let rounds = if is_emulated() { 2 } else { 10 };
    for _ in 0..rounds {
        near.all_of_it();
    }
    assert!(device.counters().local_ack_timeout_err + device.counters().rcvd_seq_err > 0);
    near.peer.end();
}

#[test]
fn a_peer_that_has_ended_is_not_waited_for() {
    let peer = Peer::start_at(&address());
    let device = Builder::new("alone").gids([]).listen(address()).install().unwrap();
    let mut near = Near::on(device.name(), peer, RC, &Knobs { retries: 2, ..KNOBS });
    near.peer.kill();
    near.side.qp.post(&near.send(8));
    near.expect_end();
}

#[test]
fn an_idle_connection_uses_no_processor() {
    let mut near = near("idle", RC);
    near.message(8, None);
    let ticks = near.peer.processor_time(1000);
    assert!(ticks <= 1, "{ticks}");
    near.peer.end();
}

/// The receiver's thread executes requests while the program does not poll.
#[test]
fn requests_to_a_process_that_does_not_poll_are_executed() {
    let mut near = near("one-sided", RC);
    for length in [8, 4096, LENGTH] {
        near.write(length, None);
        near.read(length);
    }
    near.peer.end();
}

fn cannot_listen(device: Builder) -> String {
    match device.install() {
        Err(InstallError::CannotListen { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_device_that_cannot_listen_states_the_reason() {
    let taken = address();
    network("first", &taken);
    let refused = |place: &str| cannot_listen(Builder::new("refused").listen(place));
    for (place, why) in [
        (&*taken, "is in use, by another process that listens there, or by the kernel's SoftRoCE"),
        ("192.0.2.77", "this host has no such address; it has "),
        ("2001:db8::77", "this host has no such address; it has "),
        ("0.0.0.0", "name an address of this host"),
        ("::", "name an address of this host"),
        ("224.0.0.9", "name an address of this host"),
        (
            "no-such-interface",
            "it is neither an IP address nor an interface of this host: there are ",
        ),
        ("", "it is neither an IP address nor an interface of this host: there are "),
        ("127.0.0.300", "it is neither an IP address nor an interface of this host: there are "),
    ] {
        let reason = refused(place);
        assert!(reason.contains(why), "{place}: {reason}");
    }
    // Nothing remains of the refused device: neither the name nor the first of two addresses.
    let free = address();
    refused(&format!("{free}, 192.0.2.77"));
    let mut installed = None;
    // Until its `exec`, a child that another test has forked keeps the socket at the first address.
    until("the first address is free", || {
        installed = Builder::new("refused").listen(&*free).install().ok();
        installed.is_some()
    });
    let device = installed.unwrap();
    assert_eq!(device.gids()[4].to_string(), format!("::ffff:{free}"));
    assert_eq!(device.gids().len(), 6);

    let infiniband = Builder::new("no-addresses").link(Link::InfiniBand).listen(address());
    assert!(cannot_listen(infiniband).contains("InfiniBand"));
    let simulated = Network::simulated(1);
    let simulated = Builder::new("no-host").network(&simulated).listen(address());
    assert!(cannot_listen(simulated).contains("simulated network"));
}

#[test]
fn an_address_without_route_is_unreachable() {
    let side = Side::new(network("routes", &address()), &Size::default(), 8);
    // The loopback interface has no route to a broadcast address or the unspecified address.
    for gid in ["::ffff:0.0.0.0", "::ffff:255.255.255.255"] {
        let gid: rdma_types::Gid = gid.parse().unwrap();
        let far = Endpoint { gid: rdma_sys::ibv_gid { raw: gid.to_bytes() }, ..side.endpoint() };
        let attr = attributes(&side.endpoint(), &far, &KNOBS);
        to_init(&side.qp, &attr);
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..attr };
        let refused = side.qp.modify(attr, RTR);
        assert!(
            [Errno::EHOSTUNREACH, Errno::EINVAL].map(Errno::raw).contains(&refused),
            "{refused}"
        );
    }
}

#[test]
fn datagrams_that_the_kernel_refuses_are_counted() {
    let device = network("refused-datagrams", &address());
    let side = datagram::side(device);
    // Sending there needs a socket with `SO_BROADCAST`.
    let everybody: Gid = "::ffff:255.255.255.255".parse().unwrap();
    let far = Endpoint { gid: rdma_sys::ibv_gid { raw: everybody.to_bytes() }, ..side.endpoint() };
    let ah = side.pd.ah_to(&side.endpoint(), &far);
    side.qp.post(&Wr::send(1, &[]).to(&ah, 9, QKEY));
    side.send_cq.expect_success(1);
    until("it is counted", || SoftDevice::find(device).unwrap().counters().send_err == 1);
}

/// A stranger's socket, which belongs to no device.
struct Stranger {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Stranger {
    fn at(place: &str) -> Self {
        let to = SocketAddr::new(place.parse().unwrap(), 4791);
        Self { socket: UdpSocket::bind((address(), 0)).unwrap(), to }
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.to).unwrap();
    }
}

/// Random datagrams, and packets with a wrong ICRC, are counted and affect no queue pair.
#[test]
fn invalid_packets_are_dropped() {
    let place = address();
    let device = network("victim", &place);
    let mut near = Near::on(device, Peer::start_at(&address()), RC, &KNOBS);
    let stranger = Stranger::at(&place);
    let mut state = 0x9e37_79b9_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let counters = || SoftDevice::find(device).unwrap().counters();
    let dropped = || {
        let now = counters();
        now.malformed + now.rx_icrc_encapsulated + now.unknown_qp + now.bad_pkey_cntr
    };
    let qpn = near.side.qp.number();
    for n in 0..20_000_u64 {
        let length = (random() % 1500) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if length >= 16 && n % 2 == 0 {
            // Packets to the queue pair, with each of the opcodes.
            bytes[..4].copy_from_slice(&[(random() % 0x80) as u8, 0, 0xff, 0xff]);
            bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
            bytes.truncate(length / 4 * 4);
        }
        stranger.send(&bytes);
        if n % 1000 == 0 {
            near.message(1000, Some(n as u32));
        }
    }
    // The kernel drops what does not fit into a socket buffer.
    until("dropped packets", || dropped() > 5_000);
    near.all_of_it();
    near.peer.end();
}

/// Stops the background work when dropped, also if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stranger's endless packets to an unknown queue pair number do not hold up peers that use another socket.
#[test]
fn a_flood_to_an_unknown_queue_pair_holds_up_no_peer() {
    let place = address();
    network("flooded", &place);
    let mut near = near("spared", RC);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stranger = Stranger::at(&place);
            while !ended.load(Ordering::Relaxed) {
                stranger.send(&[0; 64]);
            }
        });
        let _end = End(&ended);
        for length in [1, 1000, LENGTH] {
            near.message(length, None);
            near.write(length, None);
            near.read(length);
        }
    });
    near.peer.end();
}

/// One address for each side of all connections, which are one after the other.
fn ends_of(name: &'static str) -> impl Fn() -> Near {
    let (device, far) = (network(name, &address()), address());
    move || Near::on(device, Peer::start_at(&far), RC, &KNOBS)
}

#[test]
fn messages_received_by_a_process_before_it_ends_are_acknowledged() {
    ends::receivers_end(ends_of("receivers"));
}

#[test]
fn messages_sent_by_a_process_before_it_ends_arrive() {
    ends::senders_end(ends_of("senders"));
}
