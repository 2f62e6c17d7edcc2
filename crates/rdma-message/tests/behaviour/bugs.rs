//! Mistakes that other implementations of streams and messages have published, each as a test.

use rdma_message::{Messages, OperationError, Stream};

use crate::pair::{Pair, bytes, small};

/// A ring that frees everything up to the chunk that was released overwrites the chunks before it.
#[test]
fn chunks_released_out_of_order_are_never_overwritten() {
    let mut options = small();
    options.receives = 8;
    let mut pair = Pair::<Stream>::open(options);
    pair.ends[1].holds = true;
    let data = bytes(1, 100_000);
    let (mut written, mut random) = (0, fastrand::Rng::with_seed(1));
    while written < data.len() {
        written += pair.write(0, &data[written..]);
        pair.run();
        // The oldest chunk is held for long; `End` compares the bytes of each released chunk.
        let held = pair.ends[1].held.len();
        assert!(held <= 8, "{held} chunks in 8 receives");
        let index = if random.u8(..8) == 0 { 0 } else { held - 1 };
        pair.ends[1].release(index);
    }
    while !pair.ends[1].held.is_empty() {
        pair.ends[1].release(0);
    }
    pair.run();
    assert_eq!(pair.ends[1].read, data);
}

/// A driver that handles a batch of completions, and only then wakes the waiters, must wake all of
/// them.
#[test]
fn a_batch_of_events_loses_no_notification() {
    let mut pair = Pair::<Messages>::open(small());
    let mut operations = Vec::new();
    for (n, length) in (0..).zip([600, 20, 600, 0, 600, 300]) {
        operations.push(pair.ends[0].send(bytes(n, length)).unwrap());
        operations.push(pair.ends[0].call(bytes(n, length)).unwrap());
    }
    for _ in 0..100 {
        for at in 0..2 {
            // Everything that can happen does, before the end is polled.
            while pair.execute(1 - at) {}
            while pair.complete(at, 0) {}
            pair.drive(at);
            while let Some(delivered) = pair.ends[at].take() {
                if let rdma_message::Delivery::Request(id) = delivered.delivery {
                    pair.ends[at].reply(id, delivered.bytes).unwrap();
                }
            }
        }
    }
    for operation in operations {
        assert_eq!(pair.ends[0].completed.get(&operation), Some(&Ok(())), "{operation:?}");
    }
    assert_eq!(pair.ends[0].replies.len(), 6);
}

/// The same for a stream: a writer that blocked before the batch is notified after it.
#[test]
fn a_writer_that_blocks_during_a_batch_is_notified() {
    let mut pair = Pair::<Stream>::open(small());
    for round in 0..50 {
        while pair.write(0, &[7; 1_000]) > 0 {}
        let before = pair.ends[0].writable;
        while pair.execute(0) {}
        pair.drive(1);
        while pair.execute(1) {}
        // The credit has arrived and the writer finds no send slot, until the completions.
        assert!(pair.ends[0].write(&[7; 1_000]).unwrap().is_none());
        if round % 2 == 0 {
            // A poll that still finds no send slot.
            pair.drive(0);
            assert_eq!(pair.ends[0].writable, before);
        }
        while pair.complete(0, 0) {}
        while pair.complete(1, 0) {}
        pair.drive(0);
        pair.drive(1);
        assert_eq!(pair.ends[0].writable, before + 1);
    }
}

/// Memory must outlive the device's use of it, in whatever order the program drops its handles.
#[test]
fn memory_is_released_only_after_the_device_has_finished() {
    for order in 0..6 {
        let mut options = small();
        (options.receives, options.sends) = (8, 16);
        let mut pair = Pair::<Messages>::open(options);
        let eager = pair.ends[0].send(bytes(1, 300)).unwrap();
        let offered = pair.ends[0].send(bytes(2, 600)).unwrap();
        let call = pair.ends[0].call(bytes(3, 600)).unwrap();
        pair.drive(0);
        let frames = pair.posted[0].len();
        let end = &mut pair.ends[0];
        match order {
            0 => [eager, offered, call].map(|operation| end.machine.cancel(operation)),
            1 => [call, offered, eager].map(|operation| end.machine.cancel(operation)),
            2 => [end.machine.abort(); 3],
            3 => [end.machine.cancel(call), end.machine.abort(), end.machine.cancel(offered)],
            4 => [end.machine.finish(), end.machine.cancel(offered), end.machine.cancel(call)],
            _ => [end.machine.cancel(offered), end.machine.abort(), end.machine.finish()],
        };
        pair.drive(0);
        assert!(pair.ends[0].completed.is_empty(), "order {order}: {frames} frames are posted");
        // The peer may still read what was offered; `End::read` fails if it was released.
        while pair.execute(0) {}
        pair.drive(1);
        while pair.execute(1) {}
        let is_open = pair.ends[0].disconnect.is_none() && !matches!(order, 2 | 3 | 5);
        if is_open {
            pair.run();
        }
        pair.kill();
        assert!(pair.ends.iter().all(|end| end.sending.is_empty() && end.arriving.is_empty()));
        if order == 2 {
            let results = [eager, offered, call].map(|it| pair.ends[0].completed[&it]);
            assert_eq!(results, [Err(OperationError::Unknown); 3]);
        }
    }
}

/// A send queue that is full of data must not overflow because of credit frames, and must keep places
/// for them.
#[test]
fn the_send_queue_never_overflows_and_keeps_places_for_credit() {
    let mut options = small();
    options.receives = 64;
    let mut pair = Pair::<Messages>::open(options);
    for n in 0..60 {
        for at in 0..2 {
            pair.ends[at].send(bytes(n, 100)).unwrap();
        }
    }
    // No completion of a SEND is reported to end 0. `Pair::drive` checks the length of the queue.
    for _ in 0..100 {
        pair.drive(0);
        while pair.execute(0) {}
        pair.drive(1);
        while pair.execute(1) {}
        while pair.complete(1, 0) {}
        while pair.ends[0].take().is_some() {}
    }
    assert_eq!(pair.sends(0).0, 5, "three with data, a credit frame, and an acknowledgement");
    // The peer could send more than its first eight messages, because it received credit.
    assert!(pair.ends[1].completed.len() > 8);
    // A close frame still has a place.
    pair.ends[0].machine.abort();
    pair.drive(0);
    assert_eq!(pair.sends(0).0, 6);
    assert!(pair.execute(0), "the close frame");
    pair.drive(1);
    assert!(pair.ends[1].disconnect.is_some());
}

/// Two ends that both write until they are blocked, and only then read, must both continue. Each round
/// releases one chunk, which is less than a quarter of the credit if there are eight receives.
#[test]
fn two_streams_that_write_before_they_read_do_not_deadlock() {
    for receives in 1..10 {
        let mut options = small();
        options.receives = receives;
        let mut pair = Pair::<Stream>::open(options);
        let data = bytes(1, 20_000);
        let mut written = [0; 2];
        pair.ends.iter_mut().for_each(|end| end.holds = true);
        for round in 0.. {
            let before = written;
            for at in 0..2 {
                loop {
                    let more = pair.write(at, &data[written[at]..]);
                    written[at] += more;
                    pair.run();
                    if more == 0 {
                        break;
                    }
                }
            }
            assert!(pair.ends.iter().all(|end| end.held.len() <= receives as usize));
            if written == [data.len(); 2] {
                break;
            }
            assert_ne!(written, before, "{receives} receives: stuck in round {round}");
            for at in 0..2 {
                if !pair.ends[at].held.is_empty() {
                    pair.ends[at].release(0);
                }
            }
            pair.run();
        }
        assert!(pair.ends.iter().all(|end| end.read == data));
    }
}

/// The same for messages and their memory: an offer is over although neither end takes messages.
#[test]
fn two_ends_that_send_before_they_receive_do_not_deadlock() {
    let mut pair = Pair::<Messages>::open(small());
    let mut operations = Vec::new();
    for at in 0..2 {
        operations.push((at, pair.ends[at].send(bytes(1, 5_000)).unwrap()));
        for n in 0..30 {
            pair.ends[at].send(bytes(n, 90)).unwrap();
        }
    }
    pair.run();
    for (at, operation) in operations {
        assert_eq!(pair.ends[at].completed.get(&operation), Some(&Ok(())));
        assert!(!pair.ends[at].sending.is_empty(), "the rest waits for credit");
    }
    for _ in 0..31 {
        for at in 0..2 {
            pair.ends[at].take().expect("a message");
            pair.run();
        }
    }
    assert!(pair.ends.iter().all(|end| end.sending.is_empty()));
}
