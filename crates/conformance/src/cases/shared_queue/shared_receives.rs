//! Shared receive queues: how their receives are consumed or refused, and what happens to them when
//! queue pairs end (IBTA volume 1, 10.2.9).
#![allow(clippy::cast_possible_truncation)] // All numbers are small.

use rdma_sys::{
    Errno, ibv_event_type as Event, ibv_qp_type, ibv_wc_opcode, ibv_wc_status as Status,
};
use test_support::rig::connect::{
    Knobs, Side, connect_sides, connect_unreliably, endpoint, expect_nothing_under_way,
};
use test_support::rig::datagram::{self, HEADER, QKEY};
use test_support::rig::post::Wr;
use test_support::rig::srq::Server;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, Size, imm_of, until};

use crate::case::cases;
use crate::device::Device;

cases![
    whoever_needs_a_request_takes_the_oldest,
    a_completion_says_who_took_the_request,
    queue_pairs_of_one_queue_complete_where_they_were_told,
    a_message_fills_the_elements_of_its_request_in_order,
    a_write_with_immediate_takes_a_request,
    a_write_takes_no_request,
    datagrams_take_requests,
    unreliable_connections_take_requests,
    requests_of_many_threads_are_taken_once_each,
    a_sender_waits_for_a_request,
    a_list_of_requests_serves_all_who_wait,
    retries_end_without_a_request,
    a_sender_that_gave_up_takes_no_request,
    a_sender_that_goes_leaves_the_request_to_the_next,
    a_sender_whose_receiver_goes_finds_nobody,
    a_queue_pair_with_a_shared_queue_has_no_receives_of_its_own,
    elements_are_of_the_domain_of_the_queue,
    elements_of_the_queue_pairs_domain_are_refused,
    what_peers_name_is_of_the_queue_pairs_domain,
    the_error_state_flushes_no_request_of_the_others,
    a_failed_receive_is_the_only_one_that_fails,
    the_last_request_of_a_queue_pair_is_an_event,
    the_last_request_is_an_event_once_in_each_life,
    a_queue_pair_without_a_shared_queue_has_no_last_request,
    ordinary_queue_pairs_beside_it_keep_their_own_receives,
];

pub(super) fn needs_queues(device: &Device) {
    device.needs(device.attributes().max_srq > 0, "the device has no shared receive queues");
}

pub(super) fn server(device: &Device, max_wr: u32) -> Server {
    needs_queues(device);
    Server::new(device, max_wr)
}

pub(super) fn with_clients(device: &Device, max_wr: u32, clients: usize) -> (Vec<Side>, Server) {
    needs_queues(device);
    Server::with_clients(device, max_wr, clients, &Knobs::default())
}

/// Sends an empty message, and checks that it succeeds.
#[track_caller]
pub(super) fn send(client: &Side) {
    client.qp.post(&Wr::send(1, &[]));
    client.send_cq.expect_success(1);
}

/// Sends a message from a client, and polls the completion of the receive.
#[track_caller]
pub(super) fn deliver(client: &Side, server: &Server) {
    send(client);
    server.receive_cq.next();
}

/// Registers the memory from which the clients send: for each client, eight bytes that contain its
/// number.
fn sources(clients: &[Side]) -> Vec<Mr> {
    let source = |(n, client): (usize, &Side)| client.pd.register_filled(vec![n as u8 + 1; 8], 0);
    clients.iter().enumerate().map(source).collect()
}

/// Waits for `count` events of this kind. Reads all pending events and returns those of this kind.
#[track_caller]
pub(super) fn events(server: &Server, kind: Event, count: usize) -> Vec<(Event, usize)> {
    let mut events = Vec::new();
    until("the events", || {
        events.extend(server.events().into_iter().filter(|event| event.0 == kind));
        events.len() >= count
    });
    events
}

fn whoever_needs_a_request_takes_the_oldest(device: &Device) {
    let (clients, server) = with_clients(device, 8, 3);
    let from = sources(&clients);
    let sink = server.pd.register(64, LOCAL_WRITE);
    for n in 0..5 {
        server.srq.post(100 + n, &[sink.sge(8 * n as usize, 8)]);
    }
    let order = [2, 0, 1, 1, 2];
    for (n, client) in (0..).zip(order) {
        clients[client].qp.post(&Wr::send(1, &[from[client].sge(0, 8)]).with_imm(9));
        clients[client].send_cq.expect_success(1);
        let wc = server.receive_cq.expect_success(100 + n);
        assert_eq!((wc.byte_len, imm_of(&wc)), (8, 9));
        let at = 8 * n as usize;
        assert_eq!(sink.bytes()[at..at + 8], [client as u8 + 1; 8]);
    }
}

fn a_completion_says_who_took_the_request(device: &Device) {
    let (clients, server) = with_clients(device, 8, 3);
    (0..3).for_each(|n| server.srq.post(n, &[]));
    for (n, client) in [1, 2, 0].into_iter().enumerate() {
        send(&clients[client]);
        server.expect(client, n as u64);
    }
}

fn queue_pairs_of_one_queue_complete_where_they_were_told(device: &Device) {
    let (clients, mut server) = with_clients(device, 8, 2);
    let other = server.context.cq(16);
    server.qps[1] = server.qp(&server.pd, &other, &clients[1]);
    (0..2).for_each(|n| server.srq.post(n, &[]));
    send(&clients[1]);
    other.expect_success(0);
    send(&clients[0]);
    server.expect(0, 1);
    server.qps.clear();
}

fn a_message_fills_the_elements_of_its_request_in_order(device: &Device) {
    let (clients, server) = with_clients(device, 8, 1);
    let from = clients[0].pd.register_filled((1..=8).collect(), 0);
    let sink = server.pd.register(16, LOCAL_WRITE);
    server.srq.post(1, &[sink.sge(10, 3), sink.sge(0, 4), sink.sge(6, 4)]);
    clients[0].qp.post(&Wr::send(1, &[from.sge(0, 8)]));
    clients[0].send_cq.expect_success(1);
    server.expect(0, 1);
    assert_eq!(sink.bytes(), [4, 5, 6, 7, 0, 0, 8, 0, 0, 0, 1, 2, 3, 0, 0, 0]);
}

fn a_write_with_immediate_takes_a_request(device: &Device) {
    let (clients, server) = with_clients(device, 8, 2);
    let from = sources(&clients);
    let sink = server.pd.register(8, ALL_ACCESS);
    server.srq.post(7, &[]);
    clients[1].qp.post(&Wr::write(1, &[from[1].sge(0, 8)], &sink, 0).with_imm(3));
    clients[1].send_cq.expect_success(1);
    let wc = server.expect(1, 7);
    assert_eq!((wc.opcode, imm_of(&wc)), (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 3));
    sink.assert_filled(2);
}

fn a_write_takes_no_request(device: &Device) {
    let (clients, server) = with_clients(device, 8, 1);
    let from = sources(&clients);
    let sink = server.pd.register(8, ALL_ACCESS);
    server.srq.post(7, &[]);
    clients[0].qp.post(&Wr::write(1, &[from[0].sge(0, 8)], &sink, 0));
    clients[0].send_cq.expect_success(1);
    send(&clients[0]);
    assert_eq!(server.expect(0, 7).opcode, ibv_wc_opcode::IBV_WC_RECV);
}

fn datagrams_take_requests(device: &Device) {
    device.needs_type(ibv_qp_type::IBV_QPT_UD);
    let server = server(device, 8);
    let client = datagram::side(device);
    let from = client.pd.register_filled(vec![5; 8], 0);
    let sink = server.pd.register(2 * (HEADER + 8), LOCAL_WRITE);
    let receiver = || {
        let (send, receive) = (&server.send_cq, &server.receive_cq);
        let qp = server.pd.qp_with_srq(send, receive, &datagram::size(), &server.srq);
        datagram::activate(&qp, QKEY);
        qp
    };
    let receivers = [receiver(), receiver()];
    for n in 0..2 {
        server.srq.post(n, &[sink.sge(n as usize * (HEADER + 8), HEADER + 8)]);
    }
    for (n, receiver) in (0..).zip([&receivers[1], &receivers[0]]) {
        let ah = client.pd.ah_to(&client.endpoint(), &endpoint(&server.context, receiver));
        client.qp.post(&Wr::send(1, &[from.sge(0, 8)]).to(&ah, receiver.number(), QKEY));
        client.send_cq.expect_success(1);
        let wc = server.receive_cq.expect_success(n);
        assert_eq!((wc.qp_num, wc.src_qp), (receiver.number(), client.qp.number()));
        let data = n as usize * (HEADER + 8) + HEADER;
        assert_eq!(sink.bytes()[data..data + 8], [5; 8]);
    }
}

fn unreliable_connections_take_requests(device: &Device) {
    let server = server(device, 8);
    let size = device.size_of(ibv_qp_type::IBV_QPT_UC);
    let client = Side::new(device, &size, 16);
    let receiver = server.pd.qp_with_srq(&server.send_cq, &server.receive_cq, &size, &server.srq);
    let (there, here) = (client.endpoint(), endpoint(&server.context, &receiver));
    connect_unreliably(&client.qp, &there, &here, &Knobs::default());
    connect_unreliably(&receiver, &here, &there, &Knobs::default());
    server.srq.post(1, &[]);
    send(&client);
    assert_eq!(server.receive_cq.expect_success(1).qp_num, receiver.number());
}

fn requests_of_many_threads_are_taken_once_each(device: &Device) {
    const THREADS: u64 = 4;
    const EACH: u64 = 8;
    let (clients, server) = with_clients(device, (THREADS * EACH) as u32, 2);
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let srq = &server.srq;
            threads.spawn(move || (0..EACH).for_each(|n| srq.post(thread * EACH + n, &[])));
        }
    });
    let mut taken = Vec::new();
    for n in 0..THREADS * EACH {
        send(&clients[(n % 2) as usize]);
        let wc = server.receive_cq.next();
        assert_eq!(wc.status, Status::IBV_WC_SUCCESS);
        taken.push(wc.wr_id);
    }
    for thread in 0..THREADS {
        let own = taken.iter().copied().filter(|id| id / EACH == thread);
        assert!(own.eq(thread * EACH..(thread + 1) * EACH), "{taken:?}");
    }
}

fn a_sender_waits_for_a_request(device: &Device) {
    let (clients, server) = with_clients(device, 8, 2);
    clients[0].qp.post(&Wr::send(1, &[]));
    // After the other client's write, the first client's message has had time to arrive.
    let sink = server.pd.register(8, ALL_ACCESS);
    let from = sources(&clients);
    clients[1].qp.post(&Wr::write(1, &[from[1].sge(0, 8)], &sink, 0));
    clients[1].send_cq.expect_success(1);
    assert!(clients[0].send_cq.is_empty());
    server.srq.post(7, &[]);
    clients[0].send_cq.expect_success(1);
    server.expect(0, 7);
}

fn a_list_of_requests_serves_all_who_wait(device: &Device) {
    let (clients, server) = with_clients(device, 8, 3);
    clients.iter().for_each(|client| client.qp.post(&Wr::send(1, &[])));
    server.srq.try_post_list(&[(0, &[]), (1, &[]), (2, &[])]).unwrap();
    for client in &clients {
        client.send_cq.expect_success(1);
    }
    let mut taken = Vec::from_iter((0..3).map(|_| server.receive_cq.next()));
    taken.iter().for_each(|wc| assert_eq!(wc.status, Status::IBV_WC_SUCCESS));
    taken.sort_by_key(|wc| wc.wr_id);
    assert!(taken.iter().map(|wc| wc.wr_id).eq(0..3));
    let mut takers = Vec::from_iter(taken.iter().map(|wc| wc.qp_num));
    takers.sort_unstable();
    takers.dedup();
    assert_eq!(takers.len(), 3);
}

/// Returns clients that soon give up if their message finds no receive, and their server.
fn with_impatient_clients(device: &Device, clients: usize) -> (Vec<Side>, Server) {
    needs_queues(device);
    let knobs = Knobs { rnr_retries: 1, min_rnr_timer: 10, ..Knobs::default() };
    Server::with_clients(device, 8, clients, &knobs)
}

fn retries_end_without_a_request(device: &Device) {
    let (clients, server) = with_impatient_clients(device, 1);
    clients[0].qp.post(&Wr::send(1, &[]));
    clients[0].send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    clients[0].qp.wait_for_error();
    server.qps[0].assert_ready();
}

fn a_sender_that_gave_up_takes_no_request(device: &Device) {
    let (clients, server) = with_impatient_clients(device, 2);
    clients[0].qp.post(&Wr::send(1, &[]));
    clients[0].send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    server.srq.post(7, &[]);
    send(&clients[1]);
    server.expect(1, 7);
}

fn a_sender_that_goes_leaves_the_request_to_the_next(device: &Device) {
    let (mut clients, mut server) = with_clients(device, 8, 5);
    for client in &clients {
        client.qp.post(&Wr::send(1, &[]));
    }
    // Five clients wait for a receive. Four of them stop waiting: because of an error, a reset, the
    // destruction of the client's queue pair, and that of the receiver's.
    clients[0].qp.to_error();
    clients[1].qp.to_reset();
    clients[2].qp.destroy();
    server.qps.remove(3);
    // Packets that these clients have sent may still arrive now, and find no receive.
    expect_nothing_under_way(device);
    server.srq.post(7, &[]);
    clients[4].send_cq.expect_success(1);
    server.expect(3, 7);
}

fn a_sender_whose_receiver_goes_finds_nobody(device: &Device) {
    needs_queues(device);
    let knobs = Knobs { timeout: 14, retries: 1, ..Knobs::default() };
    let (clients, mut server) = Server::with_clients(device, 8, 3, &knobs);
    for client in &clients {
        client.qp.post(&Wr::send(1, &[]));
    }
    server.qps[0].to_error();
    server.qps[1].to_reset();
    server.qps[2].destroy();
    for client in &clients {
        client.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    }
}

fn a_queue_pair_with_a_shared_queue_has_no_receives_of_its_own(device: &Device) {
    let (_clients, server) = with_clients(device, 8, 1);
    let (errno, is_named) = server.qps[0].try_post_own_receive();
    assert_eq!(errno, Errno::EINVAL.raw());
    assert_eq!(is_named, device.expected(true, "no-bad-wr-without-a-queue", false));
}

/// Sends a message to a queue pair whose domain differs from that of its shared receive queue. The
/// receive's memory is from one of the two domains. Returns both statuses, and whether the data
/// arrived.
fn between_domains(device: &Device, memory_of_queue: bool) -> (Status, Status, bool) {
    let (clients, server) = with_clients(device, 8, 1);
    let other = server.context.pd();
    let qp = server.qp(&other, &server.receive_cq, &clients[0]);
    let from = sources(&clients);
    let domain = if memory_of_queue { &server.pd } else { &other };
    let sink = domain.register(8, LOCAL_WRITE);
    server.srq.post(7, &[sink.sge(0, 8)]);
    clients[0].qp.post(&Wr::send(2, &[from[0].sge(0, 8)]));
    let (sent, taken) = (clients[0].send_cq.next(), server.receive_cq.next());
    assert_eq!(taken.wr_id, 7);
    let came = sink.bytes() == [1; 8];
    drop((qp, sink));
    (sent.status, taken.status, came)
}

const CAME: (Status, Status, bool) = (Status::IBV_WC_SUCCESS, Status::IBV_WC_SUCCESS, true);
const REFUSED: (Status, Status, bool) =
    (Status::IBV_WC_REM_OP_ERR, Status::IBV_WC_LOC_PROT_ERR, false);
/// The result on SoftRoCE if the memory is from the domain of the queue.
const REFUSED_BY_RXE: (Status, Status, bool) =
    (Status::IBV_WC_REM_OP_ERR, Status::IBV_WC_LOC_QP_OP_ERR, false);

fn elements_are_of_the_domain_of_the_queue(device: &Device) {
    let expected = device.expected(CAME, "domain-of-a-shared-receive-queue", REFUSED_BY_RXE);
    assert_eq!(between_domains(device, true), expected);
}

fn elements_of_the_queue_pairs_domain_are_refused(device: &Device) {
    let expected = device.expected(REFUSED, "domain-of-a-shared-receive-queue", CAME);
    assert_eq!(between_domains(device, false), expected);
}

fn what_peers_name_is_of_the_queue_pairs_domain(device: &Device) {
    let (clients, server) = with_clients(device, 8, 1);
    let other = server.context.pd();
    let qp = server.qp(&other, &server.receive_cq, &clients[0]);
    let from = sources(&clients);
    let (own, foreign) = (other.register(8, ALL_ACCESS), server.pd.register(8, ALL_ACCESS));
    clients[0].qp.post(&Wr::write(1, &[from[0].sge(0, 8)], &own, 0));
    clients[0].send_cq.expect_success(1);
    own.assert_filled(1);
    clients[0].qp.post(&Wr::write(2, &[from[0].sge(0, 8)], &foreign, 0));
    clients[0].send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
    foreign.assert_filled(0);
    drop((qp, own));
}

fn the_error_state_flushes_no_request_of_the_others(device: &Device) {
    let (clients, server) = with_clients(device, 8, 2);
    (0..3).for_each(|n| server.srq.post(n, &[]));
    send(&clients[0]);
    server.qps[0].to_error();
    server.expect(0, 0);
    for n in 1..3 {
        send(&clients[1]);
        server.expect(1, n);
    }
}

fn a_failed_receive_is_the_only_one_that_fails(device: &Device) {
    let (clients, server) = with_clients(device, 8, 2);
    let from = sources(&clients);
    server.srq.post(1, &[]);
    server.srq.post(2, &[]);
    clients[0].qp.post(&Wr::send(1, &[from[0].sge(0, 8)]));
    assert_ne!(clients[0].send_cq.next().status, Status::IBV_WC_SUCCESS);
    let wc = server.receive_cq.next();
    assert_ne!(wc.status, Status::IBV_WC_SUCCESS);
    assert_eq!((wc.wr_id, wc.qp_num), (1, server.qps[0].number()));
    server.qps[0].wait_for_error();
    send(&clients[1]);
    server.expect(1, 2);
}

pub(super) const LIMIT: Event = Event::IBV_EVENT_SRQ_LIMIT_REACHED;

const LAST: Event = Event::IBV_EVENT_QP_LAST_WQE_REACHED;

fn the_last_request_of_a_queue_pair_is_an_event(device: &Device) {
    let (clients, server) = with_clients(device, 8, 2);
    server.srq.post(1, &[]);
    send(&clients[1]);
    server.qps[1].to_error();
    if device.differs("no-last-request-event") {
        // A later message's event shows that no event was reported for the last request.
        server.srq.set_limit(1);
        server.expect(1, 1);
        server.srq.post(2, &[]);
        send(&clients[0]);
        events(&server, LIMIT, 1);
        return;
    }
    assert_eq!(events(&server, LAST, 1), [(LAST, server.qp_name(1))]);
    // The completions of the queue pair's receives can still be polled.
    server.expect(1, 1);
}

fn the_last_request_is_an_event_once_in_each_life(device: &Device) {
    let (clients, server) = with_clients(device, 8, 2);
    let last = (LAST, server.qp_name(1));
    let differs = device.differs("no-last-request-event");
    for _ in 0..2 {
        server.srq.post(1, &[]);
        deliver(&clients[1], &server);
        server.qps[1].to_error();
        if !differs {
            assert_eq!(events(&server, LAST, 1), [last]);
        }
        // The queue pair is already in error, so this causes no second event.
        server.qps[1].to_error();
        server.connect(&server.qps[1], &clients[1], &Knobs::default());
    }
    // The next event is the one that a later message causes.
    server.srq.post(1, &[]);
    server.srq.set_limit(1);
    deliver(&clients[0], &server);
    until("the limit", || server.context.has_async_events());
    assert_eq!(server.events(), [(LIMIT, server.srq.name())]);
}

fn a_queue_pair_without_a_shared_queue_has_no_last_request(device: &Device) {
    let (clients, server) = with_clients(device, 8, 1);
    let context = &clients[0].context;
    clients[0].qp.post_receive(1, &[]);
    clients[0].qp.to_error();
    clients[0].receive_cq.expect_flushed([1]);
    // If the flush had caused the event, it would have been reported by now.
    assert!(context.async_events().iter().all(|event| event.0 != LAST));
    drop(server);
}

fn ordinary_queue_pairs_beside_it_keep_their_own_receives(device: &Device) {
    let (clients, server) = with_clients(device, 8, 1);
    let side = || Side::new(device, &Size::default(), 16);
    let (a, b) = (side(), side());
    connect_sides(&a, &b, &Knobs::default());
    server.srq.post(1, &[]);
    b.qp.post_receive(2, &[]);
    send(&a);
    b.receive_cq.expect_success(2);
    send(&clients[0]);
    server.expect(0, 1);
}
