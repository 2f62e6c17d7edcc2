//! Clients that leave, or whose connections fail.

use std::time::{Duration, Instant};

use rdma_channel::{
    AsyncEventKind, CloseReason, LeftReason, RemoteMemoryRegion, ServerEvent, TransportError,
};

use crate::common::{DEFERRED, NO_SRQ, WIRE, WIRE_NO_SRQ};
use crate::server::{DEVICES, LATER, assert_quiet, join, left, message, next, server, server_with};

#[test]
fn a_client_that_drops_its_channel_leaves_at_once() {
    for device in DEVICES {
        let mut server = server(device);
        let (first, channel) = join(device, &mut server);
        let (second, _stays) = join(device, &mut server);
        let begin = Instant::now();
        drop(channel);
        let (peer, reason) = left(&mut server);
        assert_eq!(peer, first);
        let disconnected = LeftReason::Gone { reason: CloseReason::Disconnected };
        assert_eq!(reason.to_string(), disconnected.to_string());
        // It did not wait for a limit.
        assert!(begin.elapsed() < Duration::from_secs(25));
        assert_quiet(&mut server);
        server.disconnect(second);
        assert_eq!(left(&mut server).0, second);
    }
}

#[test]
fn a_disconnected_client_notices_it() {
    for device in DEVICES {
        let mut server = server(device);
        let (peer, mut client) = join(device, &mut server);
        let (other, mut stays) = join(device, &mut server);
        server.disconnect(peer);
        server.disconnect(peer);
        // Messages sent before `Left` is received are lost.
        let buffer = server.pool().allocate(8).unwrap();
        server.send(peer, buffer, 8).unwrap();
        server.send_inline(peer, b"").unwrap();
        let (gone, reason) = left(&mut server);
        assert_eq!(gone, peer);
        assert!(matches!(reason, LeftReason::Disconnected), "{reason}");
        let refused = server.send(peer, server.pool().allocate(8).unwrap(), 8).unwrap_err();
        assert!(matches!(refused.error, TransportError::PeerLeft(id) if id == peer));
        assert_eq!(
            refused.to_string(),
            format!("{peer} has left: messages to it would not arrive")
        );
        assert!(matches!(server.send_inline(peer, b""), Err(TransportError::PeerLeft(_))));
        server.disconnect(peer);
        client.send_inline(b"too late").unwrap_err();
        stays.send_inline(b"not me").unwrap();
        assert_eq!(message(&mut server).0, other);
    }
}

#[test]
fn a_client_with_a_refused_request_leaves_for_that_reason() {
    for device in DEVICES {
        let mut server = server(device);
        let (peer, mut client) = join(device, &mut server);
        let nowhere = RemoteMemoryRegion::new(0x1000, 8, 0x1234_5678);
        client.write_inline(&[1; 8], nowhere).unwrap_err();
        drop(client);
        let (gone, reason) = left(&mut server);
        assert_eq!(gone, peer);
        let says = reason.to_string();
        let is_refused =
            matches!(reason, LeftReason::Refused { event: AsyncEventKind::QP_ACCESS_ERR });
        assert!(!is_refused || says.contains("a request of the peer was refused here"), "{says}");
        // A device that sends packets, or executes in another thread, may notify the peer before its own program.
        let may_be_gone = [WIRE, WIRE_NO_SRQ, DEFERRED].contains(&device)
            && matches!(reason, LeftReason::Gone { .. });
        assert!(is_refused || may_be_gone, "{device}: {says}");
    }
}

/// The client has posted no receive, so the send is flushed when the read is refused.
#[test]
fn a_refused_read_is_the_reason_though_a_send_is_flushed_by_it() {
    for device in DEVICES {
        let mut server = server(device);
        let (peer, mut client) = join(device, &mut server);
        let buffer = server.pool().allocate(8).unwrap();
        server.send(peer, buffer, 8).unwrap();
        let pd = client.pd().clone();
        let mut into = pd.allocate_region(8).unwrap();
        let nowhere = RemoteMemoryRegion::new(0x1000, 8, 0x1234_5678);
        client.read_into(into.as_slice_mut(), nowhere).unwrap_err();
        let (gone, reason) = left(&mut server);
        assert_eq!(gone, peer);
        let is_refused =
            matches!(reason, LeftReason::Refused { event: AsyncEventKind::QP_ACCESS_ERR });
        assert!(is_refused, "{device}: {reason}");
        drop(client);
    }
}

#[test]
fn a_message_that_is_too_long_fails_its_own_connection() {
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.message_size(32));
        let (peer, mut client) = join(device, &mut server);
        let (other, mut stays) = join(device, &mut server);
        client.send_inline(&[1; 32]).unwrap();
        client.send_inline(&[2; 33]).unwrap_err();
        let (from, buffer, length) = message(&mut server);
        assert_eq!((from, &buffer[..length]), (peer, [1; 32].as_slice()));
        let (gone, reason) = left(&mut server);
        let LeftReason::Failed(error) = reason else { panic!("{reason}") };
        assert_eq!(gone, peer);
        assert!(error.to_string().contains("receive"), "{error}");
        stays.send_inline(&[3; 32]).unwrap();
        assert_eq!(message(&mut server).0, other);
    }
}

/// A client may receive late, but not forever.
#[test]
fn a_client_that_receives_nothing_leaves_after_a_while() {
    for device in DEVICES {
        let limit = Duration::from_millis(200);
        let mut server = server_with(device, |builder| builder.send_timeout(limit));
        let (peer, client) = join(device, &mut server);
        let (other, mut stays) = join(device, &mut server);
        let pool = server.pool().clone();
        let begin = Instant::now();
        server.send(peer, pool.allocate(8).unwrap(), 8).unwrap();
        let (gone, reason) = left(&mut server);
        assert!(begin.elapsed() >= limit);
        assert_eq!(gone, peer);
        let LeftReason::Failed(TransportError::Timeout { timeout, .. }) = reason else {
            panic!("{reason}")
        };
        assert_eq!(timeout, limit);
        drop(client);
        // Its buffer has returned to the pool.
        assert_eq!(pool.usage().buffers, 256);
        stays.send_inline(b"here").unwrap();
        assert_eq!(message(&mut server).0, other);
    }
}

#[test]
fn sends_outstanding_at_the_end_are_ended() {
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.max_recv_wr(8));
        let pool = server.pool().clone();
        for _ in 0..10 {
            let (peer, client) = join(device, &mut server);
            for _ in 0..16 {
                server.send(peer, pool.allocate(100).unwrap(), 100).unwrap();
            }
            drop(client);
            let mut sent = 0;
            loop {
                match next(&mut server) {
                    ServerEvent::Sent { .. } => sent += 1,
                    ServerEvent::Left { peer: gone, .. } => break assert_eq!(gone, peer),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(sent, 0, "the client received none");
            assert_eq!(pool.usage().buffers, 8, "{device}");
        }
    }
}

/// Half of its messages are being transferred when it leaves: the others are not harmed.
#[test]
fn clients_that_die_in_the_middle_of_messages_cost_no_receives() {
    for device in ["soft0", "softib0", WIRE, NO_SRQ, WIRE_NO_SRQ] {
        let mut server =
            server_with(device, |builder| builder.max_recv_wr(4).message_size(1 << 20));
        for round in 0..12 {
            let (_, mut client) = join(device, &mut server);
            let data = client.pd().allocate_region(1 << 20).unwrap();
            let left = client.scope_deadline(LATER, |s| {
                for _ in 0..8 {
                    drop(s.send_from(data.as_slice())?);
                }
                // They end with the queue pair, in whatever state they are.
                s.close();
                Ok::<(), TransportError>(())
            });
            drop((left, client));
            while !matches!(next(&mut server), ServerEvent::Left { .. }) {}
            assert!(server.last_refused().is_none(), "round {round}");
        }
        // All receives are posted; otherwise the client could not send this many.
        let (peer, mut client) = join(device, &mut server);
        for _ in 0..8 {
            client.send_inline(b"good").unwrap();
            assert_eq!(message(&mut server).0, peer);
        }
    }
}
