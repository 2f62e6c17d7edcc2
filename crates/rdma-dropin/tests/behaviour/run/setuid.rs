//! Programs that run with rights which their user does not have.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use crate::c_programs::compile;
use crate::library::text;
use crate::run::{Installed, OTHER_USER};

/// The user of a setuid program could otherwise choose a file that only the program may write.
#[test]
fn a_setuid_program_ignores_variables_that_name_files() {
    if test_support::program::is_emulated() || !rustix::process::geteuid().is_root() {
        println!("skipped: only root can create a program of another user");
        return;
    }
    let installed = Installed::new();
    let (program, counts) = (installed.path().join("opens"), installed.path().join("counts"));
    let path = format!("-Wl,-rpath,{}", installed.library().display());
    compile("opens.c", &program, &[&path]);
    fs::create_dir(&counts).unwrap();
    for path in [&program, &counts] {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }
    for (mode, expected) in [(0o4755, "opened"), (0o755, "not opened")] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.env_remove("LD_LIBRARY_PATH").env_remove("RDMA_PROVIDERS");
        command.env("RDMA_DROPIN_STATS", &counts).env("RDMA_SOFT_DIRECTORY", "/no/such");
        let output = command.output().unwrap();
        let printed = text(&output);
        if printed.contains("without rights") && mode == 0o4755 {
            println!("skipped: the file system of temporary files ignores setuid");
            return;
        }
        assert!(printed.contains(&format!("soft0 {expected}\n")), "{printed}");
        let is_counted = fs::read_dir(&counts).unwrap().count() > 0;
        assert_eq!(is_counted, mode == 0o755, "{printed}");
    }
}
