//! Builds the virtual machine in stages. Each stage depends on the previous one.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::machine::{Accelerator, Ended, Machine};
use super::packages::{self, GivenKernel};
use super::{host, initramfs, stage};

const KVM_LIMIT: Duration = Duration::from_secs(20);
const EMULATION_LIMIT: Duration = Duration::from_secs(180);

/// Builds the stages of the machine that are missing or out of date. The last stage starts the
/// machine once to verify that it works.
pub(super) fn make(home: &Path, given: Option<&GivenKernel>, install: bool) -> Result<Machine> {
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

/// Removes the stage `next` if the stage before it, `name`, must be rebuilt.
fn forget_after(home: &Path, name: &str, key: &str, next: &str) -> Result<()> {
    if stage::is_made(&home.join(name), key) { Ok(()) } else { stage::remove(&home.join(next)) }
}

/// Returns the machine that `make` has built. Returns an error if a stage is missing.
pub(super) fn made(home: &Path) -> Result<Machine> {
    let manifest = |name| stage::manifest(&home.join(name));
    let stages = [manifest("check"), manifest("boot"), manifest("packages")];
    // The key of each stage starts with the key of the stage before it.
    let whole = stages.windows(2).all(|two| match two {
        [Some(later), Some(earlier)] => later.starts_with(earlier.as_str()),
        _ => false,
    });
    ensure!(
        whole,
        "SoftRoCE is not set up, or the set-up is incomplete; run `cargo xtask rxe-setup`"
    );
    let accelerator = fs::read_to_string(home.join("check/accelerator"))?;
    Ok(Machine {
        tree: home.join("packages"),
        boot: home.join("boot"),
        accelerator: Accelerator::of(&accelerator).context("an unknown accelerator")?,
        siw: None,
    })
}

/// Starts the machine to verify that it works. Returns the fastest accelerator with which it does.
fn check(tree: &Path, boot: &Path) -> Result<Accelerator> {
    let kvm = host::may_use_kvm().then_some((Accelerator::Kvm, KVM_LIMIT));
    let mut last = None;
    for (accelerator, limit) in kvm.into_iter().chain([(Accelerator::Emulation, EMULATION_LIMIT)]) {
        println!("check: starting the machine by {}, at most {limit:?}", accelerator.name());
        let machine = Machine { tree: tree.into(), boot: boot.into(), accelerator, siw: None };
        let why = match machine.run(&["true".into()], Some(limit)) {
            Ok((Ended::Status(0), _)) => return Ok(accelerator),
            Ok((Ended::Interrupted(signal), _)) => bail!("interrupted by signal {signal}"),
            Ok((ended, console)) => anyhow!("{ended:?}").context(console),
            Err(error) => error,
        };
        println!("check: not by {}: {}", accelerator.name(), why.root_cause());
        last = Some(why);
    }
    Err(last.unwrap_or_else(|| anyhow!("no accelerator was tried")))
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
    fn a_machine_is_complete_if_each_stage_was_made_from_the_previous_one() {
        let home = tempfile::tempdir().unwrap();
        let refused = |home: &Path| made(home).unwrap_err().to_string().contains("rxe-setup");
        assert!(refused(home.path()));
        stages(home.path(), [("packages", "a\n"), ("boot", "a\nb\n"), ("check", "a\nb\nc\n")]);
        assert_eq!(made(home.path()).unwrap().accelerator, Accelerator::Kvm);
        // A set-up for different packages was interrupted after its first stage.
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
}
