use super::*;

fn sges(count: u32) -> Vec<Sge> {
    (0..count)
        .map(|n| Sge { addr: u64::MAX - u64::from(n), length: u32::MAX - n, lkey: n + 1 })
        .collect()
}

fn values(sges: &[Sge]) -> Vec<(u64, u32, u32)> {
    sges.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect()
}

/// A queue as its users hold it.
struct Whole {
    queue: ReceiveQueue,
    slots: ReceiveSlots,
    head: u64,
    out: Vec<Sge>,
}

impl Whole {
    fn new(max_wr: u32, max_sge: u32) -> Self {
        let slots = ReceiveSlots::new(max_wr, max_sge).unwrap();
        Self { queue: ReceiveQueue::new(), slots, head: 0, out: Vec::new() }
    }

    fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        self.queue.push(&self.slots, wr_id, sges);
    }

    fn take(&mut self) -> Option<Receive> {
        self.slots.take(&mut self.head, &mut self.out)
    }
}

#[test]
fn requests_come_out_in_order_with_all_their_elements() {
    for (max_wr, max_sge) in [(1, 1), (2, 2), (3, 5), (7, 3)] {
        let mut whole = Whole::new(max_wr, max_sge);
        let mut number = 0;
        for round in 0..40 {
            let count = |n: u32| (round + n) % (max_sge + 1);
            for n in 0..max_wr {
                whole.push((round * 10 + n).into(), &sges(count(n)));
            }
            for n in 0..max_wr {
                let wr_id = (round * 10 + n).into();
                assert_eq!(whole.take(), Some(Receive { wr_id, index: number }));
                assert_eq!(values(&whole.out), values(&sges(count(n))));
                number += 1;
            }
            assert_eq!(whole.take(), None);
            assert_eq!(whole.queue.posted(), number);
        }
    }
}

#[test]
fn what_passed_by_the_queue_is_never_taken() {
    let mut whole = Whole::new(3, 1);
    for round in 0..20 {
        whole.push(round, &[]);
        whole.push(round + 100, &sges(1));
        assert_eq!(whole.take().unwrap().wr_id, round);
        assert_eq!(whole.take().unwrap().wr_id, round + 100);
        // As in the error state: more than there are slots.
        for n in 0..10 {
            let posted = whole.queue.posted();
            assert_eq!(whole.queue.bypass(n), Receive { wr_id: n, index: posted });
            assert_eq!(whole.take(), None);
        }
        // As a reset does.
        whole.head = whole.queue.next;
        assert_eq!(whole.take(), None);
    }
}

#[test]
fn requests_that_a_reset_dropped_are_gone() {
    let mut whole = Whole::new(4, 1);
    for round in 0..20 {
        for n in 0..4 {
            whole.push(n, &[]);
        }
        for n in 0..round % 4 {
            assert_eq!(whole.take().unwrap().wr_id, n);
        }
        whole.head = whole.queue.next;
        assert_eq!(whole.take(), None);
        whole.push(round + 10, &[]);
        assert_eq!(whole.take().unwrap().wr_id, round + 10);
        assert_eq!(whole.take(), None);
    }
}
