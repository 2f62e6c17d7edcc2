//! A peer that is another process, and late.

use std::env;
use std::net::SocketAddr;

use rdma_async::{Descriptor, LeaseEnd, ReservedEnd};
use test_support::program::this_program;

use crate::*;

/// Tells a process that it is the peer, and where to connect.
const LENDER: &str = "RDMA_TEST_LENDER";
const DEVICE: &str = "RDMA_TEST_LENDERS_DEVICE";
/// What the peer says when all was as it should be.
const REFUSED: &str = "late, and refused";

const NAME: &str = "processes::a_late_peer_of_another_process_is_refused";

/// How its access ends.
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

/// Opens memory until the access ends so, and looks at it when the peer has tried to write there later.
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
        let time = if how == "time" { 30 * SHORT } else { HANG };
        let loan = server.lend(memory, WRITE, time).await.unwrap();
        server.send(host.buffer(how.as_bytes())).await.unwrap();
        timeout(HANG, written).await.unwrap().unwrap();
        if how == "revoked" {
            loan.revoke();
        }
        let ended = timeout(HANG, loan).await.unwrap().unwrap();
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
    // The peer is late from here on, and ends when it was refused.
    let last = server.receive_imm().post().await.unwrap();
    // It may end the connection before its acknowledgement of this has come.
    drop(server.send(host.buffer(b"now")).post().await.unwrap());
    timeout(HANG, last).await.unwrap().unwrap_err();
    assert_eq!(*region, *before, "{how}: a byte has changed");
}

/// Borrows memory, writes there, and again when the lender says that it is closed.
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
        let lent = client.receive_loan().await.unwrap();
        (lent.remote(), Some(lent))
    };
    let to = key.slice(0..4).unwrap();
    client.write_with_imm(host.buffer(b"word"), to, 4).await.unwrap();
    if told == b"returned" {
        drop(lent);
    }
    now.await.unwrap();
    let late = client.write(host.buffer(b"late"), to).await.unwrap_err();
    assert_refused(&late.error);
    println!("{REFUSED}");
}
