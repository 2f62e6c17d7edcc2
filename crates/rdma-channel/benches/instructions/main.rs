//! Instruction counts of channel operations, compared with C.
//!
//! Like the bench of this name in rdma-qp, it runs on a device that does nothing. The device is a shared object, which
//! is reached through the `ops` of the context, like a provider of libibverbs. The bench compares with bare C, and with
//! C that has the same checks. These are the checks of a request, and the credits that prevent overflows of the queues.
//! The bench fails above the limits, and without valgrind or gcc.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failing bench panics
#![allow(clippy::cast_possible_truncation)]

use std::path::Path;
use std::process::ExitCode;

use loops::{Outcome, Rig};
use rdma_channel::prelude::*;
use rdma_mem::{AccessFlags, open_device};
use test_support::beside_c::{Cost, bench};
use test_support::c_loops::{CLoop, Calls, DEPTH, LENGTH, Loops, OPERATIONS, PLACES, ids};

mod loops;

/// One kind of work.
struct Row {
    name: &'static str,
    c: CLoop,
    channel: fn(&mut Rig, u64) -> Outcome<u64>,
    /// Calls of the channel for n operations. `sum` is the sum that its loop computes.
    calls: fn(u64) -> Calls,
    sum: fn(u64) -> u64,
    /// The limit of the ratio to C with checks.
    most: f64,
}

const ROWS: [Row; 18] = [
    Row {
        name: "blocking write",
        c: CLoop::ONE,
        channel: loops::blocking,
        calls: |n| Calls::writes(n, n, n),
        sum: ids,
        most: 0.9,
    },
    Row {
        name: "a scope of one write",
        c: CLoop::ONE,
        channel: loops::scope_of_one,
        calls: |n| Calls::writes(n, n, n),
        sum: ids,
        most: 1.05,
    },
    Row {
        name: "the same, ended by the scope",
        c: CLoop::ONE,
        channel: loops::scope_of_one_ended,
        calls: |n| Calls::writes(n, n, n),
        sum: ids,
        most: 1.2,
    },
    Row {
        name: "16 writes, ended by the scope",
        c: CLoop::OUTSTANDING,
        channel: loops::ended,
        calls: |n| Calls::writes(n, n, n / DEPTH as u64),
        sum: ids,
        most: 1.1,
    },
    Row {
        name: "16 writes, each asked",
        c: CLoop::OUTSTANDING,
        channel: loops::asked,
        calls: |n| Calls::writes(n, n, n),
        sum: ids,
        most: 1.4,
    },
    Row {
        name: "16 writes, the last one asked",
        c: CLoop::OUTSTANDING,
        channel: loops::last_asked,
        // Two polls that find other completions, and one for the rest.
        calls: |n| Calls::writes(n, n, 3 * n / DEPTH as u64),
        sum: ids,
        most: 1.4,
    },
    Row {
        name: "16 writes, asked in reverse",
        c: CLoop::OUTSTANDING,
        channel: loops::asked_in_reverse,
        // Two polls that find other completions, and one for the rest.
        calls: |n| Calls::writes(n, n, 3 * n / DEPTH as u64),
        sum: ids,
        most: 1.75,
    },
    Row {
        name: "15 of 16 unsignaled, ended",
        c: CLoop::UNSIGNALED,
        channel: loops::unsignaled_ended,
        calls: Calls::unsignaled,
        sum: ids,
        most: 1.45,
    },
    Row {
        name: "15 of 16 unsignaled, asked",
        c: CLoop::UNSIGNALED,
        channel: loops::unsignaled_asked,
        calls: Calls::unsignaled,
        sum: ids,
        most: 2.65,
    },
    Row {
        name: "a rented write",
        c: CLoop::ONE,
        channel: loops::rented_one,
        calls: |n| Calls::writes(n, n, n),
        sum: ids,
        most: 1.1,
    },
    Row {
        name: "16 rented writes, each asked",
        c: CLoop::OUTSTANDING,
        channel: loops::rented,
        calls: |n| Calls::writes(n, n, n),
        sum: ids,
        most: 1.6,
    },
    Row {
        name: "a blocking batch of 16",
        c: CLoop::BATCHES,
        channel: loops::blocking_batches,
        calls: |n| Calls::writes(n, n / DEPTH as u64, n / DEPTH as u64),
        sum: ids,
        most: 1.35,
    },
    Row {
        name: "a batch of 16, ended",
        c: CLoop::BATCHES,
        channel: loops::batches_ended,
        calls: |n| Calls::writes(n, n / DEPTH as u64, n / DEPTH as u64),
        sum: ids,
        most: 1.45,
    },
    Row {
        name: "a batch of 16, each asked",
        c: CLoop::BATCHES,
        channel: loops::batches,
        calls: |n| Calls::writes(n, n / DEPTH as u64, n),
        sum: ids,
        most: 1.5,
    },
    Row {
        name: "receive and send in a scope",
        c: CLoop::MESSAGES,
        channel: loops::messages,
        calls: Calls::messages,
        sum: |n| n * LENGTH as u64,
        most: 1.25,
    },
    Row {
        name: "the same, the send asked first",
        c: CLoop::MESSAGES,
        channel: loops::messages_sent_first,
        calls: Calls::messages,
        sum: |n| n * LENGTH as u64,
        most: 1.65,
    },
    Row {
        name: "the same, ended by the scope",
        c: CLoop::MESSAGES,
        channel: loops::messages_ended,
        calls: |n| Calls { poll_cq: n, ..Calls::messages(n) },
        sum: |_| 0,
        most: 1.35,
    },
    Row {
        name: "unpolled receive and send",
        c: CLoop::MESSAGES,
        channel: loops::messages_unpolled,
        calls: Calls::messages,
        sum: |n| n * LENGTH as u64,
        most: 1.25,
    },
];

/// Indices of these rows.
const BLOCKING: usize = 0;
const ENDED: usize = 3;

const MOST_MORE_OF_AN_IDLE_POLL: f64 = 8.0;

fn main() -> ExitCode {
    bench(Path::new(env!("CARGO_TARGET_TMPDIR")), run_all, compare)
}

/// Prints the table. Returns true if all values are within the limits.
fn compare(costs: &[Cost]) -> Option<bool> {
    println!(
        "{:<30}{:>8}{:>8}{:>8}{:>15}{:>8}{:>13}{:>8}",
        "instructions",
        "channel",
        "bare C",
        "ratio",
        "C with checks",
        "ratio",
        "with device",
        "C too"
    );
    let (mut within, mut all) = (true, Vec::new());
    for (row, costs) in ROWS.iter().zip(costs.chunks_exact(3)) {
        let (bare, credited, own) = (costs[0].own, costs[1].own, costs[2].own);
        let ratio = own / credited;
        let remark = if ratio > row.most { "  TOO MUCH" } else { "" };
        println!(
            "{:<30}{own:>8.1}{bare:>8.1}{:>8.3}{credited:>15.1}{ratio:>8.3}{:>13.1}{:>8.1}{remark}",
            row.name,
            own / bare,
            costs[2].all,
            costs[1].all
        );
        within &= ratio <= row.most;
        all.push(costs[2].all);
    }
    let &[c, own] = costs.get(3 * ROWS.len()..)? else { return None };
    let more = own.own - c.own;
    println!("{:<30}{:>8.1}{:>8.1}{more:>+8.1}", "an idle poll", own.own, c.own);
    within &= more <= MOST_MORE_OF_AN_IDLE_POLL;
    // The device is polled once for the 16 writes of a scope, so one of them should not cost more
    // than a blocking write. A tenth more is allowed, because compilers differ.
    if all[ENDED] > 1.1 * all[BLOCKING] {
        println!(
            "one of 16 that a scope ends costs more than a blocking one, with the device  TOO MUCH"
        );
        within = false;
    }
    println!(
        "goals: those of docs/performance.md beside bare C, one of 16 writes no more than a blocking \
         one, an idle poll + {MOST_MORE_OF_AN_IDLE_POLL}; it fails above {:?} beside C with checks",
        ROWS.map(|row| row.most)
    );
    Some(within)
}

/// Runs every loop, in the order of the table.
fn run_all(object: &Path) {
    rdma_soft::install();
    let context = open_device("soft0").unwrap();
    let pd = context.allocate_pd().unwrap();
    // One request in each half of the queue is signaled.
    let channel = pd.create_channel().max_send_wr(2 * DEPTH as u32).build().unwrap();
    let itself = channel.endpoint();
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(PLACES * LENGTH, access).unwrap();
    let mut rig = Rig {
        channel: channel.handshake(itself).unwrap(),
        source: pd.allocate_region(PLACES * LENGTH).unwrap(),
        target: pd.allocate_region(PLACES * LENGTH).unwrap(),
        remote: board.remote(),
    };
    // SAFETY: the context is closed later, and only the loops post, to this channel.
    let mut loops = unsafe { Loops::new(object, context.as_raw()) };
    for row in &ROWS {
        loops.c("bare", row.c);
        loops.c("credited", row.c);
        let work = &mut |n| (row.channel)(&mut rig, n).unwrap();
        loops.rust(row.name, row.calls, row.sum, work);
    }
    loops.empty_polls();
    for n in [OPERATIONS, 2 * OPERATIONS] {
        loops::idle_polls(&mut rig, n).unwrap();
        // The handle is polled twice for the message that ends the loop.
        assert_eq!(loops.calls().poll_cq, n + 2);
    }
}
