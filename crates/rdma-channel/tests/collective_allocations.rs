//! A collective allocates its lists, and nothing for each request. The test has its own `main`, because the threads of
//! the usual harness allocate, too.
#![allow(clippy::unwrap_used)] // a test

use rdma_channel::{PeerWriteWorkRequest, prelude::*};
use rdma_mem::AccessFlags;
use test_support::alloc_counter::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let prepared = pd.create_multi_channel().num_channels(4).max_send_wr(32).build().unwrap();
    let ends = prepared.endpoints();
    let mut channels = prepared.handshake(ends).unwrap(); // each to itself
    // One of the peers replaces an earlier one.
    channels.remove(3).unwrap();
    let fourth = channels.prepare().unwrap();
    let end = fourth.endpoint();
    assert_eq!(channels.add(fourth, end).unwrap(), 3);
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(8, access).unwrap();
    let data = pd.allocate_region(8).unwrap();
    let element = [data.as_slice().gather_element()];
    for round in 0..100 {
        for (count, peer) in [(1, 0), (4, 1), (128, 2)] {
            let remote = board.remote();
            let write = |i| {
                let remote = rdma_channel::PeerRemoteMemoryRegion::new((peer + i) % 4, remote);
                PeerWriteWorkRequest::new(&element, remote)
            };
            let before = ALLOCATOR.allocations();
            let done = channels.scatter_write((0..count).map(write)).unwrap();
            let allocated = ALLOCATOR.allocations() - before;
            assert_eq!(done.len(), count);
            // One allocation for the requests, and one for the results.
            assert!(round < 10 || allocated <= 2, "{allocated} allocations for {count}");
        }
    }
    println!("lists of collectives: ok");
}
