//! Writes that are not executed by their own post, but by another call or later. Their memory may have been unmapped
//! meanwhile. So they are copied with more care than within their own post, unless the memory was noted as mapped.

use criterion::Criterion;
use rdma_soft::{Builder, Schedule};
use rdma_sys::ibv_wc;

use crate::batches::{bench_beside, ns_of_one};
use crate::link::Link;
use crate::prepared::{Prepared, PreparedReceive, poll};

/// The number and the length of the writes that one turn executes, after an empty SEND.
const TURNS: [(u64, usize); 3] = [(8, 8), (8, 4 << 10), (1, 64 << 10)];
const LATER: &str = "bench-deferred";

/// A SEND and the writes after it.
struct Backlog {
    send: Prepared,
    receive: PreparedReceive,
    write: Prepared,
    writes: u64,
    link: Link,
}

impl Backlog {
    fn new(device: &str, writes: u64, length: usize, noted: bool) -> Self {
        // As long as in the bench of copies, since the position of the two buffers matters to long copies.
        let link = Link::on(device, 4 << 20);
        let link = if noted { link.noted() } else { link };
        let (send, receive) = link.send(0);
        Self { send, receive, write: link.write(length), writes, link }
    }

    /// Posts everything, and polls the completions. If the receive request is posted last, its post executes a turn.
    fn run(&mut self, by_a_turn: bool) {
        let (a, b) = (&self.link.a, &self.link.b);
        if !by_a_turn {
            self.receive.post(b.qp.0);
        }
        self.send.post(a.qp.0);
        (0..self.writes).for_each(|_| self.write.post(a.qp.0));
        if by_a_turn {
            self.receive.post(b.qp.0);
        }
        let mut wc = ibv_wc::default();
        (0..=self.writes).for_each(|_| poll(a.send_cq.0, &mut wc));
        poll(b.receive_cq.0, &mut wc);
    }

    /// Measures one write, with its share of the SEND.
    fn ns_of_write(&mut self, by_a_turn: bool) -> f64 {
        ns_of_one(BATCH, || self.run(by_a_turn)) / self.writes as f64
    }
}

const BATCH: u64 = 16;

pub(crate) fn bench(c: &mut Criterion) {
    Builder::new(LATER).schedule(Schedule::Deferred { seed: 1 }).install().unwrap();
    let mut group = c.benchmark_group("turns");
    for (writes, length) in TURNS {
        for (memory, noted) in [("", false), ("_of_noted_memory", true)] {
            let mut own = Backlog::new("soft0", writes, length, noted);
            let name = format!("by_a_turn{memory}_{length}B");
            bench_beside(&mut group, &name, "by its post", BATCH, |batches| {
                (0..batches).map(|_| (own.ns_of_write(true), own.ns_of_write(false))).collect()
            });
            let mut later = Backlog::new(LATER, writes, length, noted);
            let name = format!("deferred{memory}_{length}B");
            bench_beside(&mut group, &name, "by its post", BATCH, |batches| {
                (0..batches).map(|_| (later.ns_of_write(false), own.ns_of_write(false))).collect()
            });
        }
    }
    group.finish();
}
