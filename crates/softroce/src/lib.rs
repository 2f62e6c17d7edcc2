//! SoftRoCE, the kernel's `rdma_rxe`, for tests and trials. The device belongs to the running
//! kernel or to a virtual machine. The machine's kernel and programs are unpacked from the
//! distribution's packages and never installed. Never published; `cargo xtask rxe-setup`, `rxe-run`
//! and `rxe-teardown` are its front end.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let softroce = softroce::SoftRoce::at("target/rxe")?;
//! softroce.set_up(&softroce::SetUp::default(), || Ok(false))?;
//! let status = softroce.run(&["ibv_devinfo".into()], softroce::Run::default())?;
//! # drop(status); Ok(()) }
//! ```
//!
//! Long operations report their progress on standard output.
//!
//! - `host`: the properties of this machine; `choice`: decides from these how to provide the
//!   device.
//! - `native`: adds the device to the running kernel.
//! - `assembly`: builds the virtual machine in `stage`s: its `packages` and its `initramfs`.
//! - `siw`: compiles the module of a second device, `siw0`, which speaks iWARP.
//! - `machine`: runs a command in the virtual machine, using a `script` and the output `ports`;
//!   `tools`: finds programs.

mod assembly;
mod choice;
mod host;
mod initramfs;
mod machine;
mod native;
mod packages;
mod ports;
mod script;
mod siw;
mod stage;
mod tools;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::fs::FlockOperation;

use choice::{Way, Wish};
use machine::Ended;
pub use packages::{GivenKernel, VERSIONS, unpack_packages};
pub use stage::stage;

/// Options for the set-up.
#[derive(Clone, Debug, Default)]
pub struct SetUp {
    /// Whether to load `rdma_rxe` into the running kernel and add `rxe0`, without asking.
    pub native: bool,
    /// The interface to which `native` adds `rxe0`. If it is `None`, a dummy interface is created.
    /// On a real interface, the device accepts packets from anyone.
    pub netdev: Option<String>,
    /// Whether to build the virtual machine even if the running kernel has SoftRoCE.
    pub machine: bool,
    /// Whether to install missing programs with the package manager if they cannot be unpacked.
    pub install: bool,
    /// The kernel for the virtual machine, instead of the distribution's package.
    pub kernel: Option<GivenKernel>,
    /// Whether to compile the kernel's iWARP device `siw`, unless the kernel of the virtual machine
    /// has it. Implies `machine`.
    pub siw: bool,
}

/// Options for a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// The time limit of the command. When it has passed, the command is ended, and the exit status
    /// is 124.
    pub limit: Option<Duration>,
    /// Whether to run in the virtual machine even if the running kernel has SoftRoCE.
    pub machine: bool,
    /// Whether the virtual machine also has the iWARP device `siw0`. Implies `machine`.
    pub siw: bool,
}

/// SoftRoCE, and the folder that contains everything that was built for it.
#[derive(Clone, Debug)]
pub struct SoftRoce {
    home: PathBuf,
}

impl SoftRoce {
    /// Uses this folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created.
    pub fn at(home: impl Into<PathBuf>) -> Result<Self> {
        let home = home.into();
        fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
        Ok(Self { home })
    }

    /// Describes the device that [`run`](Self::run) would use, and where it is.
    ///
    /// # Errors
    /// Returns an error if SoftRoCE is not set up.
    pub fn place(&self) -> Result<String> {
        if let Some(device) = host::look().devices.iter().find(|device| device.trouble.is_none()) {
            return Ok(format!("{} of the running kernel", device.name));
        }
        let machine = assembly::made(&self.home)?;
        Ok(format!("rxe0 in a virtual machine ({})", machine.accelerator.name()))
    }

    /// Sets up the device in the best way that this machine allows. Returns a description of where
    /// it is.
    ///
    /// `agreed` is called to ask the user whether the module may be loaded into the running kernel.
    /// It is called only if loading is possible but was not requested, and standard input is a
    /// terminal.
    ///
    /// # Errors
    /// Returns an error if the device cannot be set up on this machine, or not in the requested
    /// way. The error states what would help.
    pub fn set_up(&self, what: &SetUp, agreed: impl FnOnce() -> Result<bool>) -> Result<String> {
        let host = host::look();
        let machine = what.machine || what.siw;
        let wish = Wish { native: what.native, machine, kernel: what.kernel.is_some() };
        let (mut way, why) = choice::choose(&host, wish)?;
        println!("{why}");
        if way == Way::Ask {
            way = if agreed()? { Way::Native } else { Way::Machine };
        }
        let _lock = self.lock(FlockOperation::NonBlockingLockExclusive)?;
        stage::sweep(&self.home)?;
        Ok(match way {
            Way::Present(name) => format!("{name} of the running kernel"),
            Way::Native | Way::Ask => {
                native::add(&self.home, what.netdev.as_deref())?;
                "rxe0 of the running kernel, until `cargo xtask rxe-teardown` removes it".to_owned()
            }
            Way::Machine => {
                choice::machine(&host, wish)?;
                let machine = assembly::make(&self.home, what.kernel.as_ref(), what.install)?;
                let also = if what.siw { " and siw0" } else { "" };
                if what.siw {
                    siw::make(&self.home, &machine)?;
                }
                format!("rxe0{also} in a virtual machine ({})", machine.accelerator.name())
            }
        })
    }

    /// Runs a command in the place where the device is, and returns the command's exit status. If
    /// that place is the running kernel, the command replaces this process, so the function returns
    /// only if that fails.
    ///
    /// # Errors
    /// Returns an error if SoftRoCE or a requested device is not set up, or if the machine or the
    /// command cannot be started.
    pub fn run(&self, command: &[OsString], how: Run) -> Result<ExitCode> {
        let native = host::look().devices.iter().any(|device| device.trouble.is_none());
        if native && !how.machine && !how.siw {
            return Err(replace(command, how.limit));
        }
        let _lock = self.lock(FlockOperation::NonBlockingLockShared)?;
        let mut machine = assembly::made(&self.home)?;
        if how.siw {
            machine.siw = Some(siw::made(&self.home)?);
        }
        let (ended, _) = machine.run(command, how.limit)?;
        Ok(ExitCode::from(match ended {
            Ended::Status(status) => status,
            Ended::TimedOut => {
                eprintln!("ended: the time limit has passed");
                124
            }
            Ended::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }))
    }

    /// Removes everything that [`set_up`](Self::set_up) has made, including the folder.
    ///
    /// # Errors
    /// Returns an error if a command is still running there, or if something cannot be removed.
    pub fn tear_down(self) -> Result<()> {
        let lock = self.lock(FlockOperation::NonBlockingLockExclusive)?;
        if native::remove(&self.home)? {
            println!("removed what was added to the running kernel");
        }
        stage::remove(&self.home)?;
        drop(lock);
        println!("removed {}", self.home.display());
        Ok(())
    }

    /// Locks the folder. Several runs may hold the lock together; changes to the machine need it
    /// exclusively.
    fn lock(&self, how: FlockOperation) -> Result<File> {
        let file = File::create(self.home.join("lock"))?;
        let locked = rustix::fs::flock(&file, how);
        locked
            .context("another rxe-setup, rxe-run or rxe-teardown is running; wait until it ends")?;
        Ok(file)
    }
}

/// Replaces this process with the command, so that signals reach the command directly, and its
/// output and exit status need not be passed on. Returns only if that fails.
fn replace(command: &[OsString], limit: Option<Duration>) -> anyhow::Error {
    // For `timeout`, 0 means no limit.
    let seconds = |limit: Duration| limit.as_secs().max(1).to_string().into();
    let limit = limit.map(|limit| ["timeout".into(), seconds(limit)]);
    let mut words = limit.into_iter().flatten().chain(command.iter().cloned());
    let program = words.next().unwrap_or_default();
    let error = Command::new(&program).args(words).exec();
    anyhow::Error::new(error).context(format!("starting {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_in_use_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let softroce = SoftRoce::at(folder.path()).unwrap();
        let lock = |how| softroce.lock(how);
        let run = lock(FlockOperation::NonBlockingLockShared).unwrap();
        let other = lock(FlockOperation::NonBlockingLockShared).unwrap();
        let error = lock(FlockOperation::NonBlockingLockExclusive).unwrap_err();
        assert!(format!("{error:#}").contains("is running"), "{error:#}");
        drop((run, other));
        // Another test may have started a child process, which holds copies of the descriptors
        // until it calls `exec`. This waits until the child has closed them.
        lock(FlockOperation::LockExclusive).unwrap();
    }

    #[test]
    fn tear_down_removes_the_folder_with_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("rxe");
        let softroce = SoftRoce::at(&home).unwrap();
        fs::create_dir(home.join("boot")).unwrap();
        softroce.tear_down().unwrap();
        assert!(!home.exists());
    }
}
