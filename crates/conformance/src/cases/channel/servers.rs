//! Cases for `Server`: clients do not affect each other, and no message is lost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{
    Buffer, Channel, LeftReason, PeerId, Server, ServerBuilder, ServerEvent, TransportError, Wait,
};
use rdma_mem::{AccessFlags, InlineElement, ProtectionDomain};
use rdma_qp::{SendWorkRequest, WriteWorkRequest};

use crate::case::cases;
use crate::device::Device;

cases![
    each_client_gets_the_answers_to_its_own_questions,
    messages_of_a_client_come_in_order_and_before_its_end,
    messages_have_the_size_and_the_number_that_were_sent,
    answers_without_a_buffer_arrive,
    a_client_that_writes_says_so,
    who_drops_its_channel_leaves,
    who_is_disconnected_notices,
    a_message_that_is_too_long_fails_its_own_connection,
    clients_come_and_go_more_often_than_there_are_places,
    senders_wait_while_nobody_asks,
    a_sleeping_server_wakes_for_each_kind_of_event,
    a_server_is_woken_by_another_thread,
];

/// The limit for all waits; only a hanging case reaches it.
const BOUND: Duration = Duration::from_secs(60);

fn domain(device: &Device) -> ProtectionDomain {
    rdma_mem::open_device(&**device).unwrap().allocate_pd().unwrap()
}

fn server(
    device: &Device,
    knobs: impl for<'a> FnOnce(ServerBuilder<'a>) -> ServerBuilder<'a>,
) -> Server {
    let pd = domain(device);
    knobs(pd.create_server().rendezvous_timeout(BOUND)).bind("127.0.0.1:0").unwrap()
}

fn connect(pd: &ProtectionDomain, to: SocketAddr) -> Channel {
    let builder = pd.create_channel().rendezvous_timeout(BOUND);
    builder.wait(Wait::Sleep).connect(to).unwrap().0
}

/// Connects a client, and waits until the server has accepted it.
fn join(device: &Device, server: &mut Server) -> (PeerId, Channel) {
    let (to, pd) = (server.local_addr(), domain(device));
    let client = thread::spawn(move || connect(&pd, to));
    (joined(server), client.join().unwrap())
}

#[track_caller]
fn next(server: &mut Server) -> ServerEvent {
    server.next(Some(BOUND)).unwrap().expect("something happens")
}

#[track_caller]
fn joined(server: &mut Server) -> PeerId {
    match next(server) {
        ServerEvent::Joined { peer, .. } => peer,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn message(server: &mut Server) -> (PeerId, Buffer, usize) {
    match next(server) {
        ServerEvent::Message { peer, buffer, length, .. } => (peer, buffer, length),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn left(server: &mut Server) -> (PeerId, LeftReason) {
    match next(server) {
        ServerEvent::Left { peer, reason } => (peer, reason),
        other => panic!("{other:?}"),
    }
}

fn each_client_gets_the_answers_to_its_own_questions(device: &Device) {
    const CLIENTS: u8 = 3;
    let mut server = server(device, |builder| builder);
    let to = server.local_addr();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let pd = domain(device);
            thread::spawn(move || {
                let mut channel = connect(&pd, to);
                let mut room = pd.allocate_region(64).unwrap();
                for question in 0..10 {
                    channel.send_inline(&[client, question]).unwrap();
                    let length = channel.receive_into(&mut room).unwrap();
                    assert_eq!(room[..length], [client, question, client]);
                }
            })
        })
        .collect();
    let mut gone = 0;
    while gone < CLIENTS {
        match next(&mut server) {
            ServerEvent::Message { peer, mut buffer, length, immediate } => {
                assert_eq!((length, immediate), (2, None));
                buffer[2] = buffer[0];
                server.send(peer, buffer, 3).unwrap();
            }
            ServerEvent::Left { .. } => gone += 1,
            _ => {}
        }
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
}

fn messages_of_a_client_come_in_order_and_before_its_end(device: &Device) {
    let mut server = server(device, |builder| builder.max_recv_wr(4));
    let (to, pd) = (server.local_addr(), domain(device));
    let client = thread::spawn(move || {
        let mut channel = connect(&pd, to);
        (0..40_u8).for_each(|number| channel.send_inline(&[number]).unwrap());
    });
    let peer = joined(&mut server);
    for number in 0..40 {
        let (from, buffer, length) = message(&mut server);
        assert_eq!((from, &buffer[..length]), (peer, [number].as_slice()));
    }
    assert_eq!(left(&mut server).0, peer);
    client.join().unwrap();
}

fn messages_have_the_size_and_the_number_that_were_sent(device: &Device) {
    let mut server = server(device, |builder| builder.message_size(10_000));
    let (peer, mut client) = join(device, &mut server);
    let mut room = client.pd().allocate_region(10_000).unwrap();
    for length in [0, 1, 9_999, 10_000] {
        let mut buffer = server.pool().allocate(10_000).unwrap();
        buffer.fill(7);
        server.send_with_immediate(peer, buffer, length, 5).unwrap();
        room.fill(0);
        assert_eq!(client.receive_into(&mut room).unwrap(), length);
        assert!(room[..length].iter().all(|&byte| byte == 7));
        assert!(room[length..].iter().all(|&byte| byte == 0), "no other byte was written");
        assert!(matches!(next(&mut server), ServerEvent::Sent { peer: to, .. } if to == peer));
        client.send_from(room.get_ref(0, length).unwrap()).unwrap();
        assert_eq!(message(&mut server).2, length);
    }
    client.send(SendWorkRequest::only_immediate(9)).unwrap();
    let event = next(&mut server);
    let is_it = matches!(event, ServerEvent::Message { immediate: Some(9), length: 0, .. });
    assert!(is_it, "{event:?}");
}

fn answers_without_a_buffer_arrive(device: &Device) {
    let mut server = server(device, |builder| builder);
    let (peer, mut client) = join(device, &mut server);
    let mut room = client.pd().allocate_region(16).unwrap();
    for round in 0..20_u8 {
        server.send_inline(peer, &[round; 3]).unwrap();
        assert_eq!(client.receive_into(&mut room).unwrap(), 3);
        assert_eq!(room[..3], [round; 3]);
        client.send_inline(b"ok").unwrap();
        assert_eq!(&message(&mut server).1[..2], b"ok");
    }
}

fn a_client_that_writes_says_so(device: &Device) {
    device.needs_inline(8);
    let mut server = server(device, |builder| builder);
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = server.pool().pd().allocate_shared_region(8, access).unwrap();
    let (peer, mut client) = join(device, &mut server);
    let bytes = [InlineElement::new(b"8 bytes!")];
    client.write(WriteWorkRequest::inline(&bytes, board.remote()).with_immediate(3)).unwrap();
    let event = next(&mut server);
    let is_it = matches!(event, ServerEvent::Written { peer: from, length: 8, immediate: 3 } if from == peer);
    assert!(is_it, "{event:?}");
    let mut text = [0; 8];
    board.read(0, &mut text).unwrap();
    assert_eq!(&text, b"8 bytes!");
}

fn who_drops_its_channel_leaves(device: &Device) {
    let mut server = server(device, |builder| builder);
    let (first, channel) = join(device, &mut server);
    let (second, mut stays) = join(device, &mut server);
    drop(channel);
    let (peer, reason) = left(&mut server);
    assert_eq!(peer, first);
    assert!(matches!(reason, LeftReason::Gone { .. }), "{reason}");
    stays.send_inline(b"still here").unwrap();
    assert_eq!(message(&mut server).0, second);
}

fn who_is_disconnected_notices(device: &Device) {
    let mut server = server(device, |builder| builder);
    let (peer, mut client) = join(device, &mut server);
    let (other, mut stays) = join(device, &mut server);
    server.disconnect(peer);
    let (gone, reason) = left(&mut server);
    assert_eq!(gone, peer);
    assert!(matches!(reason, LeftReason::Disconnected), "{reason}");
    let refused = server.send_inline(peer, b"").unwrap_err();
    assert!(matches!(refused, TransportError::PeerLeft(id) if id == peer), "{refused}");
    client.send_inline(b"too late").unwrap_err();
    stays.send_inline(b"not me").unwrap();
    assert_eq!(message(&mut server).0, other);
}

fn a_message_that_is_too_long_fails_its_own_connection(device: &Device) {
    let mut server = server(device, |builder| builder.message_size(32));
    let (peer, mut client) = join(device, &mut server);
    let (other, mut stays) = join(device, &mut server);
    client.send_inline(&[1; 32]).unwrap();
    client.send_inline(&[2; 33]).unwrap_err();
    let (from, buffer, length) = message(&mut server);
    assert_eq!((from, &buffer[..length]), (peer, [1; 32].as_slice()));
    let (gone, reason) = left(&mut server);
    assert_eq!(gone, peer);
    assert!(matches!(reason, LeftReason::Failed(_)), "{reason}");
    stays.send_inline(&[3; 32]).unwrap();
    assert_eq!(message(&mut server).0, other);
}

fn clients_come_and_go_more_often_than_there_are_places(device: &Device) {
    let mut server = server(device, |builder| builder.max_peers(2).max_recv_wr(4));
    let (stays, mut channel) = join(device, &mut server);
    let mut known = vec![stays];
    for round in 0..12_u8 {
        let (peer, mut client) = join(device, &mut server);
        assert!(!known.contains(&peer), "{peer} must be new");
        known.push(peer);
        for (sender, id) in [(&mut client, peer), (&mut channel, stays)] {
            sender.send_inline(&[round; 5]).unwrap();
            let (from, buffer, length) = message(&mut server);
            assert_eq!((from, &buffer[..length]), (id, [round; 5].as_slice()));
        }
        drop(client);
        assert_eq!(left(&mut server).0, peer);
    }
}

fn senders_wait_while_nobody_asks(device: &Device) {
    let mut server = server(device, |builder| builder.max_recv_wr(4).max_recv_wr_per_peer(4));
    let (to, pd) = (server.local_addr(), domain(device));
    let sent = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&sent);
    let client = thread::spawn(move || {
        let mut channel = connect(&pd, to);
        (0..20_u8).for_each(|number| {
            channel.send_inline(&[number]).unwrap();
            count.fetch_add(1, Relaxed);
        });
        // The channel is kept open until the server has received all messages and answers.
        let mut room = pd.allocate_region(1).unwrap();
        channel.receive_into(&mut room).unwrap();
    });
    let peer = joined(&mut server);
    // The server has four receives posted. While it waited for the client's event, it may have
    // polled messages too, and posted another receive for each of them.
    let begin = Instant::now();
    while sent.load(Relaxed) < 4 && begin.elapsed() < BOUND {
        thread::yield_now();
    }
    assert!((4..20).contains(&sent.load(Relaxed)), "the other messages must wait");
    let kept: Vec<_> = (0..20).map(|_| message(&mut server).1).collect();
    assert!(kept.iter().zip(0..).all(|(buffer, number)| buffer[0] == number));
    server.send(peer, kept.into_iter().next().unwrap(), 1).unwrap();
    while !matches!(next(&mut server), ServerEvent::Left { .. }) {}
    client.join().unwrap();
}

fn a_sleeping_server_wakes_for_each_kind_of_event(device: &Device) {
    let mut server = server(device, |builder| builder.wait(Wait::Sleep));
    let to = server.local_addr();
    for _ in 0..10 {
        let pd = domain(device);
        let (goes, may_go) = mpsc::channel();
        let client = thread::spawn(move || {
            let mut channel = connect(&pd, to);
            thread::sleep(Duration::from_millis(1));
            channel.send_inline(b"x").unwrap();
            let mut room = pd.allocate_region(1).unwrap();
            thread::sleep(Duration::from_millis(1));
            channel.receive_into(&mut room).unwrap();
            may_go.recv().unwrap();
            thread::sleep(Duration::from_millis(1));
        });
        let peer = joined(&mut server);
        let (_, buffer, length) = message(&mut server);
        server.send(peer, buffer, length).unwrap();
        let sent = next(&mut server);
        assert!(matches!(sent, ServerEvent::Sent { .. }), "{sent:?}");
        goes.send(()).unwrap();
        assert_eq!(left(&mut server).0, peer);
        client.join().unwrap();
    }
}

fn a_server_is_woken_by_another_thread(device: &Device) {
    const LATER: Duration = Duration::from_millis(20);
    let mut server = server(device, |builder| builder.wait(Wait::Sleep));
    let (waker, begin) = (server.waker(), Instant::now());
    let other = thread::spawn(move || {
        thread::sleep(LATER);
        waker.wake();
    });
    assert!(server.next(Some(BOUND)).unwrap().is_none(), "no event must be pending");
    assert!((LATER..BOUND).contains(&begin.elapsed()), "the wait must end at its limit");
    other.join().unwrap();
}
