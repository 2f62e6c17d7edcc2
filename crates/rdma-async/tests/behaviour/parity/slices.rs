//! Parts of local and remote memory.

use std::panic::AssertUnwindSafe as Unwind;
use std::panic::catch_unwind;

use rdma_async::prelude::*;

use crate::parity::{DEVICES, LONG, Pair, READ, WRITE, ends, run};

#[test]
fn parts_outside_of_the_memory_are_refused() {
    run(|| async {
        let pair = ends("soft0").await;
        let lent = pair.one.borrow(100, READ | WRITE, LONG).await.unwrap();
        let part = lent.slice(10..20).unwrap();
        for (range, length) in [(0..10, Some(10)), (10..10, Some(0)), (3..4, Some(1))] {
            assert_eq!(part.slice(range).map(|part| part.len()), length);
        }
        #[allow(clippy::reversed_empty_ranges)] // that is tested
        for range in [0..11, 11..11, 10..11, usize::MAX..usize::MAX, 0..usize::MAX, 6..5] {
            assert!(part.slice(range.clone()).is_none(), "{range:?}");
            let (buffer, shared) = (pair.buffer(&[0; 10]), pair.buffer(&[0; 10]).freeze());
            assert!(catch_unwind(Unwind(|| buffer.slice(range.clone()))).is_err(), "{range:?}");
            assert!(catch_unwind(Unwind(|| shared.slice(range.clone()))).is_err(), "{range:?}");
        }
        assert_eq!(pair.buffers(), 0);
    });
}

/// Bytes whose values show their positions.
fn numbered(first: u8) -> Vec<u8> {
    (first..first + 32).collect()
}

/// All of the memory or a part, local and remote: the other bytes stay unchanged.
#[test]
fn writes_and_reads_of_parts_change_nothing_else() {
    run(|| async {
        for device in DEVICES {
            let pair = ends(device).await;
            let lent = pair.one.borrow(32, READ | WRITE, LONG).await.unwrap();
            for (here, there) in [(0..32, 0..32), (0..8, 8..16), (8..16, 0..8), (31..32, 31..32)] {
                let (own, peers) = (numbered(0), numbered(100));
                lent.write(pair.buffer(&peers)).await.unwrap();
                let remote = lent.slice(there.clone()).unwrap();
                // Writes from a buffer and from a shared one.
                let part = pair.buffer(&own).slice(here.clone());
                let part = remote.write(part).await.unwrap();
                assert_eq!(*part.into_inner(), *own);
                let shared = pair.buffer(&own).freeze().slice(here.clone());
                assert_eq!(*remote.write(shared).await.unwrap(), own[here.clone()]);
                let mut expected = peers.clone();
                expected[there.clone()].copy_from_slice(&own[here.clone()]);
                assert_eq!(pair.bytes_of(&lent).await, expected, "{here:?} to {there:?}");
                // Reads.
                lent.write(pair.buffer(&peers)).await.unwrap();
                let part = remote.read(pair.buffer(&own).slice(here.clone())).await.unwrap();
                let mut expected = own.clone();
                expected[here.clone()].copy_from_slice(&peers[there.clone()]);
                assert_eq!(*part.into_inner(), *expected, "{there:?} to {here:?}");
            }
        }
    });
}

#[test]
fn parts_are_sent_and_received_into() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            for (from, into) in [(0..32, 0..32), (8..16, 4..12), (31..32, 0..8)] {
                let (sent, under) = (numbered(0), numbered(100));
                for shared in [false, true] {
                    let into = pair.buffer(&under).slice(into.clone());
                    let receive = pair.other.receive(into).post().await.unwrap();
                    let message = pair.buffer(&sent);
                    if shared {
                        pair.one.send(message.freeze().slice(from.clone())).await.unwrap();
                    } else {
                        let part = pair.one.send(message.slice(from.clone())).await.unwrap();
                        assert_eq!(part.range(), from);
                    }
                    let received = receive.await.unwrap();
                    assert_eq!(received.length, from.len());
                    let mut expected = under.clone();
                    let start = received.memory.range().start;
                    expected[start..start + from.len()].copy_from_slice(&sent[from.clone()]);
                    assert_eq!(*received.memory.into_inner(), *expected);
                }
            }
            assert_eq!(pair.buffers(), 0);
        }
    });
}

/// H20: operations on different parts do not wait for each other, even in a runtime of one thread.
#[test]
fn parts_of_one_memory_are_used_at_once() {
    run(|| async {
        for device in DEVICES {
            let pair = ends(device).await;
            let lent = pair.one.borrow(32, READ | WRITE, LONG).await.unwrap();
            lent.write(pair.buffer(&numbered(100))).await.unwrap();
            let (front, back) = pair.buffer(&numbered(0)).split_at(16);
            let read = lent.slice(0..16).unwrap().read(front).post().await.unwrap();
            // While the device uses the front, the back is written, read and inspected.
            assert_eq!(back[0], 16);
            let back = lent.slice(16..32).unwrap().write(back).await.unwrap();
            let front = read.await.unwrap();
            let whole = front.unsplit(back).unwrap();
            assert_eq!(*whole, *[&numbered(100)[..16], &numbered(0)[16..]].concat());
            assert_eq!(pair.bytes_of(&lent).await[16..], numbered(0)[16..]);
            // One source of many writes, which can be read meanwhile.
            let source = whole.freeze();
            let mut writes = Vec::new();
            for n in 0..8 {
                let part = lent.slice(4 * n..4 * n + 4).unwrap();
                writes.push(part.write(source.slice(0..4)).post().await.unwrap());
                assert_eq!(source[0], 100);
            }
            for write in writes {
                write.await.unwrap();
            }
            assert_eq!(pair.bytes_of(&lent).await, numbered(100)[..4].repeat(8));
            assert_eq!(source.try_thaw().unwrap().len(), 32);
        }
    });
}
