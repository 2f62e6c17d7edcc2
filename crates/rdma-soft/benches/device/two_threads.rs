//! Ping-pong between two threads: half of a round trip.
//!
//! What it costs is mostly the way of cache lines from core to core, and so depends on the cores that
//! the system chose. So each bench takes turns with a ping-pong of a bare cache line between the same
//! threads, and says what that took.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{hint, ptr, thread};

use criterion::Criterion;
use rdma_sys::ibv_wc;

use crate::link::Link;
use crate::prepared::{Prepared, PreparedReceive, poll};
use crate::rig::connect::Side;
use crate::rig::{Cq, Mr, Qp};

pub(crate) fn bench(c: &mut Criterion) {
    bench_game(c, "write_8B_polled_memory", writes);
    bench_game(c, "send_8B", sends);
}

fn bench_game(c: &mut Criterion, name: &str, game: fn(u64) -> HalfRounds) {
    let mut bare = Vec::new();
    c.benchmark_group("two_threads").bench_function(name, |b| {
        b.iter_custom(|rounds| {
            let took = game(rounds);
            bare.push(took.bare_ns);
            Duration::from_secs_f64(took.game_ns * 1e-9 * rounds as f64)
        });
    });
    bare.sort_unstable_by(f64::total_cmp);
    // Empty if a filter left this bench out.
    if let (Some(least), Some(most)) = (bare.first(), bare.last()) {
        let median = bare[bare.len() / 2];
        println!(
            "a bare cache line beside it: median {median:.0} ns, {least:.0} to {most:.0} ns\n"
        );
    }
}

/// What half a round trip took: of the game, and of a bare cache line.
struct HalfRounds {
    game_ns: f64,
    bare_ns: f64,
}

/// Round trips that are timed together, and how often at least.
const BATCH: u64 = 32;
const LEAST_BATCHES: u64 = 256;

/// Plays `ping` and `pong` on two threads, in turn with a bare cache line. Both times are from the
/// median batch, since on a shared machine the mean tells how long a thread waited for its core.
fn play(rounds: u64, mut ping: impl FnMut(u64), mut pong: impl FnMut(u64) + Send) -> HalfRounds {
    let batches = rounds.div_ceil(BATCH).max(LEAST_BATCHES);
    let batch = |n: u64| n * BATCH + 1..(n + 1) * BATCH + 1;
    let (line, start) = (BareLine::default(), Barrier::new(2));
    let (mut bare, mut game): (Vec<_>, Vec<_>) = thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            for n in 0..batches {
                batch(n).for_each(|round| line.pong(round));
                batch(n).for_each(&mut pong);
            }
        });
        start.wait();
        (0..batches)
            .map(|n| (time(batch(n), |round| line.ping(round)), time(batch(n), &mut ping)))
            .unzip()
    });
    HalfRounds { game_ns: median_half_ns(&mut game), bare_ns: median_half_ns(&mut bare) }
}

fn time(batch: Range<u64>, ping: impl FnMut(u64)) -> Duration {
    let begin = Instant::now();
    batch.for_each(ping);
    begin.elapsed()
}

/// Half a round trip of the median batch.
fn median_half_ns(batches: &mut [Duration]) -> f64 {
    batches.sort_unstable();
    batches[batches.len() / 2].as_nanos() as f64 / (2.0 * BATCH as f64)
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Default)]
struct BareLine {
    there: Line,
    back: Line,
}

impl BareLine {
    fn ping(&self, round: u64) {
        self.there.0.store(round, Ordering::Release);
        wait_for(&self.back.0, round);
    }

    fn pong(&self, round: u64) {
        wait_for(&self.there.0, round);
        self.back.0.store(round, Ordering::Release);
    }
}

fn wait_for(word: &AtomicU64, round: u64) {
    while word.load(Ordering::Acquire) != round {
        hint::spin_loop();
    }
}

/// Where a side's words are: each alone on its cache lines.
const SAID: usize = 128;
const HEARD: usize = 384;
const LENGTH: usize = 512;

/// The word at `offset` of memory that nobody touches but the device and these threads.
fn word(memory: &Mr, offset: usize) -> &AtomicU64 {
    let address = memory.sge(offset, 8).addr as usize;
    let pointer = ptr::with_exposed_provenance_mut::<u64>(address);
    assert!(pointer.is_aligned());
    // Aligned, registered for as long as the result lives, and written by words alone.
    unsafe { AtomicU64::from_ptr(pointer) }
}

/// One side of the ping-pong by writes.
struct Writer<'a> {
    qp: &'a Qp,
    send_cq: &'a Cq,
    memory: &'a Mr,
    write: Prepared,
    wc: ibv_wc,
}

impl<'a> Writer<'a> {
    fn new(side: &'a Side, memory: &'a Mr, peer: &'a Mr) -> Self {
        word(memory, HEARD).store(0, Ordering::Relaxed);
        let write = Prepared::write(memory.sge(SAID, 8), peer.sge(HEARD, 8));
        Self { qp: &side.qp, send_cq: &side.send_cq, memory, write, wc: ibv_wc::default() }
    }

    fn say(&mut self, round: u64) {
        word(self.memory, SAID).store(round, Ordering::Relaxed);
        self.write.post(self.qp);
        poll(self.send_cq, &mut self.wc);
    }

    fn hear(&self, round: u64) {
        wait_for(word(self.memory, HEARD), round);
    }
}

fn writes(rounds: u64) -> HalfRounds {
    let link = Link::new(LENGTH);
    let mut a = Writer::new(&link.a, &link.source, &link.sink);
    let mut b = Writer::new(&link.b, &link.sink, &link.source);
    play(
        rounds,
        |round| {
            a.say(round);
            a.hear(round);
        },
        |round| {
            b.hear(round);
            b.say(round);
        },
    )
}

/// One side of the ping-pong by sends.
struct Sender<'a> {
    qp: &'a Qp,
    send_cq: &'a Cq,
    receive_cq: &'a Cq,
    send: Prepared,
    receive: PreparedReceive,
    wc: ibv_wc,
}

impl<'a> Sender<'a> {
    fn new(side: &'a Side, memory: &'a Mr) -> Self {
        let send = Prepared::send(memory.sge(SAID, 8));
        let mut receive = PreparedReceive::new(memory.sge(HEARD, 8));
        for _ in 0..16 {
            receive.post(&side.qp);
        }
        let (qp, send_cq, receive_cq) = (&side.qp, &side.send_cq, &side.receive_cq);
        Self { qp, send_cq, receive_cq, send, receive, wc: ibv_wc::default() }
    }

    fn say(&mut self) {
        self.send.post(self.qp);
        poll(self.send_cq, &mut self.wc);
    }

    fn hear(&mut self) {
        poll(self.receive_cq, &mut self.wc);
        self.receive.post(self.qp);
    }
}

fn sends(rounds: u64) -> HalfRounds {
    let link = Link::new(LENGTH);
    let (mut a, mut b) = (Sender::new(&link.a, &link.source), Sender::new(&link.b, &link.sink));
    play(
        rounds,
        |_| {
            a.say();
            a.hear();
        },
        |_| {
            b.hear();
            b.say();
        },
    )
}
