//! Benches that count instructions beside C: each runs its loops under callgrind, on a device that does
//! nothing, with n and with 2n operations. The difference, less the device's own instructions, is what the
//! caller's code costs.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use crate::c_loops::OPERATIONS;
use crate::callgrind::{self, Profile, profiles};
use crate::quiet_device;

/// In the environment of the run under callgrind: the shared object.
const OBJECT: &str = "RDMA_QUIET_DEVICE";

/// What `main` of such a bench does. `run_all` is given the shared object, and makes [`Loops`] of it; what
/// each loop costs `compare` gets in the order in which they ran, prints a table, and says whether all is
/// within the limits.
///
/// It fails above the limits, without valgrind, and without gcc.
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

/// How many instructions an operation costs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Cost {
    /// Those of the caller.
    pub own: f64,
    /// Those of the device too.
    pub all: f64,
}

/// From a run of [`OPERATIONS`] and one of twice as many.
#[allow(clippy::cast_precision_loss)] // a few thousand
fn cost(once: &Profile, twice: &Profile) -> Cost {
    let own = |profile: &Profile| profile.of(|function| !function.starts_with("quiet_"));
    let each = |once: u64, twice: u64| (twice - once) as f64 / OPERATIONS as f64;
    Cost { own: each(own(once), own(twice)), all: each(once.total(), twice.total()) }
}
