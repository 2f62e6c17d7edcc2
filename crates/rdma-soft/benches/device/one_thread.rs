//! What a request costs on one thread, from its post to its polled completion.

use criterion::Criterion;
use rdma_sys::ibv_wc;

use crate::batches;
use crate::link::Link;
use crate::prepared::poll;

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("one_thread");
    let link = Link::new(8);
    let mut wc = ibv_wc::default();
    let mut write = link.write(8);
    group.bench_function("write_8B", |b| {
        batches::iter(b, 128, || {
            write.post(&link.a.qp);
            poll(&link.a.send_cq, &mut wc);
        });
    });
    let (mut send, mut receive) = link.send(8);
    group.bench_function("send_receive_8B", |b| {
        batches::iter(b, 128, || {
            receive.post(&link.b.qp);
            send.post(&link.a.qp);
            poll(&link.a.send_cq, &mut wc);
            poll(&link.b.receive_cq, &mut wc);
        });
    });
    group.finish();
}
