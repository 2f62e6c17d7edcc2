//! Benches that compare instruction counts with C. Each bench runs its loops under callgrind on a
//! device that does nothing, once with n operations and once with 2n. The difference, minus the
//! device's own instructions, is the cost of the caller's code.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use crate::c_loops::OPERATIONS;
use crate::callgrind::{self, Profile, profiles};
use crate::quiet_device;

/// The environment variable that marks the process under callgrind; its value is the path of the
/// shared object.
const OBJECT: &str = "RDMA_QUIET_DEVICE";

/// The `main` function of such a bench. `run_all` gets the path of the shared object, and creates
/// [`Loops`] from it. `compare` gets the cost of each loop, in the order in which the loops ran. It
/// prints a table, and returns whether all costs are within their limits, or `None` if a cost is
/// missing.
///
/// Fails if a cost exceeds its limit, or if valgrind or gcc is missing.
///
/// [`Loops`]: crate::c_loops::Loops
pub fn bench(folder: &Path, run_all: fn(&Path), compare: fn(&[Cost]) -> Option<bool>) -> ExitCode {
    if let Some(object) = env::var_os(OBJECT) {
        run_all(Path::new(&object));
        return ExitCode::SUCCESS;
    }
    callgrind::bench(|| compare(&costs(folder)?).ok_or_else(|| "not all loops ran".to_owned()))
}

fn costs(folder: &Path) -> Result<Vec<Cost>, String> {
    let object = quiet_device::compile(folder)?;
    let path = object.to_str().ok_or("the target folder has a name that is not UTF-8")?;
    let profiles = profiles(&[(OBJECT, path)], folder);
    let _ = fs::remove_file(&object);
    Ok(profiles?.chunks_exact(2).map(|pair| cost(&pair[0], &pair[1])).collect())
}

/// The number of instructions per operation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Cost {
    /// The number of instructions in the caller's code.
    pub own: f64,
    /// The number of instructions in the caller's code and in the device together.
    pub all: f64,
}

/// Computes the cost per operation from a run with [`OPERATIONS`] operations and one with twice as
/// many.
#[allow(clippy::cast_precision_loss)] // counts of a few thousand
fn cost(once: &Profile, twice: &Profile) -> Cost {
    let own = |profile: &Profile| profile.of(|function| !function.starts_with("quiet_"));
    let each = |once: u64, twice: u64| (twice - once) as f64 / OPERATIONS as f64;
    Cost { own: each(own(once), own(twice)), all: each(once.total(), twice.total()) }
}
