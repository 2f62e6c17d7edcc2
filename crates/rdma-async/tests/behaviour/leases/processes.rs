//! A peer in another process that is late or killed.

use std::env;
use std::net::SocketAddr;
use std::process::Stdio;

use rdma_async::prelude::*;
use rdma_async::{
    CloseReason, Descriptor, LeaseEnd, RemoteMemoryRegion, ReservedEnd, TransportError,
};
use test_support::program::this_program;

use crate::leases::*;

/// The environment variable that makes a process the peer, with the address to connect to.
const LENDER: &str = "RDMA_TEST_LENDER";
const DEVICE: &str = "RDMA_TEST_LENDERS_DEVICE";
/// The output of the peer when its late write was refused.
const REFUSED: &str = "late, and refused";

const NAME: &str = "leases::processes::a_late_peer_of_another_process_is_refused";

/// The ways in which its access ends.
const ENDS: [&str; 4] = ["time", "revoked", "returned", "reserve"];

#[test]
fn a_late_peer_of_another_process_is_refused() {
    if let Ok(address) = env::var(LENDER) {
        let device = env::var(DEVICE).unwrap();
        return run_in_one_thread(|| be_late(&device, address.parse().unwrap()));
    }
    for device in ["soft0", "softib0"] {
        run_in_one_thread(|| lend_to_all(device));
    }
}

/// Lends to one process after the other.
async fn lend_to_all(device: &str) {
    let host = Host::new(device);
    let listener = host.driver.listen("127.0.0.1:0", options(&host)).await.unwrap();
    for how in ENDS {
        let mut peer = this_program();
        peer.args([NAME, "--exact", "--nocapture"]);
        peer.env(LENDER, listener.local_addr().to_string()).env(DEVICE, device);
        let peer = tokio::task::spawn_blocking(move || peer.output().unwrap());
        let server = timeout(HANG, listener.accept()).await.unwrap().unwrap();
        lend_until(&host, &server, how).await;
        let said = timeout(HANG, peer).await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        let said = String::from_utf8_lossy(&said.stdout);
        assert!(said.contains(REFUSED), "{device}, {how}: {said}{errors}");
    }
}

/// Opens memory until the access ends in that way, and checks it after the peer has tried to write later.
async fn lend_until(host: &Host, server: &Connection, how: &str) {
    let written = server.receive_imm().post().await.unwrap();
    let memory = region(host, 64);
    let region = if how == "reserve" {
        let reserved = memory.reserve(WRITE, HANG, async |descriptor| {
            server.send(host.buffer(&descriptor.to_bytes())).await.unwrap();
            written.await.unwrap();
        });
        let reserved = timeout(HANG, reserved).await.unwrap().unwrap();
        assert_eq!(reserved.end, ReservedEnd::Done);
        reserved.region
    } else {
        let time = if how == "time" { 2 * SOME_SECONDS } else { HANG };
        let lease = server.lend(memory, WRITE, time).await.unwrap();
        server.send(host.buffer(how.as_bytes())).await.unwrap();
        timeout(HANG, written).await.unwrap().unwrap();
        if how == "revoked" {
            lease.revoke();
        }
        let ended = timeout(HANG, lease).await.unwrap().unwrap();
        let end = match how {
            "time" => LeaseEnd::TimeOver,
            "revoked" => LeaseEnd::Revoked,
            _ => LeaseEnd::Returned,
        };
        assert_eq!(ended.end, end);
        ended.region
    };
    assert_eq!((&region[..4], &region[4..]), (&b"word"[..], &[1; 60][..]), "{how}");
    let before = region.to_vec();
    // From here on the peer is late. It exits after it was refused.
    let last = server.receive_imm().post().await.unwrap();
    // The peer may end the connection before its acknowledgement has arrived.
    drop(server.send(host.buffer(b"now")).post().await.unwrap());
    timeout(HANG, last).await.unwrap().unwrap_err();
    assert_eq!(*region, *before, "{how}: a byte has changed");
}

/// Borrows memory, writes to it, and writes again when the lender has closed it.
async fn be_late(device: &str, lender: SocketAddr) {
    let host = Host::new(device);
    let (client, _) = host.driver.connect(lender, options(&host)).await.unwrap();
    let told = client.receive(host.pool.allocate(64).unwrap()).post().await.unwrap();
    let now = client.receive(host.pool.allocate(64).unwrap()).post().await.unwrap();
    let told = told.await.unwrap();
    let told = &told.memory[..told.length];
    let (key, lent) = if let Ok(descriptor) = <[u8; Descriptor::BYTES]>::try_from(told) {
        (Descriptor::from_bytes(descriptor).remote(Duration::ZERO).unwrap(), None)
    } else {
        let lent = client.receive_lease().await.unwrap();
        (lent.remote(), Some(lent))
    };
    let to = key.slice(0..4).unwrap();
    client.write_with_imm(host.buffer(b"word"), to, 4).await.unwrap();
    if told == b"returned" {
        drop(lent);
    }
    now.await.unwrap();
    let late = client.write(host.buffer(b"late"), to).await.unwrap_err();
    // The lender's connection ends with the refusal, and its end may arrive first.
    if !client.closed().is_some_and(CloseReason::is_of_peer) {
        assert_refused(&late.error);
    }
    println!("{REFUSED}");
}

/// The environment variable with the role of the killed peer: it lends or borrows.
const KILLED: &str = "RDMA_TEST_KILLED";

#[test]
fn a_killed_process_leaves_no_open_memory() {
    if let Ok(address) = env::var(LENDER) {
        let lends = env::var(KILLED).unwrap() == "lends";
        return run_in_one_thread(|| be_killed(lends, address.parse().unwrap()));
    }
    for role in ["borrows", "lends"] {
        run_in_one_thread(|| kill(role));
    }
}

async fn kill(role: &str) {
    let host = Host::new("soft0");
    let limits = LeaseLimits::new(WRITE).in_total(4096);
    let both = options(&host).lease_limits(limits);
    let listener = host.driver.listen("127.0.0.1:0", both.clone()).await.unwrap();
    let mut peer = this_program();
    peer.args([
        "leases::processes::a_killed_process_leaves_no_open_memory",
        "--exact",
        "--nocapture",
    ]);
    peer.env(LENDER, listener.local_addr().to_string()).env(KILLED, role);
    let mut peer = peer.stdout(Stdio::null()).spawn().unwrap();
    let server = timeout(HANG, listener.accept()).await.unwrap().unwrap();
    let told = server.receive_imm().post().await.unwrap();
    if role == "borrows" {
        let lease = server.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        timeout(HANG, told).await.unwrap().unwrap();
        peer.kill().unwrap();
        let ended = timeout(HANG, lease).await.unwrap().unwrap();
        assert_eq!((ended.end, &ended.region[..4]), (LeaseEnd::Disconnected, &b"word"[..]));
    } else {
        let lent = timeout(HANG, server.receive_lease()).await.unwrap().unwrap();
        timeout(HANG, told).await.unwrap().unwrap();
        lent.write(host.buffer(b"word")).await.unwrap();
        peer.kill().unwrap();
        peer.wait().unwrap();
        // The device notices first, by a request without an answer: this is not reported as a network failure.
        let nowhere = RemoteMemoryRegion::new(0, 0, 0);
        let failed = loop {
            let write = server.write(host.pool.allocate(0).unwrap(), nowhere);
            if let Err(failed) = timeout(HANG, write.into_future()).await.unwrap() {
                break failed;
            }
        };
        let is_death =
            matches!(failed.error, TransportError::Closed { reason: CloseReason::Died, .. });
        assert!(is_death, "{failed}");
        timeout(HANG, server.receive_imm()).await.unwrap().unwrap_err();
        assert_eq!(server.closed(), Some(CloseReason::Died));
        timeout(HANG, lent.write(host.buffer(b"late"))).await.unwrap().unwrap_err();
        timeout(HANG, server.receive_lease()).await.unwrap().unwrap_err();
    }
    assert!(!tokio::task::spawn_blocking(move || peer.wait().unwrap()).await.unwrap().success());
    // The memory that it had borrowed is available again.
    let connect = host.driver.connect(listener.local_addr(), both);
    let (asker, _lender) = tokio::join!(connect, listener.accept());
    let all = asker.unwrap().0.borrow(4096, WRITE, HANG / 2).await;
    drop(all.unwrap());
}

/// It has borrowed memory, or lent some, when it is killed.
async fn be_killed(lends: bool, address: SocketAddr) {
    let host = Host::new("soft0");
    let (client, _) = host.driver.connect(address, options(&host)).await.unwrap();
    let asked = client.borrow(4096, WRITE, HANG).await.unwrap();
    let has = if lends {
        let lease = client.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        (Some(lease), None)
    } else {
        let lent = client.receive_lease().await.unwrap();
        lent.write(host.buffer(b"word")).await.unwrap();
        (None, Some(lent))
    };
    client.send_with_imm(host.buffer(b"x").slice(0..0), 1).await.unwrap();
    std::future::pending::<()>().await;
    drop((has, asked));
}
