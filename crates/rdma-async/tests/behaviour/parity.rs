//! Behaviour of async-rdma that programs rely on, and holes in it that this crate closes.

mod atomics;
mod borrowed;
mod holes;
mod memory;
mod slices;

use std::time::Duration;

use rdma_async::{ConnectionOptions, Driver, LeaseLimits, Region, RemoteRegion};
use rdma_mem::{AccessFlags, BufferPool, ProtectionDomain};
use rdma_qp::MaxRnrRetries;
use rdma_qp::prelude::*;

use crate::common::{HANG, Pair, WIRE, all, domain, run};

const DEVICES: [&str; 2] = ["soft0", WIRE];
const READ: AccessFlags = AccessFlags::new().with_remote_read();
const WRITE: AccessFlags = AccessFlags::new().with_remote_write();
const ATOMIC: AccessFlags = AccessFlags::new().with_remote_atomic();
/// The longest time of borrowed memory.
const LONG: Duration = Duration::from_secs(50);

/// Two ends of a connection by an address, which lend to each other on request.
async fn ends(device: &str) -> Pair {
    ends_with(domain(device), LeaseLimits::new(READ | WRITE | ATOMIC)).await
}

async fn ends_with(pd: ProtectionDomain, limits: LeaseLimits) -> Pair {
    let driver = Driver::spawn(pd.context()).unwrap();
    let qp = pd.create_qp().access(all()).max_rnr_retries(MaxRnrRetries::unlimited());
    let options = ConnectionOptions::from(qp).lease_limits(limits);
    let listener = driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
    let connect = driver.connect(listener.local_addr(), options);
    let (one, other) = tokio::join!(connect, listener.accept());
    let board = pd.allocate_shared_region(4096, all()).unwrap();
    let (one, other) = (one.unwrap().0, other.unwrap());
    Pair { one, other, board, pool: BufferPool::new(&pd), pd, driver }
}

impl Pair {
    fn region(&self, bytes: &[u8]) -> Region {
        let mut region = Region::allocate(&self.pd, bytes.len()).unwrap();
        region.copy_from_slice(bytes);
        region
    }

    /// The current bytes of the memory.
    async fn bytes_of(&self, memory: &RemoteRegion) -> Vec<u8> {
        memory.read(self.pool.allocate(memory.len()).unwrap()).await.unwrap().to_vec()
    }
}
