//! Shared receive queues: receives for several queue pairs, refused requests, and the end of all
//! objects.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::time::Instant;

use crate::common::{DEVICES, HANG, everything, forget, must_end, open, parts};
use rdma_mem::{
    AsyncEvent, AsyncEventKind, AsyncEventSource, AsyncEvents, DeviceList, Errno, ProtectionDomain,
    ScatterElement, ScatterList, SharedRegion,
};
use rdma_qp::{
    CompletionQueue, Error, MaxRnrRetries, PollSlot, PostErrorKind, QpState, QueuePair,
    QueuePairModification, ReceiveWorkRequest, SendWorkRequest, SharedReceiveQueue, WorkCompletion,
    prelude::*,
};
use rdma_soft::{Builder, Limits};
use rdma_sys::{Verbs, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr};

/// A shared queue, and the connections whose far ends use it.
struct Server {
    clients: Vec<QueuePair>,
    qps: Vec<QueuePair>,
    srq: SharedReceiveQueue,
    sends: CompletionQueue,
    receives: CompletionQueue,
    pd: ProtectionDomain,
    board: SharedRegion,
}

fn server(device: &str, clients: u32, max_wr: u32) -> Server {
    let (pd, sends) = parts(device);
    let receives = CompletionQueue::create(pd.context(), 256).unwrap();
    let srq = pd.create_srq().max_wr(max_wr).max_sge(2).build().unwrap();
    let connect = |_| {
        // The test may take any time to post a receive.
        let client = pd.create_qp().max_rnr_retries(MaxRnrRetries::unlimited());
        let client = client.send_cq(&sends).recv_cq(&sends).build().unwrap();
        // The sizes of its own receive queue are ignored, even large ones.
        let server = pd.create_qp().send_cq(&sends).recv_cq(&receives).srq(&srq);
        let server = server.max_recv_wr(u32::MAX).max_recv_sge(u32::MAX).build().unwrap();
        let (client_end, server_end) = (client.endpoint(), server.endpoint());
        (client.handshake(server_end).unwrap(), server.handshake(client_end).unwrap())
    };
    let (clients, qps) = (0..clients).map(connect).unzip();
    let board = pd.allocate_shared_region(4096, everything()).unwrap();
    Server { clients, qps, srq, sends, receives, pd, board }
}

fn next(cq: &CompletionQueue) -> WorkCompletion {
    let begin = Instant::now();
    loop {
        if let Some(completion) = cq.poll(&mut [PollSlot::default()]).unwrap().next() {
            return completion;
        }
        assert!(begin.elapsed() < HANG, "no completion");
        std::thread::yield_now();
    }
}

fn next_event(events: &AsyncEvents) -> (AsyncEventKind, AsyncEventSource) {
    let AsyncEvent { kind, source, .. } = events.get_event_timeout(HANG).unwrap().unwrap();
    (kind, source)
}

impl Server {
    fn post(&self, id: u64) {
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { self.srq.post_receive(ReceiveWorkRequest::only_immediate(), id) }.unwrap();
    }

    /// Sends a message from a client, and waits until it is sent.
    fn send(&self, client: usize) {
        let message = SendWorkRequest::only_immediate(3);
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { self.clients[client].post_send(message, 1) }.unwrap();
        next(&self.sends).result().unwrap();
    }

    /// Waits for the next receive: its WR ID, and the index of its queue pair.
    fn received(&self) -> (u64, usize) {
        let completion = next(&self.receives);
        completion.result().unwrap();
        let client = self.qps.iter().position(|qp| qp.qpn() == completion.qpn()).unwrap();
        (completion.wr_id(), client)
    }
}

#[test]
fn each_message_gets_the_oldest_receive() {
    for device in DEVICES {
        let server = server(device, 3, 8);
        let rooms = [0, 64, 128].map(|at| server.board.element(at..at + 64).unwrap());
        let mut rooms = rooms.map(|room| [ScatterElement::from(room)]);
        let mut batch: Vec<_> = rooms
            .iter_mut()
            .zip(10..)
            .map(|(room, id)| ReceiveWorkRequest::new(room).with_id(id))
            .collect();
        // SAFETY: SAFETY.md F8: the region outlives the queue.
        unsafe { server.srq.post_receive_batch(&mut batch) }.unwrap();
        for (id, client, byte) in [(10, 2, 3), (11, 0, 1), (12, 2, 3)] {
            let at = 1024 + 8 * client;
            server.board.write(at, &[byte; 8]).unwrap();
            let data = [server.board.element(at..at + 8).unwrap().into()];
            // SAFETY: SAFETY.md F8: the region outlives the queue pair.
            unsafe { server.clients[client].post_send(SendWorkRequest::new(&data), 1) }.unwrap();
            next(&server.sends).result().unwrap();
            assert_eq!(server.received(), (id, client));
            let mut bytes = [0; 8];
            server.board.read((usize::try_from(id).unwrap() - 10) * 64, &mut bytes).unwrap();
            assert_eq!(bytes, [byte; 8]);
        }
    }
}

#[test]
fn a_queue_reports_its_attributes() {
    let server = server("soft0", 1, 8);
    let srq = &server.srq;
    assert_eq!((srq.max_wr(), srq.max_sge()), (8, 2));
    assert!(srq.pd().is_same(&server.pd) && srq.is_same(&srq.clone()));
    assert!(server.qps[0].srq().is_some_and(|of_qp| of_qp.is_same(srq)));
    assert!(server.clients[0].srq().is_none());
    let sizes = server.qps[0].capabilities();
    assert_eq!((sizes.max_recv_wr, sizes.max_recv_sge), (0, 0));
    srq.set_limit(5).unwrap();
    let found = srq.query().unwrap();
    assert_eq!((found.max_wr, found.max_sge, found.limit), (8, 2, 5));
    let other = server.pd.create_srq().build().unwrap();
    assert!(!other.is_same(srq) && other.id() != srq.id());
    assert_eq!((other.max_wr(), other.max_sge()), (16, 4));
}

#[test]
fn queues_that_cannot_be_are_refused_with_the_devices_limits() {
    let (pd, _) = parts("soft0");
    let device = pd.context().query_device().unwrap();
    let too_many = pd.create_srq().max_wr(device.max_srq_wr + 1);
    let too_wide = pd.create_srq().max_sge(device.max_srq_sge + 1);
    for builder in [too_many, too_wide, pd.create_srq().max_wr(0)] {
        let text = builder.build().unwrap_err().to_string();
        let limits = format!("1 to {} receives, {}", device.max_srq_wr, device.max_srq_sge);
        assert!(text.starts_with("ibv_create_srq: ") && text.contains(&limits), "{text}");
    }
    let _ = Builder::new("nosrq0").limits(Limits::default().max_srq(0)).install();
    let without = open("nosrq0").allocate_pd().unwrap();
    let text = without.create_srq().build().unwrap_err().to_string();
    assert!(text.contains("has no shared receive queues"), "{text}");
    let _ = Builder::new("onesrq0").limits(Limits::default().max_srq(1)).install();
    let one = open("onesrq0").allocate_pd().unwrap();
    let _first = one.create_srq().build().unwrap();
    let text = one.create_srq().build().unwrap_err().to_string();
    assert!(text.contains("its limit (1 shared receive queues)"), "{text}");
    let srq = pd.create_srq().max_wr(8).build().unwrap();
    let error = srq.set_limit(9).unwrap_err();
    assert!(matches!(error, Error::LimitTooLarge { limit: 9, max_wr: 8 }), "{error}");
    assert_eq!(srq.query().unwrap().limit, 0);
}

#[test]
fn a_queue_pair_takes_a_queue_of_its_context_and_a_completion_queue_with_room() {
    let ((pd, cq), (foreign, _)) = (parts("soft0"), parts("soft0"));
    let srq = foreign.create_srq().build().unwrap();
    let error = pd.create_qp().send_cq(&cq).recv_cq(&cq).srq(&srq).build().unwrap_err();
    assert!(matches!(error, Error::ForeignSharedReceiveQueue), "{error}");
    // A queue of another domain is allowed.
    let other = pd.context().allocate_pd().unwrap();
    let srq = other.create_srq().max_wr(64).build().unwrap();
    let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).srq(&srq).build().unwrap();
    drop(prepared);
    let small = CompletionQueue::create(pd.context(), 63).unwrap();
    let builder = pd.create_qp().send_cq(&cq).recv_cq(&small).srq(&srq);
    let error = builder.strict_cq(true).build().unwrap_err();
    let Error::CompletionQueueTooSmall { knob: "recv_cq", capacity: 63, needed: 64 } = error else {
        panic!("{error}");
    };
}

#[test]
fn receives_that_cannot_be_are_refused_before_the_device_sees_them() {
    for device in DEVICES {
        let server = server(device, 1, 2);
        let element = || ScatterElement::from(server.board.element(0..8).unwrap());
        let mut three = [element(), element(), element()];
        let mut one = [element()];
        // SAFETY: SAFETY.md F8: the region outlives the queue.
        let post =
            |request: ReceiveWorkRequest<'_, '_>| unsafe { server.srq.post_receive(request, 1) };
        let error = post(ReceiveWorkRequest::new(&mut three)).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (PostErrorKind::TooManyElements, None));
        let mut elsewhere = server.pd.context().allocate_pd().unwrap().allocate_region(8).unwrap();
        let mut list = ScatterList::from([elsewhere.get_mut(0, 8).unwrap()]);
        let error = post(ReceiveWorkRequest::from_list(&mut list)).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (PostErrorKind::WrongDomain, None));
        let mut batch = [
            ReceiveWorkRequest::new(&mut one).with_id(1),
            ReceiveWorkRequest::new(&mut three).with_id(2),
        ];
        // SAFETY: SAFETY.md F8: as above.
        let error = unsafe { server.srq.post_receive_batch(&mut batch) }.unwrap_err();
        assert_eq!((error.posted(), error.refused()), (0, 1));
        let mut batch = [1, 2, 3].map(|id| ReceiveWorkRequest::only_immediate().with_id(id));
        // SAFETY: SAFETY.md F8: no memory.
        let error = unsafe { server.srq.post_receive_batch(&mut batch) }.unwrap_err();
        assert_eq!((error.posted(), error.kind()), (2, PostErrorKind::WouldBlock));
        assert!(error.to_string().starts_with("ibv_post_srq_recv: "), "{error}");
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { server.srq.post_receive_batch(&mut []) }.unwrap();
        // A slot is free again after a completion was polled.
        server.send(0);
        assert_eq!(
            post(ReceiveWorkRequest::only_immediate()).unwrap_err().errno(),
            Some(Errno::ENOMEM)
        );
        assert_eq!(server.received(), (1, 0));
        post(ReceiveWorkRequest::only_immediate()).unwrap();
    }
}

#[test]
fn a_receive_for_the_queue_pair_is_refused_in_words() {
    for device in DEVICES {
        let server = server(device, 1, 2);
        let qp = &server.qps[0];
        let mut room = [ScatterElement::from(server.board.element(0..8).unwrap())];
        // SAFETY: SAFETY.md F8: the region outlives the queue.
        let checked = unsafe { qp.post_receive(ReceiveWorkRequest::new(&mut room), 1) };
        // SAFETY: SAFETY.md F8: as above.
        let raw = unsafe { qp.post_raw(ReceiveWorkRequest::new(&mut room), 1) };
        // SAFETY: SAFETY.md F8: no memory.
        let empty = unsafe { qp.post_receive(ReceiveWorkRequest::only_immediate(), 1) };
        let mut batch = [ReceiveWorkRequest::only_immediate().with_id(1)];
        // SAFETY: SAFETY.md F8: no memory.
        let batch = unsafe { qp.post_receive_batch(&mut batch) };
        for result in [checked, raw, empty, batch] {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.posted()), (PostErrorKind::SharedReceives, 0));
            let words = "takes its receives from a shared receive queue: post them there";
            assert!(error.to_string().contains(words), "{error}");
        }
        // The errors of other mistakes are unchanged.
        let mut many = [(); 9].map(|()| ScatterElement::from(server.board.element(0..8).unwrap()));
        // SAFETY: SAFETY.md F8: as above.
        let own = unsafe { server.clients[0].post_receive(ReceiveWorkRequest::new(&mut many), 1) };
        assert_eq!(own.unwrap_err().kind(), PostErrorKind::TooManyElements);
    }
}

#[test]
fn the_limit_is_an_event_that_names_the_queue() {
    for device in DEVICES {
        let server = server(device, 2, 8);
        let events = server.pd.context().async_events().unwrap();
        (0..4).for_each(|id| server.post(id));
        let reached = AsyncEventSource::SharedReceiveQueue(server.srq.id());
        for client in [0, 1] {
            server.srq.set_limit(4).unwrap();
            server.send(client);
            assert_eq!(next_event(&events), (AsyncEventKind::SRQ_LIMIT_REACHED, reached));
            assert_eq!(server.srq.query().unwrap().limit, 0);
            server.send(client);
            server.received();
            server.received();
            server.post(9);
            server.post(9);
        }
        assert_eq!(events.try_get_event().unwrap(), None);
    }
}

#[test]
fn draining_ends_and_leaves_the_receives_of_the_others() {
    for device in DEVICES {
        must_end(move || {
            let server = server(device, 2, 64);
            let events = server.pd.context().async_events().unwrap();
            (0..40).for_each(|id| server.post(id));
            (0..20).for_each(|_| server.send(0));
            // SAFETY: SAFETY.md F8: no memory; its client receives nothing.
            unsafe { server.qps[0].post_send(SendWorkRequest::only_immediate(1), 99) }.unwrap();
            let mut ids = Vec::new();
            server.qps[0].drain(HANG, |completion| ids.push(completion.wr_id())).unwrap();
            ids.sort_unstable();
            assert_eq!(ids, (0..20).chain([99]).collect::<Vec<_>>());
            assert_eq!(server.qps[0].state().unwrap(), QpState::ERR);
            let last = server.qps[0].event_source();
            assert_eq!(next_event(&events), (AsyncEventKind::QP_LAST_WQE_REACHED, last));
            for id in 20..40 {
                server.send(1);
                assert_eq!(server.received(), (id, 1));
            }
            server.qps[0].drain(HANG, |completion| panic!("{completion:?}")).unwrap();
        });
    }
}

#[test]
fn queue_pairs_keep_their_queue_and_go_before_it() {
    for device in DEVICES {
        must_end(move || {
            let Server { clients, mut qps, srq, sends, receives, pd, board } = server(device, 2, 8);
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { srq.post_receive(ReceiveWorkRequest::only_immediate(), 1) }.unwrap();
            let (srq, error) = srq.close().unwrap_err();
            let words = "the shared receive queue is still in use: first drop its clones";
            assert!(error.to_string().starts_with(words), "{error}");
            qps.pop().unwrap().close().unwrap();
            drop(srq);
            // The last queue pair still holds it.
            let srq = qps[0].srq().unwrap().clone();
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { srq.post_receive(ReceiveWorkRequest::only_immediate(), 2) }.unwrap();
            drop((qps, clients));
            srq.close().unwrap();
            sends.close().unwrap();
            receives.close().unwrap();
            board.close().unwrap();
            pd.close().unwrap();
        });
    }
}

#[test]
fn a_drained_send_queue_is_an_event_if_it_was_asked_for() {
    for device in DEVICES {
        let server = server(device, 1, 8);
        let events = server.pd.context().async_events().unwrap();
        let to = |state| QueuePairModification::new().state(state);
        let qp = &server.clients[0];
        qp.modify(&to(QpState::SQD).notify_drained(true)).unwrap();
        let source = qp.event_source();
        assert_eq!(next_event(&events), (AsyncEventKind::SQ_DRAINED, source));
        qp.modify(&to(QpState::RTS)).unwrap();
        qp.modify(&to(QpState::SQD)).unwrap();
        assert_eq!(events.try_get_event().unwrap(), None);
        let error = qp.modify(&to(QpState::RTS).notify_drained(true)).unwrap_err();
        assert!(error.to_string().contains("must not have `notify_drained`"), "{error}");
    }
}

#[test]
fn forgotten_events_and_queues_make_nothing_wait() {
    for device in DEVICES {
        must_end(move || {
            let server = server(device, 2, 8);
            let context = server.pd.context().clone();
            let events = context.async_events().unwrap();
            server.post(1);
            server.post(2);
            server.srq.set_limit(2).unwrap();
            server.send(0);
            let qp = &server.clients[0];
            let drained = QueuePairModification::new().state(QpState::SQD).notify_drained(true);
            qp.modify(&drained).unwrap();
            server.qps[0].to_error().unwrap();
            // One event of each kind, taken and forgotten; then one of each kind that is never
            // taken.
            let kinds = [
                AsyncEventKind::SRQ_LIMIT_REACHED,
                AsyncEventKind::SQ_DRAINED,
                AsyncEventKind::QP_LAST_WQE_REACHED,
            ];
            for kind in kinds {
                let event = events.get_event_timeout(HANG).unwrap().unwrap();
                assert_eq!(event.kind, kind);
                let _ = ManuallyDrop::new(event);
            }
            server.srq.set_limit(2).unwrap();
            server.send(1);
            server.clients[1].modify(&drained).unwrap();
            server.qps[1].to_error().unwrap();
            let Server { clients, qps, srq, sends, receives, pd, board } = server;
            let forgotten = pd.create_srq().build().unwrap();
            forget((forgotten, srq.clone()));
            drop((clients, qps, srq, sends, receives, board));
            let (_pd, error) = pd.close().unwrap_err();
            assert!(matches!(error, rdma_mem::Error::StillUsed { .. }), "{error}");
            // Events that were not taken were dropped with their queue pairs; the queue itself was
            // forgotten.
            let limit = events.get_event_timeout(HANG).unwrap().unwrap();
            assert_eq!(limit.kind, AsyncEventKind::SRQ_LIMIT_REACHED);
            assert_eq!(events.try_get_event().unwrap(), None);
        });
    }
}

unsafe extern "C" fn smaller_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let srq = unsafe { (rdma_soft::verbs().create_srq)(pd, init) };
    // SAFETY: SAFETY.md F1: the caller's attributes.
    unsafe { (*init).attr.max_wr -= 1 };
    srq
}

/// A provider that refuses a queue pair with receives of its own, and reports some for the others.
unsafe extern "C" fn qp_with_receives(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: SAFETY.md F1: the caller's attributes.
    if unsafe { (*init).cap.max_recv_wr } != 0 {
        Errno::EINVAL.set();
        return std::ptr::null_mut();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let qp = unsafe { (rdma_soft::verbs().create_qp)(pd, init) };
    // SAFETY: SAFETY.md F1: the caller's attributes.
    unsafe { (*init).cap.max_recv_wr = 1 };
    qp
}

#[test]
fn sizes_from_a_provider_are_checked() {
    static SMALLER: OnceLock<Verbs> = OnceLock::new();
    static LARGER: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let table = |table: &'static OnceLock<Verbs>, change: fn(&mut Verbs)| {
        let verbs = table.get_or_init(|| {
            let mut verbs = *rdma_soft::verbs();
            change(&mut verbs);
            verbs
        });
        // SAFETY: SAFETY.md F2: the functions are the software device's, or call them.
        let list = unsafe { DeviceList::of(verbs) };
        list.iter().next().unwrap().open().unwrap().allocate_pd().unwrap()
    };
    let pd = table(&SMALLER, |verbs| verbs.create_srq = smaller_srq);
    let text = pd.create_srq().build().unwrap_err().to_string();
    assert!(text.contains("requested 16 receives"), "{text}");
    pd.close().unwrap(); // the queue was destroyed
    let pd = table(&LARGER, |verbs| verbs.create_qp = qp_with_receives);
    let (cq, srq) = (pd.context().create_cq(64).unwrap(), pd.create_srq().build().unwrap());
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).srq(&srq).build().unwrap();
    let qp = prepare().handshake(prepare().endpoint()).unwrap();
    assert_eq!(qp.capabilities().max_recv_wr, 0);
    qp.drain(HANG, |completion| panic!("{completion:?}")).unwrap();
}

#[test]
fn a_message_without_a_receive_waits_for_one() {
    for device in DEVICES {
        let server = server(device, 2, 8);
        for client in [1, 0] {
            let message = SendWorkRequest::only_immediate(3);
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { server.clients[client].post_send(message, 5) }.unwrap();
        }
        assert!(server.receives.poll(&mut [PollSlot::default()]).unwrap().is_empty());
        server.post(1);
        server.post(2);
        let mut got = [server.received(), server.received()];
        got.sort_unstable_by_key(|&(id, _)| id);
        assert_eq!(got.map(|(id, _)| id), [1, 2]);
        assert_ne!(got[0].1, got[1].1);
    }
}
