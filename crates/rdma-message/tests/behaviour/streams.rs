//! Streams: bytes, chunks, half-close, and stops.

use rdma_message::{Output, Payload, SendError, Stream};

use crate::pair::{Pair, bytes, small};

#[test]
fn a_stream_may_be_longer_than_its_counters() {
    let mut options = small();
    (options.send_bytes, options.receive_bytes) = (1 << 24, 1 << 24);
    (options.window_bytes, options.receives) = (3 << 24, 2);
    let mut ends = [(); 2].map(|()| Stream::new(&options).unwrap());
    let mut frame = vec![0; 1 << 24];
    let (mut written, mut read, mut slot) = (0_u64, 0, 0);
    while read < 3 << 32 {
        for at in 0..2 {
            let written_now = if at == 0 { ends[0].write(usize::MAX).ok() } else { None };
            let mut next =
                written_now.flatten().map(Output::Send).or_else(|| ends[at].poll_output());
            while let Some(output) = next {
                match output {
                    Output::Send(transmit) => {
                        ends[at].posted();
                        let mut length = transmit.header.as_bytes().len();
                        frame[..length].copy_from_slice(transmit.header.as_bytes());
                        if let Payload::Stream { len } = transmit.payload {
                            length += len as usize;
                            written += u64::from(len);
                        }
                        slot += 1;
                        ends[1 - at].received(slot, &frame[..length]);
                        ends[at].sent(transmit.slot);
                    }
                    Output::Data(chunk) => {
                        read += u64::from(chunk.len());
                        ends[at].release(chunk);
                    }
                    Output::Disconnect(error) => panic!("{error:?}"),
                    _ => {}
                }
                next = ends[at].poll_output();
            }
        }
    }
    assert_eq!(written, read);
}

#[test]
fn bytes_arrive_in_both_directions() {
    let mut pair = Pair::<Stream>::open(small());
    let data = bytes(1, 10_000);
    let mut written = [0; 2];
    while written != [data.len(); 2] {
        for at in 0..2 {
            written[at] += pair.write(at, &data[written[at]..]);
        }
        pair.run();
    }
    assert!(pair.ends.iter().all(|end| end.read == data));
}

#[test]
fn a_writer_that_was_blocked_is_notified() {
    let mut pair = Pair::<Stream>::open(small());
    pair.ends[1].holds = true;
    let data = bytes(1, 10_000);
    let mut written = 0;
    loop {
        let more = pair.write(0, &data[written..]);
        pair.run();
        written += more;
        if more == 0 {
            break;
        }
    }
    // Four receives of 128 B are all held.
    assert_eq!((pair.ends[1].held.len(), written), (4, 4 * 112));
    let before = pair.ends[0].writable;
    pair.ends[1].release(2);
    pair.run();
    assert_eq!(pair.ends[0].writable, before + 1);
    assert_eq!(pair.write(0, &data[written..]), 112);
    assert_eq!(pair.write(0, &data[written + 112..]), 0);
}

#[test]
fn each_direction_finishes_on_its_own() {
    let mut pair = Pair::<Stream>::open(small());
    assert_eq!(pair.write(0, b"last"), 4);
    pair.ends[0].machine.finish();
    assert_eq!(pair.ends[0].machine.write(1), Err(SendError::Finished));
    pair.run();
    assert!(pair.ends[0].is_flushed && pair.ends[1].peer_finished);
    assert_eq!(pair.ends[1].read, b"last");
    assert_eq!(pair.ends[0].disconnect, None);
    for _ in 0..20 {
        assert_eq!(pair.write(1, &[7; 100]), 100);
        pair.run();
    }
    pair.ends[1].machine.finish();
    pair.run();
    assert_eq!(pair.ends[0].read, [7; 2_000]);
    for end in &mut pair.ends {
        assert_eq!(end.disconnect, Some(None));
        end.machine.lost();
    }
    pair.run();
    assert!(pair.ends.iter().all(|end| end.ended == Some(None)));
}

#[test]
fn the_end_is_flushed_when_the_device_has_it() {
    let mut pair = Pair::<Stream>::open(small());
    assert_eq!(pair.write(0, b"last"), 4);
    pair.ends[0].machine.finish();
    pair.drive(0);
    while pair.execute(0) {}
    assert!(pair.complete(0, 0), "the data");
    pair.drive(0);
    assert!(!pair.ends[0].is_flushed);
    assert!(pair.complete(0, 0), "the end");
    pair.drive(0);
    assert!(pair.ends[0].is_flushed);
}

#[test]
fn the_end_waits_for_credit_as_data_does() {
    let mut pair = Pair::<Stream>::open(small());
    pair.ends[1].holds = true;
    for _ in 0..8 {
        pair.write(0, &[7; 1_000]);
        pair.run();
    }
    pair.ends[0].machine.finish();
    pair.run();
    assert!(!pair.ends[0].is_flushed);
    pair.ends[1].release(0);
    pair.run();
    assert!(pair.ends[0].is_flushed && pair.ends[1].peer_finished);
}

#[test]
fn a_reader_that_stops_fails_the_writer_and_discards_its_bytes() {
    let mut pair = Pair::<Stream>::open(small());
    pair.write(0, &[7; 100]);
    pair.ends[1].machine.stop();
    pair.run();
    assert!(pair.ends[0].peer_stopped && pair.ends[1].read.is_empty());
    assert_eq!(pair.ends[0].machine.write(1), Err(SendError::PeerFinished));
    // The other direction, and the end of this one, still work.
    assert_eq!(pair.write(1, b"reply"), 5);
    pair.ends[0].machine.finish();
    pair.ends[1].machine.finish();
    pair.run();
    assert_eq!(pair.ends[0].read, b"reply");
    assert!(pair.ends.iter().all(|end| end.disconnect == Some(None)));
}

#[test]
fn a_write_is_accepted_only_if_it_is_sent() {
    let mut pair = Pair::<Stream>::new([small(); 2]);
    assert_eq!(pair.ends[0].machine.write(1), Err(SendError::NotOpen));
    pair.run();
    assert_eq!(pair.ends[0].machine.write(0), Ok(None));
    // Three of six send slots stay free for other frames.
    assert_eq!(pair.write(0, &[7; 1_000]), 3 * 112);
    assert_eq!(pair.posted[0].len(), 3);
    pair.kill();
    assert_eq!(pair.ends[0].machine.write(1), Err(SendError::Ended));
}

#[test]
fn a_stop_is_reported_although_no_bytes_flow() {
    let mut pair = Pair::<Stream>::open(small());
    pair.ends[1].machine.stop();
    pair.run();
    assert!(pair.ends[0].peer_stopped);
    assert_eq!(pair.ends[1].machine.counters().credit_frames, 1);
}

#[test]
fn a_writer_that_no_longer_waits_is_not_notified() {
    for finishes in [false, true] {
        let mut pair = Pair::<Stream>::open(small());
        while pair.write(0, &[7; 112]) > 0 {}
        while pair.execute(0) {}
        pair.drive(1);
        while pair.execute(1) {}
        while pair.complete(0, 0) {}
        if finishes {
            pair.ends[0].machine.finish();
        } else {
            assert_eq!(pair.write(0, &[7; 1]), 1);
        }
        pair.run();
        assert_eq!(pair.ends[0].writable, 0);
    }
}
