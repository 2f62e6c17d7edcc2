//! Two threads that each use their own queue pairs, whose requests travel as packets through the inboxes of one device.
//!
//! A batch consists of writes by one thread alone, and of the same writes while the other thread does the same. If the
//! threads did not hinder each other, both times would be equal.

use std::sync::Barrier;
use std::thread;

use criterion::Criterion;
use rdma_soft::Builder;
use rdma_sys::ibv_wc;

use crate::batches::{bench_beside, ns_of_one};
use crate::link::Link;
use crate::prepared::poll;
use crate::two_threads::stay_on_core;

const DEVICE: &str = "wire0";
const BATCH: u64 = 256;

pub(crate) fn bench(c: &mut Criterion) {
    Builder::new(DEVICE).force_wire().install().unwrap();
    let mut group = c.benchmark_group("two_pairs");
    bench_beside(&mut group, "write_8B", "one thread alone", BATCH, |batches| run(batches, 8));
    bench_beside(&mut group, "write_4KiB", "one thread alone", BATCH, |batches| run(batches, 4096));
    group.finish();
}

/// Returns the times of one write in each batch, in nanoseconds: with both threads, and with one.
fn run(batches: u64, length: usize) -> Vec<(f64, f64)> {
    let links = [(); 2].map(|()| Link::on(DEVICE, length).noted());
    let turn = &Barrier::new(2);
    thread::scope(|scope| {
        let [first, second] = &links;
        scope.spawn(move || {
            stay_on_core(1);
            for _ in 0..batches {
                turn.wait();
                writes(second, length);
                turn.wait();
            }
        });
        let times = scope.spawn(move || {
            stay_on_core(0);
            let mut times = Vec::new();
            for _ in 0..batches {
                turn.wait();
                let both = writes(first, length);
                turn.wait();
                times.push((both, writes(first, length)));
            }
            times
        });
        times.join().unwrap()
    })
}

fn writes(link: &Link, length: usize) -> f64 {
    let (mut write, mut wc) = (link.write(length), ibv_wc::default());
    ns_of_one(BATCH, || {
        write.post(link.a.qp.0);
        poll(link.a.send_cq.0, &mut wc);
    })
}
