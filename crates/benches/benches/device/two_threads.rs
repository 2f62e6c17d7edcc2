//! Ping-pong between two threads: half of a round trip.
//!
//! The cost is mostly the transfer of cache lines from core to core, and so depends on the cores that the system has
//! chosen. So each bench takes turns with a ping-pong of a bare cache line between the same threads, and prints the
//! time of both.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{ptr, thread};

use criterion::Criterion;
use rdma_sys::ibv_wc;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::batches::{bench_beside, ns_of_one};
use crate::link::Link;
use crate::prepared::{Patience, Prepared, PreparedReceive, poll};
use test_support::rig::connect::Side;
use test_support::rig::{Cq, Mr, Qp};

const BATCH: u64 = 32;

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("two_threads");
    bench_beside(&mut group, "write_8B_polled_memory", "a bare cache line", BATCH, writes);
    bench_beside(&mut group, "send_8B", "a bare cache line", BATCH, sends);
    group.finish();
}

fn writes(batches: u64) -> Vec<(f64, f64)> {
    let link = Link::new(LENGTH);
    let a = Writer::new(&link.a, &link.source, &link.sink);
    play(batches, a, Writer::new(&link.b, &link.sink, &link.source))
}

fn sends(batches: u64) -> Vec<(f64, f64)> {
    let link = Link::new(LENGTH);
    play(batches, Sender::new(&link.a, &link.source), Sender::new(&link.b, &link.sink))
}

/// One side of a ping-pong.
trait Player {
    fn say(&mut self);
    fn hear(&mut self);

    fn ping(&mut self) {
        self.say();
        self.hear();
    }

    fn pong(&mut self) {
        self.hear();
        self.say();
    }
}

/// Plays in turn with a bare cache line, each side on a core of its own. Returns half of a round trip of each batch, in
/// nanoseconds: that of the players, and that of the cache line.
fn play(batches: u64, mut a: impl Player + Send, mut b: impl Player + Send) -> Vec<(f64, f64)> {
    let lines = [Line::default(), Line::default()];
    let mut bare_a = Liner::new(&lines[0], &lines[1]);
    let mut bare_b = Liner::new(&lines[1], &lines[0]);
    let start = &Barrier::new(2);
    // The state of a player is moved to its thread. On one stack, both states would share cache lines.
    thread::scope(|scope| {
        scope.spawn(move || {
            stay_on_core(1);
            start.wait();
            for _ in 0..batches {
                (0..BATCH).for_each(|_| b.pong());
                (0..BATCH).for_each(|_| bare_b.pong());
            }
        });
        let times = scope.spawn(move || {
            stay_on_core(0);
            start.wait();
            let mut times = Vec::new();
            for _ in 0..batches {
                let game = ns_of_one(BATCH, || a.ping());
                let bare = ns_of_one(BATCH, || bare_a.ping());
                times.push((game / 2.0, bare / 2.0));
            }
            times
        });
        times.join().unwrap()
    })
}

/// Keeps this thread on the `n`th of the cores that it may use, if there are that many.
pub(crate) fn stay_on_core(n: usize) {
    let allowed = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).nth(n);
    if let Some(core) = core {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).unwrap();
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Plays with bare cache lines.
struct Liner<'a> {
    out: &'a Line,
    back: &'a Line,
    said: u64,
    heard: u64,
}

impl<'a> Liner<'a> {
    fn new(out: &'a Line, back: &'a Line) -> Self {
        Self { out, back, said: 0, heard: 0 }
    }
}

impl Player for Liner<'_> {
    fn say(&mut self) {
        self.said += 1;
        self.out.0.store(self.said, Ordering::Release);
    }

    fn hear(&mut self) {
        self.heard += 1;
        wait_for(&self.back.0, self.heard);
    }
}

fn wait_for(word: &AtomicU64, round: u64) {
    let mut patience = Patience::default();
    while word.load(Ordering::Acquire) != round {
        patience.spin();
    }
}

/// The offsets of a side's words, each alone on its cache lines.
const OUT: usize = 128;
const BACK: usize = 384;
const LENGTH: usize = 512;

/// Plays with writes into the memory that the other side polls.
struct Writer<'a> {
    qp: &'a Qp,
    send_cq: &'a Cq,
    out: &'a AtomicU64,
    back: &'a AtomicU64,
    write: Prepared,
    wc: ibv_wc,
    said: u64,
    heard: u64,
}

impl<'a> Writer<'a> {
    fn new(side: &'a Side, memory: &'a Mr, peer: &'a Mr) -> Self {
        let (out, back) = (word(memory, OUT), word(memory, BACK));
        back.store(0, Ordering::Relaxed);
        let write = Prepared::write(memory.sge(OUT, 8), peer.sge(BACK, 8));
        let (qp, send_cq, wc) = (&side.qp, &side.send_cq, ibv_wc::default());
        Self { qp, send_cq, out, back, write, wc, said: 0, heard: 0 }
    }
}

/// Returns the word at `offset` of memory that only the device and these threads access.
fn word(memory: &Mr, offset: usize) -> &AtomicU64 {
    let address = memory.sge(offset, 8).addr as usize;
    let pointer = ptr::with_exposed_provenance_mut::<u64>(address);
    assert!(pointer.is_aligned());
    // Aligned, registered as long as the result lives, and written only as whole words.
    unsafe { AtomicU64::from_ptr(pointer) }
}

impl Player for Writer<'_> {
    fn say(&mut self) {
        self.said += 1;
        self.out.store(self.said, Ordering::Relaxed);
        self.write.post(self.qp.0);
        poll(self.send_cq.0, &mut self.wc);
    }

    fn hear(&mut self) {
        self.heard += 1;
        wait_for(self.back, self.heard);
    }
}

/// Plays with sends.
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
        let send = Prepared::send(memory.sge(OUT, 8));
        let mut receive = PreparedReceive::new(memory.sge(BACK, 8));
        for _ in 0..16 {
            receive.post(side.qp.0);
        }
        let (qp, send_cq, receive_cq) = (&side.qp, &side.send_cq, &side.receive_cq);
        Self { qp, send_cq, receive_cq, send, receive, wc: ibv_wc::default() }
    }
}

impl Player for Sender<'_> {
    fn say(&mut self) {
        self.send.post(self.qp.0);
        poll(self.send_cq.0, &mut self.wc);
    }

    fn hear(&mut self) {
        poll(self.receive_cq.0, &mut self.wc);
        self.receive.post(self.qp.0);
    }
}
