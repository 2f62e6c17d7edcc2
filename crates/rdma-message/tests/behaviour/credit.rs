//! Credit in conversations: what a peer may send, and what it costs.

use rdma_message::frame::{Body, Frame};
use rdma_message::{Messages, Output, RESERVED_RECEIVES, Stream};

use crate::pair::{Pair, bytes, small};

#[test]
fn messages_that_are_not_taken_hold_back_the_sender() {
    let mut pair = Pair::<Messages>::open(small());
    for n in 0..40 {
        pair.ends[0].send(bytes(n, 80)).unwrap();
    }
    pair.run();
    // Frames of 100 B in a window of 1,024 B; the first is free, since the program waits for it.
    assert_eq!(pair.ends[1].inbox.len(), 11);
    assert_eq!(pair.ends[1].take().unwrap().bytes, bytes(0, 80));
    for n in 1..40 {
        pair.run();
        assert_eq!(pair.ends[1].take().unwrap().bytes, bytes(n, 80));
    }
}

#[test]
fn empty_messages_are_bounded_too() {
    let mut pair = Pair::<Messages>::open(small());
    for _ in 0..64 {
        pair.ends[0].send(Vec::new()).unwrap();
    }
    pair.run();
    // Frames of 20 B.
    assert_eq!(pair.ends[1].inbox.len(), 1 + 1024 / 20);
    while pair.ends[1].take().is_some() {
        pair.run();
    }
    assert!(pair.ends[0].sending.is_empty());
}

#[test]
fn a_message_longer_than_the_window_arrives_if_it_is_the_next() {
    let mut options = small();
    options.offers = 0;
    let mut pair = Pair::<Messages>::open(options);
    pair.ends[0].send(bytes(1, 50)).unwrap();
    pair.ends[0].send(bytes(2, 20_000)).unwrap();
    pair.run();
    assert_eq!(pair.ends[1].inbox.len(), 1, "the window is full");
    assert!(pair.ends[1].arriving.values().all(|bytes| bytes.len() <= 1024));
    pair.ends[1].take().unwrap();
    pair.run();
    assert_eq!(pair.ends[1].take().unwrap().bytes, bytes(2, 20_000));
}

#[test]
fn all_receives_are_posted_when_both_ends_are_idle() {
    let mut pair = Pair::<Messages>::open(small());
    for n in 0..50 {
        pair.ends[(n % 2) as usize].send(bytes(n, 1 + n as usize * 37)).unwrap();
        pair.run();
        while pair.ends.iter_mut().any(|end| end.take().is_some()) {}
        for end in &pair.ends {
            assert_eq!(end.receives.len(), end.options.receive_slots() as usize);
        }
    }
}

#[test]
fn a_single_receive_is_enough() {
    let mut options = small();
    (options.receives, options.sends) = (1, 4);
    let mut pair = Pair::<Stream>::open(options);
    let data = bytes(1, 5_000);
    let mut written = 0;
    while written < data.len() {
        let more = pair.write(0, &data[written..]);
        assert!(more > 0);
        written += more;
        pair.run();
    }
    assert_eq!(pair.ends[1].read, data);
}

#[test]
fn credit_frames_are_few_and_acknowledged_once() {
    let mut options = small();
    options.receives = 64;
    options.window_bytes = 64 * 128;
    let mut pair = Pair::<Stream>::open(options);
    for _ in 0..640 {
        assert_eq!(pair.write(0, &[7; 112]), 112);
        pair.run();
    }
    let counters = pair.ends.each_ref().map(|end| *end.machine.counters());
    // One for each quarter of the window. The writer is idle, so no data acknowledges them.
    assert_eq!(counters[1].credit_frames, 40);
    assert_eq!(counters[0].sent_frames, 1 + 640 + 40, "a hello, data, and acknowledgements");
    assert_eq!(counters[1].sent_frames, 1 + 40);
    assert_eq!(counters[0].credit_frames, 0);
    assert_eq!(RESERVED_RECEIVES, 3);
}

#[test]
fn a_single_released_chunk_lets_a_blocked_writer_continue() {
    let mut options = small();
    options.receives = 16;
    options.window_bytes = 16 * 128;
    let mut pair = Pair::<Stream>::open(options);
    pair.ends[1].holds = true;
    for _ in 0..16 {
        assert_eq!(pair.write(0, &[7; 112]), 112);
        pair.run();
    }
    assert_eq!(pair.write(0, &[7; 112]), 0);
    pair.run();
    // The program holds the other chunks until more bytes arrive.
    pair.ends[1].release(3);
    pair.run();
    assert_eq!(pair.ends[0].writable, 1);
    assert_eq!(pair.write(0, &[7; 112]), 112);
}

#[test]
fn a_finished_peer_gets_no_credit() {
    let mut pair = Pair::<Stream>::open(small());
    pair.ends[1].holds = true;
    assert_eq!(pair.write(0, &[7; 300]), 300);
    pair.ends[0].machine.finish();
    pair.run();
    while !pair.ends[1].held.is_empty() {
        pair.ends[1].release(0);
        pair.run();
    }
    assert_eq!(pair.ends[1].machine.counters().credit_frames, 0);
}

#[test]
fn a_credit_frame_is_acknowledged_after_its_receive_is_posted() {
    let mut pair = Pair::<Stream>::open(small());
    while pair.ends[1].machine.counters().credit_frames == 0 {
        assert_eq!(pair.write(0, &[7; 112]), 112);
        while pair.execute(0) {}
        while pair.complete(0, 0) {}
        pair.drive(1);
    }
    assert!(pair.execute(1), "the credit frame");
    let machine = &mut pair.ends[0].machine;
    let decode = |bytes: &[u8]| Frame::decode(&[bytes, &[7]].concat()).unwrap().0;
    let data = machine.write(1).unwrap().expect("there is credit");
    assert!(!decode(data.header.as_bytes()).acknowledges);
    assert!(matches!(machine.poll_output(), Some(Output::PostReceive(_))));
    assert!(machine.poll_output().is_none(), "frames are posted in order");
    machine.posted();
    let Some(Output::Send(next)) = machine.poll_output() else { panic!("an acknowledgement") };
    let next = Frame::decode(next.header.as_bytes()).unwrap().0;
    assert_eq!((next.body, next.acknowledges), (Body::Acknowledge, true));
}
