//! Channels whose completion queue cannot be polled, because the provider's function is replaced
//! with one that fails.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{Channel, CloseReason, Progress, ScopeError, TransportError};
use rdma_mem::{Context, ProtectionDomain, ScatterList};
use rdma_qp::{AckTimeout, MaxAckRetries, ReceiveWorkRequest, SendWorkRequest};
use rdma_sys::{ibv_cq, ibv_wc};

use crate::case::cases;
use crate::device::Device;

cases![
    a_scope_whose_polls_fail_ends_by_destroying_the_queue_pair,
    a_blocking_call_whose_polls_fail_ends_by_destroying_the_queue_pair,
    a_handle_whose_polls_fail_keeps_its_memory,
];

/// The limit for all waits; only a hanging case reaches it.
const BOUND: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

unsafe extern "C" fn fail(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    -1
}

/// Makes all polls in this context fail from now on.
pub(super) fn break_polls(context: &Context) {
    // SAFETY: SAFETY.md F1: the context is live, and only this thread polls its completion queues.
    let ops = unsafe { &mut (*context.as_raw()).ops };
    ops.poll_cq = Some(fail);
}

/// Returns a context for [`break_polls`], a protection domain and a channel in this context, and
/// the channel's peer, whose polls keep working.
fn pair(device: &Device) -> (Context, ProtectionDomain, Channel, Channel) {
    let [near, far] = [(); 2].map(|()| rdma_mem::open_device(&**device).unwrap());
    let [pd, peer] = [&near, &far].map(|context| context.allocate_pd().unwrap());
    let prepare = |pd: &ProtectionDomain| {
        let builder = pd.create_channel().drain_timeout(SHORT);
        let builder = builder.ack_timeout(AckTimeout::limited(14).unwrap());
        builder.max_ack_retries(MaxAckRetries::limited(1).unwrap()).build().unwrap()
    };
    let (one, other) = (prepare(&pd), prepare(&peer));
    let (one_end, other_end) = (one.endpoint(), other.endpoint());
    let (here, there) = (one.handshake(other_end).unwrap(), other.handshake(one_end).unwrap());
    (near, pd, here, there)
}

/// Checks that the channel's queue pair is destroyed, and that the channel reports the failed poll
/// as the reason.
fn expect_gone(here: &mut Channel, there: &mut Channel) {
    assert_eq!((here.closed(), here.qpn()), (Some(CloseReason::Poll), None));
    let again = here.receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
    assert!(matches!(again, TransportError::Closed { reason: CloseReason::Poll, .. }), "{again}");
    there.within(BOUND).send(SendWorkRequest::only_immediate(1)).unwrap_err();
}

fn a_scope_whose_polls_fail_ends_by_destroying_the_queue_pair(device: &Device) {
    let (context, pd, mut here, mut there) = pair(device);
    let mut memory = pd.allocate_region(8).unwrap();
    let start = Instant::now();
    let result = here.scope(|s| {
        let received = s.receive_into(memory.as_slice_mut())?;
        assert!(matches!(received.poll(), Progress::Pending(_)), "the receive has not completed");
        break_polls(&context);
        Ok::<(), TransportError>(())
    });
    assert!(start.elapsed() < BOUND);
    let Err(ScopeError::AutoPollError(errors)) = result else { panic!("{result:?}") };
    assert_eq!(errors.len(), 1);
    assert!(matches!(errors[0].error, TransportError::Lost { .. }), "{errors:?}");
    memory.fill(7);
    expect_gone(&mut here, &mut there);
    assert_eq!(*memory, [7; 8], "written after it was returned");
    memory.close().unwrap();
}

fn a_blocking_call_whose_polls_fail_ends_by_destroying_the_queue_pair(device: &Device) {
    let (context, pd, mut here, mut there) = pair(device);
    let mut memory = pd.allocate_region(8).unwrap();
    let mut list = ScatterList::from([memory.as_slice_mut()]);
    break_polls(&context);
    let start = Instant::now();
    // This receive has no time limit.
    let error = here.receive(ReceiveWorkRequest::from_list(&mut list)).unwrap_err();
    assert!(start.elapsed() < BOUND);
    assert!(matches!(error, TransportError::PollError(_)), "{error}");
    memory.fill(7);
    expect_gone(&mut here, &mut there);
    assert_eq!(*memory, [7; 8], "written after it was returned");
    memory.close().unwrap();
}

fn a_handle_whose_polls_fail_keeps_its_memory(device: &Device) {
    let (context, pd, mut here, mut there) = pair(device);
    let mut memory = pd.allocate_region(8).unwrap();
    let start = Instant::now();
    let result = here.scope(|s| {
        let rented = s.receive_into(memory.as_slice_mut())?;
        let borrowed = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let Progress::Pending(rented) = rented.poll() else {
            panic!("the receive has not completed")
        };
        break_polls(&context);
        let Progress::Dead(late) = rented.poll() else {
            panic!("a failed poll must not complete the receive")
        };
        assert!(matches!(late.error, TransportError::PollError(_)), "{late}");
        let late = late
            .handle
            .wait(Duration::MAX)
            .expect_err("repeated failed polls must not complete the receive");
        assert!(matches!(late.error, TransportError::PollError(_)), "{late}");
        let error = borrowed.wait(Duration::MAX).unwrap_err();
        assert!(matches!(error, TransportError::PollError(_)), "{error}");
        Ok::<(), TransportError>(())
    });
    assert!(start.elapsed() < BOUND);
    let Err(ScopeError::AutoPollError(errors)) = result else { panic!("{result:?}") };
    assert_eq!(errors.len(), 2);
    memory.fill(7);
    expect_gone(&mut here, &mut there);
    assert_eq!(*memory, [7; 8], "written after it was returned");
}
