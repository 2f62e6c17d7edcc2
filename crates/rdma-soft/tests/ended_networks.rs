//! A dropped network releases nearly all of its memory, once nothing of its devices is open.
//!
//! The program has its own `main`, since the threads of the usual harness also allocate memory.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::time::Duration;

use rdma_soft::{Builder, Network};
use test_support::alloc_counter::CountingAllocator;
use test_support::rig::connect::{Knobs, Side, connect_sides};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Size};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const NAMES: [&str; 2] = ["ended-a", "ended-b"];
const ROUNDS: u64 = 50;
/// The memory that a device keeps: its name, its counters, its entries in lists.
const KEPT: u64 = 8 << 10;

/// Sends something over a network. Closes its objects before the network ends if `first`, and otherwise after.
fn round(first: bool) {
    let network = Network::simulated(1);
    for name in NAMES {
        Builder::new(name).network(&network).install().unwrap();
    }
    let [a, b] = NAMES.map(|name| Side::new(name, &Size::default(), 64));
    connect_sides(&a, &b, &Knobs::default());
    {
        let [from, to] = [&a, &b].map(|side| side.pd.register(8192, ALL_ACCESS));
        a.qp.post(&Wr::write(1, &[from.sge(0, 8192)], &to, 0));
        network.run_for(Duration::from_millis(1));
        a.send_cq.expect_success(1);
    }
    if first {
        drop(network);
        drop((a, b));
    } else {
        drop((a, b));
        drop(network);
    }
}

fn main() {
    for first in [true, false] {
        (0..3).for_each(|_| round(first));
        let before = ALLOCATOR.in_use();
        (0..ROUNDS).for_each(|_| round(first));
        let more = ALLOCATOR.in_use().wrapping_sub(before).cast_signed();
        let kept = more / (2 * ROUNDS).cast_signed();
        println!("a device keeps {kept} bytes");
        assert!(kept < KEPT.cast_signed(), "a device keeps {kept} bytes");
    }
}
