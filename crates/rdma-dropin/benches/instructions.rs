//! The number of instructions for a write of 8 B, from its post to its polled completion.
//!
//! The program uses `libibverbs.so.1`, and then the device's own table of verbs. This is a check. It fails if the
//! library costs more than [`MOST`] additional instructions. The bench runs itself under callgrind with n and with 2n
//! writes; the difference is the cost of n writes. It fails without valgrind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench panics if it fails.

#[path = "../tests/behaviour/library.rs"]
#[allow(dead_code)] // The bench needs only the folder.
mod library;
#[path = "../../rdma-soft/benches/instructions/many.rs"]
#[allow(dead_code)] // The bench uses one object of each kind.
mod many;
#[path = "../../rdma-soft/benches/instructions/prepared.rs"]
mod prepared;

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;

use many::{Count, Many};
use test_support::callgrind::{bench, per_operation};
use test_support::rig;

/// A shared library finds a variable of the thread by a function call of 11 instructions, once a write. The compiler
/// optimises the device differently in the two builds, which accounts for up to 20 more.
const MOST: f64 = 35.0;
const WRITES: u64 = 10_000;

/// In the environment of a run under callgrind: one of the following.
const SCENARIO: &str = "RDMA_DROPIN_SCENARIO";
const TABLE: &str = "table";
const LIBRARY: &str = "library";

fn main() -> ExitCode {
    match env::var(SCENARIO).as_deref() {
        Ok(TABLE) => rdma_soft::install(),
        Ok(_) => use_library(),
        Err(_) => return bench(compare),
    }
    // The first writes are not counted, so that the cost of first uses is not included.
    let mut many = Many::new(Count::OneOf(1), Count::OneOf(1));
    (0..WRITES).for_each(|_| many.write());
    [1, 2].into_iter().for_each(|times| writes_counted(&mut many, times * WRITES));
    ExitCode::SUCCESS
}

/// Makes the program use the libibverbs that the dynamic linker finds.
fn use_library() {
    let mut known = rdma_sys::providers().unwrap().into_iter();
    let system = known.find(|known| known.name == "system").unwrap();
    rig::use_provider(rig::Provider { verbs: system.verbs.unwrap(), slow: false });
}

/// The function that callgrind counts. It finds it by its name.
#[inline(never)]
fn writes_counted(many: &mut Many, writes: u64) {
    for _ in 0..writes {
        black_box(&mut *many).write();
    }
}

/// Prints the table. Returns true if the library is within its limit.
fn compare() -> Result<bool, String> {
    let folder = library::folder().to_str().ok_or("the library's path is not UTF-8")?;
    let cost = |environment: &[(&str, &str)]| {
        per_operation(environment, Path::new(env!("CARGO_TARGET_TMPDIR")), WRITES)
    };
    let table = cost(&[(SCENARIO, TABLE)])?;
    let library = cost(&[(SCENARIO, LIBRARY), ("LD_LIBRARY_PATH", folder)])?;
    let is_within = library - table <= MOST;
    let remark = if is_within { "" } else { "  TOO MUCH" };
    println!("the device's table  {table:>8.1} instructions");
    println!("libibverbs.so.1     {library:>8.1} instructions{remark}");
    Ok(is_within)
}
