//! Writes beside a plain copy of the same bytes between the same two buffers.

use std::ptr;

use criterion::{BenchmarkId, Criterion, Throughput};
use rdma_sys::ibv_wc;

use crate::link::Link;
use crate::prepared::poll;

const LENGTHS: [usize; 6] = [64, 512, 4 << 10, 64 << 10, 1 << 20, 4 << 20];

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("copies");
    let link = Link::new(4 << 20);
    let mut wc = ibv_wc::default();
    for length in LENGTHS {
        group.throughput(Throughput::Bytes(length as u64));
        let source = ptr::with_exposed_provenance::<u8>(link.source.address() as usize);
        let sink = ptr::with_exposed_provenance_mut::<u8>(link.sink.address() as usize);
        group.bench_function(BenchmarkId::new("memcpy", length), |b| {
            // Both buffers have that length, and nothing is in flight.
            b.iter(|| unsafe { ptr::copy_nonoverlapping(source, sink, length) });
        });
        let mut write = link.write(length);
        group.bench_function(BenchmarkId::new("write", length), |b| {
            b.iter(|| {
                write.post(&link.a.qp);
                poll(&link.a.send_cq, &mut wc);
            });
        });
    }
    group.finish();
}
