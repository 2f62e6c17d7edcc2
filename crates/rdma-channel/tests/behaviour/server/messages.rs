//! Messages in both directions.

use std::thread;

use rdma_channel::{Channel, ServerEvent, TransportError};
use rdma_mem::InlineElement;
use rdma_mem::{AccessFlags, BufferPool};
use rdma_qp::{SendWorkRequest, WriteWorkRequest};
use rdma_soft::{Builder, Limits, Schedule};
use test_support::features::Feature;

use crate::common::lacks;
use crate::server::{
    DEVICES, KINDS, connect, domain, join, joined, left, message, next, server, server_with,
};

fn ask(channel: &mut Channel, question: &[u8]) -> Vec<u8> {
    channel.send_inline(question).unwrap();
    let mut answer = channel.pd().allocate_region(4096).unwrap();
    let length = channel.receive_into(&mut answer).unwrap();
    answer[..length].to_vec()
}

/// The device copies the buffers of a server itself: they stay mapped as long as a request can use them.
#[test]
fn buffers_of_a_server_take_no_guarded_copy() {
    const NAMES: [&str; 2] = ["softservercopies0", "softservercopies1"];
    let no_srq = Limits::default().max_srq(0);
    Builder::new(NAMES[0]).force_wire().install().unwrap();
    Builder::new(NAMES[1]).force_wire().limits(no_srq).install().unwrap();
    for device in NAMES {
        let mut server = server(device);
        let (peer, mut client) = join(device, &mut server);
        let mut answer = client.pd().allocate_region(4096).unwrap();
        for _ in 0..3 {
            client.send_from(&client.pd().allocate_region(4096).unwrap()).unwrap();
            let (_, buffer, length) = message(&mut server);
            server.send(peer, buffer, length).unwrap();
            assert_eq!(client.receive_into(&mut answer).unwrap(), 4096);
            let sent = next(&mut server);
            assert!(matches!(sent, ServerEvent::Sent { .. }), "{sent:?}");
        }
        let device = rdma_soft::SoftDevice::find(device).unwrap();
        assert_eq!(device.counters().guarded_copies, 0, "{}", device.name());
    }
}

#[test]
fn each_client_gets_the_answers_to_its_own_questions() {
    const CLIENTS: u8 = 4;
    const QUESTIONS: u8 = 20;
    for device in DEVICES {
        let mut server = server(device);
        let to = server.local_addr();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                thread::spawn(move || {
                    let mut channel = connect(device, to);
                    for question in 0..QUESTIONS {
                        let answer = ask(&mut channel, &[client, question]);
                        assert_eq!(answer, [client, question, client]);
                    }
                })
            })
            .collect();
        let (mut questions, mut sent, mut gone) = (0, 0, 0);
        while gone < CLIENTS {
            match next(&mut server) {
                ServerEvent::Message { peer, mut buffer, length, immediate } => {
                    assert_eq!((length, immediate), (2, None));
                    buffer[2] = buffer[0];
                    server.send(peer, buffer, 3).unwrap();
                    questions += 1;
                }
                ServerEvent::Sent { .. } => sent += 1,
                ServerEvent::Left { .. } => gone += 1,
                _ => {}
            }
        }
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert_eq!(questions, u32::from(CLIENTS) * u32::from(QUESTIONS));
        // The last acknowledgement may be lost with its client.
        assert!(sent + u32::from(CLIENTS) >= questions, "{sent} of {questions}");
    }
}

#[test]
fn messages_of_a_client_come_in_order_and_before_its_end() {
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.max_recv_wr(4));
        let to = server.local_addr();
        let client = thread::spawn(move || {
            let mut channel = connect(device, to);
            (0..100_u8).for_each(|number| channel.send_inline(&[number]).unwrap());
        });
        let peer = joined(&mut server);
        for number in 0..100 {
            let (from, buffer, length) = message(&mut server);
            assert_eq!((from, &buffer[..length]), (peer, [number].as_slice()));
        }
        assert_eq!(left(&mut server).0, peer);
        client.join().unwrap();
    }
}

#[test]
fn messages_keep_their_sizes_and_immediate_data() {
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.message_size(100));
        let (peer, mut client) = join(device, &mut server);
        let mut room = client.pd().allocate_region(100).unwrap();
        for length in [0, 1, 99, 100] {
            let mut buffer = server.pool().allocate(100).unwrap();
            buffer.fill(7);
            server.send_with_immediate(peer, buffer, length, 5).unwrap();
            room.fill(0);
            assert_eq!(client.receive_into(&mut room).unwrap(), length, "{device}");
            assert!(room[..length].iter().all(|&byte| byte == 7));
            assert!(room[length..].iter().all(|&byte| byte == 0), "no byte more");
            let ServerEvent::Sent { peer: to, buffer } = next(&mut server) else { panic!() };
            assert_eq!((to, buffer.len()), (peer, 100));
            client.send_from(room.get_ref(0, length).unwrap()).unwrap();
            assert_eq!(message(&mut server).2, length);
        }
        client.send(SendWorkRequest::only_immediate(9)).unwrap();
        let ServerEvent::Message { immediate, length, .. } = next(&mut server) else { panic!() };
        assert_eq!((immediate, length), (Some(9), 0));
    }
}

/// The program provides the memory that clients write: a region that peers may write is no buffer.
#[test]
fn a_write_with_immediate_data_is_an_event() {
    if lacks("soft0", Feature::Inline(8)) {
        return;
    }
    for device in KINDS {
        let mut server = server(device);
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let board = server.pool().pd().allocate_shared_region(8, access).unwrap();
        let (peer, mut client) = join(device, &mut server);
        let bytes = [InlineElement::new(b"8 bytes!")];
        client.write(WriteWorkRequest::inline(&bytes, board.remote()).with_immediate(3)).unwrap();
        let ServerEvent::Written { peer: from, length, immediate } = next(&mut server) else {
            panic!()
        };
        assert_eq!((from, length, immediate), (peer, 8, 3));
        let mut text = [0; 8];
        board.read(0, &mut text).unwrap();
        assert_eq!(&text, b"8 bytes!");
    }
}

#[test]
fn inline_answers_have_no_buffer() {
    if lacks("soft0", Feature::Inline(16)) {
        return;
    }
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.max_inline_data(16));
        let (peer, mut client) = join(device, &mut server);
        let mut room = client.pd().allocate_region(16).unwrap();
        for round in 0..100_u8 {
            server.send_inline(peer, &[round; 3]).unwrap();
            assert_eq!(client.receive_into(&mut room).unwrap(), 3);
            assert_eq!(room[..3], [round; 3]);
            client.send_inline(b"ok").unwrap();
            // In the meantime the completion of the send is polled, which is no event.
            assert_eq!(&message(&mut server).1[..2], b"ok");
        }
        let refused = server.send_inline(peer, &[0; 17]).unwrap_err();
        assert!(refused.to_string().contains("17 inline bytes"), "{refused}");
        server.send_inline(peer, b"goes on").unwrap();
        assert_eq!(client.receive_into(&mut room).unwrap(), 7);
    }
}

#[test]
fn answers_of_a_few_bytes_are_copied_on_a_device_without_inline_data() {
    let schedules = [Schedule::Immediate, Schedule::Deferred { seed: 9 }];
    for (device, schedule) in ["softbareserver0", "softbareserver1"].into_iter().zip(schedules) {
        Builder::new(device)
            .limits(Limits::default().max_inline_data(0))
            .schedule(schedule)
            .install()
            .unwrap();
        let mut server = server(device);
        let (peer, mut client) = join(device, &mut server);
        let mut room = client.pd().allocate_region(64).unwrap();
        let before = server.pool().usage().buffers;
        for round in 0..50_u8 {
            let bytes = vec![round; usize::from(round) + 1];
            server.send_inline(peer, &bytes).unwrap();
            assert_eq!(client.receive_into(&mut room).unwrap(), bytes.len(), "{device}");
            assert_eq!(room[..bytes.len()], bytes);
            client.send_inline(b"ok").unwrap();
            // Its completion is no event, and returns the copy to the pool.
            assert_eq!(&message(&mut server).1[..2], b"ok");
        }
        assert!(server.pool().usage().buffers <= before + 1, "{device}: copies are not returned");
        let refused = server.send_inline(peer, &[0; 65]).unwrap_err();
        assert!(refused.to_string().contains("65 inline bytes"), "{refused}");
    }
}

#[test]
fn a_refused_send_returns_its_buffer() {
    for device in KINDS {
        let mut server = server_with(device, |builder| builder.max_send_wr(2));
        let (peer, mut client) = join(device, &mut server);
        let buffer = |text: &[u8], pool: &BufferPool| {
            let mut buffer = pool.allocate(8).unwrap();
            buffer[..text.len()].copy_from_slice(text);
            buffer
        };
        let pool = server.pool().clone();

        let refused = server.send(peer, buffer(b"long", &pool), 9).unwrap_err();
        assert!(matches!(refused.error, TransportError::TooLong { length: 9, most: 8 }));
        assert_eq!(&refused.value[..4], b"long");

        let foreign = BufferPool::new(&domain(device));
        let refused = server.send(peer, buffer(b"foreign", &foreign), 7).unwrap_err();
        assert!(matches!(refused.error, TransportError::PostError(_)), "{refused}");
        assert_eq!(&refused.value[..7], b"foreign");

        // The client has posted no receives, so they stay outstanding.
        for _ in 0..2 {
            server.send(peer, buffer(b"first", &pool), 5).unwrap();
        }
        let refused = server.send(peer, buffer(b"third", &pool), 5).unwrap_err();
        assert!(matches!(refused.error, TransportError::WouldBlock), "{refused}");
        assert!(matches!(server.send_inline(peer, b""), Err(TransportError::WouldBlock)));
        let mut room = client.pd().allocate_region(8).unwrap();
        for _ in 0..2 {
            client.receive_into(&mut room).unwrap();
        }
        assert!(matches!(next(&mut server), ServerEvent::Sent { .. }));
        server.send(peer, refused.value, 5).unwrap();
        client.receive_into(&mut room).unwrap();
        assert_eq!(&room[..5], b"third");
    }
}

#[test]
fn buffers_outlive_the_server_and_go_to_other_threads() {
    for device in KINDS {
        let mut server = server(device);
        let (_, mut client) = join(device, &mut server);
        client.send_inline(b"first").unwrap();
        client.send_inline(b"later").unwrap();
        let (_, first, _) = message(&mut server);
        let (_, second, length) = message(&mut server);
        let reader = thread::spawn(move || second[..length].to_vec());
        drop(server);
        assert_eq!(reader.join().unwrap(), b"later");
        assert_eq!(&first[..5], b"first");
    }
}
