//! Completion channels, and events that nobody asked for.

use rdma_sys::{Errno, ibv_event_type as Event, ibv_port_state, ibv_send_flags, ibv_wc_status};

use crate::rig::connect::{
    Knobs, Side, attributes, connect, connect_sides, endpoint, pair, pair_with, to_init, to_rtr,
};
use crate::rig::events::Channel;
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, Context, Cq, LOCAL_WRITE, Pd, Qp, Size, on_each_device, soft, until};

/// A receiver with a completion channel. Fields drop in order.
struct Receiver {
    qp: Qp,
    send_cq: Cq,
    receive_cq: Cq,
    pd: Pd,
    channel: Channel,
    context: Context,
}

/// A sender, connected to a receiver with a completion channel.
fn with_channel(device: &str) -> (Side, Receiver) {
    let a = Side::new(device, &Size::default(), 64);
    let context = Context::open(device);
    let channel = context.channel();
    let (send_cq, receive_cq) = (context.cq(64), context.cq_with(&channel, 64));
    let pd = context.pd();
    let qp = pd.qp(&send_cq, &receive_cq, &Size::default());
    let (at_a, at_b) = (a.endpoint(), endpoint(&context, &qp));
    connect(&a.qp, &at_a, &at_b, &Knobs::default());
    connect(&qp, &at_b, &at_a, &Knobs::default());
    channel.set_non_blocking(true);
    (a, Receiver { qp, send_cq, receive_cq, pd, channel, context })
}

/// Sends a message of nothing and waits until the sender has its completion.
fn send(a: &Side, b: &Qp, flags: ibv_send_flags) {
    b.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]).flags(flags));
    a.send_cq.expect_success(2);
}

const PLAIN: ibv_send_flags = ibv_send_flags(0);

#[test]
fn one_event_comes_for_each_request_of_one() {
    on_each_device("event-once", |device| {
        let (a, b) = with_channel(device);
        let channel = &b.channel;
        send(&a, &b.qp, PLAIN);
        assert_eq!(channel.get(), Err(Errno::EAGAIN), "nobody asked");
        b.receive_cq.request_event(false);
        assert!(!channel.is_readable(), "what is there already counts for nothing");
        send(&a, &b.qp, PLAIN);
        send(&a, &b.qp, PLAIN);
        assert!(channel.is_readable());
        assert_eq!(channel.get(), Ok(b.receive_cq.0));
        assert_eq!(channel.get(), Err(Errno::EAGAIN), "one event for one request");
        b.receive_cq.acknowledge(1);
        assert_eq!(channel.try_destroy(), Errno::EBUSY.raw(), "a queue uses it");
    });
}

#[test]
fn a_solicited_event_waits_for_a_solicited_message() {
    on_each_device("event-solicited", |device| {
        let (a, b) = with_channel(device);
        let channel = &b.channel;
        b.receive_cq.request_event(true);
        send(&a, &b.qp, PLAIN);
        assert!(!channel.is_readable());
        send(&a, &b.qp, ibv_send_flags::IBV_SEND_SOLICITED);
        assert_eq!(channel.get(), Ok(b.receive_cq.0));
        // The wider request holds.
        b.receive_cq.request_event(false);
        b.receive_cq.request_event(true);
        send(&a, &b.qp, PLAIN);
        assert_eq!(channel.get(), Ok(b.receive_cq.0));
        b.receive_cq.acknowledge(2);
    });
}

#[test]
fn a_failure_counts_as_solicited() {
    on_each_device("event-failure", |device| {
        let (_a, b) = with_channel(device);
        let channel = &b.channel;
        b.receive_cq.request_event(true);
        b.qp.post_receive(1, &[]);
        b.qp.to_error();
        assert_eq!(channel.get(), Ok(b.receive_cq.0));
        b.receive_cq.acknowledge(1);
    });
}

#[test]
fn getting_an_event_waits_for_one() {
    on_each_device("event-blocking", |device| {
        let (a, b) = with_channel(device);
        b.channel.set_non_blocking(false);
        b.receive_cq.request_event(false);
        let (queue, waiting) = (b.receive_cq.0.addr(), &b.channel);
        std::thread::scope(|threads| {
            let waiter = threads.spawn(move || waiting.get().map(<*mut _>::addr));
            send(&a, &b.qp, PLAIN);
            assert_eq!(waiter.join().unwrap(), Ok(queue));
        });
        b.receive_cq.acknowledge(1);
    });
}

#[test]
fn destroying_a_queue_takes_its_events_along_and_waits_for_acknowledgements() {
    on_each_device("event-destroy", |device| {
        let (a, b) = with_channel(device);
        let channel = &b.channel;
        b.receive_cq.request_event(false);
        send(&a, &b.qp, PLAIN);
        assert_eq!(channel.get(), Ok(b.receive_cq.0));
        b.receive_cq.request_event(false);
        send(&a, &b.qp, PLAIN);
        assert!(channel.is_readable());
        let Receiver { qp, send_cq, receive_cq, pd, channel, context } = b;
        drop(qp);
        let name = receive_cq.name();
        std::thread::scope(|threads| {
            let destroyer = threads.spawn(move || drop(receive_cq));
            // The event that was not taken goes first; then the other is waited for.
            until("the event that was not taken is gone", || !channel.is_readable());
            assert!(!destroyer.is_finished());
            name.acknowledge(1);
            destroyer.join().unwrap();
        });
        drop((send_cq, pd, channel));
        drop(context);
    });
}

#[test]
fn a_refused_request_is_an_event_of_the_responder() {
    on_each_device("event-refused", |device| {
        for (rkey, event, status) in [
            (0, Event::IBV_EVENT_QP_ACCESS_ERR, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
            (1, Event::IBV_EVENT_QP_REQ_ERR, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR),
        ] {
            let (a, b) = pair(device);
            let memory = a.pd.register(8, LOCAL_WRITE);
            if rkey == 0 {
                a.qp.post(&Wr::write(1, &[memory.sge(0, 8)], &memory, 0).remote(64, 0));
            } else {
                b.qp.post_receive(1, &[]);
                a.qp.post(&Wr::send(1, &[memory.sge(0, 8)]));
            }
            a.send_cq.expect(1, status);
            b.qp.wait_for_error();
            assert_eq!(b.context.async_events(), [(event, b.qp.0.addr())]);
            assert_eq!(a.context.async_events(), [], "a requester has its completion");
        }
    });
}

#[test]
fn an_overflow_is_an_event_of_the_queue_and_of_its_queue_pairs() {
    on_each_device("event-overflow", |device| {
        let (a, b) =
            (Side::new(device, &Size::default(), 2), Side::new(device, &Size::default(), 64));
        connect_sides(&a, &b, &Knobs::default());
        let sink = b.pd.register(8, ALL_ACCESS);
        for n in 0..3 {
            a.qp.post(&Wr::write(n, &[], &sink, 0));
        }
        until("the queue overflows", || {
            // Nobody polls the full queue: on a deferred device the other thread works.
            a.qp.state() == rdma_sys::ibv_qp_state::IBV_QPS_ERR
        });
        let mut events = a.context.async_events();
        events.sort_by_key(|(kind, _)| kind.0);
        assert_eq!(
            events,
            [
                (Event::IBV_EVENT_CQ_ERR, a.send_cq.0.addr()),
                (Event::IBV_EVENT_QP_FATAL, a.qp.0.addr())
            ]
        );
    });
}

#[test]
fn a_first_message_establishes_the_connection_of_a_passive_side() {
    on_each_device("event-established", |device| {
        let (a, b) =
            (Side::new(device, &Size::default(), 64), Side::new(device, &Size::default(), 64));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let knobs = Knobs::default();
        let passive = attributes(&at_b, &at_a, &knobs);
        to_init(&b.qp, &passive);
        to_rtr(&b.qp, &passive);
        connect(&a.qp, &at_a, &at_b, &knobs);
        for _ in 0..2 {
            send(&a, &b.qp, PLAIN);
        }
        assert_eq!(b.context.async_events(), [(Event::IBV_EVENT_COMM_EST, b.qp.0.addr())]);
    });
}

#[test]
fn the_events_of_a_destroyed_queue_pair_are_gone() {
    on_each_device("event-gone", |device| {
        let (a, mut b) = pair(device);
        a.qp.post(&Wr::send(1, &[]).remote(0, 0));
        let memory = a.pd.register(8, LOCAL_WRITE);
        b.qp.post_receive(1, &[]);
        a.send_cq.expect_success(1);
        a.qp.post(&Wr::write(2, &[memory.sge(0, 8)], &memory, 0).remote(64, 0));
        a.send_cq.expect(2, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        b.qp.wait_for_error();
        b.qp.destroy();
        assert_eq!(b.context.async_events(), []);
    });
}

#[test]
fn a_port_that_goes_down_cuts_the_connection_until_it_is_up() {
    on_each_device("event-port", |device| {
        let knobs = Knobs { timeout: 14, retries: 7, ..Knobs::default() };
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let sink = b.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[], &sink, 0));
        a.send_cq.expect_success(1);
        soft(device).set_port_up(false);
        soft(device).set_port_up(false);
        assert_eq!(a.context.query_port().state, ibv_port_state::IBV_PORT_DOWN);
        a.qp.post(&Wr::write(2, &[], &sink, 0));
        assert!(a.send_cq.is_empty());
        soft(device).set_port_up(true);
        assert_eq!(a.context.query_port().state, ibv_port_state::IBV_PORT_ACTIVE);
        // A retry gets through.
        a.send_cq.expect_success(2);
        for side in [&a, &b] {
            let kinds: Vec<_> = side.context.async_events().iter().map(|event| event.0).collect();
            assert_eq!(kinds, [Event::IBV_EVENT_PORT_ERR, Event::IBV_EVENT_PORT_ACTIVE]);
        }
    });
}
