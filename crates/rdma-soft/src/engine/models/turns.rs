//! Who executes what is in a send queue: threads hand it over to each other, and leave what they have no
//! time for to a timer. However they race, no queue is left with work and with nobody to do it.

use super::*;
use crate::engine::requester::post::post_all;
use crate::engine::requester::side::Blocked;

const DONE: WcStatus = WcStatus::SUCCESS;

fn subnet_and_model(served_by: ServedBy) -> (&'static Subnet, Model) {
    let subnet = Subnet::of_model_with(served_by);
    (subnet, Model::on(device_of(subnet, Schedule::Immediate)))
}

/// A thread that posts one request of `a`, which needs no receive.
fn posts_write(model: &Model, wr_id: u64) -> thread::JoinHandle<()> {
    let a = Arc::clone(&model.a);
    thread::spawn(move || post(&a, wr_id, &[], Some(Sge::default())))
}

fn assert_not_forgotten(queue_pair: &QueuePair) {
    let has_work = queue_pair.send.lock().has_work();
    assert!(!has_work || queue_pair.entry.timer().is_set(), "work, and nobody to do it");
}

/// What completes if somebody polls, as programs do.
fn polled_to_the_end(queue: &CompletionQueue) -> Vec<(u64, WcStatus)> {
    (0..4).flat_map(|_| polled(queue)).collect()
}

/// Two sends wait, of which the first takes all of a turn, and a third request comes behind them: what is
/// left when the receiver is ready is done by the thread that posts, or at polls.
#[test]
fn loom_what_a_turn_leaves_is_done_at_polls() {
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

/// The same, where nobody posts and nobody polls.
#[test]
fn loom_what_a_turn_leaves_is_done_by_the_thread() {
    loom::model(|| {
        let (subnet, model) = subnet_and_model(ServedBy::PollsAndThread);
        let source = Memory::of_length(TURN, &model.a.pd, 1);
        let sink = Memory::of_length(TURN, &model.b.pd, 0);
        post(&model.a, 1, &[source.sge()], None);
        post(&model.a, 2, &[], None);
        model.b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        model.b.post_receive(12, &[], &mut Turn::new()).unwrap();
        subnet.rest();
        assert_eq!(polled(&model.a.send_cq), [(1, DONE), (2, DONE)]);
        subnet.let_time_pass();
        subnet.thread_ends();
        model.end();
    });
}

/// A post that takes more than one stretch; between two of them another thread posts behind it, and takes
/// a turn. The post finds its last request executable though that turn found no receive for it: it
/// leaves what is behind to polls.
#[test]
fn loom_what_is_posted_behind_a_long_post_is_not_forgotten() {
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

/// What is posted while the queue is told to go on after a drain is executed, by either thread.
#[test]
fn loom_what_is_posted_to_a_drained_queue_is_not_forgotten() {
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

/// A receiver goes while a sender finds it without a request: the sender does not wait for it any more.
#[test]
fn loom_who_waits_for_a_receiver_that_goes_finds_out() {
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

/// The deadline of a sender that waits for a receive passes while one is posted: it sends or gives up,
/// and takes the receive only if it sends.
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

/// Nobody posts a receive, and nobody polls: the thread has the sender give up.
#[test]
fn loom_a_sender_whose_deadline_passes_gives_up() {
    loom::model(|| {
        let (subnet, model) = subnet_and_model(ServedBy::PollsAndThread);
        model.a.send.lock().requester.rnr_retries = 1;
        post(&model.a, 1, &[], None);
        subnet.rest();
        assert!(polled(&model.a.send_cq).is_empty());
        subnet.let_time_pass();
        subnet.thread_ends();
        assert_eq!(polled(&model.a.send_cq), [(1, WcStatus::RNR_RETRY_EXC_ERR)]);
        model.end();
    });
}

/// A queue pair goes while its timer expires: the last reference to it may go where it expires, and its timer
/// with it.
#[test]
fn loom_a_queue_pair_may_go_while_its_timer_expires() {
    loom::model(|| {
        let (subnet, model) = subnet_and_model(ServedBy::Polls);
        let Model { a, b } = model;
        a.entry.set_timer(crate::fabric::clock::Time::AT_ONCE);
        let poller = {
            let queue = Arc::clone(&b.send_cq);
            thread::spawn(move || assert!(polled(&queue).is_empty()))
        };
        // Its timer is taken, and expires.
        while subnet.timers.is_set() {
            thread::yield_now();
        }
        let last = Arc::clone(&a);
        a.destroy();
        // The model checker does not see references, only locks: this one, which ringing takes with a reference
        // held, has it try either end first.
        drop(last.send.lock());
        drop(last);
        poller.join().unwrap();
        assert!(polled(&b.send_cq).is_empty());
        assert!(!subnet.timers.is_set());
        b.destroy();
    });
}

/// A schedule that holds requests back, of which the first takes all of a turn: what posts and turns leave
/// to a later moment is executed then, by the thread or by a step at a poll.
#[test]
fn loom_what_is_held_back_is_not_forgotten() {
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
