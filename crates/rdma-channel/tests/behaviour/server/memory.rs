//! The memory of a server.

use rdma_channel::ServerEvent;
use rdma_soft::{Builder, Limits};

use crate::server::{DEVICES, KINDS, join, left, message, next, server_with};

#[test]
fn receives_take_the_same_memory_for_any_number_of_clients() {
    for device in KINDS {
        let mut server = server_with(device, |builder| builder.max_recv_wr(32).message_size(1000));
        let pool = server.pool().clone();
        let (alone, clients) = (pool.usage(), 20);
        assert_eq!(alone.buffers, 32);
        let channels: Vec<_> = (0..clients).map(|_| join(device, &mut server).1).collect();
        assert_eq!(pool.usage(), alone);
        drop(channels);
        (0..clients).for_each(|_| drop(left(&mut server)));
        assert_eq!(pool.usage(), alone);
    }
}

/// The other receives are posted once there is memory for them.
#[test]
fn a_server_works_with_fewer_receives_if_memory_is_short() {
    rdma_soft::install();
    for (device, queues) in [("softsmall0", 1), ("softsmall1", 0)] {
        let limits = Limits::default().memlock(1 << 22).max_srq(queues);
        let _ = Builder::new(device).limits(limits).install();
        let mut server =
            server_with(device, |builder| builder.max_recv_wr(8).message_size(1 << 20));
        let receives = server.pool().usage().buffers;
        assert!((1..8).contains(&receives), "{device}: {receives}");
        let (peer, mut client) = join("soft0", &mut server);
        client.send_inline(b"good").unwrap();
        assert_eq!(message(&mut server).0, peer);
    }
}

#[test]
fn buffers_that_the_program_keeps_are_allocated_in_addition() {
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.max_recv_wr(8).message_size(64));
        let pool = server.pool().clone();
        let (peer, mut client) = join(device, &mut server);
        let mut kept = Vec::new();
        for number in 0..50_u8 {
            client.send_inline(&[number]).unwrap();
            kept.push(message(&mut server).1);
        }
        assert!(kept.iter().map(|buffer| buffer[0]).eq(0..50));
        assert!((50..=58).contains(&pool.usage().buffers));
        // They can be sent to any client.
        let mut room = client.pd().allocate_region(64).unwrap();
        for buffer in kept {
            let number = buffer[0];
            server.send(peer, buffer, 1).unwrap();
            client.receive_into(&mut room).unwrap();
            assert_eq!(room[0], number);
            assert!(matches!(next(&mut server), ServerEvent::Sent { .. }));
        }
        assert_eq!(pool.usage().buffers, 8);
    }
}

#[test]
fn a_dropped_server_returns_all_buffers() {
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.max_recv_wr(8));
        let pool = server.pool().clone();
        let (peer, mut client) = join(device, &mut server);
        client.send_inline(b"taken").unwrap();
        let taken = message(&mut server).1;
        client.send_inline(b"not taken").unwrap();
        for _ in 0..3 {
            server.send(peer, pool.allocate(8).unwrap(), 8).unwrap();
        }
        drop(server);
        assert_eq!(pool.usage().buffers, 1, "{device}");
        assert_eq!(&taken[..5], b"taken");
        client.send_inline(b"no server").unwrap_err();
    }
}
