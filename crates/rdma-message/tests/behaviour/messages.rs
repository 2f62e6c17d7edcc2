//! Messages: parts, offers, and their order.

use rdma_message::frame::Remote;
use rdma_message::{Messages, OperationError, Output, SendError};
use rdma_types::Rkey;

use crate::pair::{Pair, bytes, small};

const LENGTHS: [usize; 12] = [0, 1, 108, 109, 220, 221, 499, 500, 501, 4_000, 7_000, 20_000];

/// Sends messages of all lengths from both ends, and checks that they arrive in order.
fn exchange(pair: &mut Pair<Messages>) {
    for at in 0..2 {
        for (n, length) in (0..).zip(LENGTHS) {
            pair.ends[at].send(bytes(n + 100, length)).unwrap();
        }
    }
    pair.run();
    for at in 0..2 {
        for (n, length) in (0..).zip(LENGTHS) {
            let delivered = pair.ends[at].take().expect("the message");
            assert_eq!(delivered.bytes, bytes(n + 100, length), "length {length}");
            pair.run();
        }
        assert!(pair.ends[at].inbox.is_empty() && pair.ends[at].arriving.is_empty());
    }
    for end in &pair.ends {
        assert!(end.sending.is_empty());
        assert!(end.completed.values().all(Result::is_ok));
    }
}

#[test]
fn messages_of_all_lengths_arrive_in_order() {
    let mut pair = Pair::open(small());
    exchange(&mut pair);
    assert!(pair.ends[0].kinds.contains(&0x14), "long ones are offered");
}

#[test]
fn without_reads_or_offers_long_messages_are_sent_in_parts() {
    for (reads, offers) in [(0, 3), (2, 0)] {
        let mut options = small();
        (options.reads, options.offers) = (reads, offers);
        let mut pair = Pair::open(options);
        exchange(&mut pair);
        assert!(!pair.ends[0].kinds.contains(&0x14));
    }
}

#[test]
fn a_message_that_cannot_be_lent_is_sent_in_parts() {
    let mut pair = Pair::open(small());
    pair.ends[0].cannot_lend = true;
    exchange(&mut pair);
    assert!(!pair.ends[0].kinds.contains(&0x14));
    assert!(pair.ends[1].kinds.contains(&0x14));
}

#[test]
fn ends_with_different_slots_use_the_shorter_frames() {
    let mut options = small();
    (options.receive_bytes, options.window_bytes) = (64, 512);
    let mut pair = Pair::new([small(), options]);
    pair.run();
    exchange(&mut pair);
}

#[test]
fn a_message_completes_when_the_device_or_the_peer_has_it() {
    let mut pair = Pair::<Messages>::open(small());
    let eager = pair.ends[0].send(bytes(1, 300)).unwrap();
    let offered = pair.ends[0].send(bytes(2, 600)).unwrap();
    pair.drive(0);
    while pair.execute(0) {}
    assert!(pair.ends[0].completed.is_empty(), "no completion was reported");
    while pair.complete(0, 0) {}
    pair.drive(0);
    assert_eq!(pair.ends[0].completed.get(&eager), Some(&Ok(())));
    assert_eq!(pair.ends[0].completed.get(&offered), None, "it was not fetched");
    pair.run();
    assert_eq!(pair.ends[0].completed.get(&offered), Some(&Ok(())));
}

#[test]
fn a_message_cancelled_before_its_first_frame_sends_nothing() {
    let mut pair = Pair::<Messages>::open(small());
    let kept = pair.ends[0].send(bytes(1, 40)).unwrap();
    for length in [40, 5_000] {
        let operation = pair.ends[0].send(bytes(2, length)).unwrap();
        pair.ends[0].machine.cancel(operation);
        pair.run();
        let result = pair.ends[0].completed.get(&operation);
        assert_eq!(result, Some(&Err(OperationError::Cancelled)));
    }
    assert_eq!(pair.ends[0].completed.get(&kept), Some(&Ok(())));
    assert_eq!(pair.ends[1].inbox.len(), 1);
}

#[test]
fn a_message_cancelled_while_its_memory_is_lent_sends_nothing() {
    let mut machines = [small(); 2].map(|options| Messages::new(&options).unwrap());
    let mut hello = |at: usize| match machines[at].poll_output() {
        Some(Output::Send(transmit)) => transmit.header.as_bytes().to_vec(),
        other => panic!("{other:?}"),
    };
    let [first, second] = [hello(0), hello(1)];
    machines[0].received(0, &second);
    machines[1].received(0, &first);
    let [machine, _] = &mut machines;
    assert!(matches!(machine.poll_output(), Some(Output::PostReceive(0))));
    assert!(matches!(machine.poll_output(), Some(Output::Opened(_))));
    let operation = machine.send(5_000).unwrap();
    assert_eq!(machine.poll_output(), Some(Output::Lend { operation, length: 5_000 }));
    machine.cancel(operation);
    let result = Err(OperationError::Cancelled);
    assert_eq!(machine.poll_output(), Some(Output::Completed { operation, result }));
    machine.lent(operation, Some(Remote { va: 0, rkey: Rkey::new(1) }));
    assert_eq!(machine.poll_output(), None);
}

#[test]
fn a_message_cancelled_after_its_first_frame_is_sent_whole() {
    let mut pair = Pair::<Messages>::open(small());
    for (n, length) in [(1, 490), (2, 5_000)] {
        let operation = pair.ends[0].send(bytes(n, length)).unwrap();
        pair.drive(0);
        pair.ends[0].machine.cancel(operation);
        pair.run();
        assert_eq!(pair.ends[0].completed.get(&operation), Some(&Ok(())));
        assert_eq!(pair.ends[1].take().unwrap().bytes, bytes(n, length));
    }
}

#[test]
fn offers_and_fetched_bytes_are_bounded() {
    let mut pair = Pair::<Messages>::open(small());
    for n in 0..10 {
        pair.ends[0].send(bytes(n, 2_500)).unwrap();
    }
    pair.drive(0);
    assert_eq!(pair.ends[0].kinds, [1, 0x14, 0x14], "two offers fit in 6,000 B");
    pair.run();
    // Two of 2,500 B fit in 6,000 B until the program takes one, and two more are offered.
    assert_eq!(pair.ends[1].inbox.len(), 2);
    assert_eq!(pair.ends[0].completed.len(), 2);
    for n in 0..10 {
        assert_eq!(pair.ends[1].take().unwrap().bytes, bytes(n, 2_500));
        pair.run();
    }
    assert_eq!(pair.ends[0].completed.len(), 10);
}

#[test]
fn an_eager_message_waits_for_the_offered_one_before_it() {
    let mut pair = Pair::<Messages>::open(small());
    pair.ends[0].send(bytes(1, 5_000)).unwrap();
    pair.ends[0].send(bytes(2, 10)).unwrap();
    pair.drive(0);
    while pair.execute(0) {}
    pair.drive(1);
    assert!(pair.execute(1), "the READ");
    assert!(pair.ends[1].inbox.is_empty(), "its completion was not reported");
    pair.run();
    let order: Vec<_> = pair.ends[1].inbox.iter().map(|it| it.bytes.len()).collect();
    assert_eq!(order, [5_000, 10]);
}

#[test]
fn reads_that_complete_out_of_order_deliver_in_order() {
    let mut pair = Pair::<Messages>::open(small());
    for n in 1..3 {
        pair.ends[0].send(bytes(n, 600)).unwrap();
    }
    pair.drive(0);
    while pair.execute(0) {}
    pair.drive(1);
    while pair.execute(1) {}
    let last = pair.completions[1].len() - 1;
    assert!(pair.complete(1, last));
    pair.drive(1);
    assert!(pair.ends[1].inbox.is_empty());
    pair.run();
    let order: Vec<_> = pair.ends[1].inbox.iter().map(|it| it.bytes.clone()).collect();
    assert_eq!(order, [bytes(1, 600), bytes(2, 600)]);
}

#[test]
fn sends_beyond_a_limit_start_nothing() {
    let mut pair = Pair::<Messages>::new([small(); 2]);
    assert_eq!(pair.ends[0].machine.send(1), Err(SendError::NotOpen));
    pair.run();
    let end = &mut pair.ends[0];
    let too_long = SendError::TooLong { length: 20_001, limit: 20_000 };
    assert_eq!(end.machine.send(20_001), Err(too_long));
    for n in 0..64 {
        end.send(bytes(n, 8)).unwrap();
    }
    assert_eq!(end.machine.send(1), Err(SendError::Full));
}
