//! The futures of streams. With short queues, a lost slot stops the stream.

use std::cell::Cell;
use std::future::pending;

use rdma_async::Pool;
use rdma_async::message::{Options, Stream};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};

use crate::await_points::messages::{give_up, message, next, set_by};
use crate::await_points::*;
use crate::common::run_long_in_one_thread;

const DEVICES: [&str; 3] = ["soft0", HELD, DEFERRED];
/// The length of bytes that need several frames.
const FITTING: usize = 800;
/// The length of bytes that the peer's window cannot hold.
const LONG: usize = 3000;

/// Both ends of a stream, and the objects below them.
struct Ends {
    one: Stream,
    other: Stream,
    pair: Pair,
    provider: Arc<Provider>,
}

impl Ends {
    /// Both ends, after each has read a byte. A stream that does not end is never reset.
    async fn open(device: &str) -> Self {
        let options = Options::new().receives(4).sends(6).frame_bytes(256).window_bytes(1024);
        let options = options.linger(30 * HANG);
        let (pair, provider) = Pair::faulty_with(device, |qp| options.fit(qp));
        let pool = Pool::from(pair.pool.clone());
        let end = |end: &Connection| Stream::new(end.clone(), &pool, options);
        let (mut one, mut other) = tokio::try_join!(end(&pair.one), end(&pair.other)).unwrap();
        let talk = async {
            tokio::try_join!(one.write_u8(1), other.write_u8(2))?;
            tokio::try_join!(one.read_u8(), other.read_u8())
        };
        assert_eq!(pair.released(talk).await.unwrap(), (2, 1));
        Self { one, other, pair, provider }
    }

    /// Drops both ends, and checks that nothing is left.
    async fn end(self) {
        let Self { one, other, pair, provider } = self;
        drop(one);
        gone(other, pair, &provider).await;
    }
}

/// Drops the last end, and checks that nothing is left.
async fn gone(last: Stream, pair: Pair, provider: &Provider) {
    drop(last);
    pair.assert_given_back().await;
    drop(pair);
    assert_queue_pairs(provider, 0).await;
    provider.gone().await;
}

/// Writes until the next write has to wait. Returns the bytes.
fn fill(stream: &mut Stream) -> Vec<u8> {
    let (piece, mut all) = (message(1, 100), Vec::new());
    while let Poll::Ready(written) = poll_once(&mut pin!(stream.write(&piece))) {
        all.extend_from_slice(&piece[..written.unwrap()]);
    }
    all
}

/// The futures that read bytes.
#[derive(Clone, Copy, Debug)]
enum Reads {
    Read,
    Chunk,
    FillBuf,
}

impl Reads {
    const ALL: [Self; 3] = [Self::Read, Self::Chunk, Self::FillBuf];

    async fn read(self, stream: &mut Stream) -> Vec<u8> {
        match self {
            Self::Read => {
                let mut piece = [0; 100];
                let count = stream.read(&mut piece).await.unwrap();
                piece[..count].to_vec()
            }
            Self::Chunk => stream.read_chunk().await.unwrap().unwrap().to_vec(),
            Self::FillBuf => {
                let piece = stream.fill_buf().await.unwrap().to_vec();
                stream.consume(piece.len());
                piece
            }
        }
    }
}

/// The next read returns the bytes.
#[test]
fn a_read_dropped_after_any_poll_loses_no_byte() {
    for device in DEVICES {
        run_long_in_one_thread(|| async {
            for reads in Reads::ALL {
                let mut polls = 0;
                while !drop_read(device, reads, polls).await {
                    polls = next(polls);
                }
            }
        });
    }
}

/// Drops the future of a read. Returns true if it was ready before.
async fn drop_read(device: &str, reads: Reads, polls: usize) -> bool {
    let mut ends = Ends::open(device).await;
    let Ends { one, other, pair, .. } = &mut ends;
    let bytes = message(1, LONG);
    let mut writes = Box::pin(async {
        other.write_all(&bytes).await.unwrap();
        pending::<()>().await;
    });
    let taken = give_up(pair, polls, reads.read(one), &mut writes).await;
    let is_over = taken.is_some();
    let mut all = taken.unwrap_or_default();
    let rest = async {
        while all.len() < bytes.len() {
            all.extend(reads.read(one).await);
        }
    };
    let both = async {
        tokio::select! {
            () = rest => {}
            () = &mut writes => unreachable!(),
        }
    };
    pair.released(both).await;
    drop(writes);
    assert!(all == bytes, "{reads:?}, after {polls} polls");
    ends.end().await;
    is_over
}

/// The futures that write bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Write,
    WriteAll,
}

/// A write accepts the number of bytes that it returns. A dropped `write_all` has accepted a prefix. Later bytes follow.
#[test]
fn a_write_dropped_after_any_poll_leaves_a_prefix() {
    for device in DEVICES {
        run_long_in_one_thread(|| async {
            for (what, is_full) in
                [Writes::Write, Writes::WriteAll].into_iter().flat_map(|w| [(w, false), (w, true)])
            {
                let mut polls = 0;
                while !drop_write(device, what, is_full, polls).await {
                    polls = next(polls);
                }
            }
        });
    }
}

/// Drops the future of a write, which has to wait if earlier bytes fill the stream. Returns true if it was ready before.
async fn drop_write(device: &str, what: Writes, is_full: bool, polls: usize) -> bool {
    let case = format!("{what:?}, full: {is_full}, after {polls} polls");
    let mut ends = Ends::open(device).await;
    let Ends { one, other, pair, .. } = &mut ends;
    let [dropped, later] = [(2, LONG), (3, LONG)].map(|(n, length)| message(n, length));
    let mut all = if is_full { fill(one) } else { Vec::new() };
    let mut found = Vec::new();
    let mut reads = Box::pin(other.read_to_end(&mut found));
    let write = async {
        match what {
            Writes::Write => one.write(&dropped).await.unwrap(),
            Writes::WriteAll => {
                one.write_all(&dropped).await.unwrap();
                dropped.len()
            }
        }
    };
    let written = give_up(pair, polls, write, &mut reads).await;
    let rest = async {
        one.write_all(&later).await.unwrap();
        one.shutdown().await.unwrap();
    };
    let both = async { tokio::join!(rest, &mut reads) };
    pair.released(both).await.1.unwrap();
    drop(reads);
    let accepted = written.unwrap_or_else(|| match what {
        Writes::WriteAll if polls > 0 => found.len().saturating_sub(all.len() + later.len()),
        _ => 0,
    });
    all.extend_from_slice(&dropped[..accepted]);
    all.extend_from_slice(&later);
    assert!(found == all, "{case}: {accepted} bytes were accepted");
    ends.end().await;
    written.is_some()
}

/// The end is sent after the earlier bytes if the future has begun. The other direction continues.
#[test]
fn a_shutdown_dropped_after_its_first_poll_still_ends_the_stream() {
    for device in DEVICES {
        run_long_in_one_thread(|| async {
            for is_full in [false, true] {
                let mut polls = 0;
                while !drop_shutdown(device, is_full, polls).await {
                    polls = next(polls);
                }
            }
        });
    }
}

/// Drops the future that ends the stream, which has to wait if earlier bytes fill the stream. Returns true if it was
/// ready before.
async fn drop_shutdown(device: &str, is_full: bool, polls: usize) -> bool {
    let case = format!("full: {is_full}, after {polls} polls");
    let mut ends = Ends::open(device).await;
    let Ends { one, other, pair, .. } = &mut ends;
    let later = message(2, FITTING);
    let mut all = message(1, FITTING);
    if is_full {
        all = fill(one);
    } else {
        pair.released(one.write_all(&all)).await.unwrap();
    }
    let (mut reader, mut writer) = tokio::io::split(other);
    let ended = Cell::new(None);
    let mut reads = Box::pin(async {
        let mut found = Vec::new();
        reader.read_to_end(&mut found).await.unwrap();
        ended.set(Some(found));
        pending::<()>().await;
    });
    let outcome = give_up(pair, polls, one.shutdown(), &mut reads).await;
    let is_over = outcome.map(Result::unwrap).is_some();
    if polls == 0 {
        let rest = async {
            one.write_all(&later).await.unwrap();
            one.shutdown().await.unwrap();
        };
        let both = async {
            tokio::select! {
                () = rest => {}
                () = &mut reads => unreachable!(),
            }
        };
        pair.released(both).await;
        all.extend_from_slice(&later);
    }
    let found = pair.released(set_by(&mut reads, &ended)).await;
    drop(reads);
    assert!(found == all, "{case}");
    let late = one.write_all(&later).await.unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::BrokenPipe, "{case}: {late}");
    let mut answer = vec![0; LONG];
    let bytes = message(3, LONG);
    let back = async { tokio::join!(writer.write_all(&bytes), one.read_exact(&mut answer)) };
    let (written, read) = pair.released(back).await;
    written.unwrap();
    read.unwrap();
    assert!(answer == bytes, "{case}");
    ends.end().await;
    is_over
}

/// The stream ends when it is dropped.
#[test]
fn a_shutdown_of_a_stream_that_is_not_polled_ends_nothing() {
    for device in DEVICES {
        run_long_in_one_thread(|| async {
            let Ends { mut one, mut other, pair, provider } = Ends::open(device).await;
            let mut all = fill(&mut one);
            drop(one.shutdown());
            let later = message(2, FITTING);
            let mut found = vec![0; all.len() + later.len()];
            let write = async { tokio::join!(one.write_all(&later), other.read_exact(&mut found)) };
            let (written, read) = pair.released(write).await;
            written.unwrap();
            read.unwrap();
            all.extend(later);
            assert!(found == all);
            drop(one);
            assert_eq!(pair.released(other.read(&mut found)).await.unwrap(), 0);
            gone(other, pair, &provider).await;
        });
    }
}
