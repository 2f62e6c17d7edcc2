//! Shared receive queues: the order of waiting senders, the slots, and the requests that this
//! device refuses.

use rdma_soft::{Builder, Limits};
use rdma_sys::{
    Errno, ibv_device_cap_flags as Cap, ibv_event_type as Event, ibv_srq_attr_mask as Mask,
    ibv_wc_status as Status,
};

use crate::device::rig::connect::{Knobs, Side};
use crate::device::rig::post::Wr;
use crate::device::rig::srq::Server;
use crate::device::rig::{
    Context, LOCAL_WRITE, Mr, Pd, Size, on_each_device, on_each_held_device, until,
};

fn with_clients(device: &str, max_wr: u32, clients: usize) -> (Vec<Side>, Server) {
    Server::with_clients(device, max_wr, clients, &Knobs::default())
}

/// Sends an empty message, which must succeed.
fn send(client: &Side) {
    client.qp.post(&Wr::send(1, &[]));
    client.send_cq.expect_success(1);
}

/// The source memory of the tests' messages: eight bytes of the client's number.
fn sources(clients: &[Side]) -> Vec<Mr> {
    let source = |(n, client): (usize, &Side)| client.pd.register_filled(vec![n as u8 + 1; 8], 0);
    clients.iter().enumerate().map(source).collect()
}

#[test]
fn waiting_senders_are_served_in_order_of_arrival() {
    on_each_held_device("srq-wake", |device| {
        let (clients, server) = with_clients(device.name(), 8, 4);
        let order = [2, 0, 3, 1];
        for client in order {
            clients[client].qp.post(&Wr::send(1, &[]));
            clients[client].qp.post(&Wr::send(2, &[]));
            // Tried once, so that it waits.
            device.release(clients[client].qp.qpn(), 1);
        }
        for round in 0..2 {
            for (n, client) in (0..).zip(order) {
                assert!(server.receive_cq.is_empty());
                server.srq.post(10 * round + n, &[]);
                server.expect(client, 10 * round + n);
                clients[client].send_cq.expect_success(1 + round);
                device.release(clients[client].qp.qpn(), 1);
            }
        }
        clients.iter().for_each(|client| assert_eq!(device.in_flight(client.qp.qpn()), 0));
    });
}

#[test]
fn a_list_of_requests_serves_waiting_senders_in_order_of_arrival() {
    on_each_held_device("srq-wake-list", |device| {
        let (clients, server) = with_clients(device.name(), 8, 3);
        for client in &clients {
            client.qp.post(&Wr::send(1, &[]));
            device.release(client.qp.qpn(), 1);
        }
        server.srq.try_post_list(&[(0, &[]), (1, &[]), (2, &[])]).unwrap();
        for (n, client) in clients.iter().enumerate() {
            client.send_cq.expect_success(1);
            server.expect(n, n as u64);
        }
    });
}

#[test]
fn sizes_beyond_the_device_are_refused() {
    let limits = Limits::default().max_srq(2).max_srq_wr(8).max_srq_sge(3);
    Builder::new("srq-sizes").limits(limits).install().unwrap();
    let context = Context::open("srq-sizes");
    let attr = context.query_device();
    assert_eq!((attr.max_srq, attr.max_srq_wr, attr.max_srq_sge), (2, 8, 3));
    assert_eq!(attr.device_cap_flags & Cap::IBV_DEVICE_SRQ_RESIZE.0, 0);
    let pd = context.pd();
    for (max_wr, max_sge) in [(0, 1), (9, 1), (8, 4), (u32::MAX, 1), (8, u32::MAX)] {
        assert_eq!(pd.try_srq(max_wr, max_sge).err(), Some(Errno::EINVAL), "{max_wr} {max_sge}");
    }
    let queues = [pd.srq(8, 3), pd.srq(1, 0)];
    assert_eq!(pd.try_srq(1, 1).err(), Some(Errno::ENOMEM));
    let found = queues[0].query();
    assert_eq!((found.max_wr, found.max_sge, found.srq_limit), (8, 3, 0));
    drop(queues);
    drop(pd.srq(1, 1));
    Builder::new("srq-none").limits(Limits::default().max_srq(0)).install().unwrap();
    let without = Context::open("srq-none");
    assert_eq!(without.query_device().max_srq, 0);
    assert_eq!(without.pd().try_srq(1, 1).err(), Some(Errno::EOPNOTSUPP));
}

#[test]
fn a_queue_cannot_be_resized_and_has_no_other_attributes() {
    on_each_device("srq-modify", |device| {
        let server = Server::new(device, 8);
        let srq = &server.srq;
        assert_eq!(srq.modify(16, 0, Mask::IBV_SRQ_MAX_WR), Errno::EOPNOTSUPP.raw());
        let both = Mask::IBV_SRQ_MAX_WR | Mask::IBV_SRQ_LIMIT;
        assert_eq!(srq.modify(16, 3, both), Errno::EOPNOTSUPP.raw());
        assert_eq!(srq.modify(0, 3, Mask(4)), Errno::EINVAL.raw());
        assert_eq!(srq.limit(), 0, "all or nothing");
    });
}

#[test]
fn a_queue_has_exactly_the_requested_space() {
    on_each_device("srq-full", |device| {
        let server = Server::new(device, 5);
        let sink = server.pd.register(8, LOCAL_WRITE);
        let sges = [sink.sge(0, 1); 4];
        let list: Vec<_> = (0..7).map(|n| (n, &sges[..])).collect();
        assert_eq!(server.srq.try_post_list(&list), Err((5, Errno::ENOMEM.raw())));
    });
}

#[test]
fn a_slot_is_free_when_its_completion_was_polled() {
    on_each_device("srq-slots", |device| {
        let (clients, mut server) = with_clients(device, 3, 2);
        let of_first = server.context.cq(16);
        server.qps[0] = server.qp(&server.pd, &of_first, &clients[0]);
        for round in 0..4 {
            let id = 10 * round;
            assert_eq!(server.srq.fill(id), 3);
            // Consumed in order, polled out of order: the first goes to one, two to the other.
            for client in [0, 1, 1] {
                send(&clients[client]);
            }
            assert_eq!(server.srq.fill(99), 0);
            server.expect(1, id + 1);
            assert_eq!(server.srq.fill(id + 3), 1);
            server.expect(1, id + 2);
            of_first.expect_success(id);
            send(&clients[0]);
            of_first.expect_success(id + 3);
        }
        server.qps.clear();
    });
}

#[test]
fn a_destroyed_queue_pair_frees_the_slots_of_its_completions() {
    on_each_device("srq-give-back", |device| {
        for reset in [true, false] {
            let (clients, mut server) = with_clients(device, 4, 2);
            assert_eq!(server.srq.fill(0), 4);
            // Two completions are polled, two are dropped.
            for client in [0, 1, 0, 0] {
                send(&clients[client]);
            }
            server.expect(0, 0);
            server.expect(1, 1);
            assert_eq!(server.srq.fill(4), 2);
            match reset {
                true => server.qps[0].to_reset(),
                false => server.qps[0].destroy(),
            }
            assert!(server.receive_cq.is_empty());
            assert_eq!(server.srq.fill(6), 2);
            for n in 4..8 {
                send(&clients[1]);
                server.expect(1, n);
            }
            if reset {
                server.connect(&server.qps[0], &clients[0], &Knobs::default());
                assert_eq!(server.srq.fill(8), 4);
                send(&clients[0]);
                server.expect(0, 8);
                assert_eq!(server.srq.fill(12), 1);
            }
        }
    });
}

#[test]
fn completions_lost_in_an_overflow_free_their_slots_with_the_queue_pair() {
    on_each_device("srq-overflow", |device| {
        let (clients, mut server) = with_clients(device, 8, 1);
        let small = server.context.cq(2);
        server.qps[0] = server.qp(&server.pd, &small, &clients[0]);
        assert_eq!(server.srq.fill(0), 8);
        (0..3).for_each(|_| send(&clients[0]));
        server.qps[0].wait_for_error();
        assert_eq!(server.srq.fill(8), 0);
        server.qps.clear();
        // Three were consumed, five are still posted.
        assert_eq!(server.srq.fill(8), 3);
    });
}

#[test]
fn a_queue_pair_with_a_shared_queue_reports_no_receives() {
    on_each_device("srq-own", |device| {
        let (_clients, server) = with_clients(device, 8, 1);
        let mut init = Pd::qp_init(&server.send_cq, &server.receive_cq, &Size::default());
        init.srq = server.srq.0;
        drop(server.pd.try_qp_of(&mut init).unwrap());
        assert_eq!((init.cap.max_recv_wr, init.cap.max_recv_sge), (0, 0));
    });
}

#[test]
fn a_failed_receive_is_two_events_of_its_queue_pair() {
    on_each_device("srq-fail", |device| {
        let (clients, server) = with_clients(device, 8, 2);
        let from = sources(&clients);
        server.srq.post(1, &[]);
        clients[0].qp.post(&Wr::send(1, &[from[0].sge(0, 8)]));
        clients[0].send_cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR);
        server.receive_cq.expect(1, Status::IBV_WC_LOC_LEN_ERR);
        // In either order: a thread that looks at the queue pair may flush it first.
        let mut events = server.events();
        until("both events", || {
            events.extend(server.events());
            events.len() >= 2
        });
        events.sort_by_key(|(kind, _)| kind.0);
        let expected = [
            (Event::IBV_EVENT_QP_REQ_ERR, server.qp_name(0)),
            (Event::IBV_EVENT_QP_LAST_WQE_REACHED, server.qp_name(0)),
        ];
        assert_eq!(events, expected);
    });
}

#[test]
fn only_the_request_in_use_is_flushed() {
    on_each_held_device("srq-in-hand", |device| {
        for destroy in [false, true] {
            let (clients, mut server) = with_clients(device.name(), 2, 1);
            let from = sources(&clients);
            let sink = server.pd.register(8, LOCAL_WRITE);
            server.srq.post(1, &[sink.sge(0, 8)]);
            server.srq.post(2, &[sink.sge(0, 8)]);
            clients[0].qp.post(&Wr::send(1, &[from[0].sge(0, 8)]));
            assert!(device.release_half(clients[0].qp.qpn()));
            assert_eq!(
                server.srq.try_post(3, &[]),
                Errno::ENOMEM.raw(),
                "its slot is still in use"
            );
            if destroy {
                server.qps[0].destroy();
            } else {
                server.qps[0].to_error();
                server.receive_cq.expect_flushed([1]);
            }
            assert!(server.receive_cq.is_empty());
            server.srq.post(3, &[]);
            assert_eq!(server.srq.try_post(4, &[]), Errno::ENOMEM.raw());
            device.release_all();
            assert_eq!(sink.bytes(), [1, 1, 1, 1, 0, 0, 0, 0], "no data arrives after the end");
        }
    });
}

#[test]
fn deregistered_memory_of_a_request_in_use_is_left_alone() {
    on_each_held_device("srq-dereg", |device| {
        let (clients, server) = with_clients(device.name(), 2, 1);
        let from = sources(&clients);
        let sink = server.pd.register(8, LOCAL_WRITE);
        server.srq.post(1, &[sink.sge(0, 8)]);
        clients[0].qp.post(&Wr::send(1, &[from[0].sge(0, 8)]));
        assert!(device.release_half(clients[0].qp.qpn()));
        let memory = sink.deregister();
        device.release_all();
        clients[0].send_cq.expect(1, Status::IBV_WC_REM_OP_ERR);
        server.receive_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
        assert_eq!(memory, [1, 1, 1, 1, 0, 0, 0, 0]);
    });
}

#[test]
fn a_queue_of_another_device_is_refused() {
    on_each_device("srq-foreign", |device| {
        let server = Server::new(device, 8);
        rdma_soft::install();
        let other = Side::new("soft0", &Size::default(), 16);
        let mut init = Pd::qp_init(&other.send_cq, &other.receive_cq, &Size::default());
        init.srq = server.srq.0;
        assert_eq!(other.pd.try_qp_of(&mut init).err(), Some(Errno::EINVAL));
    });
}
