//! The cost of a request on one thread, from its post to its polled completion.

use criterion::Criterion;
use rdma_sys::ibv_wc;

use crate::batches::{self, bench_beside, ns_of_one};
use crate::link::Link;
use crate::mock::Mock;
use crate::prepared::poll;

const BATCH: u64 = 128;

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("one_thread");
    let link = Link::new(8);
    let mut wc = ibv_wc::default();
    let mut write = link.write(8);
    let mut write = || {
        write.post(link.a.qp.0);
        poll(link.a.send_cq.0, &mut wc);
    };
    let mut mock = Mock::new();
    bench_beside(&mut group, "write_8B", "a mock engine", BATCH, |batches| {
        let times = |_| (ns_of_one(BATCH, &mut write), ns_of_one(BATCH, || mock.write()));
        (0..batches).map(times).collect()
    });
    let (mut send, mut receive) = link.send(8);
    group.bench_function("send_receive_8B", |b| {
        batches::iter(b, BATCH, || {
            receive.post(link.b.qp.0);
            send.post(link.a.qp.0);
            poll(link.a.send_cq.0, &mut wc);
            poll(link.b.receive_cq.0, &mut wc);
        });
    });
    group.finish();
}
