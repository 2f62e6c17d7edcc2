//! Writes of 8 B on a device with few objects and with many, and calls that withdraw access. The calls run with few
//! queue pairs and with many, and beside threads that have executed requests.

use std::sync::Barrier;
use std::thread;

use criterion::Criterion;

use crate::batches::{self, iter_each};
use crate::calls::{CALLS, Call, Calls};
use crate::many::{Count, Many};

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("scale");
    let one = Count::OneOf(1);
    for (name, connections, regions) in [
        ("1_of_1", one, one),
        ("1_of_1000_queue_pairs", Count::OneOf(1_000), one),
        ("1000_queue_pairs_in_turn", Count::AllOf(1_000), one),
        ("1_of_100000_regions", one, Count::OneOf(100_000)),
        ("100000_regions_in_turn", one, Count::AllOf(100_000)),
    ] {
        let mut many = Many::new(connections, regions);
        group.bench_function(name, |b| batches::iter(b, 128, || many.write()));
    }
    for (queue_pairs, connections) in
        [(0, Count::OneOf(0)), (2, one), (10_000, Count::OneOf(5_000))]
    {
        // The other calls need a queue pair.
        let calls = if queue_pairs == 0 { &CALLS[..1] } else { &CALLS };
        for &(name, call) in calls {
            let mut calls = Calls::new(call, Many::new(connections, one));
            group.bench_function(format!("{name}_of_{queue_pairs}_queue_pairs"), |b| {
                iter_each(b, &mut calls, |calls| calls.prepare(1), Calls::one);
            });
        }
    }
    for threads in [0, 16, 256] {
        let (written, measured) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    Many::new(one, one).write();
                    written.wait();
                    measured.wait();
                });
            }
            written.wait();
            let mut calls = Calls::new(Call::Deregister, Many::new(one, one));
            group.bench_function(format!("deregister_beside_{threads}_threads"), |b| {
                iter_each(b, &mut calls, |calls| calls.prepare(1), Calls::one);
            });
            measured.wait();
        });
    }
    group.finish();
}
