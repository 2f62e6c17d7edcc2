//! The reason for the end of a connection, as the other end learns it.

use rdma_async::{CloseReason, ConnectError, TransportError};
use rdma_channel::TransportError as ChannelError;
use rdma_channel::{ReceiveWorkRequest, prelude::*};
use tokio::time::timeout;

use crate::control::{DEVICES, HANG, Host, run};

#[test]
fn the_reason_of_a_disconnection_is_read_by_the_peer() {
    run(|| async {
        for device in DEVICES {
            for reason in [&b""[..], b"maintenance", &[7; 64]] {
                let host = Host::new(device);
                let (client, server) = host.pair().await;
                let waits = server.receive_imm().post().await.unwrap();
                assert_eq!(server.disconnect_reason(), None);
                client.disconnect_with(reason, HANG).await.unwrap();
                let failed = waits.await.unwrap_err().error;
                let TransportError::Closed { reason: told, .. } = failed else {
                    panic!("{failed}")
                };
                assert_eq!(told, CloseReason::Disconnected);
                assert_eq!(server.closed(), Some(CloseReason::Disconnected));
                assert_eq!(server.disconnect_reason().as_deref(), Some(reason));
                assert_eq!(
                    (client.closed(), client.disconnect_reason()),
                    (Some(CloseReason::Asked), None)
                );
            }
        }
    });
}

#[test]
fn a_reason_that_is_too_long_changes_nothing() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        let refused = client.disconnect_with(&[7; 65], HANG).await.unwrap_err();
        assert!(matches!(refused, ConnectError::ReasonTooLong { length: 65 }), "{refused}");
        host.talk(&client, &server, b"as before").await;
    });
}

/// The reason belongs to its queue pair.
#[test]
fn a_reconnected_connection_has_no_earlier_reason() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = host.pair().await;
        client.disconnect_with(b"for now", HANG).await.unwrap();
        assert_eq!(server.disconnect_reason().as_deref(), Some(&b"for now"[..]));
        let (one, other) = tokio::join!(client.reconnect(), server.reconnect());
        assert_eq!((one.unwrap(), other.unwrap()), (1, 1));
        assert_eq!(server.disconnect_reason(), None);
        client.disconnect_with(b"for good", HANG).await.unwrap();
        assert_eq!(server.disconnect_reason().as_deref(), Some(&b"for good"[..]));
    });
}

#[test]
fn a_dropped_end_has_disconnected_but_a_failed_one_has_not() {
    run(|| async {
        let host = Host::new("soft0");
        for fails in [false, true] {
            let (client, server) = host.pair().await;
            let waits = server.receive_imm().post().await.unwrap();
            if fails {
                // A mistake of its own: the peer has refused nothing.
                let memory = host.pd.allocate_shared_region(8, rdma_mem::AccessFlags::new());
                client.read(host.buffer(b"12345678"), memory.unwrap().remote()).await.unwrap_err();
            }
            drop(client);
            timeout(HANG, waits).await.unwrap().unwrap_err();
            if !fails {
                assert_eq!(server.closed(), Some(CloseReason::Disconnected));
                assert_eq!(server.disconnect_reason().as_deref(), Some(&b""[..]));
            } else if let Some(reason @ (CloseReason::Disconnected | CloseReason::Died)) =
                server.closed()
            {
                panic!("{reason}");
            }
        }
    });
}

#[test]
fn a_channel_and_a_connection_notify_each_other_when_dropped() {
    run(|| async {
        let host = Host::new("soft0");
        for channel_goes in [true, false] {
            let pd = host.pd.clone();
            let mut listener = pd.create_channel().watch(HANG).listen("127.0.0.1:0").unwrap();
            let address = listener.local_addr();
            let accepted = tokio::task::spawn_blocking(move || listener.accept().unwrap());
            let (connection, _) = host.driver.connect(address, host.options()).await.unwrap();
            let mut channel = accepted.await.unwrap();
            if channel_goes {
                channel.disconnect_with(b"bye").unwrap();
                let waits = timeout(HANG, connection.receive_imm().into_future()).await.unwrap();
                waits.unwrap_err();
                assert_eq!(connection.closed(), Some(CloseReason::Disconnected));
                assert_eq!(connection.disconnect_reason().as_deref(), Some(&b"bye"[..]));
            } else {
                connection.disconnect_with(b"bye", HANG).await.unwrap();
                let waits = move || {
                    let gone = channel.receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
                    (gone, channel.disconnect_reason())
                };
                let (gone, told) = tokio::task::spawn_blocking(waits).await.unwrap();
                let ChannelError::PeerGone { reason, .. } = gone else { panic!("{gone}") };
                assert_eq!(reason, CloseReason::Disconnected);
                assert_eq!(told.as_deref(), Some(&b"bye"[..]));
            }
        }
    });
}
