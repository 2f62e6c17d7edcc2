//! A device in C that does nothing, and loops in C that use it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the quiet device and the C loops into one shared object with `gcc -O2`. Returns its
/// path.
///
/// The device is in `quiet_device/quiet_device.c`, and the loops are in `loops.c` in the same
/// folder. The functions that are called through `ops` have names that begin with `quiet_`.
/// [`c_loops`](crate::c_loops) declares all others.
///
/// # Errors
/// If gcc is missing, returns a message that explains how to get it. Otherwise returns gcc's error
/// output.
pub fn compile(folder: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("quiet_device");
    let object = folder.join(format!("quiet_device-{}.so", std::process::id()));
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"])
        .args([&sources, &sources.join("quiet_device.c"), &sources.join("loops.c")])
        .args([OsStr::new("-o"), object.as_os_str()])
        .output()
        .map_err(|error| format!("gcc does not start ({error}): apt-get install gcc libc6-dev"))?;
    if output.status.success() {
        return Ok(object);
    }
    Err(format!("gcc: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
