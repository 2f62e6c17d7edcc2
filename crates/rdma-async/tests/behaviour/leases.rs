//! Memory that one end of a connection lends to the other for a limited time, and the effect of misbehaviour of either
//! end.

mod bad_lenders;
mod bad_peers;
mod crowd;
mod dropped;
mod ended;
mod frames;
mod given;
mod keys;
mod lent;
mod limits;
mod processes;
mod stopped_clock;

use std::time::Duration;

use rdma_async::{
    Connection, ConnectionOptions, Lease, LeaseEnd, LeaseLimits, Region, RemoteMemoryRegion,
    RemoteRegion, TransportError,
};
use rdma_mem::AccessFlags;
use rdma_qp::MaxRnrRetries;
use rdma_qp::prelude::*;
use tokio::time::timeout;

use crate::common::host::{Host, SHORT};
use crate::common::{
    HANG, WIRE, all, assert_refused, forget, nearly_endless, poll_once, run, run_in_one_thread,
    run_long_in_one_thread,
};

const DEVICES: [&str; 3] = ["soft0", "softib0", WIRE];
const READ: AccessFlags = AccessFlags::new().with_remote_read();
const WRITE: AccessFlags = AccessFlags::new().with_remote_write();
/// A length that another thread opens and closes.
const LARGE: usize = 3 << 20;

/// Options with all rights that a queue pair can grant.
fn options(host: &Host) -> ConnectionOptions {
    let qp = host.pd.create_qp().access(all()).max_rnr_retries(MaxRnrRetries::unlimited());
    ConnectionOptions::from(qp)
}

/// Two ends that lend to each other on request.
async fn pair(host: &Host) -> (Connection, Connection) {
    let rights = READ | WRITE | AccessFlags::new().with_remote_atomic();
    pair_with(host, options(host).lease_limits(LeaseLimits::new(rights))).await
}

async fn pair_with(host: &Host, options: ConnectionOptions) -> (Connection, Connection) {
    let listener = host.driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
    let connect = host.driver.connect(listener.local_addr(), options);
    let ((client, _), server) = tokio::try_join!(connect, listener.accept()).unwrap();
    (client, server)
}

fn region(host: &Host, length: usize) -> Region {
    crate::common::region(&host.pd, length)
}

/// Checks that a write after the end fails and changes nothing.
async fn is_closed(host: &Host, by: &Connection, key: RemoteMemoryRegion, region: &Region) {
    let before = region.to_vec();
    let late = by.write(host.buffer(b"late"), key.slice(0..4).unwrap());
    let failed = timeout(HANG, late).await.unwrap().unwrap_err();
    assert_refused(&failed.error);
    assert!(**region == *before, "a byte has changed");
}

/// Writes there until the memory is closed.
async fn until_closed(host: &Host, by: &Connection, key: RemoteMemoryRegion) {
    let late = async {
        loop {
            let to = key.slice(0..4).unwrap();
            if let Err(failed) = by.write(host.buffer(b"late"), to).await {
                break failed;
            }
            tokio::task::yield_now().await;
        }
    };
    let failed = timeout(HANG, late).await.unwrap();
    assert!(failed.to_string().contains("remote access"), "{failed}");
}

/// The reason why the lease of an operation has ended.
fn reason(error: &TransportError) -> LeaseEnd {
    let TransportError::LeaseOver { reason, .. } = error else { panic!("{error}") };
    *reason
}

/// A time that is over before any test.
const SOON: Duration = Duration::from_millis(50);
/// The time of a lease whose end a test awaits.
const A_SECOND: Duration = Duration::from_secs(1);
/// The time of a lease that a test uses before it awaits the end.
const SOME_SECONDS: Duration = Duration::from_secs(5);

/// Lends memory for this time, and receives the lease. On a busy machine, a lease may be over before it is received.
/// Then the next one is lent.
async fn lend_for(
    time: Duration,
    (host, length): (&Host, usize),
    (lender, borrower): (&Connection, &Connection),
) -> (Lease, RemoteRegion) {
    loop {
        let mut lease = lender.lend(region(host, length), WRITE, time).await.unwrap();
        tokio::select! {
            lent = borrower.receive_lease() => break (lease, lent.unwrap()),
            ended = &mut lease => assert_eq!(ended.unwrap().end, LeaseEnd::TimeOver),
        }
    }
}
