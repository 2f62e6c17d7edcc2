//! Ports that go down and come back up, and connections that reconnect by a policy.

use std::task::Poll;
use std::time::Duration;

use rdma_async::{CloseReason, ConnectError, Connection, ReconnectPolicy};
use rdma_soft::SoftDevice;

use crate::common::{device_with_port, poll_once};
use crate::control::{HANG, Host, run};

/// Two ends on a device whose port is down, which has ended them.
async fn ended_by_the_port(name: &str) -> (SoftDevice, Host, Connection, Connection) {
    let name = format!("{name}-{}", std::process::id());
    let device = device_with_port(&name);
    let host = Host::new(&name);
    let (client, server) = host.pair().await;
    let at_client = client.receive_imm().post().await.unwrap();
    let at_server = server.receive_imm().post().await.unwrap();
    device.set_port_up(false);
    at_client.await.unwrap_err();
    at_server.await.unwrap_err();
    let is_port =
        |reason| matches!(reason, CloseReason::Port { port: 1 } | CloseReason::Disconnected);
    assert!(client.closed().is_some_and(is_port) && server.closed().is_some_and(is_port));
    (device, host, client, server)
}

fn without_pauses() -> ReconnectPolicy {
    ReconnectPolicy::new().pauses(Duration::ZERO, Duration::ZERO)
}

#[test]
fn reconnecting_waits_for_the_port() {
    run(|| async {
        let (device, host, client, server) = ended_by_the_port("soft-flap").await;
        let policy = without_pauses().attempts(1).port_timeout(HANG);
        let mut both = Box::pin(async {
            tokio::join!(client.reconnect_by(&policy), server.reconnect_by(&policy))
        });
        assert!(poll_once(&mut both).is_pending());
        device.set_port_up(true);
        let (at_client, at_server) = both.await;
        assert_eq!((at_client.unwrap(), at_server.unwrap()), (1, 1));
        host.talk(&client, &server, b"as before").await;
    });
}

#[test]
fn a_port_that_stays_down_is_named_after_the_last_attempt() {
    run(|| async {
        let (_device, _host, client, _server) = ended_by_the_port("soft-down").await;
        let policy = without_pauses().attempts(3).port_timeout(Duration::ZERO);
        let failed = client.reconnect_by(&policy).await.unwrap_err();
        let ConnectError::Verbs(error) = &failed else { panic!("{failed}") };
        assert!(matches!(**error, rdma_qp::Error::NoActivePort { .. }), "{failed}");
        assert!(failed.to_string().contains("port 1 is "), "{failed}");
    });
}

#[test]
fn attempts_are_repeated_until_the_port_is_back() {
    run(|| async {
        let (device, host, client, server) = ended_by_the_port("soft-again").await;
        let policy = without_pauses().attempts(u32::MAX).port_timeout(Duration::ZERO);
        let mut at_client = Box::pin(client.reconnect_by(&policy));
        // The first attempt has failed, and the pauses have no length.
        for _ in 0..3 {
            assert!(matches!(poll_once(&mut at_client), Poll::Pending));
            tokio::task::yield_now().await;
        }
        device.set_port_up(true);
        let (at_client, at_server) = tokio::join!(at_client, server.reconnect());
        assert_eq!((at_client.unwrap(), at_server.unwrap()), (1, 1));
        host.talk(&client, &server, b"as before").await;
    });
}
