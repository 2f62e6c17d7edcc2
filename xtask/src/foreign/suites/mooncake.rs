//! Mooncake's transfer engine in two processes, with the files of the devices.

use anyhow::Result;

use crate::foreign::installation::Installation;
use crate::foreign::output::both_finished;
use crate::foreign::packages::Needs;
use crate::foreign::pair::{connect, outcome, words};
use crate::foreign::report::Row;

pub(super) const WHEEL: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";

pub(super) const NEEDS: Needs = Needs {
    packages: &[
        ("libcurl4", "usr/share/doc/libcurl4/copyright"),
        ("libnuma1", "usr/share/doc/libnuma1/copyright"),
    ],
    wheels: &[WHEEL],
};

const DEVICES: &[&str] = &["soft0", "softib0"];

/// Runs the program on each device. Both processes must count requests over RDMA, because Mooncake uses TCP if it cannot
/// use the device.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(installation: &Installation, row: &mut Row) -> Result<()> {
    let program = installation.counted(&installation.script("mooncake_pair.py"));
    let environment = installation.environment();
    for device in DEVICES {
        let words = [&program[..], &words("--device"), &words(device)].concat();
        row.case(device, || outcome(connect(&words, [&environment, &environment]), both_finished));
    }
    Ok(())
}
