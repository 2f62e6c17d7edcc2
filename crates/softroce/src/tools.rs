//! Finds programs: first in the unpacked packages, then on the host.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::host::{is_root, on_path, os_release};

/// The programs that run on the host, each with the Debian package that contains it.
pub(super) const PROGRAMS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("modprobe", "kmod"),
];

/// Package managers of other distributions, each with the arguments that install the [`PROGRAMS`]
/// and the programs that the guest uses from the host.
const MANAGERS: [(&str, &str); 3] = [
    ("dnf", "install --assumeyes qemu-system-x86-core busybox cpio kmod iproute libibverbs-utils"),
    ("pacman", "-S --noconfirm --needed qemu-system-x86 busybox cpio kmod iproute2 rdma-core"),
    ("zypper", "--non-interactive install qemu-x86 busybox-static cpio kmod iproute2 rdma-core"),
];

/// Returns a command that runs a program from the packages in `tree` or, if they lack it, from the
/// host.
pub(super) fn tool(tree: &Path, name: &str) -> Result<Command> {
    let places = ["usr/bin", "usr/sbin", "bin", "sbin"].map(|folder| tree.join(folder).join(name));
    let Some(file) = places.iter().find_map(|place| file_in(tree, place)) else {
        let file = on_path(name).with_context(|| format!("cannot find the program {name}"))?;
        return Ok(Command::new(file));
    };
    let mut command = Command::new(file);
    // If the file is a link, the command runs its target. Some programs depend on the name by which
    // they are called, so they get the name of the link.
    command.arg0(name).env("LD_LIBRARY_PATH", tree.join("usr/lib/x86_64-linux-gnu"));
    Ok(command)
}

/// Returns the file at `place`, if it exists. Absolute links are resolved within `tree`.
fn file_in(tree: &Path, place: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(place).ok();
    let inside = target.as_deref().and_then(|target| target.strip_prefix("/").ok());
    let file = inside.map_or_else(|| place.to_path_buf(), |inside| tree.join(inside));
    file.is_file().then_some(file)
}

/// Runs `command` to completion. Returns its output. If it fails, returns an error with its error
/// output.
pub(super) fn done(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed, {}:\n{}", output.status, complaint.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the command line as a user would type it.
pub(super) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns a command that runs a program as root, using `sudo` if this user is not root.
pub(super) fn as_root(program: &str) -> Command {
    let program = on_path_or(program);
    if is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    command
}

/// Returns the path of a program. If it cannot be found, returns only its name, so that the error
/// of starting it contains the name.
pub(super) fn on_path_or(program: &str) -> PathBuf {
    on_path(program).unwrap_or_else(|| PathBuf::from(program))
}

/// Checks that all programs are installed; used on machines without apt. If `install` is set,
/// installs those that are missing.
pub(super) fn require(install: bool) -> Result<()> {
    let programs = PROGRAMS.map(|(name, _)| name).into_iter().chain(["rdma", "ibv_devinfo"]);
    let missing: Vec<_> = programs.filter(|name| on_path(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let manager = MANAGERS.iter().find(|(manager, _)| on_path(manager).is_some());
    let Some((manager, words)) = manager else {
        let packages = PROGRAMS.map(|(_, package)| package).join(", ");
        bail!(
            "these programs are missing: {}; install them (Debian has them in {packages}, \
             iproute2 and ibverbs-utils) and run this again",
            missing.join(", ")
        );
    };
    let mut command = as_root(manager);
    command.args(words.split(' '));
    if !install {
        bail!(
            "these programs are missing on {}: {}; install them, or let --install do it:\n  {}",
            os_release("PRETTY_NAME"),
            missing.join(", "),
            line(&command)
        );
    }
    println!("+ {}", line(&command));
    done(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_the_packages_is_preferred_to_that_of_the_host() {
        let tree = tempfile::tempdir().unwrap();
        let command = tool(tree.path(), "sh").unwrap();
        assert!(command.get_program() != "sh" && command.get_envs().count() == 0);
        let own = tree.path().join("usr/bin/sh");
        std::fs::create_dir_all(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "").unwrap();
        let command = tool(tree.path(), "sh").unwrap();
        assert_eq!((command.get_program(), command.get_envs().count()), (own.as_os_str(), 1));
        let applet = tree.path().join("usr/bin/applet");
        std::os::unix::fs::symlink("/usr/bin/sh", applet).unwrap();
        assert_eq!(tool(tree.path(), "applet").unwrap().get_program(), own.as_os_str());
        let error = tool(tree.path(), "no-such-program").unwrap_err().to_string();
        assert!(error.contains("no-such-program"), "{error}");
    }

    #[test]
    fn a_failed_command_is_an_error_with_its_error_output() {
        assert_eq!(done(Command::new("echo").arg("x")).unwrap(), "x\n");
        let error = done(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("exit 3") && error.contains("\nwhy"), "{error}");
        let error = done(&mut Command::new("no-such-program")).unwrap_err();
        assert!(format!("{error:#}").contains("`no-such-program`"), "{error:#}");
    }
}
