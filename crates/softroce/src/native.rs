//! SoftRoCE in the running kernel. It is added in steps. Each step is recorded before it is
//! executed, so that exactly the executed steps can be undone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::host;
use super::tools::{as_root, done, line, on_path_or};

const DEVICE: &str = "rxe0";
const INTERFACE: &str = "rxe-dummy0";

/// A step, and the command that undoes it. That command runs only if the file or folder `trace`
/// exists.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: Vec<String>,
    undo: Option<Undo>,
}

#[derive(Debug, PartialEq, Eq)]
struct Undo {
    trace: PathBuf,
    command: Vec<String>,
}

/// Loads the module, and adds the device to `netdev` or, if that is not given, to a new dummy
/// interface.
pub(super) fn add(home: &Path, netdev: Option<&str>) -> Result<()> {
    let notes = notes(home);
    ensure!(
        !notes.exists(),
        "an earlier set-up is still in place; run `cargo xtask rxe-teardown` first"
    );
    for name in ["ip", "rdma", "modprobe"] {
        ensure!(
            host::on_path(name).is_some(),
            "cannot find the program {name}; Debian and Ubuntu: apt-get install iproute2 kmod rdma-core"
        );
    }
    let taken = Path::new("/sys/class/infiniband").join(DEVICE);
    ensure!(!taken.exists(), "the device {DEVICE} exists already, but cannot be used");
    if let Some(netdev) = netdev {
        let at = Path::new("/sys/class/net").join(netdev);
        ensure!(at.exists(), "no network interface {netdev}; `ip link` lists them");
        println!("{DEVICE} on {netdev} accepts RoCE packets from any host that reaches it");
    }
    let modules = modules_to_load(netdev.is_none())?;
    let steps = steps(&modules, netdev);
    let mut undone: Vec<Value> = Vec::new();
    for step in &steps {
        if let Some(undo) = &step.undo {
            undone.insert(0, json!({ "trace": undo.trace, "command": undo.command }));
            fs::write(&notes, serde_json::to_string_pretty(&undone)?)?;
        }
        if let Err(error) = take(&step.command) {
            remove(home)?;
            return Err(error.context("this was undone"));
        }
    }
    if let Err(error) = wait_for_device() {
        remove(home)?;
        return Err(error.context("this was undone"));
    }
    Ok(())
}

/// Undoes what `add` has done. Returns false if there is nothing to undo.
pub(super) fn remove(home: &Path) -> Result<bool> {
    let notes = notes(home);
    let Ok(text) = fs::read_to_string(&notes) else { return Ok(false) };
    let steps: Value = serde_json::from_str(&text).with_context(|| notes.display().to_string())?;
    for step in steps.as_array().into_iter().flatten() {
        let trace = step["trace"].as_str().unwrap_or_default();
        let words = step["command"].as_array().into_iter().flatten();
        let words: Vec<_> = words.filter_map(Value::as_str).map(str::to_owned).collect();
        if Path::new(trace).exists() {
            take(&words).with_context(|| {
                format!(
                    "cannot undo a step; the remaining steps are in {}, run this again",
                    notes.display()
                )
            })?;
        }
    }
    fs::remove_file(&notes)?;
    Ok(true)
}

fn notes(home: &Path) -> PathBuf {
    home.join("native.json")
}

fn take(words: &[String]) -> Result<()> {
    let (program, rest) = words.split_first().context("an empty step")?;
    let mut command = as_root(program);
    command.args(rest);
    println!("+ {}", line(&command));
    done(&mut command).map(drop)
}

/// Returns the modules that must be loaded. Each module comes after those on which it depends.
fn modules_to_load(dummy: bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    // Some kernels need `crc32_generic` to create the device. In others it is built in or does not
    // exist.
    for (module, needed) in [("crc32_generic", false), ("dummy", dummy), ("rdma_rxe", true)] {
        let mut command = Command::new(on_path_or("modprobe"));
        let text = done(command.args(["--show-depends", module]));
        match text {
            Ok(text) => found.extend(modules(&text)),
            Err(error) if needed => return Err(error),
            Err(_) => {}
        }
    }
    let mut fresh = Vec::new();
    for module in found {
        let loaded = Path::new("/sys/module").join(&module).exists();
        if !loaded && !fresh.contains(&module) {
            fresh.push(module);
        }
    }
    Ok(fresh)
}

/// Returns the names of the modules that `modprobe --show-depends` printed, as the kernel spells
/// them.
fn modules(text: &str) -> impl Iterator<Item = String> {
    let files = text.lines().filter_map(|line| line.strip_prefix("insmod ")?.split(' ').next());
    let names = files.filter_map(|file| file.rsplit('/').next()?.split('.').next());
    names.map(|name| name.replace('-', "_"))
}

fn steps(modules: &[String], netdev: Option<&str>) -> Vec<Step> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let step = |line: &str, undo: Option<(&str, &str)>| Step {
        command: words(line),
        undo: undo.map(|(trace, line)| Undo { trace: trace.into(), command: words(line) }),
    };
    let mut steps: Vec<_> = modules
        .iter()
        .map(|name| {
            let trace = format!("/sys/module/{name}");
            step(&format!("modprobe {name}"), Some((&trace, &format!("rmmod {name}"))))
        })
        .collect();
    if netdev.is_none() {
        let trace = format!("/sys/class/net/{INTERFACE}");
        let undo = format!("ip link delete {INTERFACE}");
        steps.push(step(&format!("ip link add {INTERFACE} type dummy"), Some((&trace, &undo))));
        // The address is from a range that is reserved for network tests and that no host uses. The
        // MTU is large enough for a path MTU of 4096.
        steps.push(step(&format!("ip address add 198.18.0.1/32 dev {INTERFACE}"), None));
        steps.push(step(&format!("ip link set {INTERFACE} mtu 4200 up"), None));
    }
    let netdev = netdev.unwrap_or(INTERFACE);
    let trace = format!("/sys/class/infiniband/{DEVICE}");
    let undo = format!("rdma link delete {DEVICE}");
    let add = format!("rdma link add {DEVICE} type rxe netdev {netdev}");
    steps.push(step(&add, Some((&trace, &undo))));
    steps
}

/// Waits until the device is usable. This polls, because there is no simple notification when a
/// port becomes active.
fn wait_for_device() -> Result<()> {
    let mut trouble = "it did not appear".to_owned();
    for _ in 0..50 {
        let devices = host::look().devices;
        match devices.into_iter().find(|device| device.name == DEVICE) {
            Some(device) if device.trouble.is_none() => return Ok(()),
            Some(device) => trouble = device.trouble.unwrap_or_default(),
            None => {}
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("{DEVICE} was added but cannot be used: {trouble}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(home: &Path, steps: &[(&Path, &str)]) {
        let steps: Vec<_> = steps
            .iter()
            .map(|(trace, file)| json!({ "trace": trace, "command": ["touch", file] }))
            .collect();
        fs::write(notes(home), serde_json::to_string(&steps).unwrap()).unwrap();
    }

    #[test]
    fn every_adding_step_has_a_removing_command() {
        let dummy = steps(&["rdma_rxe".to_owned()], None);
        let undone: Vec<_> = dummy.iter().filter_map(|step| step.undo.as_ref()).collect();
        let undone: Vec<_> = undone.iter().map(|undo| undo.command.join(" ")).collect();
        assert_eq!(
            undone,
            ["rmmod rdma_rxe", "ip link delete rxe-dummy0", "rdma link delete rxe0"]
        );
        let real = steps(&[], Some("eth0"));
        assert_eq!(real.len(), 1, "a real interface is not changed: {real:?}");
        assert_eq!(real[0].command.join(" "), "rdma link add rxe0 type rxe netdev eth0");
    }

    #[test]
    fn modules_are_named_as_the_kernel_spells_them() {
        let text = "builtin a\ninsmod /lib/x/ib-core.ko.zst \ninsmod /lib/x/rdma_rxe.ko y=1\n";
        assert_eq!(modules(text).collect::<Vec<_>>(), ["ib_core", "rdma_rxe"]);
    }

    #[test]
    fn only_completed_steps_are_undone_and_only_once() {
        if !host::is_root() {
            return; // the steps would ask for a password
        }
        let home = tempfile::tempdir().unwrap();
        assert!(!remove(home.path()).unwrap());
        let (here, gone) = (home.path().join("here"), home.path().join("gone"));
        let [did, did_not] = ["did", "did_not"].map(|name| home.path().join(name));
        fs::write(&here, "").unwrap();
        note(home.path(), &[(&here, did.to_str().unwrap()), (&gone, did_not.to_str().unwrap())]);
        assert!(remove(home.path()).unwrap());
        assert!(did.exists() && !did_not.exists());
        assert!(!remove(home.path()).unwrap());
    }

    #[test]
    fn steps_that_cannot_be_undone_stay_recorded() {
        if !host::is_root() {
            return; // the steps would ask for a password
        }
        let home = tempfile::tempdir().unwrap();
        note(home.path(), &[(home.path(), "/no/such/folder/file")]);
        let error = format!("{:#}", remove(home.path()).unwrap_err());
        assert!(error.contains("run this again") && notes(home.path()).exists(), "{error}");
    }
}
