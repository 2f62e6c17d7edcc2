//! Blocking operations with one slice, plain bytes or a number, and limits of single calls.
#![allow(clippy::mem_forget)] // programs may do this

use std::cell::Cell;
use std::mem;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    DEFERRED, DEVICES, DRAIN, HANG, HELD, Pair, WIRE, everything, lacks, must_end, open, short,
};
use rdma_channel::{
    Channel, MultiChannel, Operation, PendingWord, Scope, ToPeer, TransportError, prelude::*,
};
use rdma_mem::{BufferPool, RemoteMemoryRegion, ScatterList};
use rdma_qp::{AtomicWorkRequest, PostErrorKind, SendWorkRequest, WriteWorkRequest};
use test_support::features::Feature;

/// Devices that complete blocking calls by themselves.
const LIVELY: [&str; 3] = ["soft0", DEFERRED, WIRE];

/// A pair with the default limits: requests that should succeed have enough time.
fn patient(device: &str) -> Pair {
    Pair::with(device, |builder| builder)
}

/// Runs the other end in parallel with this one, and returns this one's result.
fn beside<T: Send>(
    there: &mut Channel,
    other: impl FnOnce(&mut Channel) + Send,
    run: impl FnOnce() -> T,
) -> T {
    thread::scope(|threads| {
        threads.spawn(|| other(there));
        run()
    })
}

#[test]
fn a_region_a_buffer_an_array_and_a_slice_are_sent_and_received_into() {
    for device in LIVELY {
        let Pair { mut here, mut there, pd, .. } = patient(device);
        let far = there.pd().clone();
        let receive = |there: &mut Channel| {
            let mut region = far.allocate_region(16).unwrap();
            assert_eq!(there.receive_into(&mut region).unwrap(), 8, "{device}: a region");
            assert_eq!(&region[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0]);
            let mut buffer = BufferPool::new(&far).allocate(16).unwrap();
            assert_eq!(there.receive_into(&mut buffer).unwrap(), 16, "{device}: a buffer");
            assert_eq!(buffer[..], [2; 16]);
            let mut numbers = far.allocate_array::<u32>(4).unwrap();
            assert_eq!(there.receive_into(&mut numbers).unwrap(), 8, "{device}: an array");
            assert_eq!(numbers[..], [3, 4, 0, 0]);
            let piece = region.get_mut(12, 4).unwrap();
            assert_eq!(there.receive_into(piece).unwrap(), 3, "{device}: a slice");
            assert_eq!(region[11..], [0, 5, 6, 7, 0]);
            assert_eq!(there.receive_into(&mut region).unwrap(), 0, "{device}: nothing");
            assert_eq!(there.receive_into(&mut region).unwrap(), 2, "{device}: an exclusive slice");
        };
        beside(&mut there, receive, || {
            let mut region = pd.allocate_region(8).unwrap();
            region.fill(1);
            here.send_from(&region).unwrap();
            let mut buffer = BufferPool::new(&pd).allocate(16).unwrap();
            buffer.fill(2);
            here.send_from(&buffer).unwrap();
            let mut numbers = pd.allocate_array::<u32>(2).unwrap();
            numbers.copy_from_slice(&[3, 4]);
            here.send_from(&numbers).unwrap();
            region[..3].copy_from_slice(&[5, 6, 7]);
            here.send_from(region.get_ref(0, 3).unwrap()).unwrap();
            here.send_from(region.get_ref(3, 0).unwrap()).unwrap();
            here.send_from(region.get_mut(0, 2).unwrap()).unwrap();
        });
    }
}

#[test]
fn a_write_with_immediate_data_places_no_bytes_in_its_receive() {
    let Pair { mut here, mut there, board, pd, .. } = patient("soft0");
    let mut memory = there.pd().allocate_region(8).unwrap();
    let source = pd.allocate_region(8).unwrap();
    beside(
        &mut there,
        |there| assert_eq!(there.receive_into(&mut memory).unwrap(), 0),
        || {
            let list = rdma_mem::GatherList::from([source.as_slice()]);
            here.write(WriteWorkRequest::from_list(&list, board.remote()).with_immediate(1))
                .unwrap()
        },
    );
}

#[test]
fn writes_and_reads_are_as_long_as_their_own_memory() {
    for device in LIVELY {
        let Pair { mut here, there: _there, board, pd, .. } = patient(device);
        let mut memory = pd.allocate_region(8).unwrap();
        memory.fill(9);
        here.write_from(&memory, board.remote()).unwrap();
        let mut back = pd.allocate_region(16).unwrap();
        here.read_into(&mut back, board.remote()).unwrap();
        assert_eq!(back[..], [9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0], "{device}");
        let short = board.remote().slice(0..7).unwrap();
        for error in [
            here.write_from(&memory, short).unwrap_err(),
            here.read_into(&mut memory, short).unwrap_err(),
        ] {
            let TransportError::PostError(error) = error else { panic!("{error}") };
            assert!(matches!(error.kind(), PostErrorKind::RemoteTooShort), "{error}");
        }
        assert!(here.closed().is_none(), "{device}: a refused request has closed the channel");
    }
}

#[test]
fn an_atomic_operation_returns_the_previous_value() {
    for device in LIVELY {
        if lacks(device, Feature::Atomics) {
            continue;
        }
        let Pair { mut here, there: _there, board, .. } = patient(device);
        let word = board.remote().slice(8..16).unwrap();
        assert_eq!(here.fetch_add(word, 5).unwrap(), 0, "{device}");
        assert_eq!(here.fetch_add(word, u64::MAX).unwrap(), 5, "{device}");
        assert_eq!(here.compare_and_swap(word, 4, 1 << 63).unwrap(), 4, "{device}");
        assert_eq!(here.compare_and_swap(word, 4, 7).unwrap(), 1 << 63, "{device}: not swapped");
        assert_eq!(board.atomic_u64(8).unwrap().load(Ordering::Acquire), 1 << 63);
        let odd = board.remote().slice(1..9).unwrap();
        assert!(matches!(here.fetch_add(odd, 1), Err(TransportError::PostError(_))));
        assert!(here.closed().is_none());
    }
}

#[test]
fn atomic_operations_of_a_scope_each_have_a_word() {
    for device in LIVELY {
        if lacks(device, Feature::Atomics) {
            continue;
        }
        let Pair { mut here, there: _there, board, .. } = patient(device);
        let word = board.remote().slice(0..8).unwrap();
        here.scope(|s| {
            for round in 0..100 {
                let held: Vec<_> = (0..8).map(|_| s.fetch_add(word, 1).unwrap()).collect();
                // Waits out of order, waits again, and polls.
                for (place, one) in held.iter().enumerate().rev() {
                    let expected = round * 16 + place as u64;
                    assert_eq!(one.wait(HANG)?, expected, "{device}");
                    assert_eq!(one.poll().unwrap()?, expected, "{device}: again");
                }
                drop(held);
                for _ in 0..8 {
                    drop(s.fetch_add(word, 1)?);
                }
            }
            let last = s.compare_and_swap(word, 1600, 0)?;
            let begin = Instant::now();
            let was = loop {
                match last.poll() {
                    Some(was) => break was?,
                    None => assert!(begin.elapsed() < HANG, "{device}"),
                }
            };
            assert_eq!(was, 1600, "{device}");
            Ok::<_, TransportError>(())
        })
        .unwrap();
        assert_eq!(here.fetch_add(word, 0).unwrap(), 0, "{device}");
    }
}

/// A word that is held in its slot stays unchanged, whatever happens in the other slots.
#[test]
fn a_word_that_is_held_is_not_written_again() {
    for device in LIVELY {
        if lacks(device, Feature::Atomics) {
            continue;
        }
        let Pair { mut here, there: _there, board, .. } = patient(device);
        let word = board.remote().slice(0..8).unwrap();
        here.scope(|s| {
            let first = s.fetch_add(word, 1)?;
            assert_eq!(first.wait(HANG)?, 0);
            for n in 1..100 {
                assert_eq!(s.fetch_add(word, 1)?.wait(HANG)?, n, "{device}");
                assert_eq!(first.wait(HANG)?, 0, "{device}");
            }
            Ok::<_, TransportError>(())
        })
        .unwrap();
    }
}

#[test]
fn an_atomic_operation_that_is_never_answered_ends_and_its_word_is_not_needed() {
    must_end(|| {
        let mut pair = Pair::new(HELD);
        let word = pair.board.remote().slice(0..8).unwrap();
        let error = pair.here.within(DRAIN).fetch_add(word, 1).unwrap_err();
        assert!(matches!(error, TransportError::Timeout { operation: Operation::Atomic, .. }));
        assert!(pair.here.closed().is_some());
        assert!(matches!(pair.here.fetch_add(word, 1), Err(TransportError::Closed { .. })));
        pair.provoke();

        let mut pair = Pair::new(HELD);
        let word = pair.board.remote().slice(0..8).unwrap();
        let late = pair.here.scope(|s| {
            let waits = s.fetch_add(word, 1)?;
            assert!(waits.poll().is_none());
            let late = waits.wait(DRAIN).unwrap_err();
            mem::forget(waits);
            Ok::<_, TransportError>(late)
        });
        assert!(late.is_err(), "it was left in flight, and never completed");
        pair.provoke();
    });
}

#[test]
fn atomics_return_numbers_with_several_peers_too() {
    if lacks("soft0", Feature::Atomics) {
        return;
    }
    let pd = open("soft0").allocate_pd().unwrap();
    let prepared =
        pd.create_multi_channel().num_channels(2).access(everything(&pd)).build().unwrap();
    let ends = prepared.endpoints();
    let mut channels: MultiChannel = prepared.handshake([ends[1], ends[0]]).unwrap();
    let board = pd.allocate_shared_region(16, everything(&pd)).unwrap();
    for peer in 0..2 {
        let word = board.remote().slice(8 * peer..8 * peer + 8).unwrap();
        let mut was = pd.allocate_region(8).unwrap();
        let mut list = ScatterList::from([was.as_slice_mut()]);
        let add = AtomicWorkRequest::fetch_and_add(&mut list, word, 4);
        channels.atomic(ToPeer::from_wr(peer, add)).unwrap();
        let was = channels.scope(|s| {
            let drawn = s.to(peer)?.fetch_add(word, 1)?;
            drawn.wait(HANG)
        });
        assert_eq!(was.unwrap(), 4);
    }
    let mut was = pd.allocate_region(8).unwrap();
    let mut list = ScatterList::from([was.as_slice_mut()]);
    let add = AtomicWorkRequest::fetch_and_add(&mut list, board.remote(), 1);
    let error = channels.atomic(ToPeer::from_wr(2, add));
    assert!(matches!(error, Err(TransportError::NoSuchPeer { .. })));
}

/// A limit applies to the value that sets it, and ends with it.
#[test]
fn a_limit_lasts_as_long_as_the_value_of_within() {
    must_end(|| {
        let other = 3 * DRAIN;
        let limit_of = |error| match error {
            TransportError::Timeout { timeout, .. } => timeout,
            error => panic!("{error}"),
        };
        let nothing = || SendWorkRequest::new(&[]);

        let mut pair = Pair::with(HELD, short);
        assert_eq!(limit_of(pair.here.within(other).send(nothing()).unwrap_err()), other);

        let mut pair = Pair::with(HELD, short);
        drop(pair.here.within(other).within(Duration::ZERO));
        assert_eq!(limit_of(pair.here.send(nothing()).unwrap_err()), DRAIN);

        let mut pair = Pair::with(HELD, short);
        mem::forget(pair.here.within(other));
        assert_eq!(limit_of(pair.here.send(nothing()).unwrap_err()), other);

        // It applies to the waits of a scope, too, but not to its end.
        let mut pair = Pair::with(HELD, short);
        let begin = Instant::now();
        let ended = pair.here.within(HANG).scope(|s| {
            s.post_send(nothing())?;
            Ok::<_, TransportError>(())
        });
        assert!(ended.is_err() && begin.elapsed() < HANG, "ended by the drain limit");
    });
}

/// A program with boxed errors.
#[test]
fn blocking_calls_end_in_boxed_errors() {
    fn talk(
        channel: &mut Channel,
        remote: RemoteMemoryRegion,
    ) -> Result<u64, Box<dyn std::error::Error>> {
        let mut memory = channel.pd().allocate_region(64)?;
        channel.write_from(&memory, remote)?;
        channel.within(HANG).read_into(&mut memory, remote)?;
        Ok(channel.fetch_add(remote.slice(0..8).ok_or("too short")?, 1)?)
    }
    for device in DEVICES.into_iter().filter(|device| *device != HELD) {
        if lacks(device, Feature::Atomics) {
            continue;
        }
        let Pair { mut here, there: _there, board, .. } = Pair::new(device);
        assert_eq!(talk(&mut here, board.remote()).unwrap(), 0);
        assert!(talk(&mut here, board.remote().slice(0..8).unwrap()).is_err());
    }
}

/// Memory of a peer whose conversion posts another atomic operation.
struct Posts<'l, 's, 'e>(&'s Scope<'s, 'e>, RemoteMemoryRegion, &'l Cell<Option<PendingWord<'s>>>);

impl From<Posts<'_, '_, '_>> for RemoteMemoryRegion {
    fn from(Posts(scope, word, held): Posts<'_, '_, '_>) -> Self {
        held.set(Some(scope.fetch_add(word, 1).unwrap()));
        word
    }
}

/// Each operation has the word of its own slot, whatever a program does between two posts.
#[test]
fn an_atomic_operation_that_is_posted_within_the_post_of_another_has_another_word() {
    if lacks("soft0", Feature::Atomics) {
        return;
    }
    let Pair { mut here, there: _there, board, .. } = patient("soft0");
    let word = board.remote().slice(0..8).unwrap();
    here.scope(|s| {
        let inner = Cell::new(None);
        let outer = s.fetch_add(Posts(s, word, &inner), 10)?;
        let inner = inner.take().unwrap();
        assert_eq!(inner.wait(HANG)?, 0);
        assert_eq!(outer.wait(HANG)?, 1);
        drop(inner);
        assert_eq!(s.fetch_add(word, 0)?.wait(HANG)?, 11);
        assert_eq!(outer.wait(HANG)?, 1, "as long as it is held");
        Ok::<_, TransportError>(())
    })
    .unwrap();
}
