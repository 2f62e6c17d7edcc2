//! SoftRoCE by one command: `cargo xtask rxe-setup`, `rxe-run`, `rxe-teardown`.

mod choice;
mod host;
mod initramfs;
mod machine;
mod native;
mod packages;
mod ports;
mod script;
mod stage;
mod tools;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cargo_metadata::MetadataCommand;
use rustix::fs::FlockOperation;

use crate::tree;
use choice::{Way, Wish};
use machine::{Accelerator, Ended, Machine};
use packages::GivenKernel;

#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {
    /// Only say where SoftRoCE is, as `DEVICE PLACE`; fails if it was not set up
    #[arg(long, conflicts_with_all = ["native", "machine", "install", "kernel"])]
    check: bool,
    /// Load rdma_rxe into the running kernel and add rxe0, without asking
    #[arg(long, conflicts_with = "machine")]
    native: bool,
    /// Add rxe0 to this interface instead of a dummy one; it then accepts packets from anyone
    #[arg(long, value_name = "NAME", requires = "native")]
    netdev: Option<String>,
    /// Make the virtual machine even where the running kernel has SoftRoCE
    #[arg(long)]
    machine: bool,
    /// Install programs that are missing with the package manager, where they cannot be unpacked
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    given: GivenKernel,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// End the command after so many seconds, with exit status 124
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Run in the virtual machine even where the running kernel has SoftRoCE
    #[arg(long)]
    machine: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const KVM_LIMIT: Duration = Duration::from_secs(20);
const EMULATION_LIMIT: Duration = Duration::from_secs(180);

/// Takes the best way to an RXE device that the machine allows.
pub(crate) fn setup(args: &SetupArgs) -> Result<bool> {
    let start = Instant::now();
    let host = host::look();
    if args.check {
        println!("{}", present(&host, &home()?)?);
        return Ok(true);
    }
    let wish =
        Wish { native: args.native, machine: args.machine, kernel: args.given.kernel.is_some() };
    let (mut way, why) = choice::choose(&host, wish)?;
    println!("{why}");
    if way == Way::Ask {
        way = if agreed()? { Way::Native } else { Way::Machine };
    }
    let home = home()?;
    let _lock = lock(&home, FlockOperation::NonBlockingLockExclusive)?;
    stage::sweep(&home)?;
    let place = match way {
        Way::Present(name) => format!("{name} of the running kernel"),
        Way::Native | Way::Ask => {
            native::add(&home, args.netdev.as_deref())?;
            "rxe0 of the running kernel, until `cargo xtask rxe-teardown`".to_owned()
        }
        Way::Machine => {
            choice::machine(&host, wish)?;
            let machine = make(&home, &args.given, args.install)?;
            format!("rxe0 in a virtual machine ({})", machine.accelerator.name())
        }
    };
    println!("ready after {:.1} s: {place}; try", start.elapsed().as_secs_f64());
    println!("    cargo xtask rxe-run -- ibv_devinfo");
    Ok(true)
}

/// The device that `run` would use, and where.
fn present(host: &choice::Host, home: &Path) -> Result<String> {
    let here = host.devices.iter().find(|device| device.trouble.is_none());
    if let Some(device) = here {
        return Ok(format!("{} of the running kernel", device.name));
    }
    let machine = made(home)?;
    Ok(format!("rxe0 in a virtual machine ({})", machine.accelerator.name()))
}

/// Runs a command where RXE is; its exit status.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let native = host::look().devices.iter().any(|device| device.trouble.is_none());
    if native && !args.machine {
        return Err(replace(args));
    }
    let home = home()?;
    let _lock = lock(&home, FlockOperation::NonBlockingLockShared)?;
    let machine = made(&home)?;
    let (ended, _) = machine.run(&args.command, args.timeout.map(Duration::from_secs))?;
    Ok(ExitCode::from(match ended {
        Ended::Status(status) => status,
        Ended::TimedOut => {
            eprintln!("ended: the time limit has passed");
            124
        }
        Ended::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    }))
}

/// Removes what `setup` made.
pub(crate) fn teardown() -> Result<bool> {
    let home = home()?;
    let lock = lock(&home, FlockOperation::NonBlockingLockExclusive)?;
    if native::remove(&home)? {
        println!("removed what was added to the running kernel");
    }
    stage::remove(&home)?;
    drop(lock);
    println!("removed {}", home.display());
    Ok(true)
}

fn home() -> Result<PathBuf> {
    let metadata = MetadataCommand::new().current_dir(tree::root()).no_deps().exec()?;
    let home = metadata.target_directory.into_std_path_buf().join("rxe");
    fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
    Ok(home)
}

/// Runs share the machine; nobody changes it meanwhile.
fn lock(home: &Path, how: FlockOperation) -> Result<File> {
    let file = File::create(home.join("lock"))?;
    let locked = rustix::fs::flock(&file, how);
    locked.context("another rxe-setup, rxe-run or rxe-teardown is at work; wait until it ends")?;
    Ok(file)
}

fn agreed() -> Result<bool> {
    print!("Load it and add rxe0 on a dummy interface? Else a virtual machine is made. [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Becomes the command: its signals, output and status are its own.
fn replace(args: &RunArgs) -> anyhow::Error {
    let limit = args.timeout.map(|seconds| ["timeout".into(), seconds.to_string().into()]);
    let mut words = limit.into_iter().flatten().chain(args.command.iter().cloned());
    let program = words.next().unwrap_or_default();
    let error = Command::new(&program).args(words).exec();
    anyhow::Error::new(error).context(format!("starting {}", program.display()))
}

/// The machine, each stage made unless it is there, and started once to see that it works.
fn make(home: &Path, given: &GivenKernel, install: bool) -> Result<Machine> {
    let key = packages::key(given);
    forget_after(home, "packages", &key, "boot")?;
    let tree = stage::stage(home, "packages", &key, |at| packages::unpack(at, given, install))?;
    let version = packages::version(&tree)?;
    let key = format!("{key}kernel {version}\n{}{}", initramfs::INIT, initramfs::GUEST);
    forget_after(home, "boot", &key, "check")?;
    let boot = stage::stage(home, "boot", &key, |at| {
        let kernel = packages::kernel(&tree, given, &version);
        fs::copy(&kernel, at.join("vmlinuz"))
            .with_context(|| format!("reading {}", kernel.display()))?;
        initramfs::write(&tree, &version, &at.join("initramfs"))
    })?;
    let key = format!("{key}KVM {}\n", host::may_use_kvm());
    stage::stage(home, "check", &key, |at| {
        let accelerator = check(&tree, &boot)?;
        Ok(fs::write(at.join("accelerator"), accelerator.name())?)
    })?;
    made(home)
}

/// Removes the stage `next` if the one before it has to be made again.
fn forget_after(home: &Path, name: &str, key: &str, next: &str) -> Result<()> {
    if stage::is_made(&home.join(name), key) { Ok(()) } else { stage::remove(&home.join(next)) }
}

/// The machine that `make` made to its end.
fn made(home: &Path) -> Result<Machine> {
    let manifest = |name| stage::manifest(&home.join(name));
    let stages = [manifest("check"), manifest("boot"), manifest("packages")];
    // Each stage's key starts with that of the stage before.
    let whole = stages.windows(2).all(|two| match two {
        [Some(later), Some(earlier)] => later.starts_with(earlier.as_str()),
        _ => false,
    });
    ensure!(whole, "there is no SoftRoCE yet, or it is half made; run `cargo xtask rxe-setup`");
    let accelerator = fs::read_to_string(home.join("check/accelerator"))?;
    Ok(Machine {
        tree: home.join("packages"),
        boot: home.join("boot"),
        accelerator: Accelerator::of(&accelerator).context("an unknown accelerator")?,
    })
}

/// Starts the machine by the fastest means that work.
fn check(tree: &Path, boot: &Path) -> Result<Accelerator> {
    let kvm = host::may_use_kvm().then_some((Accelerator::Kvm, KVM_LIMIT));
    let mut last = None;
    for (accelerator, limit) in kvm.into_iter().chain([(Accelerator::Emulation, EMULATION_LIMIT)]) {
        println!("check: starting it by {}, at most {limit:?}", accelerator.name());
        let machine = Machine { tree: tree.into(), boot: boot.into(), accelerator };
        let why = match machine.run(&["true".into()], Some(limit)) {
            Ok((Ended::Status(0), _)) => return Ok(accelerator),
            Ok((Ended::Interrupted(signal), _)) => bail!("interrupted by signal {signal}"),
            Ok((ended, console)) => anyhow!("{ended:?}").context(console),
            Err(error) => error,
        };
        println!("check: not by {}: {}", accelerator.name(), why.root_cause());
        last = Some(why);
    }
    Err(last.unwrap_or_else(|| anyhow!("nothing was tried")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(home: &Path, keys: [(&str, &str); 3]) {
        for (name, key) in keys {
            stage::stage(home, name, key, |at| Ok(fs::write(at.join("accelerator"), "KVM")?))
                .unwrap();
        }
    }

    #[test]
    fn a_machine_is_whole_if_each_stage_was_made_from_the_last() {
        let home = tempfile::tempdir().unwrap();
        let refused = |home: &Path| made(home).unwrap_err().to_string().contains("rxe-setup");
        assert!(refused(home.path()));
        stages(home.path(), [("packages", "a\n"), ("boot", "a\nb\n"), ("check", "a\nb\nc\n")]);
        assert_eq!(made(home.path()).unwrap().accelerator, Accelerator::Kvm);
        // A set-up for other packages was interrupted after its first stage.
        stage::stage(home.path(), "packages", "z\n", |_| Ok(())).unwrap();
        assert!(refused(home.path()));
        stage::remove(&home.path().join("packages")).unwrap();
        assert!(refused(home.path()));
    }

    #[test]
    fn a_stage_does_not_outlive_the_one_before_it() {
        let home = tempfile::tempdir().unwrap();
        stages(home.path(), [("packages", "a\n"), ("boot", "a\nb\n"), ("check", "a\nb\nc\n")]);
        forget_after(home.path(), "packages", "a\n", "boot").unwrap();
        assert!(home.path().join("boot").exists());
        stage::remove(&home.path().join("packages")).unwrap();
        forget_after(home.path(), "packages", "a\n", "boot").unwrap();
        assert!(!home.path().join("boot").exists());
    }

    #[test]
    fn a_machine_in_use_is_not_changed() {
        let home = tempfile::tempdir().unwrap();
        let run = lock(home.path(), FlockOperation::NonBlockingLockShared).unwrap();
        let _other = lock(home.path(), FlockOperation::NonBlockingLockShared).unwrap();
        let error = lock(home.path(), FlockOperation::NonBlockingLockExclusive).unwrap_err();
        assert!(format!("{error:#}").contains("at work"), "{error:#}");
        drop((run, _other));
        lock(home.path(), FlockOperation::NonBlockingLockExclusive).unwrap();
    }
}
