//! Finds this machine's devices, modules, rights and programs.

use std::fs::{self, File, OpenOptions};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use super::choice::{Device, Host, Module};

/// The module of SoftRoCE.
const RXE: &str = "rdma_rxe";

/// Inspects the machine. Changes nothing.
pub(super) fn look() -> Host {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Host {
        arch: std::env::consts::ARCH.to_owned(),
        devices: devices(Path::new("/sys"), Path::new("/dev")),
        module: module(Path::new("/"), &kernel),
        may_be_root: is_root() || on_path("sudo").is_some(),
        terminal: std::io::stdin().is_terminal(),
        apt: ["apt-get", "apt-cache", "dpkg-deb", "tar"].iter().all(|name| on_path(name).is_some()),
        kernel,
    }
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the path of a program. Also looks in the `sbin` folders, which may be missing from the
/// user's `PATH`.
pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|at| at.join(name)).find(|file| file.is_file())
}

/// Returns the RXE devices. Only these have a file `parent`, which names their network interface.
fn devices(sys: &Path, dev: &Path) -> Vec<Device> {
    let all = entries(&sys.join("class/infiniband"));
    let rxe = all.into_iter().filter(|at| at.join("parent").is_file());
    let found = rxe.map(|at| Device { name: name(&at), trouble: trouble(&at, sys, dev) });
    found.collect()
}

/// Returns the reason why programs cannot use the device at `at`, or `None` if they can.
fn trouble(at: &Path, sys: &Path, dev: &Path) -> Option<String> {
    let state = fs::read_to_string(at.join("ports/1/state")).unwrap_or_default();
    if !state.contains("ACTIVE") {
        return Some(format!("its port is `{}`", state.trim()));
    }
    let nodes = entries(&sys.join("class/infiniband_verbs"));
    let node = nodes.into_iter().find(|node| {
        fs::read_to_string(node.join("ibdev")).is_ok_and(|device| device.trim() == name(at))
    });
    let Some(node) = node else { return Some("the module ib_uverbs is not loaded".to_owned()) };
    let file = dev.join("infiniband").join(name(&node));
    let opened = OpenOptions::new().read(true).write(true).open(&file);
    opened.err().map(|error| format!("{} cannot be opened: {error}", file.display()))
}

/// Looks for `rdma_rxe` in the running kernel and among its modules. All paths are below `root`.
fn module(root: &Path, kernel: &str) -> Module {
    let folder = root.join("lib/modules").join(kernel);
    if root.join("sys/module/rdma_rxe").exists() || lists(&folder, "modules.builtin", RXE) {
        Module::Loaded
    } else if lists(&folder, "modules.dep", RXE) {
        Module::Loadable
    } else {
        Module::Missing
    }
}

/// Returns true if the kernel whose modules are in `folder` has `rdma_rxe`, either built in or as a
/// module.
pub(super) fn has_rxe(folder: &Path) -> bool {
    has_module(folder, RXE)
}

/// Returns true if the kernel whose modules are in `folder` has this module, either built in or as
/// a file.
pub(super) fn has_module(folder: &Path, module: &str) -> bool {
    ["modules.dep", "modules.builtin"].iter().any(|list| lists(folder, list, module))
}

fn lists(folder: &Path, list: &str, module: &str) -> bool {
    let text = fs::read_to_string(folder.join(list)).unwrap_or_default();
    let files = text.lines().filter_map(|line| line.split(':').next());
    let mut names = files.filter_map(|file| file.rsplit('/').next());
    names.any(|file| file.strip_prefix(module).is_some_and(|end| end.starts_with(".ko")))
}

/// Returns true if this user may open `/dev/kvm`. A machine with KVM may still fail to start.
pub(super) fn may_use_kvm() -> bool {
    File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Returns the value of a field of `/etc/os-release`.
pub(super) fn os_release(field: &str) -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix('='));
    value.unwrap_or_default().trim_matches('"').to_owned()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    all.sort();
    all
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_device_is_rxe_if_it_has_a_parent_and_usable_if_active_and_open() {
        let root = tempfile::tempdir().unwrap();
        let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
        assert!(devices(&sys, &dev).is_empty());
        let state = "sys/class/infiniband/rxe0/ports/1/state";
        let parent = ("sys/class/infiniband/rxe0/parent", "eth0\n");
        write(root.path(), &[("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")]);
        write(root.path(), &[parent, (state, "1: DOWN\n")]);
        let trouble = |part: &str| {
            let found = devices(&sys, &dev);
            assert!(found.len() == 1 && found[0].name == "rxe0", "{found:?}");
            assert!(found[0].trouble.as_ref().unwrap().contains(part), "{found:?}");
        };
        trouble("1: DOWN");
        write(root.path(), &[(state, "4: ACTIVE\n")]);
        trouble("ib_uverbs");
        write(root.path(), &[("sys/class/infiniband_verbs/uverbs3/ibdev", "rxe0\n")]);
        trouble("uverbs3 cannot be opened");
        write(root.path(), &[("dev/infiniband/uverbs3", "")]);
        assert_eq!(devices(&sys, &dev)[0].trouble, None);
    }

    #[test]
    fn a_module_is_found_compressed_or_not_and_built_in() {
        let root = tempfile::tempdir().unwrap();
        let at = |root: &Path| module(root, "6.1");
        write(root.path(), &[("lib/modules/6.1/modules.dep", "kernel/x/rdma_rxe_x.ko: a.ko\n")]);
        assert_eq!(at(root.path()), Module::Missing);
        for line in ["kernel/x/rdma_rxe.ko: a.ko", "updates/rdma_rxe.ko.zst:"] {
            write(root.path(), &[("lib/modules/6.1/modules.dep", line)]);
            assert_eq!(at(root.path()), Module::Loadable, "{line}");
            assert!(has_rxe(&root.path().join("lib/modules/6.1")));
            assert_eq!(module(root.path(), "6.2"), Module::Missing);
        }
        write(root.path(), &[("lib/modules/6.1/modules.builtin", "kernel/x/rdma_rxe.ko\n")]);
        assert_eq!(at(root.path()), Module::Loaded);
    }
}
