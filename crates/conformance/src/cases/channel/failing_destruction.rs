//! Channels whose queue pair cannot be destroyed, because the provider's function is replaced with
//! one that fails.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{Channel, Progress, TransportError};
use rdma_mem::{Context, DeviceList, Errno, GatherList, ScatterList};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use rdma_sys::{Verbs, ibv_qp};
use rdma_types::AccessFlags;
use rustix::process::Signal;

use super::failing_polls::break_polls;
use crate::case::cases;
use crate::child::once_more;
use crate::device::Device;

cases![
    a_scope_whose_queue_pair_cannot_be_destroyed_aborts,
    a_channel_dropped_with_unpolled_work_that_cannot_be_destroyed_lives_on,
];

/// The limit for all waits; only a hanging case reaches it.
const BOUND: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

unsafe extern "C" fn refuse(_: *mut ibv_qp) -> c_int {
    Errno::EBUSY.raw()
}

/// Opens a context whose queue pairs cannot be destroyed.
fn open_for_good(device: &Device) -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_mem::open_device(&**device).unwrap().verbs();
        verbs.destroy_qp = refuse;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the provider's own, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().find(|found| found.name() == &**device).unwrap().open().unwrap()
}

/// Returns a channel in `context`, and its peer, which can be destroyed as usual.
fn pair(device: &Device, context: &Context) -> (Channel, Channel) {
    let far = rdma_mem::open_device(&**device).unwrap();
    let [one, other] = [context, &far].map(|context| {
        let pd = context.allocate_pd().unwrap();
        pd.create_channel().drain_timeout(SHORT).build().unwrap()
    });
    let (one_end, other_end) = (one.endpoint(), other.endpoint());
    (one.handshake(other_end).unwrap(), other.handshake(one_end).unwrap())
}

/// Leaves a scope while a receive still borrows memory. The channel's polls fail, and its queue
/// pair cannot be destroyed.
fn leave_a_scope(device: &Device) {
    let context = open_for_good(device);
    let (mut here, _there) = pair(device, &context);
    let mut memory = here.pd().allocate_region(8).unwrap();
    let _ = here.scope(|s| {
        let received = s.receive_into(memory.as_slice_mut())?;
        assert!(matches!(received.poll(), Progress::Pending(_)), "the receive has not completed");
        break_polls(&context);
        Ok::<(), TransportError>(())
    });
}

fn a_scope_whose_queue_pair_cannot_be_destroyed_aborts(device: &Device) {
    let ended = once_more(BOUND, || leave_a_scope(device));
    assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{ended:?}");
    let reason = "rdma-channel: aborting, since memory is borrowed by requests of a queue pair that \
        could not be destroyed";
    assert!(ended.errors.contains(reason) && ended.errors.contains("EBUSY"), "{ended:?}");
}

/// Drops a channel with unpolled receives. They borrow no memory, so the device may still execute
/// them.
fn leave_unpolled(device: &Device) {
    let context = open_for_good(device);
    let (here, mut there) = pair(device, &context);
    let mut owned = here.pd().allocate_region(8).unwrap();
    let access = AccessFlags::new().with_local_write();
    let shared = here.pd().allocate_shared_region(8, access).unwrap();

    let mut first = ScatterList::from([owned.as_slice_mut()]);
    let mut second = ScatterList::from([shared.element(0..8).unwrap()]);
    for list in [&mut first, &mut second] {
        // SAFETY: SAFETY.md F8: the regions are not touched until the messages arrive, and are
        // deregistered afterwards.
        let handle = unsafe { here.receive_unpolled(ReceiveWorkRequest::from_list(list)) };
        assert!(handle.unwrap().poll().is_none(), "the receive has not completed");
    }
    let start = Instant::now();
    drop(here);
    assert!(start.elapsed() < BOUND);

    let mut data = there.pd().allocate_region(8).unwrap();
    for byte in [7, 8] {
        data.fill(byte);
        let list = GatherList::from([data.as_slice()]);
        there.within(BOUND).send(SendWorkRequest::from_list(&list)).unwrap();
    }
    let mut come = [0; 8];
    shared.read(0, &mut come).unwrap();
    assert_eq!((&*owned, come), (&[7; 8][..], [8; 8]));
}

fn a_channel_dropped_with_unpolled_work_that_cannot_be_destroyed_lives_on(device: &Device) {
    let ended = once_more(BOUND, || leave_unpolled(device));
    assert!(ended.status.success(), "{ended:?}");
}
