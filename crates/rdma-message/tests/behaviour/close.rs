//! The ends of connections, and the results of pending operations.

use rdma_message::frame::CloseReason;
use rdma_message::{ConnectionError, Messages, OperationError, SendError, Stream};

use crate::pair::{Machine, Pair, bytes, small};

#[test]
fn both_ends_finish_after_their_operations() {
    let mut pair = Pair::<Messages>::open(small());
    let eager = pair.ends[0].send(bytes(1, 300)).unwrap();
    let offered = pair.ends[0].send(bytes(2, 5_000)).unwrap();
    pair.ends[0].machine.finish();
    assert_eq!(pair.ends[0].machine.send(1), Err(SendError::Finished));
    pair.run();
    assert!(pair.ends[0].is_flushed && pair.ends[1].peer_finished);
    for operation in [eager, offered] {
        assert_eq!(pair.ends[0].completed.get(&operation), Some(&Ok(())));
    }
    assert_eq!(pair.ends[1].take().unwrap().bytes.len(), 300);
    assert_eq!(pair.ends[0].disconnect, None, "the other direction is open");
    pair.ends[1].send(bytes(3, 600)).unwrap();
    pair.ends[1].machine.finish();
    pair.run();
    for end in &mut pair.ends {
        assert_eq!(end.disconnect, Some(None));
        end.machine.lost();
    }
    pair.run();
    assert!(pair.ends.iter().all(|end| end.ended == Some(None)));
    assert_eq!(pair.ends[0].take().unwrap().bytes, bytes(3, 600));
    assert_eq!(pair.ends[1].take().unwrap().bytes, bytes(2, 5_000));
}

#[test]
fn the_peers_end_is_reported_after_its_last_message() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[0].send(bytes(1, 5_000)).unwrap();
    pair.ends[0].machine.finish();
    pair.drive(0);
    while pair.execute(0) {}
    pair.drive(1);
    while pair.execute(1) {}
    pair.drive(1);
    assert!(!pair.ends[1].peer_finished, "a READ has not completed");
    pair.run();
    assert!(pair.ends[1].peer_finished);
    assert_eq!(pair.ends[1].inbox.len(), 1);
}

#[test]
fn calls_fail_when_the_peer_finishes_without_a_reply() {
    let mut pair = Pair::<Messages>::open(small());
    let sent = pair.ends[0].call(bytes(1, 20)).unwrap();
    let replied = pair.ends[0].call(bytes(2, 20)).unwrap();
    pair.run();
    pair.ends[1].take_request();
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].reply(id, bytes(3, 5_000)).unwrap();
    pair.ends[1].machine.finish();
    let queued = pair.ends[0].call(bytes(4, 20)).unwrap();
    pair.drive(1);
    while pair.execute(1) {}
    pair.run();
    let completed = &pair.ends[0].completed;
    assert_eq!(completed.get(&sent), Some(&Err(OperationError::PeerFinished)));
    assert_eq!(completed.get(&queued), Some(&Err(OperationError::PeerFinished)));
    assert_eq!(completed.get(&replied), Some(&Ok(())));
    assert_eq!(pair.ends[0].replies[&replied], bytes(3, 5_000));
    assert_eq!(pair.ends[0].machine.call(1), Err(SendError::PeerFinished));
    assert!(pair.ends[1].inbox.is_empty(), "the queued call was not sent");
    pair.ends[0].send(bytes(5, 20)).unwrap();
    pair.run();
    assert_eq!(pair.ends[1].inbox.len(), 1, "messages still arrive");
}

#[test]
fn an_end_that_no_longer_receives_fails_later_messages() {
    let mut pair = Pair::<Messages>::open(small());
    let earlier = pair.ends[0].send(bytes(1, 5_000)).unwrap();
    pair.ends[1].call(bytes(2, 20)).unwrap();
    pair.run();
    let (id, _) = pair.ends[0].take_request();
    let frames = pair.ends[1].machine.counters().sent_frames;
    pair.ends[1].machine.stop();
    pair.ends[1].machine.finish();
    let queued = pair.ends[0].send(bytes(3, 20)).unwrap();
    pair.run();
    assert_eq!(pair.ends[1].machine.counters().sent_frames, frames + 1, "only the last frame");
    let end = &mut pair.ends[0];
    assert_eq!(end.machine.send(1), Err(SendError::PeerFinished));
    assert_eq!(end.machine.call(1), Err(SendError::PeerFinished));
    assert_eq!(end.machine.reply(id, 1), Err(SendError::PeerFinished));
    assert!([earlier, queued].iter().all(|sent| end.completed.get(sent) == Some(&Ok(()))));
    end.machine.refuse(id);
    end.machine.finish();
    pair.run();
    assert!(pair.ends.iter().all(|end| end.disconnect == Some(None)));
}

#[test]
fn a_finished_end_reports_that_it_no_longer_receives() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[1].machine.finish();
    pair.run();
    pair.ends[0].send(bytes(1, 20)).unwrap();
    pair.ends[1].machine.stop();
    pair.run();
    assert_eq!(pair.ends[0].machine.send(1), Err(SendError::PeerFinished));
    let frames = pair.ends[1].machine.counters().sent_frames;
    pair.ends[0].machine.stop();
    pair.ends[0].machine.finish();
    pair.run();
    assert_eq!(pair.ends[1].machine.counters().sent_frames, frames + 1, "only the close frame");
    assert_eq!(pair.ends[0].machine.counters().credit_frames, 0, "no news for a finished peer");
    assert!(pair.ends.iter().all(|end| end.disconnect == Some(None)));
}

#[test]
fn a_reply_still_arrives_after_its_caller_has_finished() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.ends[0].machine.finish();
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].reply(id, bytes(2, 5_000)).unwrap();
    pair.ends[1].machine.finish();
    pair.run();
    assert_eq!(pair.ends[0].replies[&call], bytes(2, 5_000));
    assert!(pair.ends.iter().all(|end| end.disconnect == Some(None)));
}

#[test]
fn an_abort_is_reported_with_its_reason_at_both_ends() {
    let mut pair = Pair::<Messages>::open(small());
    let operation = pair.ends[0].send(bytes(1, 5_000)).unwrap();
    pair.drive(0);
    pair.ends[0].machine.abort();
    pair.run();
    let peers = ConnectionError::PeerClosed(CloseReason::ABORTED);
    assert_eq!(pair.ends[0].disconnect, Some(Some(ConnectionError::Aborted)));
    assert_eq!(pair.ends[1].disconnect, Some(Some(peers)));
    assert_eq!(pair.ends[0].machine.send(1), Err(SendError::Ended));
    assert!(pair.ends[0].completed.is_empty(), "the device may still use the memory");
    pair.kill();
    assert_eq!(pair.ends[0].completed[&operation], Err(OperationError::Unknown));
    assert_eq!(pair.ends[0].ended, Some(Some(ConnectionError::Aborted)));
    assert_eq!(pair.ends[1].ended, Some(Some(peers)));
}

#[test]
fn a_loss_ends_each_operation_with_the_right_doubt() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[1].send(bytes(0, 5_000)).unwrap();
    pair.drive(1);
    let end = &mut pair.ends[0];
    let begun = end.send(bytes(1, 490)).unwrap();
    let offered = end.send(bytes(2, 5_000)).unwrap();
    pair.drive(0);
    while pair.execute(0) {}
    while pair.complete(0, 0) {}
    pair.drive(0);
    let end = &mut pair.ends[0];
    let call = end.call(bytes(3, 20)).unwrap();
    pair.drive(0);
    let end = &mut pair.ends[0];
    end.machine.lost();
    let last = end.machine.send(1);
    pair.drive(0);
    let end = &pair.ends[0];
    assert_eq!(last, Err(SendError::Ended));
    assert_eq!(end.completed[&begun], Err(OperationError::Unknown));
    assert_eq!(end.completed[&offered], Err(OperationError::NotSent), "it waited for credit");
    assert_eq!(end.completed[&call], Err(OperationError::NotSent));
    assert_eq!(end.ended, Some(Some(ConnectionError::Lost)));
    assert!(end.arriving.is_empty(), "partial messages are discarded");
}

#[test]
fn a_second_loss_changes_nothing() {
    let mut pair = Pair::<Messages>::open(small());
    pair.kill();
    pair.kill();
    assert!(pair.ends.iter().all(|end| end.ended == Some(Some(ConnectionError::Lost))));
}

#[test]
fn messages_that_were_delivered_survive_a_loss() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[1].holds = true;
    pair.ends[0].send(bytes(1, 50)).unwrap();
    pair.ends[0].send(bytes(2, 5_000)).unwrap();
    pair.ends[0].send(bytes(3, 60)).unwrap();
    pair.drive(0);
    while pair.execute(0) {}
    pair.drive(1);
    pair.kill();
    // The second was not fetched, so the third was not delivered.
    assert_eq!(pair.ends[1].take().unwrap().bytes, bytes(1, 50));
    assert!(pair.ends[1].take().is_none());
    assert!(pair.ends[1].arriving.is_empty());
    while !pair.ends[1].held.is_empty() {
        pair.ends[1].release(0);
    }
    pair.drive(1);
    assert!(pair.ends[1].ended.is_some());
}

#[test]
fn a_stream_that_was_cut_off_has_no_clean_end() {
    for is_finished in [false, true] {
        let mut pair = Pair::<Stream>::open(small());
        pair.write(0, b"some");
        if is_finished {
            pair.ends[0].machine.finish();
        }
        pair.run();
        pair.kill();
        assert_eq!(pair.ends[1].peer_finished, is_finished);
        let lost = Some(Some(ConnectionError::Lost));
        assert!(pair.ends.iter().all(|end| end.ended == lost));
    }
}

#[test]
fn an_aborted_stream_resets_its_peer() {
    let mut pair = Pair::<Stream>::open(small());
    pair.write_while(0, b"some", |pair| {
        pair.ends[0].machine.abort();
        assert!(pair.ends[0].poll().is_none(), "the close frame follows the data");
    });
    pair.run();
    let peers = ConnectionError::PeerClosed(CloseReason::ABORTED);
    assert_eq!(pair.ends[1].disconnect, Some(Some(peers)));
    assert!(!pair.ends[1].peer_finished);
    assert_eq!(pair.ends[1].machine.write(1), Err(SendError::Ended));
}

/// Finishes both ends, and lets end 0 process everything. No completion is reported to end 1.
fn finish_without_completions<M: Machine>(pair: &mut Pair<M>) {
    for _ in 0..4 {
        for at in [1, 0] {
            pair.drive(at);
            while pair.execute(at) {}
            pair.drive(1 - at);
        }
        while pair.complete(0, 0) {}
    }
    pair.drive(0);
}

#[test]
fn an_end_whose_last_completions_are_lost_is_clean_if_the_peer_has_everything() {
    let mut pair = Pair::<Stream>::open(small());
    pair.write(1, b"last");
    pair.ends.iter_mut().for_each(|end| end.machine.finish());
    finish_without_completions(&mut pair);
    assert_eq!(pair.ends[0].disconnect, Some(None));
    assert_eq!(pair.ends[0].read, b"last");
    // End 0 has disconnected, so its device acknowledges nothing further.
    pair.kill();
    assert!(pair.ends.iter().all(|end| end.is_flushed && end.ended == Some(None)));

    let mut pair = Pair::<Messages>::open(small());
    let operation = pair.ends[1].send(bytes(1, 80)).unwrap();
    pair.ends.iter_mut().for_each(|end| end.machine.finish());
    finish_without_completions(&mut pair);
    assert_eq!(pair.ends[0].disconnect, Some(None));
    pair.kill();
    assert_eq!(pair.ends[1].completed[&operation], Ok(()));
    assert!(pair.ends.iter().all(|end| end.is_flushed && end.ended == Some(None)));
}

#[test]
fn an_end_whose_peer_dies_before_it_has_everything_is_not_clean() {
    let mut pair = Pair::<Stream>::open(small());
    pair.ends[0].machine.finish();
    pair.run();
    pair.write(1, b"last");
    pair.ends[1].machine.finish();
    pair.drive(1);
    // The peer dies after its own end, and before it receives that of this end.
    pair.kill();
    assert!(pair.ends[1].peer_finished && !pair.ends[1].is_flushed);
    assert_eq!(pair.ends[1].ended, Some(Some(ConnectionError::Lost)));

    let mut pair = Pair::<Messages>::open(small());
    pair.ends[0].machine.finish();
    pair.run();
    let operation = pair.ends[1].send(bytes(1, 80)).unwrap();
    pair.ends[1].machine.finish();
    pair.drive(1);
    pair.kill();
    assert!(pair.ends[1].peer_finished && !pair.ends[1].is_flushed);
    assert_eq!(pair.ends[1].completed[&operation], Err(OperationError::Unknown));
    assert_eq!(pair.ends[1].ended, Some(Some(ConnectionError::Lost)));
}

#[test]
fn an_end_whose_peer_has_finished_and_received_everything_is_clean() {
    for finishes in [false, true] {
        let mut pair = Pair::<Messages>::open(small());
        let operation = pair.ends[1].send(bytes(1, 80)).unwrap();
        pair.ends[0].machine.finish();
        pair.run();
        assert_eq!(pair.ends[1].completed[&operation], Ok(()));
        if finishes {
            pair.ends[1].machine.finish();
            pair.drive(1);
        }
        // The peer ends without waiting for the end of this end.
        pair.kill();
        assert!(pair.ends[1].peer_finished);
        assert_eq!(pair.ends[1].ended, Some(None), "{finishes}");
        assert_eq!(pair.ends[0].ended, Some(Some(ConnectionError::Lost)));
    }
}

#[test]
fn an_end_whose_peer_waited_for_a_reply_is_not_clean() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.ends[0].machine.finish();
    pair.run();
    assert!(pair.ends[1].peer_finished && pair.ends[1].inbox.len() == 1);
    pair.kill();
    assert_eq!(pair.ends[1].ended, Some(Some(ConnectionError::Lost)));
}

#[test]
fn the_peers_end_is_reported_although_the_loss_follows_at_once() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[0].machine.finish();
    pair.drive(0);
    assert!(pair.execute(0), "the last frame");
    pair.kill();
    assert!(pair.ends[1].peer_finished);
}

#[test]
fn a_discarded_reply_is_fetched_before_the_end() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.run();
    let (id, _) = pair.ends[1].take_request();
    let reply = pair.ends[1].reply(id, bytes(2, 5_000)).unwrap();
    pair.ends[1].machine.finish();
    pair.drive(1);
    while pair.execute(1) {}
    pair.drive(0);
    assert!(pair.execute(0), "the READ");
    pair.ends[0].machine.cancel(call);
    pair.ends[0].machine.finish();
    // Everything happens, except that the completion of the READ is late.
    for _ in 0..4 {
        while pair.execute(0) {}
        while pair.complete(0, 1) {}
        pair.drive(0);
        pair.drive(1);
        while pair.execute(1) {}
        while pair.complete(1, 0) {}
    }
    assert_eq!(pair.ends[0].disconnect, None);
    pair.run();
    assert_eq!(pair.ends[1].completed[&reply], Ok(()));
    assert!(pair.ends.iter().all(|end| end.disconnect == Some(None) && end.arriving.is_empty()));
}

#[test]
fn ends_that_abort_at_the_same_time_need_no_completion_to_disconnect() {
    let mut pair = Pair::<Stream>::open(small());
    pair.ends.iter_mut().for_each(|end| end.machine.abort());
    pair.drive(0);
    pair.drive(1);
    assert!(pair.execute(0) && pair.execute(1), "the close frames");
    pair.drive(0);
    pair.drive(1);
    let aborted = Some(Some(ConnectionError::Aborted));
    assert!(pair.ends.iter().all(|end| end.disconnect == aborted));
}

#[test]
fn nothing_follows_the_end() {
    let mut pair = Pair::<Stream>::open(small());
    pair.write(0, b"last");
    pair.ends[0].machine.finish();
    pair.drive(0);
    pair.ends[0].machine.lost();
    pair.drive(0);
    assert!(pair.ends[0].ended.is_some() && !pair.ends[0].is_flushed);
    // `End` refuses every output after the end.
    (0..6).for_each(|slot| pair.ends[0].machine.sent(slot));
    pair.ends[0].machine.stop();
    pair.drive(0);
}

#[test]
fn a_call_whose_memory_is_lent_fails_when_the_peer_finishes() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[1].holds = true;
    for n in 0..4 {
        pair.ends[0].send(bytes(n, 20)).unwrap();
    }
    let call = pair.ends[0].call(bytes(9, 5_000)).unwrap();
    pair.run();
    assert_eq!(pair.ends[1].held.len(), 4, "the offer waits for a receive");
    pair.ends[1].machine.finish();
    pair.run();
    assert_eq!(pair.ends[0].completed.get(&call), Some(&Err(OperationError::PeerFinished)));
}

#[test]
fn a_reply_that_was_not_fetched_has_no_memory_to_discard() {
    let mut options = small();
    options.reads = 1;
    let mut pair = Pair::<Messages>::open(options);
    (0..2).for_each(|n| _ = pair.ends[0].call(bytes(n, 20)).unwrap());
    pair.run();
    for n in 0..2 {
        let (id, _) = pair.ends[1].take_request();
        pair.ends[1].reply(id, bytes(n, 600)).unwrap();
    }
    pair.drive(1);
    while pair.execute(1) {}
    pair.drive(0);
    assert_eq!(pair.ends[0].arriving.len(), 1, "one READ is posted");
    // `End` checks that the discarded message has memory.
    pair.kill();
    assert!(pair.ends[0].arriving.is_empty());
}

#[test]
fn a_reply_proves_that_its_request_has_arrived() {
    let mut pair = Pair::<Messages>::open(small());
    let call = pair.ends[0].call(bytes(1, 20)).unwrap();
    pair.drive(0);
    assert!(pair.execute(0), "the request");
    pair.drive(1);
    let (id, _) = pair.ends[1].take_request();
    pair.ends[1].reply(id, bytes(2, 20)).unwrap();
    pair.drive(1);
    while pair.execute(1) {}
    pair.drive(0);
    assert!(pair.ends[0].completed.is_empty(), "the request has not completed");
    pair.kill();
    assert_eq!(pair.ends[0].completed[&call], Ok(()));
}
