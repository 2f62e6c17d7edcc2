#!/bin/sh
# Compares streams with those of rust-rdma-io (the crate rdma-io), which need librdmacm (package librdmacm1) and its
# kernel module: round trips by turns, with both ends in one process on rxe0, on all processors, and then with
# the program on one.
# docs/performance.md has the results.
#
#     cargo xtask rxe-setup
#     crates/benches/benches/compare_streams.sh [ROUNDS]
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=$root/target/tmp/compare-streams
mkdir -p "$folder/src" "$folder/lib"
library=$(ldconfig -p | sed -n 's/.*librdmacm\.so\.1 .*=> //p' | head -n 1)
[ -n "$library" ] || { echo "apt install librdmacm1" >&2; exit 1; }
ln -sf "$library" "$folder/lib/librdmacm.so"

cat > "$folder/Cargo.toml" << EOF
[package]
name = "compare-streams"
version = "0.0.0"
edition = "2024"

[dependencies]
rdma-async = { path = "$root/crates/rdma-async" }
rdma-io = "=0.0.2"
rdma-mem = { path = "$root/crates/rdma-mem" }
tokio = { version = "1", features = ["io-util", "macros", "net", "rt-multi-thread", "time"] }
tokio-util = { version = "0.7", features = ["compat"] }

[workspace]
EOF

cat > "$folder/src/main.rs" << 'EOF'
use std::time::Instant;

use rdma_async::Endpoint;
use rdma_async::message::Options;
use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::credit_ring_transport::{CreditRingConfig, CreditRingTransport};
use rdma_io::send_recv_transport::{SendRecvConfig, SendRecvTransport};
use rdma_mem::open_device;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::compat::FuturesAsyncReadCompatExt as _;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The address of rxe0.
const HOST: &str = "198.18.0.1";
/// The number of turns, without a first one that is not measured.
const TURNS: usize = 5;

/// Answers each message of this length with the same bytes.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, length: usize) -> Outcome<()> {
    let mut message = vec![0; length];
    loop {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message).await?;
    }
}

/// Returns the time of a round trip in microseconds.
async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    length: usize,
    rounds: u32,
) -> Outcome<f64> {
    let mut message = vec![7; length];
    let begin = Instant::now();
    for _ in 0..rounds {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(rounds))
}

/// Returns a stream of rust-rdma-io, whose other end answers.
macro_rules! connected {
    ($transport:ident, $config:ident, $length:expr, $port:expr) => {{
        let address = format!("{HOST}:{}", $port).parse()?;
        let listener = AsyncCmListener::bind(&address)?;
        let accepts = async move { $transport::accept(&listener, $config::default()).await };
        let server = tokio::spawn(accepts);
        let client = $transport::connect(&address, $config::default()).await?;
        tokio::spawn(echo(AsyncRdmaStream::new(server.await??).compat(), $length));
        AsyncRdmaStream::new(client).compat()
    }};
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(200);
    let endpoint = Endpoint::new(&open_device("rxe0")?)?;
    for (length, port) in [(64, 9000), (8 << 10, 9001)] {
        let listener = endpoint.listen_for_streams((HOST, 0), Options::new()).await?;
        let own = endpoint.connect_stream(listener.local_addr(), Options::new());
        let (own, server) = tokio::join!(own, listener.accept());
        tokio::spawn(echo(server?, length));

        let mut own = own?;
        let mut sends = connected!(SendRecvTransport, SendRecvConfig, length, port);
        let mut ring = connected!(CreditRingTransport, CreditRingConfig, length, port + 2);
        let mut times = [const { Vec::new() }; 3];
        for turn in 0..=TURNS {
            let turns = [
                ask(&mut own, length, rounds).await?,
                ask(&mut sends, length, rounds).await?,
                ask(&mut ring, length, rounds).await?,
            ];
            if turn > 0 {
                times.iter_mut().zip(turns).for_each(|(all, one)| all.push(one));
            }
        }
        let [own, sends, ring] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[TURNS / 2]
        });
        println!("{length} B: {own:.0} us a round trip");
        for (name, time) in [("SENDs", sends), ("credit ring", ring)] {
            println!("    rust-rdma-io, {name}: {time:.0} us, {:.2} times as long", time / own);
        }
    }
    Ok(())
}
EOF

cd "$folder"
RUSTFLAGS="-L $folder/lib" cargo build -q --release
cd "$root"
program=$folder/target/release/compare-streams
cargo xtask rxe-run -- sh -ec 'echo "all processors:"; "$0" "$@"; echo "one processor:"; taskset -c 0 "$0" "$@"' \
    "$program" "$@"
