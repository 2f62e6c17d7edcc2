//! Faults that a device injects, as programs see them.

use std::sync::mpsc;
use std::time::Duration;

use rdma_soft::{Builder, Faults, Link, Network, Peers, SoftDevice};
use rdma_sys::{
    Errno, ibv_event_type as Event, ibv_port_state as PortState, ibv_qp_state as State,
    ibv_qp_type, ibv_wc, ibv_wc_status as Status,
};
use test_support::events::Hears;
use test_support::program::in_own_process;

use crate::device::rig::connect::{
    Knobs, Side, connect_sides, connect_unreliably, endpoint, expect_traffic, pair_with,
};
use crate::device::rig::datagram::{self, gid_of, vector};
use crate::device::rig::device::{gid_table, query_gid};
use crate::device::rig::memory::deregister;
use crate::device::rig::post::Wr;
use crate::device::rig::window::TYPE_1;
use crate::device::rig::{ALL_ACCESS, Context, Cq, LOCAL_WRITE, Size, until};

fn install(name: &str, faults: &str) -> SoftDevice {
    Builder::new(name).faults(faults.parse().unwrap()).install().unwrap()
}

/// Makes a call three times. Returns the errors.
fn three(mut call: impl FnMut() -> Option<Errno>) -> [Option<Errno>; 3] {
    [(); 3].map(|()| call())
}

/// Calls each verb three times. Returns the errors of all calls.
fn call_each_verb(device: &str) -> Vec<[Option<Errno>; 3]> {
    let opened = three(|| Context::try_open(device).err());
    let context = Context::open(device);
    let domains = three(|| context.try_pd().err());
    let pd = context.pd();
    let queues = three(|| context.try_cq(4, 0).err());
    let cq = context.cq(4);
    let channels = three(|| context.try_channel().err());
    let size = Size { sge: 1, ..Size::default() };
    let queue_pairs = three(|| pd.try_qp(&cq, &cq, &size).err());
    let shared_queues = three(|| pd.try_srq(4, 1).err());
    let windows = three(|| pd.try_mw(TYPE_1).err());
    let at = endpoint(&context, &pd.qp(&cq, &cq, &size));
    let handles = three(|| pd.try_ah(vector(&at, &at, at.ethernet)).err());
    let mut byte = 0;
    let regions = three(|| pd.try_register(&raw mut byte, 1, LOCAL_WRITE).map(deregister).err());
    vec![opened, domains, queues, channels, queue_pairs, shared_queues, windows, handles, regions]
}

#[test]
fn a_call_fails_at_its_number_and_later_ones_succeed() {
    let device = install(
        "fault-calls",
        "open_device@2=ENODEV; alloc_pd@2=ENOMEM; create_cq@2=EINVAL; create_comp_channel@2=EMFILE; \
         create_qp@2=EOPNOTSUPP; create_srq@2=EBUSY; alloc_mw@2=EACCES; create_ah@2=EFAULT; reg_mr@2=EIO",
    );
    let errors = [
        Errno::ENODEV,
        Errno::ENOMEM,
        Errno::EINVAL,
        Errno::EMFILE,
        Errno::EOPNOTSUPP,
        Errno::EBUSY,
        Errno::EACCES,
        Errno::EFAULT,
        Errno::EIO,
    ];
    assert_eq!(call_each_verb(device.name()), errors.map(|errno| [None, Some(errno), None]));
    assert_eq!(device.counters().injected_faults, 9);
    // Another device has its own calls.
    let other = install("fault-calls-other", "alloc_pd@1=ENOMEM");
    let context = Context::open(other.name());
    assert_eq!(context.try_pd().err(), Some(Errno::ENOMEM));
    assert_eq!(context.try_pd().err(), None);
}

/// Posts WRITEs of one byte each until one fails. Returns the number of the one that fails.
fn writes_until_failure(a: &Side, b: &Side, status: Status) -> usize {
    const COUNT: usize = 60;
    let source = a.pd.register_filled(vec![9; 1], ALL_ACCESS);
    let sink = b.pd.register_filled(vec![0; COUNT], ALL_ACCESS);
    for n in 0..COUNT {
        a.qp.post(&Wr::write(n as u64, &[source.sge(0, 1)], &sink, n));
    }
    let results: Vec<_> = (0..COUNT).map(|_| a.send_cq.next()).collect();
    let first = results.iter().position(|wc| wc.status != Status::IBV_WC_SUCCESS).unwrap();
    assert!(results.iter().zip(0..).all(|(wc, n)| wc.wr_id == n), "in order");
    assert_eq!(results[first].status, status);
    assert!(results[first + 1..].iter().all(|wc| wc.status == Status::IBV_WC_WR_FLUSH_ERR));
    // The failed request was not executed, nor were those after it.
    let bytes = sink.bytes();
    assert!(bytes[..first].iter().all(|&byte| byte == 9), "{bytes:?}");
    assert!(bytes[first..].iter().all(|&byte| byte == 0), "{bytes:?}");
    first
}

#[test]
fn a_failed_request_is_not_executed_and_later_ones_are_flushed() {
    let run = |name: &str, seed: u32| {
        let device = install(name, &format!("seed={seed};fail=10%:RNR_RETRY_EXC"));
        // Without a timeout, nothing is sent again, however long it takes.
        let knobs = Knobs { timeout: 0, ..Knobs::default() };
        let fail = |_| {
            let (a, b) = pair_with(name, &Size::default(), &knobs);
            let first = writes_until_failure(&a, &b, Status::IBV_WC_RNR_RETRY_EXC_ERR);
            a.qp.wait_for_error();
            b.qp.assert_ready();
            first
        };
        let failures: Vec<_> = (0..4).map(fail).collect();
        let differ = failures.iter().any(|&first| first != failures[0]);
        assert!(differ, "each queue pair has its own faults: {failures:?}");
        assert_eq!(device.counters().injected_faults, 4);
        assert_eq!(device.counters().retry_rnr_exceeded_err, 4);
        failures
    };
    let first = run("fault-requests-1", 1);
    assert_eq!(first, run("fault-requests-2", 1), "the same seed selects the same requests");
    assert_ne!(first, run("fault-requests-3", 2));
}

#[test]
fn requests_without_acknowledgements_fail_and_the_send_queue_stops() {
    let device = install("fault-unreliable", "fail=100%:LOC_QP_OP");
    let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
    let [a, b] = [(); 2].map(|()| Side::new(device.name(), &size, 16));
    connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &Knobs::default());
    connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &Knobs::default());
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect(2, Status::IBV_WC_LOC_QP_OP_ERR);
    assert_eq!(a.qp.query().qp_state, State::IBV_QPS_SQE);
    let pair = datagram::Pair::new(device.name());
    let ah = pair.ah();
    pair.receive(3, 1000);
    pair.a.qp.post(&pair.good(&ah, 4, 8));
    pair.a.send_cq.expect(4, Status::IBV_WC_LOC_QP_OP_ERR);
    assert_eq!(pair.a.qp.query().qp_state, State::IBV_QPS_SQE);
    assert!(b.receive_cq.is_empty() && pair.b.receive_cq.is_empty());
    pair.at_b.assert_filled(0xbb);
    assert_eq!(device.counters().injected_faults, 2);
}

/// Returns the next completion. Advances virtual time by itself, because on a busy machine, a test that only polls may
/// get the processor too rarely for all the events.
fn next(cq: &Cq, network: &Network) -> ibv_wc {
    let poll = || cq.try_poll::<1>().unwrap().pop();
    loop {
        if let Some(wc) = poll() {
            return wc;
        }
        if !network.step() {
            return poll().expect("a request that nothing completes");
        }
    }
}

/// Sends messages of several packets over 20 connections in a network. Returns the status of each request, and what
/// happened in the network.
fn run_in_network(names: [&str; 2], faults: &str) -> (Vec<u32>, u64, u64, Duration) {
    let network = Network::simulated(5);
    let faults: Faults = faults.parse().unwrap();
    let [here, _] = names
        .map(|name| Builder::new(name).network(&network).faults(faults.clone()).install().unwrap());
    let mut statuses = Vec::new();
    for _ in 0..20 {
        let [a, b] = names.map(|name| Side::new(name, &Size::default(), 64));
        connect_sides(&a, &b, &Knobs { timeout: 12, ..Knobs::default() });
        let memory = b.pd.register(10_000, ALL_ACCESS);
        let source = a.pd.register(10_000, ALL_ACCESS);
        for n in 0..10 {
            a.qp.post(&Wr::write(n, &[source.sge(0, 10_000)], &memory, 0));
        }
        for n in 0..10 {
            let wc = next(&a.send_cq, &network);
            assert_eq!(wc.wr_id, n);
            statuses.push(wc.status.0);
        }
    }
    (statuses, here.counters().injected_faults, network.trace(), network.now())
}

#[test]
fn faults_are_the_same_in_each_run_with_a_seed() {
    let run = |seed: u32| {
        let faults = "fail=3%:REM_OP_ERR;loss=5%;slow_peer=20us;port_flap=5ms";
        run_in_network(["fault-seed-a", "fault-seed-b"], &format!("seed={seed};{faults}"))
    };
    let first = run(1);
    let has = |status: Status| first.0.contains(&status.0);
    assert!(has(Status::IBV_WC_SUCCESS) && has(Status::IBV_WC_REM_OP_ERR));
    assert!(has(Status::IBV_WC_WR_FLUSH_ERR), "{:?}", first.0);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
}

#[test]
fn lost_packets_are_sent_again() {
    let (statuses, faults, ..) = run_in_network(["fault-loss-a", "fault-loss-b"], "loss=5%");
    assert!(statuses.iter().all(|&status| status == Status::IBV_WC_SUCCESS.0), "{statuses:?}");
    assert!(faults > 20, "{faults}");
}

/// Installs devices with these faults. They execute requests within this process, or through the link between processes.
fn install_on_each_link(name: &str, faults: &str) -> [String; 3] {
    let names = ["roce", "ib", "link"].map(|link| format!("{name}-{link}"));
    let faults: Faults = faults.parse().unwrap();
    let install = |name: &str| Builder::new(name).faults(faults.clone());
    install(&names[0]).install().unwrap();
    install(&names[1]).link(Link::InfiniBand).install().unwrap();
    install(&names[2]).peers(Peers::SameUser).force_wire().install().unwrap();
    names
}

/// Real time.
#[test]
fn packets_are_lost_and_late_on_each_link() {
    for name in install_on_each_link("fault-loss", "loss=5%;slow_peer=10us") {
        let (a, b) = pair_with(&name, &Size::default(), &Knobs::default());
        until("a lost packet", || {
            expect_traffic(&a, &b);
            SoftDevice::find(&name).unwrap().counters().injected_faults > 0
        });
        expect_traffic(&a, &b);
    }
}

/// Real time.
#[test]
fn no_packet_arrives_if_all_are_lost_on_each_link() {
    for name in install_on_each_link("fault-all", "loss=100%") {
        for length in [1, 100_000] {
            let (a, b) = pair_with(&name, &Size::default(), &Knobs::prompt());
            let source = a.pd.register_filled(vec![7; length], LOCAL_WRITE);
            let sink = b.pd.register_filled(vec![0; length], ALL_ACCESS);
            a.qp.post(&Wr::write(1, &[source.sge(0, length)], &sink, 0));
            a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
            sink.assert_filled(0);
        }
    }
}

#[test]
fn a_lost_datagram_succeeds_at_its_sender() {
    let device = install("fault-datagrams", "loss=100%");
    let pair = datagram::Pair::new(device.name());
    let ah = pair.ah();
    pair.receive(1, 1000);
    pair.expect_lost(&pair.good(&ah, 2, 8));
    assert_eq!(device.counters().injected_faults, 1);
}

#[test]
fn packets_to_and_from_a_slow_peer_are_late() {
    let network = Network::simulated(1);
    let delay = Duration::from_millis(5);
    let names = ["fault-slow-a", "fault-slow-b"];
    let slow = Builder::new(names[0]).faults("slow_peer=5ms".parse().unwrap());
    slow.network(&network).install().unwrap();
    Builder::new(names[1]).network(&network).install().unwrap();
    let [a, b] = names.map(|name| Side::new(name, &Size::default(), 8));
    connect_sides(&a, &b, &Knobs::default());
    // The request is late, or the acknowledgement.
    for (from, to) in [(&a, &b), (&b, &a)] {
        let begin = network.now();
        to.qp.post_receive(1, &[]);
        from.qp.post(&Wr::send(2, &[]));
        from.send_cq.expect_success(2);
        let time = network.now() - begin;
        assert!((delay..2 * delay).contains(&time), "{time:?}");
        to.receive_cq.expect_success(1);
    }
}

#[test]
fn a_port_flaps_once_in_each_period_after_the_device_was_opened() {
    let network = Network::simulated(2);
    let builder = Builder::new("fault-flap").network(&network);
    let device = builder.faults("port_flap=10s".parse().unwrap()).install().unwrap();
    let run_for = |milliseconds| network.run_for(Duration::from_millis(milliseconds));
    run_for(20_000);
    assert_eq!(device.counters().link_downed, 0);
    let context = Context::open(device.name());
    let state = || context.query_port().state;
    let events = || context.async_events().into_iter().map(|event| event.0).collect::<Vec<_>>();
    run_for(9_500);
    assert_eq!((state(), events()), (PortState::IBV_PORT_ACTIVE, vec![]));
    for _ in 0..3 {
        run_for(1_000);
        assert_eq!(
            (state(), events()),
            (PortState::IBV_PORT_DOWN, vec![Event::IBV_EVENT_PORT_ERR])
        );
        run_for(9_000);
        let expected = (PortState::IBV_PORT_ACTIVE, vec![Event::IBV_EVENT_PORT_ACTIVE]);
        assert_eq!((state(), events()), expected);
    }
    let counters = device.counters();
    assert_eq!((counters.link_downed, counters.injected_faults), (3, 3));
}

/// Each GID moves to the next index. Connections and handles keep their addresses, but a stale index names another GID.
#[test]
fn gids_move_in_each_period_and_connections_keep_their_addresses() {
    let network = Network::simulated(3);
    let names = ["fault-gid-a", "fault-gid-b"];
    let [device, _] = names.map(|name| {
        let builder = Builder::new(name).network(&network);
        builder.faults("gid_move=30s".parse().unwrap()).install().unwrap()
    });
    let [a, b] = names.map(|name| Side::new(name, &Size::default(), 16));
    connect_sides(&a, &b, &Knobs::default());
    let mut gids = device.gids();
    let old = a.endpoint();
    for moves in 1..=5 {
        network.run_for(Duration::from_secs(30));
        let kinds: Vec<_> = a.context.async_events().iter().map(|event| event.0).collect();
        assert_eq!(kinds, [Event::IBV_EVENT_GID_CHANGE]);
        gids.rotate_right(1);
        assert_eq!(device.gids(), gids);
        let rows = gid_table(&a.context, 16, 0).unwrap();
        assert!(rows.iter().map(|row| row.gid).eq(gids.iter().copied()), "{rows:?}");
        let single = |index| query_gid(&a.context, 1, index).unwrap();
        assert!((0..).zip(&gids).all(|(index, gid)| single(index) == *gid));
        expect_traffic(&a, &b);
        // Two entries in a row have that address: one for RoCE v1, and one for v2.
        let is_old = moves % 4 < 2;
        assert_eq!(gid_of(&old.gid) == gids[usize::from(old.gid_index)], is_old);
        // A new connection finds the address at its present index.
        let [c, d] = names.map(|name| Side::new(name, &Size::default(), 16));
        connect_sides(&c, &d, &Knobs::default());
        expect_traffic(&c, &d);
    }
    assert_eq!(device.counters().injected_faults, 5);
}

/// In a process of its own, because the subscriber is set for the whole process.
#[test]
fn each_fault_is_reported_with_its_object() {
    in_own_process("device::faults::each_fault_is_reported_with_its_object", || {
        let (say, heard) = mpsc::channel();
        let hears = Hears(move |event: test_support::events::Event| {
            if event.target == "rdma_soft::faults" {
                // The test may have ended.
                let _ = say.send(event);
            }
        });
        tracing::subscriber::set_global_default(hears).unwrap();
        let expect = |fields: &[(&str, &str)]| {
            let event = heard.recv_timeout(Duration::from_secs(60)).expect("an event");
            for (name, value) in fields {
                assert_eq!(event.field(name), Some(*value), "{event:?}");
            }
        };
        let device = install("fault-events", "alloc_pd@3=ENOMEM;fail=100%:REM_OP");
        let (a, _b) = pair_with(device.name(), &Size::default(), &Knobs::default());
        assert_eq!(a.context.try_pd().err(), Some(Errno::ENOMEM));
        let name = ("device", "fault-events");
        expect(&[name, ("verb", "alloc_pd"), ("call", "3")]);
        a.qp.post(&Wr::send(0x77, &[]));
        a.send_cq.expect(0x77, Status::IBV_WC_REM_OP_ERR);
        let qpn = a.qp.number().to_string();
        expect(&[name, ("qpn", &qpn), ("wr_id", "119"), ("status", "remote operation error")]);
        install("fault-losses", "loss=100%");
        let pair = datagram::Pair::new("fault-losses");
        let ah = pair.ah();
        pair.receive(1, 1000);
        pair.expect_lost(&pair.good(&ah, 2, 8));
        let qpn = pair.a.qp.number().to_string();
        expect(&[("device", "fault-losses"), ("qpn", &qpn)]);
        install("fault-flaps", "port_flap=1ms");
        let _opened = Context::open("fault-flaps");
        expect(&[("device", "fault-flaps"), ("port", "1")]);
    });
}
