//! Channels that end before their unpolled operations complete. No borrow protects the memory of
//! these operations, so the end of a channel must take them from the device.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{
    Channel, CloseReason, Operation, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest, PendingWork, TransportError,
};
use rdma_group::network::Node;
use rdma_mem::{AccessFlags, GatherList, ProtectionDomain, ScatterList};
use rdma_qp::{AckTimeout, MaxAckRetries, ReceiveWorkRequest, SendWorkRequest};

use crate::case::cases;
use crate::device::Device;

cases![
    a_channel_that_is_dropped_takes_its_work_from_the_device,
    a_channel_that_is_closed_takes_its_work_from_the_device,
    a_call_that_runs_out_ends_what_was_unpolled_too,
    a_scope_ends_what_was_unpolled_too,
    a_node_has_all_unpolled_operations,
];

/// The limit for all waits; only a hanging case reaches it.
const BOUND: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

/// Ends a channel while a receive is in flight, and checks that a later message does not change the
/// receive's memory.
fn end(device: &Device, end: impl FnOnce(Channel) -> Option<Channel>) {
    let pd = rdma_mem::open_device(&**device).unwrap().allocate_pd().unwrap();
    let builder = pd.create_channel().drain_timeout(SHORT);
    let builder = builder.ack_timeout(AckTimeout::limited(14).unwrap());
    let builder = builder.max_ack_retries(MaxAckRetries::limited(1).unwrap());
    let (one, other) = (builder.clone().build().unwrap(), builder.build().unwrap());
    let (one_end, other_end) = (one.endpoint(), other.endpoint());
    let (here, mut there) = (one.handshake(other_end).unwrap(), other.handshake(one_end).unwrap());
    let mut memory = pd.allocate_region(8).unwrap();
    let data = pd.allocate_region(8).unwrap();

    let mut list = ScatterList::from([memory.as_slice_mut()]);
    // SAFETY: SAFETY.md F8: the region outlives the channel's queue pair, and is not touched until
    // the queue pair is in error or destroyed.
    let handle = unsafe { here.receive_unpolled(ReceiveWorkRequest::from_list(&mut list)) };
    assert!(handle.unwrap().poll().is_none(), "the receive has not completed");
    let start = Instant::now();
    let ended = end(here);
    assert!(start.elapsed() < BOUND);

    memory.fill(7);
    let list = GatherList::from([data.as_slice()]);
    there.within(BOUND).send(SendWorkRequest::from_list(&list)).unwrap_err();
    assert_eq!(*memory, [7; 8], "written after the end");
    memory.close().unwrap();
    drop(ended);
}

fn a_channel_that_is_dropped_takes_its_work_from_the_device(device: &Device) {
    end(device, |channel| {
        drop(channel);
        None
    });
}

fn a_channel_that_is_closed_takes_its_work_from_the_device(device: &Device) {
    end(device, |channel| {
        channel.close().map_err(TransportError::from).unwrap();
        None
    });
}

fn a_call_that_runs_out_ends_what_was_unpolled_too(device: &Device) {
    end(device, |mut channel| {
        let request = ReceiveWorkRequest::only_immediate();
        let error = channel.within(SHORT).receive(request).unwrap_err();
        assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
        Some(channel)
    });
}

fn a_scope_ends_what_was_unpolled_too(device: &Device) {
    end(device, |mut channel| {
        let _ = channel.scope(|_| Ok::<(), TransportError>(()));
        let late = CloseReason::Timeout { operation: Operation::Receive };
        assert_eq!(channel.closed(), Some(late));
        Some(channel)
    });
}

/// Returns a node of one rank, which is connected to itself.
fn node(pd: &ProtectionDomain) -> Node {
    let node = Node::builder().pd(pd).rank(0).world_size(1).build().unwrap();
    let endpoint = node.endpoint();
    let all = node.gather_endpoints([endpoint]).unwrap();
    node.handshake(all).unwrap()
}

/// Each operation transfers one byte of its own, or one number.
fn a_node_has_all_unpolled_operations(device: &Device) {
    let pd = rdma_mem::open_device(&**device).unwrap().allocate_pd().unwrap();
    let access = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
    let shared = pd.allocate_shared_region(8, access).unwrap();
    let mut memory = [1, 2, 3, 4, 0, 0, 0, 0];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    let node = node(&pd);
    let remote = |at| PeerRemoteMemoryRegion::new(0, shared.remote().slice(at..at + 1).unwrap());
    let (data, places) = memory.split_at_mut(4);
    let data: Vec<_> = data.chunks(1).map(|byte| [region.gather_element(byte)]).collect();
    let places = places.chunks_mut(1);
    let mut places: Vec<_> = places.map(|byte| [region.scatter_element(byte)]).collect();
    let [one, other, read, gathered] = &mut places[..] else { panic!("four elements") };
    let wait = |done: PendingWork<'_>| done.wait(BOUND).unwrap().immediate_data();

    let receives = [one, other].map(|place| PeerReceiveWorkRequest::new(0, place));
    // SAFETY: SAFETY.md F8: the memory outlives the node's queue pair, and is left alone until the requests have
    // completed. The same applies to all requests below.
    let mut received = unsafe { node.gather_receive_unpolled(receives) }.unwrap();
    for _ in 0..2 {
        let number = PeerReceiveWorkRequest::only_immediate(0);
        // SAFETY: as above.
        received.push(unsafe { node.receive_unpolled(number) }.unwrap());
    }
    let message = PeerSendWorkRequest::new(0, &data[0]);
    // SAFETY: as above.
    let mut sent = vec![unsafe { node.send_unpolled(message) }.unwrap()];
    let messages = [PeerSendWorkRequest::new(0, &data[1])];
    // SAFETY: as above.
    sent.extend(unsafe { node.scatter_send_unpolled(messages) }.unwrap());
    // SAFETY: as above.
    let numbers =
        unsafe { node.multicast_send_unpolled([0, 0], SendWorkRequest::only_immediate(7)) };
    sent.extend(numbers.unwrap());
    assert_eq!(sent.into_iter().map(wait).collect::<Vec<_>>(), [None; 4]);
    let numbers: Vec<_> = received.into_iter().map(wait).collect();
    assert_eq!(numbers, [None, None, Some(7), Some(7)]);

    let write = PeerWriteWorkRequest::new(&data[2], remote(0));
    // SAFETY: as above.
    wait(unsafe { node.write_unpolled(write) }.unwrap());
    let writes = [PeerWriteWorkRequest::new(&data[3], remote(1))];
    // SAFETY: as above.
    unsafe { node.scatter_write_unpolled(writes) }.unwrap().into_iter().for_each(|it| _ = wait(it));
    // SAFETY: as above.
    wait(unsafe { node.read_unpolled(PeerReadWorkRequest::new(read, remote(0))) }.unwrap());
    let reads = [PeerReadWorkRequest::new(gathered, remote(1))];
    // SAFETY: as above.
    unsafe { node.gather_read_unpolled(reads) }.unwrap().into_iter().for_each(|it| _ = wait(it));
    drop(node);
    assert_eq!(memory, [1, 2, 3, 4, 1, 2, 3, 4]);
}
