//! Receives posted in advance, with a ring of buffers.
#![allow(clippy::mem_forget)] // programs may do this

use std::mem;
use std::thread;
use std::time::Duration;

use crate::common::{DEFERRED, HANG, Pair, WIRE, lacks, must_end, short};
use rdma_channel::{Channel, ReceiveRing, ScopeError, TransportError};
use rdma_qp::{MaxRnrRetries, ReceiveWorkRequest, SendWorkRequest, WorkErrorCode};
use test_support::features::Feature;

const LIVELY: [&str; 3] = ["soft0", DEFERRED, WIRE];
/// A wait so short that it counts as a look.
const LOOK: Duration = Duration::from_millis(1);

/// A pair whose sends fail at once if they find no receive.
fn impatient(device: &str) -> Pair {
    let retries = MaxRnrRetries::limited(0).unwrap();
    Pair::with(device, |builder| builder.max_rnr_retries(retries))
}

/// Runs a closure with a ring of `buffers` buffers of 8 bytes.
fn with_ring<T>(
    channel: &mut Channel,
    buffers: usize,
    run: impl FnOnce(&mut ReceiveRing<'_>) -> Result<T, TransportError>,
) -> Result<T, TransportError> {
    let mut memory = channel.pd().allocate_region(buffers * 8).unwrap();
    let outcome = channel.scope(|s| {
        let mut ring = s.receive_ring(memory.as_slice_mut().into_chunks(8))?;
        let value = run(&mut ring)?;
        s.close();
        Ok::<_, TransportError>(value)
    });
    outcome.map_err(ScopeError::flatten)
}

#[test]
fn messages_arrive_in_order_in_buffers_that_are_posted_again() {
    for device in LIVELY {
        let Pair { mut here, mut there, .. } = Pair::with(device, |builder| builder);
        thread::scope(|threads| {
            threads.spawn(|| {
                for number in 0..50_u8 {
                    there.send_inline(&vec![number; usize::from(number) % 9]).unwrap();
                }
            });
            with_ring(&mut here, 3, |ring| {
                for number in 0..50 {
                    let message = ring.next(HANG)?;
                    assert_eq!(*message, *vec![number; usize::from(number) % 9], "{device}");
                    drop(message);
                    assert_eq!(ring.posted(), 3);
                }
                Ok(())
            })
            .unwrap();
        });
    }
}

#[test]
fn an_answer_finds_a_receive_when_it_was_posted_before_the_message_was_answered() {
    for device in LIVELY {
        let Pair { mut here, mut there, pd, .. } = impatient(device);
        let mut room = pd.allocate_region(8).unwrap();
        let mut memory = there.pd().allocate_region(16).unwrap();
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread::scope(|threads| {
            threads.spawn(move || {
                let served = there.scope(|s| {
                    let mut ring = s.receive_ring(memory.as_slice_mut().into_chunks(8))?;
                    ready.send(()).unwrap();
                    for _ in 0..50 {
                        let message = ring.next(HANG)?;
                        let number = message[0].wrapping_add(1);
                        drop(message);
                        s.send_inline(&[number])?.wait(HANG)?;
                    }
                    s.close();
                    Ok::<_, TransportError>(())
                });
                served.unwrap();
            });
            is_ready.recv().unwrap();
            for number in 0..50 {
                assert_eq!(here.exchange_inline(&[number], &mut room).unwrap(), 1, "{device}");
                assert_eq!(room[0], number.wrapping_add(1), "{device}");
            }
        });
    }
}

#[test]
fn a_wait_that_times_out_loses_no_message() {
    for device in LIVELY {
        let Pair { mut here, mut there, .. } = Pair::with(device, |builder| builder);
        with_ring(&mut here, 2, |ring| {
            let late = ring.next(LOOK).unwrap_err();
            assert!(matches!(late, TransportError::Timeout { timeout: LOOK, .. }), "{late}");
            assert_eq!(ring.posted(), 2);
            there.send_inline(b"late").unwrap();
            assert_eq!(*ring.next(HANG)?, *b"late", "{device}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_taken_message_keeps_its_buffer_until_it_is_returned() {
    let Pair { mut here, mut there, .. } = Pair::with("soft0", |builder| builder);
    with_ring(&mut here, 2, |ring| {
        there.send_inline(b"one").unwrap();
        there.send_inline(b"other").unwrap();
        let (one, length) = ring.next(HANG)?.take();
        let (other, _) = ring.next(HANG)?.take();
        assert_eq!((&one[..length], &other[..5]), (&b"one"[..], &b"other"[..]));
        assert_eq!(ring.posted(), 0);
        let none = ring.next(HANG).unwrap_err();
        assert!(matches!(none, TransportError::WouldBlock), "no buffer is left: {none}");
        ring.give_back(other);
        there.send_inline(b"third").unwrap();
        assert_eq!(*ring.next(HANG)?, *b"third");
        ring.give_back(one);
        assert_eq!(ring.posted(), 2);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_ring_larger_than_the_queue_is_refused() {
    let mut pair = Pair::with("soft0", |builder| short(builder).max_recv_wr(2));
    let error = with_ring(&mut pair.here, 3, |_| Ok(())).unwrap_err();
    assert!(matches!(error, TransportError::WouldBlock), "{error}");
}

#[test]
fn a_buffer_without_room_in_the_queue_is_posted_later() {
    let Pair { mut here, mut there, .. } =
        Pair::with("soft0", |builder| builder.max_recv_wr(1).receive_timeout(HANG));
    let mut memory = here.pd().allocate_region(8).unwrap();
    let outcome = must_end(move || {
        here.scope(|s| {
            let mut ring = s.receive_ring([memory.as_slice_mut()])?;
            there.send_inline(b"first").unwrap();
            let message = ring.next(HANG)?;
            // The program uses the slot that the ring would need.
            let own = s.post_receive(ReceiveWorkRequest::only_immediate())?;
            drop(message); // this does not wait, although a post of a receive may
            assert_eq!(ring.posted(), 0);
            let full = ring.next(HANG).unwrap_err();
            assert!(matches!(full, TransportError::WouldBlock), "{full}");
            there.send(SendWorkRequest::only_immediate(7)).unwrap();
            assert_eq!(own.wait(HANG)?.immediate_data(), Some(7));
            drop(own);
            thread::scope(|threads| {
                threads.spawn(|| there.send_inline(b"second").unwrap());
                assert_eq!(*ring.next(HANG)?, *b"second");
                Ok::<_, TransportError>(())
            })?;
            s.close();
            Ok::<_, TransportError>(())
        })
    });
    outcome.unwrap();
}

#[test]
fn a_forgotten_message_leaves_the_ring_with_one_buffer_less() {
    let Pair { mut here, mut there, .. } = Pair::with("soft0", |builder| builder);
    with_ring(&mut here, 2, |ring| {
        for text in [&b"one"[..], b"two", b"three"] {
            there.send_inline(text).unwrap();
            let message = ring.next(HANG)?;
            assert_eq!(*message, *text);
            if text == b"one" {
                mem::forget(message);
            }
        }
        assert_eq!(ring.posted(), 1);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_message_that_does_not_fit_is_an_error_and_what_comes_after_it_is_closed() {
    for device in LIVELY {
        let Pair { mut here, mut there, .. } = Pair::with(device, |builder| builder);
        let outcome = with_ring(&mut here, 2, |ring| {
            assert!(there.send_inline(&[1; 9]).is_err());
            let error = ring.next(HANG).unwrap_err();
            let TransportError::WorkError(failed) = error else { panic!("{error}") };
            assert_eq!(failed.error.code(), WorkErrorCode::LocalLengthError, "{device}");
            let flushed = ring.next(HANG).unwrap_err();
            assert!(matches!(flushed, TransportError::WorkError(_)), "{flushed}");
            let error = ring.next(HANG).unwrap_err();
            assert!(matches!(error, TransportError::Closed { .. }), "{error}");
            Ok(())
        });
        outcome.unwrap();
        assert!(here.closed().is_some());
    }
}

#[test]
fn a_write_with_immediate_data_has_no_bytes_here() {
    if lacks("soft0", Feature::Inline(32)) {
        return;
    }
    let Pair { mut here, there, board, .. } = Pair::with("soft0", |builder| builder);
    drop(board);
    let mut there = there;
    let local = rdma_mem::AccessFlags::new().with_local_write().with_remote_write();
    let board = here.pd().allocate_shared_region(64, local).unwrap();
    with_ring(&mut here, 1, |ring| {
        let bytes = [rdma_mem::InlineElement::new(&[1; 32])];
        let write = rdma_qp::WriteWorkRequest::inline(&bytes, board.remote()).with_immediate(9);
        there.write(write).unwrap();
        let message = ring.next(HANG)?;
        assert_eq!((message.immediate_data(), message.len()), (Some(9), 0));
        Ok(())
    })
    .unwrap();
}
