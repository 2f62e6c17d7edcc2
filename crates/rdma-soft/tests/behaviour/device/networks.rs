//! Networks in virtual time: their effects on packets, and that each run is the same.

use std::any::Any;
use std::time::Duration;

use rdma_soft::{Builder, Link, LinkModel, Network, Schedule, SoftDevice};
use rdma_sys::ibv_wc_status as Status;

use crate::device::rig::connect::{Knobs, Side, connect_sides, connect_unreliably};
use crate::device::rig::datagram;
use crate::device::rig::post::Wr;
use crate::device::rig::srq::Server;
use crate::device::rig::{ALL_ACCESS, Context, Mr, Size};

const US: Duration = Duration::from_micros(1);
const PATIENT: Knobs = Knobs { timeout: 9, retries: 7, rnr_retries: 7, ..KNOBS };
const KNOBS: Knobs = Knobs {
    access: ALL_ACCESS,
    mtu: rdma_sys::ibv_mtu::IBV_MTU_1024,
    psn: 7,
    timeout: 8,
    retries: 2,
    rnr_retries: 7,
    min_rnr_timer: 1,
    rd_atomic: 4,
};

fn install(network: &Network, name: &str, link: Link) -> SoftDevice {
    Builder::new(name).link(link).network(network).install().unwrap()
}

fn pair(names: [&str; 2], knobs: &Knobs) -> [Side; 2] {
    let size = Size { send_wr: 64, receive_wr: 64, ..Size::default() };
    let [a, b] = names.map(|name| Side::new(name, &size, 256));
    connect_sides(&a, &b, knobs);
    [a, b]
}

/// All link faults happen, and no request is lost.
fn traffic(network: &Network, names: [&str; 2]) {
    let [a, b] = pair(names, &PATIENT);
    const LENGTH: usize = 20_000;
    let bytes = (0..LENGTH).map(|n| (n / 7) as u8).collect();
    let source = a.pd.register_filled(bytes, ALL_ACCESS);
    let sink = b.pd.register(LENGTH, ALL_ACCESS);
    let back = a.pd.register(LENGTH, ALL_ACCESS);
    let word = b.pd.register(8, ALL_ACCESS);
    for n in 0..20 {
        b.qp.post_receive(n, &[sink.sge(0, LENGTH)]);
        a.qp.post(&Wr::write(n, &[source.sge(0, LENGTH)], &sink, 0).unsignaled());
        a.qp.post(&Wr::read(100 + n, &[back.sge(0, LENGTH)], &sink, 0));
        a.qp.post(&Wr::send(200 + n, &[source.sge(0, 5_000)]));
        let sum = [back.sge(0, 8)];
        a.qp.post(&Wr::fetch_add(300 + n, &sum, &word, 0, 1));
        for id in [100, 200, 300] {
            a.send_cq.expect_success(id + n);
        }
        assert_eq!(back.bytes()[..8], n.to_ne_bytes(), "once each");
        assert_eq!(b.receive_cq.expect_success(n).byte_len, 5_000);
        assert_eq!(source.bytes(), sink.bytes());
        assert_eq!(source.bytes()[8..], back.bytes()[8..]);
    }
    assert!(network.packets() > 20 * 46);
}

fn bad() -> LinkModel {
    let model = LinkModel::new().latency(10 * US).jitter(5 * US).bandwidth(1_000_000_000);
    model.loss(0.03).duplication(0.03).reordering(0.03).corruption(0.03)
}

#[test]
fn a_bad_network_is_recovered_from_and_the_same_each_time() {
    for link in [Link::Ethernet, Link::InfiniBand] {
        let run = |seed| {
            let network = Network::simulated(seed);
            network.set_all_links(bad());
            let names = match link {
                Link::InfiniBand => ["net-bad-ib-a", "net-bad-ib-b"],
                _ => ["net-bad-a", "net-bad-b"],
            };
            let [a, _b] = names.map(|name| install(&network, name, link));
            traffic(&network, names);
            let counters = a.counters();
            assert!(counters.completer_retry_err > 0, "nothing was sent again");
            assert!(counters.rx_icrc_encapsulated > 0, "nothing was damaged");
            (network.trace(), network.now(), network.packets())
        };
        let first = run(1);
        assert_eq!(first, run(1));
        assert_ne!(first.0, run(2).0);
    }
}

#[test]
fn a_timeout_takes_only_virtual_time() {
    let network = Network::simulated(3);
    let names = ["net-cut-a", "net-cut-b"];
    let [there, _] = names.map(|name| install(&network, name, Link::Ethernet));
    // Two seconds each.
    let [a, _b] = pair(names, &Knobs { timeout: 19, retries: 1, ..KNOBS });
    network.set_all_links(LinkModel::cut());
    a.qp.post(&Wr::send(1, &[]));
    while there.in_flight(a.qp.qpn()) > 0 {
        assert!(network.step());
    }
    a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    assert!(network.now() > Duration::from_secs(4), "{:?}", network.now());
    assert!(!network.step(), "there is nothing left");
}

/// One direction is cut: the requests arrive, but their acknowledgements do not, until it is restored.
#[test]
fn a_link_has_two_directions() {
    let network = Network::simulated(4);
    let names = ["net-way-a", "net-way-b"];
    let [x, y] = names.map(|name| install(&network, name, Link::Ethernet));
    let [a, b] = pair(names, &PATIENT);
    network.set_link(&y, &x, LinkModel::cut()).unwrap();
    b.qp.post_receive(5, &[]);
    a.qp.post(&Wr::send(1, &[]));
    b.receive_cq.expect_success(5);
    network.run_for(10 * US);
    assert!(a.send_cq.is_empty());
    network.set_link(&y, &x, LinkModel::new()).unwrap();
    a.send_cq.expect_success(1);
    assert!(b.receive_cq.is_empty());
}

/// More datagrams than a link has space for: later ones leave as earlier ones arrive, and no post waits for that.
#[test]
fn datagrams_wait_for_space_on_a_long_link() {
    const COUNT: u64 = 1000;
    let network = Network::simulated(8);
    network.set_all_links(LinkModel::new().latency(Duration::from_millis(1)));
    let names = ["net-room-a", "net-room-b"];
    let [there, _] = names.map(|name| install(&network, name, Link::Ethernet));
    let sides = names.map(|name| {
        let size = Size { send_wr: 1024, receive_wr: 1024, ..datagram::size() };
        let side = Side::new(name, &size, 2048);
        datagram::activate(&side.qp, datagram::QKEY);
        side
    });
    let [a, b] = &sides;
    let memory = b.pd.register(datagram::HEADER, ALL_ACCESS);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    for n in 0..COUNT {
        b.qp.post_receive(n, &[memory.sge(0, datagram::HEADER)]);
        a.qp.post(&Wr::send(n, &[]).to(&ah, b.qp.number(), datagram::QKEY));
    }
    assert!(there.in_flight(a.qp.qpn()) > 0, "all of them fit into the link");
    for n in 0..COUNT {
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
    assert_eq!(network.packets(), COUNT);
    assert!(!network.step());
}

/// A receive that was consumed by a message lost half-way is used for the next one. A WRITE that is refused meanwhile
/// does not consume it.
#[test]
fn a_refused_write_leaves_the_receive_of_a_message_that_was_lost() {
    let network = Network::simulated(9);
    let names = ["net-lost-a", "net-lost-b"];
    let devices = names.map(|name| install(&network, name, Link::Ethernet));
    let size = Size { qp_type: rdma_sys::ibv_qp_type::IBV_QPT_UC, ..Size::default() };
    let a = Side::new(names[0], &size, 64);
    let server = Server::new(names[1], 4);
    let qp = server.pd.qp_with_srq(&server.send_cq, &server.receive_cq, &size, &server.srq);
    let there = crate::device::rig::connect::endpoint(&server.context, &qp);
    connect_unreliably(&a.qp, &a.endpoint(), &there, &KNOBS);
    connect_unreliably(&qp, &there, &a.endpoint(), &KNOBS);
    const LENGTH: usize = 1 << 20;
    let source = a.pd.register(LENGTH, ALL_ACCESS);
    let sink = server.pd.register(LENGTH, ALL_ACCESS);
    server.srq.post(5, &[sink.sge(0, LENGTH)]);
    a.qp.post(&Wr::send(1, &[source.sge(0, LENGTH)]));
    network.run_for(3 * US);
    let [from, to] = &devices;
    network.set_link(from, to, LinkModel::cut()).unwrap();
    network.run_for(1000 * US);
    a.send_cq.expect_success(1);
    network.set_link(from, to, LinkModel::new()).unwrap();
    let nowhere = Wr::new(2, rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[source.sge(0, 8)]);
    a.qp.post(&nowhere.remote(sink.address(), sink.rkey() ^ 1));
    network.run_for(100 * US);
    assert!(server.receive_cq.is_empty());
    a.qp.post(&Wr::send(3, &[source.sge(0, 8)]));
    assert_eq!(server.receive_cq.expect_success(5).byte_len, 8);
    drop(qp);
}

#[test]
fn networks_are_separate_and_release_their_names() {
    let [one, other] = [5, 5].map(Network::simulated);
    let taken = install(&one, "net-apart", Link::Ethernet);
    let again = Builder::new("net-apart").network(&other).install();
    assert!(again.unwrap_err().to_string().contains("net-apart"));
    let there = install(&other, "net-apart-too", Link::Ethernet);
    let error = one.set_link(&taken, &there, LinkModel::new()).unwrap_err();
    assert!(error.to_string().contains("net-apart-too"));
    let [a, _b] = pair(["net-apart", "net-apart-too"], &KNOBS);
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    // Open contexts continue to work.
    let context = Context::open("net-apart");
    drop(one);
    assert!(SoftDevice::find("net-apart").is_none());
    context.cq(1);
    install(&other, "net-apart", Link::Ethernet);
    assert_eq!(context.name(), "net-apart");
}

/// A list that was made before still has its devices.
#[test]
fn a_device_of_a_network_that_has_ended_is_not_opened() {
    let network = Network::simulated(21);
    install(&network, "net-ended", Link::Ethernet);
    let list = test_support::rig::device::List::new();
    let open = list.open("net-ended").unwrap();
    drop(network);
    assert_eq!(list.open("net-ended").err(), Some(rdma_sys::Errno::ENODEV));
    // An open context continues to work, and is closed later.
    open.cq(1);
    drop(open);
    assert_eq!(list.open("net-ended").err(), Some(rdma_sys::Errno::ENODEV));
}

/// Its file is then complete, and free for another use.
#[test]
fn the_capture_of_a_network_that_has_ended_is_closed() {
    let path = std::env::temp_dir().join(format!("rdma-soft-ended-{}", std::process::id()));
    let length = || std::fs::metadata(&path).unwrap().len();
    let is_open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut files = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        files.any(|file| file == path)
    };
    let lengths = [(); 2].map(|()| {
        let network = Network::simulated(22);
        let names = ["net-file-a", "net-file-b"];
        for name in names {
            Builder::new(name).network(&network).pcap(&path).install().unwrap();
        }
        let [a, b] = pair(names, &KNOBS);
        b.qp.post_receive(1, &[]);
        a.qp.post(&Wr::send(1, &[]));
        a.send_cq.expect_success(1);
        drop(network);
        assert!(is_open(), "an open context keeps the capture open");
        drop((a, b));
        assert!(!is_open());
        length()
    });
    assert!(
        lengths[0] > 100 && lengths[0] == lengths[1],
        "{lengths:?}: a new capture overwrites the file"
    );
    std::fs::remove_file(&path).unwrap();
}

/// At the end of time no event can be later: events that repeat end there.
#[test]
fn nothing_happens_at_the_end_of_time() {
    let network = Network::simulated(10);
    let names = ["net-end-a", "net-end-b"];
    let _devices = names.map(|name| install(&network, name, Link::Ethernet));
    let [a, _b] = pair(names, &KNOBS);
    network.run_for(Duration::MAX);
    let end = network.now();
    // The request finds no receive, and is retried without a limit.
    a.qp.post(&Wr::send(1, &[]));
    let happened = (0..10_000).take_while(|_| network.step()).count();
    assert!(happened < 10_000, "the same event repeats without end");
    network.run_for(US);
    assert!(a.send_cq.is_empty() && network.now() == end);
}

/// A program that waits for an event lets time pass.
#[test]
fn a_wait_for_an_event_advances_time_to_it() {
    let network = Network::simulated(6);
    let names = ["net-event-a", "net-event-b"];
    let _devices = names.map(|name| install(&network, name, Link::Ethernet));
    network.set_all_links(LinkModel::new().latency(Duration::from_secs(1)));
    let size = Size::default();
    let b = Context::open(names[1]);
    let channel = b.channel();
    channel.set_non_blocking(false);
    let (pd, receives) = (b.pd(), b.cq_with(&channel, 8));
    let sends = b.cq(8);
    let qp = pd.qp(&sends, &receives, &size);
    let a = Side::new(names[0], &size, 8);
    let there = crate::device::rig::connect::endpoint(&b, &qp);
    crate::device::rig::connect::connect(&a.qp, &a.endpoint(), &there, &KNOBS);
    crate::device::rig::connect::connect(&qp, &there, &a.endpoint(), &KNOBS);
    receives.request_event(false);
    qp.post_receive(3, &[]);
    a.qp.post(&Wr::send(1, &[]));
    assert!(channel.get().is_ok());
    receives.acknowledge(1);
    receives.expect_success(3);
    assert!(network.now() >= Duration::from_secs(1));
}

/// A program with an event loop arms completion queues while other tasks have work.
#[test]
fn arming_advances_no_time_if_the_program_advances_it() {
    let network = Network::simulated(6);
    let names = ["net-loop-a", "net-loop-b"];
    let _devices = names.map(|name| install(&network, name, Link::Ethernet));
    let [a, b] = pair(names, &PATIENT);
    network.set_steps_on_arming(false);
    assert_eq!(network.next_event(), None);
    b.qp.post_receive(3, &[]);
    a.qp.post(&Wr::send(1, &[]));
    let arrival = network.next_event().unwrap();
    a.send_cq.request_event(false);
    assert_eq!((network.now(), network.next_event()), (Duration::ZERO, Some(arrival)));
    assert!(arrival > Duration::ZERO && network.step());
    assert_eq!(network.now(), arrival);
    network.set_steps_on_arming(true);
    a.send_cq.request_event(false);
    assert!(network.now() > arrival);
    b.receive_cq.expect_success(3);
}

/// A program that arms a completion queue triggers the next event, and checks for events before it sleeps.
#[test]
fn a_sleep_on_the_file_is_woken_while_events_are_due() {
    let network = Network::simulated(6);
    let names = ["net-sleep-a", "net-sleep-b"];
    let _devices = names.map(|name| install(&network, name, Link::Ethernet));
    network.set_all_links(LinkModel::new().latency(Duration::from_secs(1)));
    let size = Size::default();
    let b = Context::open(names[1]);
    let channel = b.channel();
    channel.set_non_blocking(true);
    let (pd, receives) = (b.pd(), b.cq_with(&channel, 8));
    let sends = b.cq(8);
    let qp = pd.qp(&sends, &receives, &size);
    let a = Side::new(names[0], &size, 8);
    let there = crate::device::rig::connect::endpoint(&b, &qp);
    crate::device::rig::connect::connect(&a.qp, &a.endpoint(), &there, &KNOBS);
    crate::device::rig::connect::connect(&qp, &there, &a.endpoint(), &KNOBS);
    qp.post_receive(3, &[]);
    a.qp.post(&Wr::send(1, &[]));
    let mut wakings = 0;
    while receives.is_empty() {
        receives.request_event(false);
        assert!(channel.is_readable(), "the program would sleep without end");
        wakings += 1;
        while channel.get().is_ok() {
            receives.acknowledge(1);
        }
        assert!(wakings < 1000);
    }
    while network.step() {}
    receives.request_event(false);
    assert!(!channel.is_readable(), "nothing is due");
}

/// Only requests that a schedule releases are sent.
#[test]
fn a_schedule_determines_when_a_request_begins() {
    for (schedule, name) in [
        (Schedule::Immediate, "net-now"),
        (Schedule::Deferred { seed: 4 }, "net-later"),
        (Schedule::Held, "net-held"),
    ] {
        let network = Network::simulated(7);
        let device = Builder::new(name).network(&network).schedule(schedule).install().unwrap();
        let [a, _b] = pair([name; 2], &KNOBS);
        a.qp.post(&Wr::send(1, &[]));
        let begun = |expected| assert_eq!(network.packets() > 0, expected, "{schedule:?}");
        begun(schedule == Schedule::Immediate);
        if schedule == Schedule::Held {
            assert!(!network.step());
            network.run_for(Duration::from_secs(1));
            begun(false);
            device.release(a.qp.qpn(), 1);
        } else {
            network.run_for(300 * US);
        }
        begun(true);
    }
}

/// The time that a packet with 42 bytes takes on the link, and one without payload.
#[test]
fn a_packet_takes_the_bandwidth_of_its_payload_and_58_bytes() {
    let network = Network::simulated(8);
    let names = ["net-slow-a", "net-slow-b"];
    let [x, y] = names.map(|name| install(&network, name, Link::Ethernet));
    let [a, b] = pair(names, &Knobs { timeout: 0, ..KNOBS });
    // A byte takes a millisecond.
    network.set_link(&x, &y, LinkModel::new().bandwidth(8_000)).unwrap();
    let memory = a.pd.register(42, ALL_ACCESS);
    let room = b.pd.register(42, ALL_ACCESS);
    for (id, length, milliseconds) in [(1, 42, 100), (2, 0, 58)] {
        b.qp.post_receive(id, &[room.sge(0, 42)]);
        a.qp.post(&Wr::send(id, &[memory.sge(0, length)]));
        network.run_for(1_000 * milliseconds * US);
        assert!(b.receive_cq.is_empty(), "the message arrived too early");
        network.run_for(2 * US);
        b.receive_cq.expect_success(id);
        a.send_cq.expect_success(id);
    }
}

/// B ends in the middle of A's READ, and then writes to its memory.
fn end_of_a_read(name: &str, status: Status, end: impl FnOnce(&mut Side, Mr) -> Box<dyn Any>) {
    let network = Network::simulated(12);
    network.set_all_links(LinkModel::new().bandwidth(1_000_000_000));
    let names = ["a", "b"].map(|end| format!("net-{name}-{end}"));
    let names = names.each_ref().map(String::as_str);
    let _devices = names.map(|name| install(&network, name, Link::Ethernet));
    let [a, mut b] = pair(names, &Knobs { timeout: 14, ..KNOBS });
    const LENGTH: usize = 1 << 20;
    let source = b.pd.register_filled(vec![0x11; LENGTH], ALL_ACCESS);
    let sink = a.pd.register(LENGTH, ALL_ACCESS);
    a.qp.post(&Wr::read(1, &[sink.sge(0, LENGTH)], &source, 0));
    network.run_for(300 * US);
    let _later = end(&mut b, source);
    // As long as all attempts take.
    network.run_for(Duration::from_secs(2));
    a.send_cq.expect(1, status);
    let bytes = sink.bytes();
    assert!(bytes.contains(&0x11), "nothing was answered");
    assert!(!bytes.contains(&0xee), "what was written later was answered");
}

/// Registered memory stays registered.
fn end_of_the_queue_pair(name: &str, end: fn(&mut Side)) {
    end_of_a_read(name, Status::IBV_WC_RETRY_EXC_ERR, |b, source| {
        end(b);
        source.fill(0xee);
        Box::new(source)
    });
}

#[test]
fn a_queue_pair_in_error_sends_no_answer() {
    end_of_the_queue_pair("error", |b| b.qp.to_error());
}

#[test]
fn a_destroyed_queue_pair_sends_no_answer() {
    end_of_the_queue_pair("reset", |b| b.qp.to_reset());
    end_of_the_queue_pair("destroyed", |b| b.qp.destroy());
}

#[test]
fn deregistered_memory_answers_no_read() {
    end_of_a_read("deregistered", Status::IBV_WC_REM_ACCESS_ERR, |_, source| {
        let mut memory = source.deregister();
        memory.fill(0xee);
        Box::new(memory)
    });
}

/// A peer gets the answers to its requests before the refused one, and then the refusal.
#[test]
fn a_refusal_follows_the_answers_to_earlier_requests() {
    let network = Network::simulated(13);
    network.set_all_links(LinkModel::new().bandwidth(1_000_000_000));
    let names = ["net-refused-a", "net-refused-b"];
    let _devices = names.map(|name| install(&network, name, Link::Ethernet));
    let [a, b] = pair(names, &Knobs { timeout: 14, ..KNOBS });
    const LENGTH: usize = 1 << 20;
    let source = b.pd.register_filled(vec![0x11; LENGTH], ALL_ACCESS);
    let sink = a.pd.register(LENGTH, ALL_ACCESS);
    a.qp.post(&Wr::read(1, &[sink.sge(0, LENGTH)], &source, 0));
    a.qp.post(&Wr::write(2, &[sink.sge(0, 8)], &source, 0).remote(1, 2));
    a.send_cq.expect_success(1);
    a.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
    sink.assert_filled(0x11);
}
