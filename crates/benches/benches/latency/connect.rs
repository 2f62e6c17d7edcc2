//! Duration of `Channel::connect` on the loopback interface, to a listener in another thread.

use std::thread;
use std::time::{Duration, Instant};

use criterion::Criterion;
use hdrhistogram::Histogram;
use rdma_channel::{Channel, ChannelListener, prelude::*};

use crate::end::Outcome;
use crate::{LATEST, Row};

/// The user bytes of the last client.
const END: &[u8] = b"end";

/// A row for the table, if it was selected. Each channel is destroyed after it was connected.
pub(crate) fn measure(device: &str, criterion: &mut Criterion) -> Outcome<Option<Row>> {
    let pd = rdma_mem::open_device(device)?.allocate_pd()?;
    let listener = pd.create_channel().listen("127.0.0.1:0")?;
    let address = listener.local_addr();
    let server = thread::spawn(move || serve(listener));
    let mut histogram = Histogram::new_with_bounds(1, LATEST, 3)?;
    let mut failure = None;
    criterion.bench_function("connect", |bencher| {
        bencher.iter_custom(|iterations| {
            let mut took = Duration::ZERO;
            for _ in 0..iterations {
                let begin = Instant::now();
                let connected = Channel::connect(address, &pd);
                let time = begin.elapsed();
                took += time;
                histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LATEST));
                if let Err(error) = connected {
                    failure.get_or_insert(error.to_string());
                }
            }
            took
        });
    });
    pd.create_channel().user_bytes(END).connect(address)?;
    server.join().map_err(|_| "the listener has panicked")??;
    let found = failure.map_or(Ok(histogram), Err);
    let is_asked = !matches!(&found, Ok(histogram) if histogram.is_empty());
    Ok(is_asked.then(|| Row { name: "connect".to_owned(), length: 0, found }))
}

fn serve(mut listener: ChannelListener) -> Outcome<()> {
    loop {
        let client = listener.incoming(None)?;
        let is_last = client.user_bytes() == END;
        client.accept(b"")?;
        if is_last {
            return Ok(());
        }
    }
}
