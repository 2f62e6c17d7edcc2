//! Posting and taking in every order of two threads. The model checker tries stale values for a load only if the load
//! runs after the newer store. So the taker is the spawned thread.

use std::sync::Arc;

use loom::thread;

use super::*;

/// One element more than fits on the cache line.
fn sges(n: u64) -> [Sge; NEAR + 1] {
    [Sge { addr: n, length: 1, lkey: 2 }; NEAR + 1]
}

/// A request that the taker sees is complete, even if its slot was used before.
#[test]
fn loom_a_request_that_is_seen_is_whole() {
    loom::model(|| {
        let slots = Arc::new(ReceiveSlots::new(1, 3).unwrap());
        // Acts as the counter that advances when the request's completion is polled.
        let given_back = Arc::new(AtomicU64::new(0));
        let taker = {
            let (slots, given_back) = (Arc::clone(&slots), Arc::clone(&given_back));
            thread::spawn(move || {
                let (mut head, mut out) = (0, Vec::new());
                for _ in 0..2 {
                    let expected = head;
                    let Some(receive) = slots.take(&mut head, &mut out) else { continue };
                    assert_eq!((receive.wr_id, u64::from(receive.index)), (expected, expected));
                    assert_eq!(out.len(), NEAR + 1);
                    assert!(out.iter().all(|sge| sge.addr == expected));
                    given_back.store(head, Ordering::Release);
                }
                head
            })
        };
        let mut queue = ReceiveQueue::new();
        for number in 0..2 {
            if given_back.load(Ordering::Acquire) == number {
                queue.push(&slots, number, &sges(number));
            }
        }
        let mut head = taker.join().unwrap();
        let mut out = Vec::new();
        while slots.take(&mut head, &mut out).is_some() {}
        assert_eq!(head, queue.next, "each is taken, once");
    });
}
