//! A link that passes the PSN that the responder expects to the requester, so that no acknowledgement is sent.

use std::time::Duration;

use rdma_proto::responder::Owes;
use rdma_types::WcStatus;

use crate::pair::network::Way::Response;
use crate::pair::network::{Fate, MTU, Pair, bytes, settings};

/// A pair that has executed all requests, but whose answers were lost.
fn without_answers(post: impl FnOnce(&mut Pair)) -> Pair {
    let lost = |way, _| if way == Response { Fate::Lost } else { Fate::Arrives };
    let mut pair = Pair::new().network(Box::new(lost));
    post(&mut pair);
    pair.run_for(Duration::from_micros(10));
    assert!(pair.queue.completed.is_empty());
    pair
}

impl Pair {
    /// Reports to the requester that this many packets were executed. Returns the number of completed requests.
    fn learn(&mut self, packets: u32) -> usize {
        let expected = settings().0.psn.wrapping_add(packets);
        self.requester.executed(self.now, expected, &mut self.queue);
        self.queue.completed.len()
    }
}

#[test]
fn the_expected_psn_completes_the_same_requests_as_an_acknowledgement() {
    let mut pair = without_answers(|pair| {
        pair.memory.receives.extend([300, 8]);
        pair.send(300);
        pair.write(0, 2 * MTU);
        pair.send(8);
    });
    assert_eq!(pair.responder.expected(), settings().0.psn.wrapping_add(5));
    let completed = [0, 1, 2, 3, 4, 5].map(|packets| pair.learn(packets));
    assert_eq!(completed, [0, 0, 1, 1, 2, 3]);
    assert!(pair.requester.idle() && pair.requester.deadline().is_none());
    assert_eq!(pair.memory.received[1].bytes, bytes(2, 8));
}

/// It takes no PSN, so the packets of the requests around it are numbered without a gap.
#[test]
fn a_request_that_the_caller_executes_itself_is_skipped_between_others() {
    let mut pair = Pair::new();
    pair.memory.receives.extend([8, 8]);
    pair.send(8);
    pair.write(0, 8);
    assert!(pair.requester.can_skip(), "nothing was sent");
    pair.run();
    assert_eq!(pair.queue.completed.len(), 2);
    pair.write(0, 8); // the caller executes this one
    assert!(pair.requester.skip());
    pair.queue.completed.push(WcStatus::SUCCESS);
    pair.write(0, 8);
    pair.send(8);
    pair.run();
    assert_eq!(pair.queue.completed, [WcStatus::SUCCESS; 5]);
    assert_eq!(pair.requester.psn(), settings().0.psn.wrapping_add(4));
    assert_eq!(pair.responder.expected(), pair.requester.psn());
}

#[test]
fn a_request_is_not_skipped_while_others_are_in_flight() {
    let mut pair = without_answers(|pair| _ = pair.write(0, 8));
    assert!(!pair.requester.can_skip() && !pair.requester.skip());
    pair.learn(1);
    assert!(pair.requester.can_skip());
    pair.requester.stop();
    assert!(!pair.requester.skip(), "the queue pair is in error");
}

#[test]
fn a_number_beyond_what_was_sent_is_ignored() {
    let mut pair = without_answers(|pair| {
        pair.write(0, 8);
        pair.write(0, 8);
    });
    for lie in [3, 4, 1 << 22, 1 << 23, (1 << 24) - 1] {
        assert_eq!(pair.learn(lie), 0, "{lie}");
    }
    assert_eq!(pair.learn(1), 1);
    // The same PSN again, and an earlier one.
    for stale in [1, 0, (1 << 24) - 1] {
        assert_eq!(pair.learn(stale), 1, "{stale}");
    }
    assert_eq!(pair.learn(2), 2);
}

/// Its response has to arrive; later requests complete then.
#[test]
fn an_expected_psn_completes_no_read_and_no_atomic() {
    let mut pair = without_answers(|pair| {
        pair.write(0, 8);
        pair.read(0, 2 * MTU);
        pair.write(0, 8);
        pair.add(0, 1);
        pair.write(0, 8);
    });
    assert_eq!((pair.learn(6), pair.learn(6)), (1, 1));
    assert_eq!(pair.requester.counters().implied_nak_seq_err, 0);
    // Sent again, and answered this time.
    let mut pair = pair.network(Box::new(|_, _| Fate::Arrives));
    pair.run();
    assert_eq!(pair.queue.completed, [WcStatus::SUCCESS; 5]);
    assert_eq!(pair.memory.atomics, 1);
}

#[test]
fn no_packet_is_sent_if_the_link_passes_the_expected_psn() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    let mut room = [0; MTU as usize];
    let burst = pair.requester.poll_transmit(pair.now, &mut pair.queue, &mut room).unwrap();
    pair.responder.receive(&burst, &room[..8], &mut pair.memory);
    assert_eq!(pair.responder.owes(), Owes::Acknowledgement);
    pair.responder.is_acknowledged();
    assert_eq!(pair.responder.owes(), Owes::Nothing);
    assert_eq!(pair.learn(1), 1);
    assert_eq!(pair.requester.oldest(), pair.responder.expected());
    // A response is still owed.
    pair.read(0, 8);
    let burst = pair.requester.poll_transmit(pair.now, &mut pair.queue, &mut room).unwrap();
    pair.responder.receive(&burst, &[], &mut pair.memory);
    pair.responder.is_acknowledged();
    assert_eq!(pair.responder.owes(), Owes::Answer);
}

/// The link carries such a message without a packet, and the caller of the responder executes it.
#[test]
fn a_whole_send_without_a_packet_has_the_effect_of_its_packet() {
    let mut pair = Pair::new();
    let first = settings().0.psn;
    for n in 0..3 {
        pair.memory.receives.push_back(8);
        pair.send(8);
        if n == 1 {
            let psn = pair.requester.may_send_alone(1, false);
            assert_eq!(psn, Some(first.wrapping_add(1)));
            pair.requester.has_sent_alone(pair.now);
            assert!(pair.responder.expects_send(first.wrapping_add(1), 8));
            pair.responder.has_executed_send();
            pair.memory.receives.clear();
            assert!(pair.requester.deadline().is_some() && !pair.requester.has_packets(2));
        }
        pair.run_for(Duration::from_micros(10));
    }
    assert_eq!(pair.learn(3), 3);
    assert_eq!(pair.queue.completed, [WcStatus::SUCCESS; 3]);
    assert_eq!(pair.requester.psn(), pair.responder.expected());
    assert_eq!((pair.requester.counters().sent_pkts, pair.memory.received.len()), (3, 2));
    assert!(pair.requester.idle() && pair.responder.owes() == Owes::Nothing);
}

#[test]
fn a_send_needs_its_packet_unless_it_is_the_next_thing_to_send() {
    let mut pair = Pair::new();
    pair.send(8);
    pair.read(0, 8);
    pair.send(8);
    let (now, first) = (pair.now, settings().0.psn);
    let alone = |pair: &Pair, n, fence| pair.requester.may_send_alone(n, fence);
    assert_eq!(alone(&pair, 1, false), None, "the first request was not sent");
    assert_eq!(alone(&pair, 0, true), Some(first));
    let mut room = [0; MTU as usize];
    for _ in 0..2 {
        pair.requester.poll_transmit(now, &mut pair.queue, &mut room).unwrap();
    }
    assert_eq!(alone(&pair, 0, false), None, "it was sent");
    assert_eq!(alone(&pair, 2, true), None, "a READ is in flight");
    assert_eq!(alone(&pair, 2, false), Some(first.wrapping_add(2)));
    pair.requester.path_has_changed();
    assert_eq!(alone(&pair, 2, false), None, "earlier packets are sent again");
    pair.requester.stop();
    assert_eq!(alone(&pair, 0, false), None, "the queue pair is in error");
}

/// Otherwise, the messages could exceed the window.
#[test]
fn sends_without_packets_stay_within_the_window() {
    let mut pair = Pair::new();
    let sent = (0..200).take_while(|&n| {
        pair.send(0);
        let may = pair.requester.may_send_alone(n, false).is_some();
        if may {
            pair.requester.has_sent_alone(pair.now);
        }
        may
    });
    assert_eq!(sent.count(), 80);
}

#[test]
fn a_responder_expects_only_the_next_send_if_it_owes_nothing() {
    let mut pair = Pair::new();
    let first = settings().1.psn;
    let expects =
        |pair: &Pair, n, length| pair.responder.expects_send(first.wrapping_add(n), length);
    assert!(expects(&pair, 0, MTU) && !expects(&pair, 0, MTU + 1));
    assert!(!expects(&pair, 1, 8) && !expects(&pair, (1 << 24) - 1, 8));
    pair.send(8);
    let mut room = [0; MTU as usize];
    let burst = pair.requester.poll_transmit(pair.now, &mut pair.queue, &mut room).unwrap();
    pair.responder.receive(&burst, &room[..8], &mut pair.memory);
    assert!(!expects(&pair, 0, 8), "it was refused, because no receive was posted");
    pair.memory.receives.push_back(8);
    pair.responder.receive(&burst, &room[..8], &mut pair.memory);
    assert!(!expects(&pair, 1, 8), "an acknowledgement is owed");
    pair.responder.is_acknowledged();
    assert!(expects(&pair, 1, 8));
}
