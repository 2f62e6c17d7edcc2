//! Writes compared with a plain copy of the same bytes between the same two buffers.

use std::hint::black_box;
use std::ptr;

use criterion::{Criterion, Throughput};
use rdma_sys::ibv_wc;

use crate::batches::{bench_beside, ns_of_one};
use crate::link::Link;
use crate::prepared::poll;

const LENGTHS: [usize; 6] = [64, 512, 4 << 10, 64 << 10, 1 << 20, 4 << 20];

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("copies");
    let link = Link::new(4 << 20);
    let source = ptr::with_exposed_provenance::<u8>(link.source.address() as usize);
    let sink = ptr::with_exposed_provenance_mut::<u8>(link.sink.address() as usize);
    let mut wc = ibv_wc::default();
    for length in LENGTHS {
        group.throughput(Throughput::Bytes(length as u64));
        let mut write = link.write(length);
        let mut write = || {
            write.post(link.a.qp.0);
            poll(link.a.send_cq.0, &mut wc);
        };
        let memcpy = || {
            let (source, sink, length) = black_box((source, sink, length));
            // Both buffers have at least this length, and nothing is in flight.
            unsafe { ptr::copy_nonoverlapping(source, sink, length) };
        };
        let batch = ((1 << 18) / length).clamp(1, 128) as u64;
        bench_beside(&mut group, &format!("write_{length}B"), "memcpy", batch, |batches| {
            let times = |_| (ns_of_one(batch, &mut write), ns_of_one(batch, memcpy));
            (0..batches).map(times).collect()
        });
    }
    group.finish();
}
