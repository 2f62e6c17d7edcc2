//! Idle streams: their memory, their files, and their processor time.

use std::env;
use std::time::Duration;

use rdma_async::message::{Options, Stream};
use rdma_async::{ConnectionOptions, Driver, Pool};
use rdma_mem::open_device;
use rdma_qp::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::in_own_process;
use test_support::usage::{resident, ticks};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

/// Runs in its own process, because of the limit of files. `RDMA_TEST_STREAMS` is the number of streams.
#[test]
fn idle_streams_share_a_control_connection_and_use_no_processor_time() {
    let name = "message::idle::idle_streams_share_a_control_connection_and_use_no_processor_time";
    in_own_process(name, || {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum }).unwrap();
        let count = env::var("RDMA_TEST_STREAMS").map_or(1100, |count| count.parse().unwrap());
        // A runtime without the usual time limit of a test, because a long run has 10,000 streams.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(idle_streams(count));
    });
}

async fn idle_streams(count: u32) {
    rdma_soft::install();
    let pd = open_device("soft0").unwrap().allocate_pd().unwrap();
    let (driver, pool) = (Driver::spawn(pd.context()).unwrap(), Pool::new(&pd));
    let options = Options::new().receives(5).sends(8).frame_bytes(1024);
    let prepare = || options.fit(pd.create_qp());
    let listener = driver.listen("127.0.0.1:0", ConnectionOptions::from(prepare())).await.unwrap();
    let client = driver.connect(listener.local_addr(), ConnectionOptions::from(prepare()));
    let (client, server) = tokio::join!(client, listener.accept());
    let (client, server) = (client.unwrap().0, server.unwrap());
    let resident_before = resident().unwrap();
    let mut streams = Vec::new();
    for number in 1..=count {
        let one = client.connect_additional(number, prepare());
        let (one, other) = tokio::join!(one, server.connect_additional(number, prepare()));
        let one = Stream::new(one.unwrap(), &pool, options).await.unwrap();
        streams.push((one, Stream::new(other.unwrap(), &pool, options).await.unwrap()));
    }
    talk(&mut streams).await;
    let (usage, each) = (pool.as_blocking().usage(), options.registered_bytes());
    assert!(each <= 16 << 10, "{each}");
    assert_eq!(usage.used_bytes, 2 * count as usize * each, "{usage:?}");
    let before = ticks().unwrap();
    sleep(Duration::from_millis(500)).await;
    let used = ticks().unwrap() - before;
    let grown = resident().unwrap().saturating_sub(resident_before) / u64::from(2 * count);
    println!(
        "{count} streams: {grown} B of resident memory per end, {used} ticks in half a second"
    );
    assert!(used <= 1, "{count} idle streams have used {used} ticks of processor time");
    talk(&mut streams).await;
}

/// Sends some bytes on each stream.
async fn talk(streams: &mut [(Stream, Stream)]) {
    for (number, (one, other)) in (0_u32..).zip(streams) {
        one.write_u32(number).await.unwrap();
        assert_eq!(other.read_u32().await.unwrap(), number);
    }
}
