//! A mount namespace in which `/sys/class` and `/dev` have the files of the devices.
#![allow(unsafe_code)]

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, unmount,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::tree::{self, CLASSES, Device, NODES, NULL, SYSFS};

/// The option with which `rdma-soft-run` calls [`attempt`], and does not run the program.
const TRY_OPTION: &str = "--try-namespace";
const DEVICES: &str = "/dev";

/// Returns the reason if the system refuses the namespace or the mounts. A child process tries them, because a process
/// cannot leave a user namespace that turns out to be unusable.
pub(crate) fn refusal() -> Option<String> {
    let own = env::current_exe();
    let tried = own.and_then(|own| Command::new(own).args([TRY_OPTION, "--", "none"]).output());
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) if output.stdout.is_empty() => {
            Some(format!("the system refuses a namespace: {}", output.status))
        }
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        Err(error) => Some(format!("rdma-soft-run cannot start itself again: {error}")),
    }
}

/// Does everything that [`enter`] and [`show`] do, in a process that then exits. Prints the reason if this fails, and
/// returns the exit status.
pub(crate) fn attempt() -> u8 {
    match enter().and_then(|()| show(&[])) {
        Ok(()) => 0,
        Err(why) => {
            println!("{why}");
            1
        }
    }
}

/// Enters a mount namespace, and if necessary a user namespace with the same user and group.
///
/// # Errors
/// Returns the reason if the system refuses this. The process must not run the program then, because its user may be
/// unknown in the user namespace.
pub(crate) fn enter() -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let refused = |error| format!("the system refuses a user and mount namespace: {error}");
    if unshare(UnshareFlags::NEWNS).is_err() {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
            .map_err(|error| refused(error.to_string()))?;
        let map = |file: &str, text: String| {
            let path = Path::new("/proc/self").join(file);
            fs::write(&path, text)
                .map_err(|error| refused(format!("{} cannot be written: {error}", path.display())))
        };
        // Without this line, the kernel refuses the map of groups (man 7 user_namespaces).
        map("setgroups", "deny".to_owned())?;
        map("uid_map", format!("{user} {user} 1"))?;
        map("gid_map", format!("{group} {group} 1"))?;
    }
    // No mount below may appear outside.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)
        .map_err(|error| format!("the system refuses mounts in a namespace: {error}"))
}

fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: the contract of this function is about `FILES`, which no caller passes.
    unsafe { unshare_unsafe(flags) }
}

/// Mounts the files of the devices. Returns the reason if this fails, and then leaves nothing mounted.
pub(crate) fn show(devices: &[Device]) -> Result<(), String> {
    cover(SYSFS, |sysfs, original| {
        keep(original, sysfs, &CLASSES)?;
        tree::write(devices, sysfs)
    })?;
    let shown = show_nodes(devices);
    if shown.is_err() {
        uncover(SYSFS);
    }
    shown
}

/// Mounts a file for each device. If the folder does not exist, covers `/dev`, because the folder cannot be created in
/// the system's `/dev`.
fn show_nodes(devices: &[Device]) -> Result<(), String> {
    if Path::new(NODES).is_dir() {
        return cover(NODES, |nodes, _| create_nodes(devices, nodes));
    }
    cover(DEVICES, |dev, original| {
        keep(original, dev, &[])?;
        fs::create_dir(NODES)?;
        create_nodes(devices, Path::new(NODES))
    })
}

fn create_nodes(devices: &[Device], nodes: &Path) -> io::Result<()> {
    for device in devices {
        let path = nodes.join(&device.node);
        File::create(&path)?;
        mount_bind(NULL, &path)?;
    }
    Ok(())
}

/// Mounts an empty folder over `target` and fills it. `fill` also gets a path to the covered folder.
fn cover(target: &str, fill: impl FnOnce(&Path, &Path) -> io::Result<()>) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{target} cannot be replaced: {error}");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let covered = open(target, flags, Mode::empty()).map_err(|error| failed(&error))?;
    let original = PathBuf::from(format!("/proc/self/fd/{}", covered.as_raw_fd()));
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("rdma-soft-run", target, "tmpfs", flags, c"mode=755").map_err(|error| failed(&error))?;
    fill(Path::new(target), &original).map_err(|error| {
        uncover(target);
        failed(&error)
    })
}

fn uncover(target: &str) {
    // The mount is the topmost one at this path. If this fails, the folder stays covered.
    let _ = unmount(target, UnmountFlags::DETACH);
}

/// Makes the entries of a covered folder visible in the new one, except those that `except` names.
fn keep(original: &Path, new: &Path, except: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(original)? {
        let entry = entry?;
        if except.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let (from, to) = (entry.path(), new.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else if kind.is_dir() {
            fs::create_dir(&to)?;
            mount_bind_recursive(&from, &to)?;
        } else {
            File::create(&to)?;
            mount_bind(&from, &to)?;
        }
    }
    Ok(())
}
