//! The execution of send queues: threads hand a queue over to each other, and a timer executes the work that exceeds
//! their turns. However they race, no queue with work is left without a thread to do it.

use super::*;
use crate::engine::requester::post::post_all;
use crate::engine::requester::side::Blocked;

const DONE: WcStatus = WcStatus::SUCCESS;

fn subnet_and_model(served_by: ServedBy) -> (&'static Subnet, Model) {
    let subnet = Subnet::of_model_with(served_by);
    (subnet, Model::on(device_of(subnet, Schedule::Immediate)))
}

/// Starts a thread that posts one request of `a`, which needs no receive.
fn posts_write(model: &Model, wr_id: u64) -> thread::JoinHandle<()> {
    let a = Arc::clone(&model.a);
    thread::spawn(move || post(&a, wr_id, &[], Some(Sge::default())))
}

fn assert_not_forgotten(queue_pair: &QueuePair) {
    let has_work = queue_pair.send.lock().has_work();
    assert!(!has_work || queue_pair.entry.timer().is_set(), "work, but no timer to do it");
}

/// Returns all completions, by polling repeatedly, as programs do.
fn polled_to_the_end(queue: &CompletionQueue) -> Vec<(u64, WcStatus)> {
    (0..4).flat_map(|_| polled(queue)).collect()
}

/// Two sends wait, and the first uses up a whole turn; a third request follows them. When the receiver is ready, the
/// posting thread does the rest, or polls do.
#[test]
fn loom_work_left_by_a_turn_is_done_at_polls() {
    loom::model(|| {
        let (_, model) = subnet_and_model(ServedBy::Polls);
        let source = Memory::of_length(TURN, &model.a.pd, 1);
        let sink = Memory::of_length(TURN, &model.b.pd, 0);
        post(&model.a, 1, &[source.sge()], None);
        post(&model.a, 2, &[], None);
        let poster = posts_write(&model, 3);
        model.b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        model.b.post_receive(12, &[], &mut Turn::new()).unwrap();
        poster.join().unwrap();
        assert_not_forgotten(&model.a);
        assert_eq!(polled_to_the_end(&model.a.send_cq), [(1, DONE), (2, DONE), (3, DONE)]);
        assert_eq!(polled(&model.b.receive_cq), [(11, DONE), (12, DONE)]);
        model.end();
    });
}

/// Like the model above, except that no thread posts or polls once the receives are posted. The device's thread does
/// the rest.
#[test]
fn loom_work_left_by_a_turn_is_done_by_the_thread() {
    loom::model(|| {
        let (subnet, model) = subnet_and_model(ServedBy::PollsAndThread);
        let source = Memory::of_length(TURN, &model.a.pd, 1);
        let sink = Memory::of_length(TURN, &model.b.pd, 0);
        post(&model.a, 1, &[source.sge()], None);
        post(&model.a, 2, &[], None);
        model.b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        model.b.post_receive(12, &[], &mut Turn::new()).unwrap();
        subnet.wait_until_idle();
        assert_eq!(polled(&model.a.send_cq), [(1, DONE), (2, DONE)]);
        subnet.let_time_pass();
        subnet.thread_ends();
        model.end();
    });
}

/// A post takes more than one stretch. Between two stretches, another thread posts a later request and executes a turn.
/// That turn may find no receive for the post's last request. The post then executes its last request itself, and
/// leaves the later request to polls.
#[test]
fn loom_a_request_posted_during_a_long_post_is_not_forgotten() {
    loom::model(|| {
        let (_, model) = subnet_and_model(ServedBy::Polls);
        let source = Memory::of_length(TURN + 4096, &model.a.pd, 1);
        let sink = Memory::of_length(TURN + 4096, &model.b.pd, 0);
        let (from, to) = (source.sge(), sink.sge());
        let poster = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || {
                let from = [from];
                let list = [Ok(work(1, &from, Some(to))), Ok(work(2, &[], None))];
                post_all(&a, list.into_iter()).unwrap();
            })
        };
        let other = posts_write(&model, 3);
        model.b.post_receive(11, &[], &mut Turn::new()).unwrap();
        poster.join().unwrap();
        other.join().unwrap();
        assert_not_forgotten(&model.a);
        let mut ended = polled_to_the_end(&model.a.send_cq);
        ended.sort_by_key(|completion| completion.0);
        assert_eq!(ended, [(1, DONE), (2, DONE), (3, DONE)]);
        assert_eq!(polled(&model.b.receive_cq), [(11, DONE)]);
        model.end();
    });
}

/// A request posted while a drained queue resumes is executed, by either thread.
#[test]
fn loom_a_request_posted_to_a_drained_queue_is_not_forgotten() {
    loom::model(|| {
        let (_, model) = subnet_and_model(ServedBy::Polls);
        let go_to = |state| {
            let new = Settings { state, current_state: state, ..Settings::default() };
            model.a.modify(&new, QpAttributes::STATE).unwrap();
        };
        go_to(QpState::SQD);
        post(&model.a, 1, &[], Some(Sge::default()));
        let poster = posts_write(&model, 2);
        go_to(QpState::RTS);
        poster.join().unwrap();
        assert_not_forgotten(&model.a);
        assert_eq!(polled_to_the_end(&model.a.send_cq), [(1, DONE), (2, DONE)]);
        model.end();
    });
}

/// A receiver moves to error while a sender finds that it has no receive request. The sender then stops waiting for
/// one.
#[test]
fn loom_a_sender_stops_waiting_for_a_receiver_in_error() {
    loom::model(|| {
        let (_, model) = subnet_and_model(ServedBy::Polls);
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[], None))
        };
        model.b.enter_error(None, None);
        sender.join().unwrap();
        assert!(polled_to_the_end(&model.a.send_cq).is_empty());
        let blocked = model.a.send.lock().blocked;
        assert!(matches!(blocked, Blocked::Unanswered { .. }), "{blocked:?}");
        model.end();
    });
}

/// A sender waits for a receive, and its deadline passes while a receive is posted. It sends or gives up, and takes the
/// receive only if it sends.
#[test]
fn loom_a_sender_whose_deadline_passes_sends_or_gives_up() {
    loom::model(|| {
        let (subnet, model) = subnet_and_model(ServedBy::PollsAndThread);
        model.a.send.lock().requester.rnr_retries = 1;
        post(&model.a, 1, &[], None);
        subnet.let_time_pass();
        model.b.post_receive(11, &[], &mut Turn::new()).unwrap();
        subnet.thread_ends();
        let status = match &polled(&model.a.send_cq)[..] {
            &[(1, status)] => status,
            others => panic!("{others:?}"),
        };
        let received = polled(&model.b.receive_cq);
        match status {
            DONE => assert_eq!(received, [(11, DONE)]),
            WcStatus::RNR_RETRY_EXC_ERR => assert_eq!(received, []),
            _ => panic!("{status}"),
        }
        model.end();
    });
}

/// No thread posts a receive or polls: the timer thread makes the sender give up.
#[test]
fn loom_a_sender_whose_deadline_passes_gives_up() {
    loom::model(|| {
        let (subnet, model) = subnet_and_model(ServedBy::PollsAndThread);
        model.a.send.lock().requester.rnr_retries = 1;
        post(&model.a, 1, &[], None);
        subnet.wait_until_idle();
        assert!(polled(&model.a.send_cq).is_empty());
        subnet.let_time_pass();
        subnet.thread_ends();
        assert_eq!(polled(&model.a.send_cq), [(1, WcStatus::RNR_RETRY_EXC_ERR)]);
        model.end();
    });
}

/// A queue pair is destroyed while its timer expires. The code that handles the expiry may drop the last reference to
/// the queue pair, and its timer with it.
#[test]
fn loom_a_queue_pair_may_be_destroyed_while_its_timer_expires() {
    loom::model(|| {
        let (subnet, model) = subnet_and_model(ServedBy::Polls);
        let Model { a, b } = model;
        a.entry.set_timer(crate::fabric::clock::Time::AT_ONCE);
        let poller = {
            let queue = Arc::clone(&b.send_cq);
            thread::spawn(move || assert!(polled(&queue).is_empty()))
        };
        // The poller has taken the timer, and handles its expiry.
        while subnet.timers.is_set() {
            thread::yield_now();
        }
        let last = Arc::clone(&a);
        a.destroy();
        // The model checker does not see references, only locks. Expiry takes this lock while it holds a reference. So
        // taking the lock here makes the checker try both orders.
        drop(last.send.lock());
        drop(last);
        poller.join().unwrap();
        assert!(polled(&b.send_cq).is_empty());
        assert!(!subnet.timers.is_set());
        b.destroy();
    });
}

/// A schedule holds requests back, and the first request uses up a whole turn. The work that posts and turns leave is
/// executed later, by the thread or by a step, as of a poll.
#[test]
fn loom_held_back_requests_are_not_forgotten() {
    for with_step in [false, true] {
        loom::model(move || {
            let subnet = Subnet::of_model_with(ServedBy::PollsAndThread);
            let device = device_of(subnet, Schedule::Deferred { seed: 1 });
            let model = Model::on(device);
            let source = Memory::of_length(TURN, &model.a.pd, 1);
            let sink = Memory::of_length(TURN, &model.b.pd, 0);
            post(&model.a, 1, &[source.sge()], Some(sink.sge()));
            subnet.let_time_pass();
            if with_step {
                device.deferred.as_ref().unwrap().step();
            }
            post(&model.a, 2, &[], Some(Sge::default()));
            subnet.thread_ends();
            assert_eq!(polled(&model.a.send_cq), [(1, DONE), (2, DONE)]);
            model.end();
        });
    }
}
