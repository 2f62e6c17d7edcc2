//! Forgotten objects, with requests in flight and unread events: destroying the others ends, and the remaining ones
//! work.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::time::Instant;

use crate::common::{DEVICES, HANG, everything, forget, must_end, open};
use rdma_mem::{
    AsyncEventKind, BufferPool, Context, ProtectionDomain, RemoteMemoryRegion, ScatterList,
    SharedRegion, list_devices,
};
use rdma_qp::{
    AtomicWorkRequest, CompletionChannel, CompletionQueue, Error, PollSlot, QpState, QueuePair,
    ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest, prelude::*,
};
use rdma_soft::{Builder, Schedule, SoftDevice};

/// A device that executes nothing until the test releases it, so that everything is in flight.
const HELD: &str = "softheld0";

fn context(device: &str) -> Context {
    if device == HELD {
        // Another test may have installed it already.
        let _ = Builder::new(HELD).schedule(Schedule::Held).install();
    }
    open(device)
}

fn all() -> impl Iterator<Item = &'static str> {
    DEVICES.into_iter().chain([HELD])
}

/// Two connected queue pairs. A channel reports the receives of the second one.
struct Pair {
    from: QueuePair,
    to: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    board: SharedRegion,
}

fn pair(pd: &ProtectionDomain, channel: &CompletionChannel) -> Pair {
    let sends = CompletionQueue::create(pd.context(), 64).unwrap();
    let receives = CompletionQueue::create_with_channel(channel, 64, 0).unwrap();
    let prepare = |cq| pd.create_qp().send_cq(&sends).recv_cq(cq).access(everything()).build();
    let (from, to) = (prepare(&sends).unwrap(), prepare(&receives).unwrap());
    let (from_end, to_end) = (from.endpoint(), to.endpoint());
    let (from, to) = (from.handshake(to_end).unwrap(), to.handshake(from_end).unwrap());
    let board = pd.allocate_shared_region(4096, everything()).unwrap();
    Pair { from, to, sends, receives, board }
}

impl Pair {
    /// Leaves work of each kind: requests in flight, posted receives, completions and events that are never read.
    fn leave_work(&self, device: &str, channel: &CompletionChannel) {
        let data = [self.board.element(0..64).unwrap().into()];
        for round in 0..2 {
            self.receives.req_notify(false).unwrap();
            for id in 0..4 {
                // SAFETY: SAFETY.md F8: no memory.
                unsafe { self.to.post_receive(ReceiveWorkRequest::only_immediate(), id) }.unwrap();
            }
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { self.from.post_send(SendWorkRequest::only_immediate(round), 1) }.unwrap();
            let write = WriteWorkRequest::new(&data, self.board.remote());
            // SAFETY: SAFETY.md F8: the region outlives the queue pair.
            unsafe { self.from.post_write(write, 2) }.unwrap();
            if device == HELD {
                continue;
            }
            let begin = Instant::now();
            while self.sends.poll(&mut [PollSlot::default()]).unwrap().is_empty() {
                assert!(begin.elapsed() < HANG);
            }
            if round == 0 {
                channel.get_event().unwrap();
            }
        }
        let nowhere = RemoteMemoryRegion::new(0x1000, 64, 0x1234_5678);
        // SAFETY: SAFETY.md F8: the region outlives the queue pair.
        unsafe { self.from.post_write(WriteWorkRequest::new(&data, nowhere), 3) }.unwrap();
        if device == HELD {
            let device = SoftDevice::find(HELD).unwrap();
            assert_eq!(device.in_flight(self.from.qpn()), 5);
        }
    }

    fn close(self) {
        let Self { from, to, sends, receives, board } = self;
        from.close().unwrap();
        to.close().unwrap();
        sends.close().unwrap();
        receives.close().unwrap();
        board.close().unwrap();
    }
}

#[test]
fn forgotten_objects_keep_themselves_and_nothing_else_from_ending() {
    for device in all() {
        must_end(move || {
            let context = context(device);
            let pd = context.allocate_pd().unwrap();
            let channel = CompletionChannel::create(&context).unwrap();
            let events = context.async_events().unwrap();
            let (gone, other) = (pair(&pd, &channel), pair(&pd, &channel));
            gone.leave_work(device, &channel);
            other.leave_work(device, &channel);
            let prepared = pd.create_qp().send_cq(&other.sends).recv_cq(&other.sends).build();
            drop(prepared.unwrap());
            forget(pd.create_qp().send_cq(&gone.sends).recv_cq(&gone.sends).build().unwrap());
            forget((gone.sends.clone(), gone.receives.clone()));
            forget((gone.from, gone.to, gone.sends, gone.receives, gone.board));
            forget((context.clone(), pd.clone(), channel.clone(), list_devices()));
            forget((context.async_events().unwrap(), pd.allocate_region(64).unwrap()));
            let pool = BufferPool::new(&pd);
            forget((pool.allocate(100).unwrap(), pool.clone()));

            other.close();
            let (channel, error) = channel.close().unwrap_err();
            assert!(matches!(error, Error::StillUsed { .. }), "{error}");
            let (pd, _) = pd.close().unwrap_err();
            drop((pool, events, channel));
            // Forgotten objects still work, and so do new ones.
            let channel = CompletionChannel::create(&context).unwrap();
            let next = pair(&pd, &channel);
            next.leave_work(device, &channel);
            next.close();
            channel.close().unwrap();
            drop(pd);
            context.close().unwrap_err();
        });
    }
}

#[test]
fn forgotten_values_hold_no_lock_no_queue_and_no_region() {
    for device in all() {
        must_end(move || {
            let context = context(device);
            let pd = context.allocate_pd().unwrap();
            let channel = CompletionChannel::create(&context).unwrap();
            let pair = pair(&pd, &channel);
            let mut region = pd.allocate_region(64).unwrap();
            {
                let mut slots = [PollSlot::default(); 4];
                let _ = ManuallyDrop::new(pair.sends.poll(&mut slots).unwrap());
                let _ = ManuallyDrop::new(region.get_ref(0, 8).unwrap());
                let mut result = ScatterList::from([region.get_mut(0, 8).unwrap()]);
                let remote = pair.board.remote().typed::<u64>(0).unwrap();
                let request = AtomicWorkRequest::fetch_and_add(&mut result, remote, 1);
                let _ = ManuallyDrop::new(request.with_id(1));
                let _ = ManuallyDrop::new(result);
                let batch = [SendWorkRequest::only_immediate(1).with_id(1)];
                let _ = ManuallyDrop::new(batch);
                let _ = ManuallyDrop::new(pair.board.element(0..8).unwrap());
            }
            pair.leave_work(device, &channel);
            pair.close();
            region.close().unwrap();
            channel.close().unwrap();
            pd.close().unwrap();
            context.close().unwrap();
        });
    }
}

#[test]
fn a_forgotten_end_is_a_peer_like_any_other() {
    must_end(|| {
        let context = context("soft0");
        let pd = context.allocate_pd().unwrap();
        let channel = CompletionChannel::create(&context).unwrap();
        let Pair { from, to, sends, receives, board } = pair(&pd, &channel);
        let remote = board.remote();
        forget((to, receives, board, channel));
        let source = pd.allocate_region(8).unwrap();
        let data = [source.get_ref(0, 8).unwrap().gather_element()];
        // SAFETY: SAFETY.md F8: the region lives until the completion below.
        unsafe { from.post_write(WriteWorkRequest::new(&data, remote), 1) }.unwrap();
        let mut slots = [PollSlot::default()];
        sends.poll(&mut slots).unwrap().next().unwrap().result().unwrap();
        from.close().unwrap();
        sends.close().unwrap_err(); // the forgotten one sends there
        source.close().unwrap();
    });
}

#[test]
fn a_forgotten_event_is_acknowledged_already() {
    for device in DEVICES {
        must_end(move || {
            let context = context(device);
            let pd = context.allocate_pd().unwrap();
            let channel = CompletionChannel::create(&context).unwrap();
            let events = context.async_events().unwrap();
            let pair = pair(&pd, &channel);
            pair.leave_work(device, &channel);
            let event = events.get_event_timeout(HANG).unwrap().unwrap();
            assert_eq!(event.kind, AsyncEventKind::QP_ACCESS_ERR);
            let _ = ManuallyDrop::new(event);
            assert_eq!(pair.to.state().unwrap(), QpState::ERR);
            pair.close();
            drop(events);
            channel.close().unwrap();
            pd.close().unwrap();
            context.close().unwrap();
        });
    }
}
