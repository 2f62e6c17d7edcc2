//! How many instructions posting and polling cost, beside C.
//!
//! The device does nothing (`quiet_device.c` of test-support): a post has succeeded when it returns. It
//! and the C loops (`loops.c` there) are one shared object, which is compiled when the bench starts, and is
//! reached through the `ops` of the context, so that neither compiler sees what it calls. Each loop
//! runs under callgrind with n and with 2n operations; the difference, less the device's own
//! instructions, is what the caller's code costs.
//!
//! Two comparisons: raw posts beside bare C, and checked posts beside C that makes the same checks. It
//! fails above the limits, without valgrind, and without gcc.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench that fails says so.
#![allow(clippy::cast_possible_truncation)]

use std::env;
use std::path::Path;
use std::process::ExitCode;

use loops::{Checked, Outcome, Raw, Rig};
use rdma_mem::{AccessFlags, open_device};
use rdma_qp::{CompletionQueue, prelude::*};
use test_support::c_loops::{
    CObject, Calls, DEPTH, End, LENGTH, Limits, OPERATIONS, PLACES, Remote, cost, counted,
};
use test_support::callgrind::{bench, profiles};
use test_support::quiet_device;

mod loops;

/// In the environment of the run under callgrind: the shared object.
const OBJECT: &str = "RDMA_QP_QUIET_DEVICE";

type Loop = fn(&mut Rig<'_>, u64) -> Outcome<u64>;

/// One kind of work.
struct Row {
    name: &'static str,
    /// Its name in `loops.c`, after `bare_` or `checked_`.
    c: &'static str,
    raw: Loop,
    checked: Loop,
    /// What it calls, for n operations, and the sum of what it polled.
    calls: fn(u64) -> Calls,
    sum: fn(u64) -> u64,
}

const ROWS: [Row; 4] = [
    Row {
        name: "write and poll",
        c: "one",
        raw: loops::one::<Raw>,
        checked: loops::one::<Checked>,
        calls: |n| Calls::writes(n, n, n),
        sum: ids,
    },
    Row {
        name: "16 writes outstanding",
        c: "outstanding",
        raw: loops::outstanding::<Raw>,
        checked: loops::outstanding::<Checked>,
        calls: |n| Calls::writes(n, n, n / DEPTH as u64),
        sum: ids,
    },
    Row {
        name: "a batch of 16 writes",
        c: "batches",
        raw: loops::batches::<Raw>,
        checked: loops::batches::<Checked>,
        calls: |n| Calls::writes(n, n / DEPTH as u64, n / DEPTH as u64),
        sum: ids,
    },
    Row {
        name: "receive, send, both polls",
        c: "messages",
        raw: loops::messages::<Raw>,
        checked: loops::messages::<Checked>,
        calls: Calls::messages,
        sum: |n| 2 * ids(n) + n * LENGTH as u64,
    },
];

fn ids(n: u64) -> u64 {
    n * (n - 1) / 2
}

const MOST_RAW: f64 = 1.15;
const MOST_CHECKED: f64 = 1.2;
const MOST_MORE_OF_AN_EMPTY_POLL: f64 = 5.0;
const GOALS: &str = "goals: raw 1.05, checked 1.10, empty poll + 3";

fn main() -> ExitCode {
    if let Some(object) = env::var_os(OBJECT) {
        run_all(Path::new(&object));
        return ExitCode::SUCCESS;
    }
    bench(compare)
}

/// Prints the table. Whether all is within the limits.
fn compare() -> Result<bool, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let object = quiet_device::compile(folder)?;
    let path = object.to_str().ok_or("the target folder has a name that is not UTF-8")?;
    let profiles = profiles(&[(OBJECT, path)], folder);
    let _ = std::fs::remove_file(&object);
    let costs: Vec<_> = profiles?.chunks_exact(2).map(|pair| cost(&pair[0], &pair[1])).collect();

    println!(
        "{:<26}{:>8}{:>8}{:>8}   {:>10}{:>8}{:>8}",
        "instructions", "bare C", "raw", "ratio", "checked C", "checked", "ratio"
    );
    let mut within = true;
    for (row, costs) in ROWS.iter().zip(costs.chunks_exact(4)) {
        let (raw, checked) = (costs[1] / costs[0], costs[3] / costs[2]);
        println!(
            "{:<26}{:>8.1}{:>8.1}{raw:>8.3}   {:>10.1}{:>8.1}{checked:>8.3}",
            row.name, costs[0], costs[1], costs[2], costs[3]
        );
        within &= raw <= MOST_RAW && checked <= MOST_CHECKED;
    }
    let [c, rust] = costs[4 * ROWS.len()..] else { return Err("not all loops ran".to_owned()) };
    println!("{:<26}{c:>8.1}{rust:>8.1}{:>+8.1}", "an empty poll", rust - c);
    within &= rust - c <= MOST_MORE_OF_AN_EMPTY_POLL;
    println!("{GOALS}; it fails above {MOST_RAW}, {MOST_CHECKED}, + {MOST_MORE_OF_AN_EMPTY_POLL}");
    Ok(within)
}

/// Every loop with n and with 2n operations, in the order of the table.
fn run_all(object: &Path) {
    let c = CObject::load(object);
    rdma_soft::install();
    let context = open_device("soft0").unwrap();
    let cq = || CompletionQueue::create(&context, 64).unwrap();
    let (send_cq, recv_cq, pd) = (cq(), cq(), context.allocate_pd().unwrap());
    let prepare = || pd.create_qp().send_cq(&send_cq).recv_cq(&recv_cq).build().unwrap();
    let (qp, peer) = (prepare(), prepare());
    let end = peer.endpoint();
    let qp = qp.handshake(end).unwrap();

    let access = AccessFlags::new().with_local_write().with_remote_write();
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
    let caps = qp.capabilities();
    let (max_send_sge, max_recv_sge) = (caps.max_send_sge, caps.max_recv_sge);
    let limits = Limits { max_send_sge, max_recv_sge, max_inline_data: caps.max_inline_data };
    let (address, length) = (rig.remote.address(), rig.remote.length() as u64);
    let remote = Remote { address, length, rkey: rig.remote.rkey().get() };
    let data = *source.as_slice().gather_element().as_raw();
    let mut end = unsafe { End::new(qp.as_raw(), data, remote, limits) };
    unsafe { c.attach(qp.as_raw()) };
    c.calls();
    for row in &ROWS {
        for (kind, function) in [("bare", row.raw), ("checked", row.checked)] {
            let name = format!("{kind}_{}", row.c);
            both(&c, row, &mut |n| c.run(&name, &mut end, n));
            both(&c, row, &mut |n| function(&mut rig, n).unwrap());
        }
    }
    for n in [OPERATIONS, 2 * OPERATIONS] {
        counted(&mut |n| c.run("empty_polls", &mut end, n), n);
        assert_eq!(c.calls().poll_cq, n);
    }
    for n in [OPERATIONS, 2 * OPERATIONS] {
        counted(&mut |n| loops::empty_polls(&mut rig, n).unwrap(), n);
        assert_eq!(c.calls().poll_cq, n);
    }
}

fn both(c: &CObject, row: &Row, work: &mut dyn FnMut(u64) -> u64) {
    for n in [OPERATIONS, 2 * OPERATIONS] {
        let sum = counted(work, n);
        assert_eq!((c.calls(), sum), ((row.calls)(n), (row.sum)(n)), "{}", row.name);
    }
}
