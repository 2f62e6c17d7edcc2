//! Models of a shared receive queue: `a` sends to `b` and `c` sends to `d`; `b` and `d` share the queue.

use super::*;

struct Shared {
    a: Arc<QueuePair>,
    b: Arc<QueuePair>,
    c: Arc<QueuePair>,
    d: Arc<QueuePair>,
    /// The shared queue, with its own domain.
    queue: Arc<SharedReceiveQueue>,
}

impl Shared {
    fn new() -> Self {
        Self::on(device())
    }

    fn on(device: &'static Device) -> Self {
        let pd = ProtectionDomain::new(&device.memory);
        let queue = SharedReceiveQueue::new(device.fabric, &pd, 2, 2, Reporter::silent()).unwrap();
        let [a, c] = [(); 2].map(|()| queue_pair(device, None));
        let [b, d] = [(); 2].map(|()| queue_pair(device, Some(&queue)));
        connect(&a, &b);
        connect(&c, &d);
        Self { a, b, c, d, queue }
    }

    fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<(), crate::engine::Refusal> {
        self.queue.post(wr_id, sges, &mut Turn::new())
    }

    fn end(self) {
        [self.a, self.b, self.c, self.d].into_iter().for_each(QueuePair::destroy);
    }
}

const DONE: WcStatus = WcStatus::SUCCESS;

/// One sender waits and another arrives while two requests are posted. Both sends succeed, whichever request each takes
/// and whichever thread executes it.
#[test]
fn loom_each_waiting_sender_is_woken() {
    loom::model(|| {
        let model = Shared::new();
        post(&model.a, 1, &[], None);
        let sender = {
            let c = Arc::clone(&model.c);
            thread::spawn(move || post(&c, 2, &[], None))
        };
        model.post(11, &[]).unwrap();
        model.post(12, &[]).unwrap();
        sender.join().unwrap();
        assert_eq!(polled(&model.a.send_cq), [(1, DONE)]);
        assert_eq!(polled(&model.c.send_cq), [(2, DONE)]);
        let mut received = polled(&model.b.receive_cq);
        received.extend(polled(&model.d.receive_cq));
        received.sort_by_key(|completion| completion.0);
        assert_eq!(received, [(11, DONE), (12, DONE)]);
        model.end();
    });
}

/// Two senders wait, and the first moves to error while a request is posted. It either takes the request, or leaves it
/// to the second.
#[test]
fn loom_a_sender_in_error_leaves_the_request_to_the_next() {
    loom::model(|| {
        let model = Shared::new();
        post(&model.a, 1, &[], None);
        post(&model.c, 2, &[], None);
        let leaver = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || a.enter_error(None, None))
        };
        model.post(11, &[]).unwrap();
        leaver.join().unwrap();
        let (first, second) = (polled(&model.a.send_cq), polled(&model.c.send_cq));
        if first == [(1, DONE)] {
            assert_eq!(second, []);
        } else {
            assert_eq!(first, [(1, WcStatus::WR_FLUSH_ERR)]);
            assert_eq!(second, [(2, DONE)]);
        }
        model.end();
    });
}

/// The memory of a request belongs to the queue's domain, not to the domain of the queue pair that takes the request.
#[test]
fn loom_no_write_after_deregistration_from_the_domain_of_the_queue() {
    loom::model(|| {
        let model = Shared::new();
        let source = Memory::new(&model.a.pd, 1);
        // The lookup of the second region leaves time between the lookup of the first one and the write to it.
        let pd = Arc::clone(&model.queue.pd);
        let (mut sink, second) = (Memory::new(&pd, 0), Memory::new(&pd, 0));
        model.post(11, &[sink.sge(), second.sge()]).unwrap();
        let sender = {
            let (a, from) = (Arc::clone(&model.a), source.sge());
            thread::spawn(move || post(&a, 1, &[from], None))
        };
        sink.free(&pd);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        model.end();
    });
}

/// A queue pair is reset while another thread polls the completions that the reset drops. Each slot is released exactly
/// once.
#[test]
fn loom_a_reset_releases_all_shared_slots() {
    loom::model(|| {
        let model = Shared::new();
        for n in 0..2 {
            model.post(n, &[]).unwrap();
            post(&model.a, n, &[], None);
        }
        assert!(model.post(2, &[]).is_err(), "nothing was polled");
        let poller = {
            let queue = Arc::clone(&model.b.receive_cq);
            thread::spawn(move || {
                queue.poll(2, |_, _, _| {}).unwrap();
            })
        };
        model.b.reset(&mut locked(&model.b.attributes));
        poller.join().unwrap();
        model.post(3, &[]).unwrap();
        model.post(4, &[]).unwrap();
        assert!(model.post(5, &[]).is_err());
        model.end();
    });
}

/// The first waiter uses up the call's turn. A thread that polls later serves the second one.
#[test]
fn loom_a_waiter_after_a_full_turn_is_served() {
    loom::model(|| {
        let subnet = Subnet::of_model_with(ServedBy::Polls);
        let model = Shared::on(device_of(subnet, Schedule::Immediate));
        let source = Memory::of_length(TURN, &model.a.pd, 1);
        let sink = Memory::of_length(TURN, &model.queue.pd, 0);
        post(&model.a, 1, &[source.sge()], None);
        let sender = {
            let c = Arc::clone(&model.c);
            thread::spawn(move || post(&c, 2, &[], None))
        };
        let mut turn = Turn::new();
        for wr_id in [11, 12] {
            model.queue.post(wr_id, &[sink.sge()], &mut turn).unwrap();
        }
        sender.join().unwrap();
        let ended: Vec<_> = (0..3).flat_map(|_| polled(&model.c.send_cq)).collect();
        assert_eq!(ended, [(2, DONE)]);
        assert_eq!(polled(&model.a.send_cq), [(1, DONE)]);
        assert!(!subnet.timers.is_set());
        model.end();
    });
}
