//! A device that does nothing, in C, and C loops that use it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the quiet device and a file of C loops into one shared object, as `gcc -O2` does it.
///
/// `quiet_device/quiet_device.c` is the device, and `verbs.h` beside it what the loops include. The
/// functions that are reached through `ops` are named `quiet_…`, and the others are
/// `quiet_device_attach`, `quiet_device_calls` and `quiet_device_layout`.
///
/// # Errors
/// A message that says what to do, if there is no gcc; or what gcc said.
pub fn compile(loops: &Path, folder: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("quiet_device");
    let object = folder.join(format!("quiet_device-{}.so", std::process::id()));
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"])
        .args([sources.as_os_str(), sources.join("quiet_device.c").as_os_str(), loops.as_os_str()])
        .args([OsStr::new("-o"), object.as_os_str()])
        .output()
        .map_err(|error| format!("gcc does not start ({error}): apt-get install gcc libc6-dev"))?;
    if output.status.success() {
        return Ok(object);
    }
    Err(format!("gcc: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
