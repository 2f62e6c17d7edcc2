//! Completion queues whose completions have timestamps.
#![allow(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::common::{CALLS, DEVICES, LATE_CALLS, must_end, open, pair, pair_with, try_connect};
use rdma_mem::Context;
use rdma_qp::{
    CompletionChannel, CompletionQueue, Error, PollSlot, QueuePair, ReceiveWorkRequest,
    SendWorkRequest, WorkCompletion, WorkErrorCode, WriteWorkRequest,
};

/// A connection whose two ends complete into one queue with timestamps.
struct Scene {
    a: QueuePair,
    b: QueuePair,
    cq: CompletionQueue,
    context: Context,
}

impl Scene {
    fn new(device: &str, capacity: u32) -> Self {
        let context = open(device);
        let cq = CompletionQueue::builder(&context).timestamps(true).build(capacity).unwrap();
        let parts = || (context.allocate_pd().unwrap(), cq.clone());
        let (a, b) = try_connect(parts(), parts(), |builder| builder).unwrap();
        Self { a: a.qp, b: b.qp, cq, context }
    }

    /// Sends an empty message, which creates two completions: this WR ID and the next one.
    fn exchange(&self, wr_id: u64) {
        // SAFETY: no memory.
        unsafe { self.b.post_receive(ReceiveWorkRequest::only_immediate(), wr_id) }.unwrap();
        // SAFETY: no memory.
        unsafe { self.a.post_send(SendWorkRequest::only_immediate(9), wr_id + 1) }.unwrap();
    }

    /// Polls with this number of slots, until there are `count` completions.
    fn take(&self, slots: usize, count: usize) -> Vec<WorkCompletion> {
        let mut slots = vec![PollSlot::default(); slots];
        let mut taken = Vec::new();
        while taken.len() < count {
            let polled = self.cq.poll(&mut slots).unwrap();
            assert!(polled.len() <= count - taken.len());
            taken.extend(polled);
        }
        taken
    }
}

#[test]
fn timestamps_are_times_of_the_devices_clock() {
    for device in DEVICES {
        let scene = Scene::new(device, 64);
        assert!(scene.cq.has_timestamps());
        for slots in [1, 2, 3, 64] {
            let mut before = scene.context.raw_clock().unwrap();
            (0..3).for_each(|n| scene.exchange(10 * n));
            let taken = scene.take(slots, 6);
            let after = scene.context.raw_clock().unwrap();
            for completion in &taken {
                let timestamp = completion.timestamp().unwrap();
                assert!((before..=after).contains(&timestamp), "{before} {timestamp} {after}");
                before = timestamp;
            }
            let mut ids: Vec<_> = taken.iter().map(WorkCompletion::wr_id).collect();
            ids.sort_unstable();
            assert_eq!(ids, [0, 1, 10, 11, 20, 21], "{slots} slots");
        }
    }
}

#[test]
fn completions_with_timestamps_have_the_values_of_the_others() {
    for device in DEVICES {
        let scene = Scene::new(device, 64);
        let (a, b) = pair(device);
        // SAFETY: no memory, here and below.
        unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), 0) }.unwrap();
        // SAFETY: as above.
        unsafe { a.qp.post_send(SendWorkRequest::only_immediate(9), 1) }.unwrap();
        scene.exchange(0);
        let mut stamped = scene.take(4, 2);
        stamped.sort_by_key(WorkCompletion::wr_id);
        for (plain, stamped) in [b.next(), a.next()].iter().zip(&stamped) {
            assert_eq!(plain.wr_id(), stamped.wr_id());
            assert_eq!(format!("{:?}", plain.result()), format!("{:?}", stamped.result()));
        }
        assert_eq!((stamped[0].qpn(), stamped[1].qpn()), (scene.b.qpn(), scene.a.qpn()));
        assert_eq!(stamped[0].result().unwrap().immediate_data(), Some(9));
    }
}

#[test]
fn a_failed_completion_has_a_timestamp_too() {
    let scene = Scene::new("soft0", 64);
    scene.a.to_error().unwrap();
    // SAFETY: no memory.
    unsafe { scene.a.post_send(SendWorkRequest::only_immediate(9), 3) }.unwrap();
    let flushed = scene.take(1, 1)[0];
    assert_eq!((flushed.wr_id(), flushed.qpn()), (3, scene.a.qpn()));
    let error = flushed.result().unwrap_err();
    assert_eq!(error.code(), WorkErrorCode::WorkRequestFlushError);
    assert!(flushed.timestamp().is_some());
}

#[test]
fn queues_without_timestamps_have_none() {
    let (a, b) = pair("soft0");
    assert!(!a.cq.has_timestamps());
    // SAFETY: no memory, here and below.
    unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), 0) }.unwrap();
    // SAFETY: as above.
    unsafe { a.qp.post_send(SendWorkRequest::only_immediate(9), 1) }.unwrap();
    assert_eq!(a.next().timestamp(), None);
}

#[test]
fn a_queue_with_timestamps_that_overflowed_gives_what_it_kept_and_then_fails() {
    let scene = Scene::new("soft0", 64);
    let other = CompletionQueue::create(&scene.context, 64).unwrap();
    let small = CompletionQueue::builder(&scene.context).timestamps(true).build(33).unwrap();
    let pd = scene.context.allocate_pd().unwrap();
    let builder = || pd.create_qp_of(&small, &other);
    let (one, two) = (builder(), builder());
    for qp in [&one, &two] {
        qp.to_error().unwrap();
        for n in 0..16 {
            // SAFETY: no memory.
            unsafe { qp.post_send(SendWorkRequest::only_immediate(9), n) }.unwrap();
        }
    }
    let third = builder();
    third.to_error().unwrap();
    for n in 0..2 {
        // SAFETY: no memory.
        unsafe { third.post_send(SendWorkRequest::only_immediate(9), n) }.unwrap();
    }
    let mut slots = [PollSlot::default(); 40];
    assert_eq!(small.poll(&mut slots).unwrap().len(), 33);
    small.poll(&mut slots).unwrap_err();
}

#[test]
fn a_queue_with_timestamps_sends_events() {
    let scene = Scene::new("soft0", 64);
    let channel = CompletionChannel::create(&scene.context).unwrap();
    let builder = CompletionQueue::builder(&scene.context).timestamps(true).channel(&channel);
    let cq = builder.build(64).unwrap();
    cq.req_notify(false).unwrap();
    let pd = scene.context.allocate_pd().unwrap();
    let qp = pd.create_qp_of(&cq, &cq);
    qp.to_error().unwrap();
    // SAFETY: no memory.
    unsafe { qp.post_send(SendWorkRequest::only_immediate(9), 1) }.unwrap();
    assert_eq!(channel.get_event().unwrap(), cq.id());
    assert!(cq.poll(&mut [PollSlot::default()]).unwrap().next().unwrap().timestamp().is_some());
}

#[test]
fn invalid_options_are_refused_with_a_reason() {
    let (context, other) = (open("soft0"), open("soft0"));
    let channel = CompletionChannel::create(&other).unwrap();
    let builder = CompletionQueue::builder(&context).timestamps(true);
    let refused = builder.clone().channel(&channel).build(4).unwrap_err();
    assert!(matches!(refused, Error::ForeignChannel), "{refused}");
    let refused = builder.clone().vector(7).build(4).unwrap_err();
    assert!(matches!(refused, Error::NoSuchVector { vector: 7, count: 1 }), "{refused}");
    let refused = builder.build(0).unwrap_err().to_string();
    assert!(refused.contains("ibv_create_cq_ex"), "{refused}");
    let _ = rdma_soft::Builder::new("softclassic0").without_extended().install();
    let classic = open("softclassic0");
    let refused = CompletionQueue::builder(&classic).timestamps(true).build(4).unwrap_err();
    assert!(matches!(refused, Error::NoTimestamps { .. }), "{refused}");
    assert!(refused.to_string().contains("softclassic0"), "{refused}");
    let refused = classic.raw_clock().unwrap_err().to_string();
    assert!(refused.contains("ibv_query_rt_values_ex"), "{refused}");
}

/// Queue pairs that are connected to themselves.
trait Loop {
    fn create_qp_of(&self, send: &CompletionQueue, receive: &CompletionQueue) -> QueuePair;
}

impl Loop for rdma_mem::ProtectionDomain {
    fn create_qp_of(&self, send: &CompletionQueue, receive: &CompletionQueue) -> QueuePair {
        let prepared = QueuePair::builder(self).send_cq(send).recv_cq(receive).build().unwrap();
        let own = prepared.endpoint();
        prepared.handshake(own).unwrap()
    }
}

/// None of the provider's locks is held after a call, so threads that post or poll do not wait long for each other.
#[test]
fn several_threads_post_by_calls_and_poll_with_timestamps() {
    for device in [CALLS, LATE_CALLS] {
        must_end(move || post_and_poll(device));
    }
}

fn post_and_poll(device: &str) {
    const EACH: u64 = 200;
    const THREADS: u64 = 4;
    let (a, b) = pair_with(device, |builder| builder.max_send_wr(64).max_recv_wr(64));
    assert!(a.qp.is_extended() && a.cq.has_timestamps());
    let (seen, left) = (Mutex::new(Vec::new()), AtomicU64::new(EACH * THREADS));
    let work = |thread: u64| {
        let mut slots = [PollSlot::default(); 3];
        let mut next = 0;
        while next < EACH || left.load(Ordering::Relaxed) > 0 {
            let request = WriteWorkRequest::new(&[], b.board.remote());
            // SAFETY: no memory.
            let posted =
                next < EACH && unsafe { a.qp.post_write(request, thread * EACH + next) }.is_ok();
            next += u64::from(posted);
            for completion in a.cq.poll(&mut slots).unwrap() {
                assert!(completion.result().is_ok() && completion.timestamp().is_some());
                seen.lock().unwrap().push(completion.wr_id());
                left.fetch_sub(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..EACH * THREADS));
}
