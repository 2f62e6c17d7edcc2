//! Shared receive queues as objects: their sizes, slots, limits and destruction (IBTA volume 1,
//! 10.2.9).
#![allow(clippy::cast_possible_truncation)] // All numbers are small.

use rdma_sys::{
    Errno, ibv_device_cap_flags as Cap, ibv_srq_attr_mask as Mask, ibv_wc, ibv_wc_status as Status,
};
use test_support::rig::connect::{Knobs, Side, connect, endpoint};
use test_support::rig::srq::{Server, SrqName};
use test_support::rig::{LOCAL_WRITE, Size, until};

use super::shared_receives::{LIMIT, deliver, events, needs_queues, send, server, with_clients};
use crate::case::cases;
use crate::device::Device;

cases![
    a_queue_has_at_least_the_sizes_that_were_asked_for,
    a_query_says_what_the_device_gave,
    more_requests_than_the_device_has_are_refused,
    more_elements_than_the_device_has_are_refused,
    the_limit_means_nothing_when_a_queue_is_made,
    as_many_requests_have_room_as_the_device_gave,
    a_full_queue_refuses_and_names_the_request,
    a_request_with_too_many_elements_is_refused_and_named,
    what_is_before_a_refused_request_is_posted,
    polled_completions_give_their_room_back,
    a_queue_pair_that_is_destroyed_gives_its_room_back,
    a_queue_is_busy_while_queue_pairs_use_it,
    a_query_of_a_queue_pair_names_its_shared_queue,
    what_nobody_took_goes_with_the_queue,
    a_limit_beyond_the_queue_is_refused,
    the_limit_is_as_it_was_set,
    a_limit_that_the_mask_does_not_name_is_not_set,
    the_limit_is_an_event_when_fewer_are_left,
    the_limit_is_an_event_once,
    the_limit_can_be_set_again,
    a_limit_that_was_taken_back_is_no_event,
    a_queue_waits_for_the_acknowledgement_of_its_events,
    a_queue_takes_its_events_along,
    a_queue_grows_with_its_requests,
    a_queue_gets_no_smaller_than_what_is_in_it,
];

fn a_queue_has_at_least_the_sizes_that_were_asked_for(device: &Device) {
    needs_queues(device);
    let context = device.open();
    let pd = context.pd();
    for (max_wr, max_sge) in [(1, 1), (5, 2), (8, 3), (100, 4)] {
        let (_srq, sizes) = pd.try_srq(max_wr, max_sge).unwrap();
        assert!(sizes.0 >= max_wr && sizes.1 >= max_sge, "{sizes:?}");
    }
}

fn a_query_says_what_the_device_gave(device: &Device) {
    needs_queues(device);
    let context = device.open();
    let pd = context.pd();
    for (max_wr, max_sge) in [(1, 1), (8, 3), (100, 4)] {
        let (srq, sizes) = pd.try_srq(max_wr, max_sge).unwrap();
        let found = srq.query();
        let all = (sizes.0 + 1).next_power_of_two() - 1;
        let given = device.expected(sizes.0, "size-of-a-new-shared-receive-queue", all);
        assert_eq!((found.max_wr, found.max_sge, found.srq_limit), (given, sizes.1, 0));
    }
}

fn more_requests_than_the_device_has_are_refused(device: &Device) {
    needs_queues(device);
    let context = device.open();
    let most = context.query_device().max_srq_wr.cast_unsigned();
    let pd = context.pd();
    for max_wr in [most + 1, u32::MAX] {
        assert_eq!(pd.try_srq(max_wr, 1).err(), Some(Errno::EINVAL), "{max_wr}");
    }
}

fn more_elements_than_the_device_has_are_refused(device: &Device) {
    needs_queues(device);
    let context = device.open();
    let most = context.query_device().max_srq_sge.cast_unsigned();
    let pd = context.pd();
    for max_sge in [most + 1, u32::MAX] {
        assert_eq!(pd.try_srq(8, max_sge).err(), Some(Errno::EINVAL), "{max_sge}");
    }
}

fn the_limit_means_nothing_when_a_queue_is_made(device: &Device) {
    needs_queues(device);
    let context = device.open();
    let pd = context.pd();
    let (srq, _) = pd.try_srq_with_limit(8, 1, 7).unwrap();
    assert_eq!(srq.limit(), device.expected(0, "limit-of-a-new-shared-receive-queue", 7));
}

fn as_many_requests_have_room_as_the_device_gave(device: &Device) {
    let (clients, server) = with_clients(device, 6, 1);
    let room = server.srq.fill(0);
    assert!(room >= u64::from(server.srq.query().max_wr));
    for n in 0..room {
        send(&clients[0]);
        server.expect(0, n);
    }
}

fn a_full_queue_refuses_and_names_the_request(device: &Device) {
    let server = server(device, 4);
    let room = server.srq.query().max_wr as usize;
    let list = Vec::from_iter((0..2 * room as u64 + 2).map(|n| (n, &[][..])));
    let (posted, errno) = server.srq.try_post_list(&list).unwrap_err();
    assert!(posted >= room);
    assert_eq!(errno, Errno::ENOMEM.raw());
    assert_eq!(server.srq.try_post_list(&list[..2]), Err((0, Errno::ENOMEM.raw())));
}

fn a_request_with_too_many_elements_is_refused_and_named(device: &Device) {
    let server = server(device, 8);
    let sink = server.pd.register(8, LOCAL_WRITE);
    let sges = vec![sink.sge(0, 1); server.srq.query().max_sge as usize + 1];
    assert_eq!(server.srq.try_post(0, &sges), Errno::EINVAL.raw());
    let list = [(1, &sges[1..]), (2, &sges[1..]), (3, &sges[..]), (4, &[])];
    assert_eq!(server.srq.try_post_list(&list), Err((2, Errno::EINVAL.raw())));
}

fn what_is_before_a_refused_request_is_posted(device: &Device) {
    let (clients, server) = with_clients(device, 8, 1);
    let sink = server.pd.register(8, LOCAL_WRITE);
    let sges = vec![sink.sge(0, 1); server.srq.query().max_sge as usize + 1];
    assert!(server.srq.try_post_list(&[(1, &[]), (2, &[]), (3, &sges), (4, &[])]).is_err());
    server.srq.post(5, &[]);
    for wr_id in [1, 2, 5] {
        send(&clients[0]);
        server.expect(0, wr_id);
    }
}

fn polled_completions_give_their_room_back(device: &Device) {
    let (clients, server) = with_clients(device, 3, 2);
    let room = server.srq.fill(0);
    for round in 1..4 {
        for n in 0..room {
            deliver(&clients[(n % 2) as usize], &server);
        }
        assert_eq!(server.srq.fill(100 * round), room);
    }
}

fn a_queue_pair_that_is_destroyed_gives_its_room_back(device: &Device) {
    let (clients, mut server) = with_clients(device, 4, 2);
    let room = server.srq.fill(0);
    // Only the completion of the first receive is polled. Destroying the queue pair frees the slots
    // of the next two.
    deliver(&clients[0], &server);
    send(&clients[0]);
    send(&clients[0]);
    server.qps[0].destroy();
    assert_eq!(server.srq.fill(100), 3);
    for n in (3..room).chain(100..103) {
        send(&clients[1]);
        // Unpolled completions of the destroyed queue pair may remain in the completion queue.
        let of_second = |wc: &ibv_wc| wc.qp_num == server.qps[1].number();
        let wc = std::iter::repeat_with(|| server.receive_cq.next()).find(of_second).unwrap();
        assert_eq!((wc.wr_id, wc.status), (n, Status::IBV_WC_SUCCESS));
    }
}

fn a_queue_is_busy_while_queue_pairs_use_it(device: &Device) {
    let (clients, mut server) = with_clients(device, 8, 2);
    assert_eq!(server.srq.try_destroy(), Errno::EBUSY.raw());
    server.qps[0].destroy();
    assert_eq!(server.srq.try_destroy(), Errno::EBUSY.raw());
    // The failed destruction leaves the queue unchanged.
    server.srq.post(1, &[]);
    send(&clients[1]);
    server.expect(1, 1);
}

fn a_query_of_a_queue_pair_names_its_shared_queue(device: &Device) {
    let (_clients, server) = with_clients(device, 8, 1);
    assert_eq!(server.qps[0].query_init().srq, server.srq.0);
}

fn what_nobody_took_goes_with_the_queue(device: &Device) {
    let (clients, mut server) = with_clients(device, 8, 1);
    let sink = server.pd.register(8, LOCAL_WRITE);
    server.srq.post(1, &[sink.sge(0, 8)]);
    server.qps.clear();
    let Server { srq, pd, receive_cq, send_cq, context, .. } = server;
    drop(srq);
    sink.deregister();
    // The first completion in the receive completion queue is that of another queue pair. So the
    // receive in the destroyed queue has not completed.
    let other = pd.qp(&send_cq, &receive_cq, &Size::default());
    let client = &clients[0];
    client.qp.to_reset();
    let (there, here) = (client.endpoint(), endpoint(&context, &other));
    connect(&client.qp, &there, &here, &Knobs::default());
    connect(&other, &here, &there, &Knobs::default());
    other.post_receive(2, &[]);
    send(client);
    receive_cq.expect_success(2);
    drop((other, send_cq, receive_cq, pd));
}

fn a_limit_beyond_the_queue_is_refused(device: &Device) {
    let server = server(device, 8);
    let beyond = server.srq.query().max_wr + 1;
    assert_eq!(server.srq.modify(0, beyond, Mask::IBV_SRQ_LIMIT), Errno::EINVAL.raw());
    assert_eq!(server.srq.limit(), 0);
}

fn the_limit_is_as_it_was_set(device: &Device) {
    let server = server(device, 8);
    for limit in [3, 8, 1, 0] {
        server.srq.set_limit(limit);
        assert_eq!(server.srq.limit(), limit);
    }
}

fn a_limit_that_the_mask_does_not_name_is_not_set(device: &Device) {
    let server = server(device, 8);
    server.srq.set_limit(3);
    assert_eq!(server.srq.modify(0, 5, Mask(0)), 0);
    assert_eq!(server.srq.limit(), 3);
}

/// Returns a client, and a server whose shared receive queue has eight requests.
fn of_eight(device: &Device) -> (Side, Server) {
    let (mut clients, server) = with_clients(device, 16, 1);
    (0..8).for_each(|n| server.srq.post(n, &[]));
    (clients.pop().unwrap(), server)
}

fn the_limit_is_an_event_when_fewer_are_left(device: &Device) {
    let (client, server) = of_eight(device);
    server.srq.set_limit(5);
    (0..3).for_each(|_| deliver(&client, &server));
    // Five are left, which is not below the limit of 5. If the event had been reported, the limit
    // would now be 0.
    assert_eq!(server.srq.limit(), 5);
    deliver(&client, &server);
    assert_eq!(events(&server, LIMIT, 1), [(LIMIT, server.srq.name())]);
    assert_eq!(server.srq.limit(), 0);
}

fn the_limit_is_an_event_once(device: &Device) {
    let (client, server) = of_eight(device);
    server.srq.set_limit(8);
    deliver(&client, &server);
    assert_eq!(events(&server, LIMIT, 1).len(), 1);
    (0..6).for_each(|_| deliver(&client, &server));
    // The event of the previous limit is not repeated. Only the new limit causes an event.
    server.srq.set_limit(1);
    deliver(&client, &server);
    assert_eq!(events(&server, LIMIT, 1).len(), 1);
}

fn the_limit_can_be_set_again(device: &Device) {
    let (client, server) = of_eight(device);
    for limit in [8, 7, 6] {
        server.srq.set_limit(limit);
        deliver(&client, &server);
        assert_eq!(events(&server, LIMIT, 1), [(LIMIT, server.srq.name())]);
    }
    server.qps[0].assert_ready();
}

fn a_limit_that_was_taken_back_is_no_event(device: &Device) {
    let (client, server) = of_eight(device);
    server.srq.set_limit(8);
    server.srq.set_limit(0);
    (0..7).for_each(|_| deliver(&client, &server));
    server.srq.set_limit(1);
    deliver(&client, &server);
    assert_eq!(events(&server, LIMIT, 1).len(), 1);
}

fn a_queue_waits_for_the_acknowledgement_of_its_events(device: &Device) {
    let (client, mut server) = of_eight(device);
    let reach_limit = || {
        server.srq.set_limit(8);
        deliver(&client, &server);
        until("the event", || server.context.has_async_events());
    };
    reach_limit();
    let taken = server.context.take_async_events(false);
    assert_eq!(taken, [(LIMIT, server.srq.name())]);
    reach_limit();
    server.qps.clear();
    let Server { srq, pd, context, send_cq, receive_cq, .. } = server;
    let name = SrqName::of(&srq);
    std::thread::scope(|threads| {
        let destroyer = threads.spawn(move || drop(srq));
        // The destruction first discards the unread event, and then waits until the other one is
        // acknowledged.
        until("the discard of the unread event", || !context.has_async_events());
        // If it did not wait for the acknowledgement, the destruction would be complete after these
        // calls.
        for _ in 0..20 {
            drop(device.open());
        }
        assert!(!destroyer.is_finished());
        name.acknowledge_limit();
        destroyer.join().unwrap();
    });
    drop((send_cq, receive_cq, pd));
    drop(context);
}

fn a_queue_takes_its_events_along(device: &Device) {
    let (client, mut server) = of_eight(device);
    server.srq.set_limit(8);
    deliver(&client, &server);
    until("the event", || server.context.has_async_events());
    server.qps.clear();
    let Server { srq, pd, context, send_cq, receive_cq, .. } = server;
    drop(srq);
    assert_eq!(context.async_events(), []);
    drop((send_cq, receive_cq, pd));
}

fn needs_resize(device: &Device) {
    let resizes = device.attributes().device_cap_flags & Cap::IBV_DEVICE_SRQ_RESIZE.0 != 0;
    device.needs(resizes, "the device does not resize shared receive queues");
}

fn a_queue_grows_with_its_requests(device: &Device) {
    needs_resize(device);
    let (clients, server) = with_clients(device, 4, 1);
    let before = server.srq.fill(0);
    let larger = 4 * before as u32;
    assert_eq!(server.srq.modify(larger, 0, Mask::IBV_SRQ_MAX_WR), 0);
    assert!(server.srq.query().max_wr >= larger);
    let more = server.srq.fill(before);
    assert!(before + more >= u64::from(larger));
    for n in 0..before + more {
        send(&clients[0]);
        server.expect(0, n);
    }
}

fn a_queue_gets_no_smaller_than_what_is_in_it(device: &Device) {
    needs_resize(device);
    let (clients, server) = with_clients(device, 64, 1);
    let count = server.srq.fill(0);
    assert_ne!(server.srq.modify(4, 0, Mask::IBV_SRQ_MAX_WR), 0);
    for n in 0..count {
        send(&clients[0]);
        server.expect(0, n);
    }
}
