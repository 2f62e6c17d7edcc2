//! Channels that end before their unpolled operations complete. No borrow protects the memory of
//! these operations, so the end of a channel must take them from the device.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{Channel, CloseReason, Operation, TransportError};
use rdma_mem::{GatherList, ScatterList};
use rdma_qp::{AckTimeout, MaxAckRetries, ReceiveWorkRequest, SendWorkRequest};

use crate::case::cases;
use crate::device::Device;

cases![
    a_channel_that_is_dropped_takes_its_work_from_the_device,
    a_channel_that_is_closed_takes_its_work_from_the_device,
    a_call_that_runs_out_ends_what_was_unpolled_too,
    a_scope_ends_what_was_unpolled_too,
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
