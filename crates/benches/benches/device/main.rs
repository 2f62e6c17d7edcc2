//! The speed of the device, through its C ABI. `docs/performance.md` has the results.
//!
//! ```sh
//! cargo bench -p benches --bench device
//! ```
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::disallowed_methods)] // The programs' side has clocks and threads of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench panics if it fails.
#![allow(clippy::cast_possible_truncation)] // rdma-sys is only for 64-bit targets.

use std::time::Duration;

use criterion::Criterion;

mod batches;
#[path = "../../../rdma-soft/benches/instructions/calls.rs"]
mod calls;
mod copies;
mod link;
#[path = "../../../rdma-soft/benches/instructions/many.rs"]
mod many;
#[path = "../../../rdma-soft/benches/instructions/mock.rs"]
mod mock;
mod one_thread;
#[path = "../../../rdma-soft/benches/instructions/prepared.rs"]
mod prepared;
mod scale;
mod turns;
mod two_pairs;
mod two_threads;

fn main() {
    rdma_soft::install();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50)
        .without_plots()
        .configure_from_args();
    one_thread::bench(&mut criterion);
    two_threads::bench(&mut criterion);
    two_pairs::bench(&mut criterion);
    copies::bench(&mut criterion);
    turns::bench(&mut criterion);
    scale::bench(&mut criterion);
    criterion.final_summary();
}
