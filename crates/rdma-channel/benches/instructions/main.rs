//! How many instructions operations of a channel cost, beside C.
//!
//! As the bench of this name of rdma-qp, on the same device that does nothing. Beside bare C, and beside C
//! that makes the same checks: those of a request, and the credits that keep the queues from overflowing.
//! It fails above the limits, without valgrind, and without gcc.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench that fails says so.
#![allow(clippy::cast_possible_truncation)]

use std::env;
use std::path::Path;
use std::process::ExitCode;

use loops::{Outcome, Rig};
use rdma_channel::prelude::*;
use rdma_mem::{AccessFlags, open_device};
use rdma_qp::CompletionQueue;
use test_support::c_loops::{
    CObject, Calls, DEPTH, End, LENGTH, Limits, OPERATIONS, PLACES, Remote, cost, counted,
};
use test_support::callgrind::{bench, profiles};
use test_support::quiet_device;

mod loops;

/// In the environment of the run under callgrind: the shared object.
const OBJECT: &str = "RDMA_CHANNEL_QUIET_DEVICE";

/// One kind of work.
struct Row {
    name: &'static str,
    /// Its name in `loops.c`, after `bare_` or `credited_`.
    c: &'static str,
    channel: fn(&mut Rig, u64) -> Outcome<u64>,
    /// What C calls, and what a channel does, for n operations.
    c_calls: fn(u64) -> Calls,
    channel_calls: fn(u64) -> Calls,
    /// What the channel's loop adds up.
    sum: fn(u64) -> u64,
    /// The ratio to C with checks above which it fails.
    most: f64,
}

const ROWS: [Row; 5] = [
    Row {
        name: "blocking write",
        c: "one",
        channel: loops::blocking,
        c_calls: |n| Calls::writes(n, n, n),
        channel_calls: |n| Calls::writes(n, n, n),
        sum: |n| n * (n - 1) / 2,
        most: 1.5,
    },
    Row {
        name: "a scope of one write",
        c: "one",
        channel: loops::scope_of_one,
        c_calls: |n| Calls::writes(n, n, n),
        channel_calls: |n| Calls::writes(n, n, n),
        sum: |n| n * (n - 1) / 2,
        most: 1.7,
    },
    Row {
        name: "16 writes in a scope",
        c: "outstanding",
        channel: loops::outstanding,
        c_calls: |n| Calls::writes(n, n, n / DEPTH as u64),
        channel_calls: |n| Calls::writes(n, n, n),
        sum: |n| n * (n - 1) / 2,
        most: 2.1,
    },
    Row {
        name: "16 rented writes in a scope",
        c: "outstanding",
        channel: loops::rented,
        c_calls: |n| Calls::writes(n, n, n / DEPTH as u64),
        channel_calls: |n| Calls::writes(n, n, n),
        sum: |n| n * (n - 1) / 2,
        most: 2.5,
    },
    Row {
        name: "receive and send in a scope",
        c: "messages",
        channel: loops::messages,
        c_calls: Calls::messages,
        channel_calls: Calls::messages,
        sum: |n| n * LENGTH as u64,
        most: 2.1,
    },
];

const GOAL: f64 = 1.3;
const MOST_MORE_OF_AN_IDLE_POLL: f64 = 8.0;

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
        "{:<28}{:>8}{:>8}{:>8}{:>20}{:>8}",
        "instructions", "channel", "bare C", "ratio", "C with checks", "ratio"
    );
    let mut within = true;
    for (row, costs) in ROWS.iter().zip(costs.chunks_exact(3)) {
        let &[bare, credited, own] = costs else { return Err("not all loops ran".to_owned()) };
        let ratio = own / credited;
        let remark = if ratio > row.most { "  TOO MUCH" } else { "" };
        println!(
            "{:<28}{own:>8.1}{bare:>8.1}{:>8.3}{credited:>20.1}{ratio:>8.3}{remark}",
            row.name,
            own / bare
        );
        within &= ratio <= row.most;
    }
    let [c, own] = costs[3 * ROWS.len()..] else { return Err("not all loops ran".to_owned()) };
    println!("{:<28}{own:>8.1}{c:>8.1}{:>+8.1}", "an idle poll", own - c);
    within &= own - c <= MOST_MORE_OF_AN_IDLE_POLL;
    println!(
        "goals: {GOAL} beside C with checks, one of 16 writes no more than a blocking one, an idle poll \
         + {MOST_MORE_OF_AN_IDLE_POLL}; it fails above {:?}",
        ROWS.map(|row| row.most)
    );
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
    let qp = qp.handshake(peer.endpoint()).unwrap();
    let channel = pd.create_channel().build().unwrap();
    let itself = channel.endpoint();

    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(PLACES * LENGTH, access).unwrap();
    let mut rig = Rig {
        channel: channel.handshake(itself).unwrap(),
        source: pd.allocate_region(PLACES * LENGTH).unwrap(),
        target: pd.allocate_region(PLACES * LENGTH).unwrap(),
        remote: board.remote(),
    };
    let caps = qp.capabilities();
    let (max_send_sge, max_recv_sge) = (caps.max_send_sge, caps.max_recv_sge);
    let limits = Limits { max_send_sge, max_recv_sge, max_inline_data: caps.max_inline_data };
    let (address, length) = (rig.remote.address(), rig.remote.length() as u64);
    let remote = Remote { address, length, rkey: rig.remote.rkey().get() };
    let data = *rig.source.as_slice().gather_element().as_raw();
    let mut end = unsafe { End::new(qp.as_raw(), data, remote, limits) };
    unsafe { c.attach(qp.as_raw()) };
    c.calls();
    for row in &ROWS {
        for kind in ["bare", "credited"] {
            let name = format!("{kind}_{}", row.c);
            for n in [OPERATIONS, 2 * OPERATIONS] {
                let sum = counted(&mut |n| c.run(&name, &mut end, n), n);
                assert_ne!(sum, u64::MAX, "{name}");
                assert_eq!(c.calls(), (row.c_calls)(n), "{name}");
            }
        }
        for n in [OPERATIONS, 2 * OPERATIONS] {
            let sum = counted(&mut |n| (row.channel)(&mut rig, n).unwrap(), n);
            assert_eq!((c.calls(), sum), ((row.channel_calls)(n), (row.sum)(n)), "{}", row.name);
        }
    }
    for n in [OPERATIONS, 2 * OPERATIONS] {
        counted(&mut |n| c.run("empty_polls", &mut end, n), n);
        assert_eq!(c.calls().poll_cq, n);
    }
    for n in [OPERATIONS, 2 * OPERATIONS] {
        loops::idle_polls(&mut rig, n).unwrap();
        // The message that ends it is polled twice.
        assert_eq!(c.calls().poll_cq, n + 2);
    }
}
