//! The number of instructions of posting and polling, compared with C.
//!
//! The device does nothing (`quiet_device.c` of test-support): a post has succeeded when it returns. The device and the
//! C loops (`loops.c` there) are one shared object, which is compiled when the bench starts. It is reached through the
//! `ops` of the context, so neither compiler sees the called code. Each loop runs under callgrind with n and with 2n
//! operations. The difference, without the device's own instructions, is the cost of the caller's code.
//!
//! The bench compares raw posts with bare C, and checked posts with C that makes the same checks. The bench
//! fails above the limits, and without valgrind or gcc.
//!
//! Before these comparisons, all instructions of a write and its poll are counted on the software device: the total
//! cost for a program.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used)] // A failing bench panics.
#![allow(clippy::cast_possible_truncation)]

use std::path::Path;
use std::process::ExitCode;

use loops::{Checked, Outcome, Raw, Rig};
use rdma_mem::{AccessFlags, open_device};
use rdma_qp::{CompletionQueue, prelude::*};
use test_support::beside_c::{Cost, bench};
use test_support::c_loops::{CLoop, Calls, LENGTH, Loops, OPERATIONS, PLACES, counted, ids};

mod loops;

type Loop = fn(&mut Rig<'_>, u64) -> Outcome<u64>;

/// One kind of work: the loop in Rust makes the same calls as that in C, and computes the same sum.
struct Row {
    name: &'static str,
    c: CLoop,
    raw: Loop,
    checked: Loop,
}

const ROWS: [Row; 4] = [
    Row {
        name: "write and poll",
        c: CLoop::ONE,
        raw: loops::one::<Raw>,
        checked: loops::one::<Checked>,
    },
    Row {
        name: "16 writes outstanding",
        c: CLoop::OUTSTANDING,
        raw: loops::outstanding::<Raw>,
        checked: loops::outstanding::<Checked>,
    },
    Row {
        name: "a batch of 16 writes",
        c: CLoop::BATCHES,
        raw: loops::batches::<Raw>,
        checked: loops::batches::<Checked>,
    },
    Row {
        name: "receive, send, both polls",
        c: CLoop::MESSAGES,
        raw: loops::messages::<Raw>,
        checked: loops::messages::<Checked>,
    },
];

const MOST_RAW: f64 = 1.15;
const MOST_CHECKED: f64 = 1.3;
const MOST_MORE_OF_AN_EMPTY_POLL: f64 = 5.0;
const GOALS: &str = "goals: raw 1.05, checked 1.10, empty poll + 3";

fn main() -> ExitCode {
    bench(Path::new(env!("CARGO_TARGET_TMPDIR")), run_all, compare)
}

/// Prints the table. Returns true if all costs are within the limits.
fn compare(costs: &[Cost]) -> Option<bool> {
    println!(
        "{:<26}{:>8}{:>8}{:>8}   {:>10}{:>8}{:>8}",
        "instructions", "bare C", "raw", "ratio", "checked C", "checked", "ratio"
    );
    let (on_software, costs) = costs.split_at_checked(2)?;
    let mut within = true;
    for (row, costs) in ROWS.iter().zip(costs.chunks_exact(4)) {
        let [bare, own_raw, credited, own] = [0, 1, 2, 3].map(|place| costs[place].own);
        let (raw, checked) = (own_raw / bare, own / credited);
        println!(
            "{:<26}{:>8.1}{:>8.1}{raw:>8.3}   {:>10.1}{:>8.1}{checked:>8.3}",
            row.name, bare, own_raw, credited, own
        );
        within &= raw <= MOST_RAW && checked <= MOST_CHECKED;
    }
    let (by_calls, empty) = costs.get(4 * ROWS.len()..)?.split_at_checked(3)?;
    let [bare, raw, checked] = [0, 1, 2].map(|place| by_calls[place].own);
    println!(
        "{:<26}{bare:>8.1}{raw:>8.1}{:>8.3}   {:>10}{checked:>8.1}",
        "write by calls, and poll",
        raw / bare,
        ""
    );
    let &[Cost { own: c, .. }, Cost { own: rust, .. }] = empty else {
        return None;
    };
    println!("{:<26}{c:>8.1}{rust:>8.1}{:>+8.1}", "an empty poll", rust - c);
    within &= rust - c <= MOST_MORE_OF_AN_EMPTY_POLL;
    let [raw, checked] = [0, 1].map(|place| on_software[place].all);
    println!("write and poll, with the software device: raw {raw:.1}, checked {checked:.1}");
    println!("{GOALS}; it fails above {MOST_RAW}, {MOST_CHECKED}, + {MOST_MORE_OF_AN_EMPTY_POLL}");
    Some(within)
}

/// Counts a loop with [`OPERATIONS`] and with twice that number, after it has run once.
fn on_the_software_device(work: &mut dyn FnMut(u64) -> u64) {
    for n in [OPERATIONS, 2 * OPERATIONS] {
        work(OPERATIONS);
        assert_eq!(counted(work, n), ids(n));
    }
}

/// Runs every loop: those on the software device first, then the others in the order of the table.
fn run_all(object: &Path) {
    rdma_soft::install();
    let context = open_device("soft0").unwrap();
    let cq = || CompletionQueue::create(&context, 64).unwrap();
    let (send_cq, recv_cq, pd) = (cq(), cq(), context.allocate_pd().unwrap());
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let prepare =
        || pd.create_qp().send_cq(&send_cq).recv_cq(&recv_cq).access(access).build().unwrap();
    let (qp, peer) = (prepare(), prepare());
    let (here, there) = (qp.endpoint(), peer.endpoint());
    let by_calls = pd.create_qp().send_cq(&send_cq).recv_cq(&recv_cq).extended(true);
    let by_calls = by_calls.build().unwrap();
    let to_itself = by_calls.endpoint();
    let by_calls = by_calls.handshake(to_itself).unwrap();
    let (qp, _peer) = (qp.handshake(there).unwrap(), peer.handshake(here).unwrap());

    let board = pd.allocate_shared_region(PLACES * LENGTH, access).unwrap();
    let source = pd.allocate_region(PLACES * LENGTH).unwrap();
    let mut target = pd.allocate_region(PLACES * LENGTH).unwrap();
    let element = |place: usize| board.element(place * LENGTH..(place + 1) * LENGTH).unwrap();
    let mut rig = Rig {
        qp: &qp,
        send_cq,
        recv_cq,
        remote: board.remote(),
        source: &source,
        target: &mut target,
        gather: std::array::from_fn(|place| [element(place).into()]),
        scatter: std::array::from_fn(|place| [element(place).into()]),
    };
    on_the_software_device(&mut |n| loops::one::<Raw>(&mut rig, n).unwrap());
    on_the_software_device(&mut |n| loops::one::<Checked>(&mut rig, n).unwrap());
    // SAFETY: the context is closed later, and only the loops post to this queue pair.
    let mut loops = unsafe { Loops::new(object, context.as_raw()) };
    for row in &ROWS {
        for (kind, function) in [("bare", row.raw), ("checked", row.checked)] {
            loops.c(kind, row.c);
            loops.rust(row.name, row.c.calls, row.c.sum, &mut |n| function(&mut rig, n).unwrap());
        }
    }
    // SAFETY: it is dropped after the loops, and its struct has both parts.
    unsafe { loops.attach_extended(by_calls.as_raw().cast()) };
    loops.extended();
    let mut rig = Rig { qp: &by_calls, ..rig };
    for function in [loops::one::<Raw>, loops::one::<Checked>] {
        let name = "a write by calls";
        loops.rust(name, CLoop::ONE.calls, CLoop::ONE.sum, &mut |n| function(&mut rig, n).unwrap());
    }
    loops.empty_polls();
    let polls = &mut |n| loops::empty_polls(&mut rig, n).unwrap();
    loops.rust("an empty poll", Calls::empty_polls, |_| 0, polls);
}
