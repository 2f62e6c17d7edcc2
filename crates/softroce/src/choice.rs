//! Decides how SoftRoCE is provided on this machine, and explains why. The decision depends only on
//! what was found here and on the user's requests.

use anyhow::{Result, bail};

/// The properties of the machine on which the decision depends.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) arch: String,
    /// The release of the running kernel.
    pub(super) kernel: String,
    pub(super) devices: Vec<Device>,
    pub(super) module: Module,
    /// Whether the user is root or has `sudo`.
    pub(super) may_be_root: bool,
    /// Whether standard input is a terminal, so that the user can be asked.
    pub(super) terminal: bool,
    pub(super) apt: bool,
}

/// An RXE device of the running kernel.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) name: String,
    /// The reason why programs cannot use the device, or `None` if they can.
    pub(super) trouble: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    /// The module is loaded into the running kernel, or built in.
    Loaded,
    /// The module is among the files of the running kernel.
    Loadable,
    Missing,
}

/// The user's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wish {
    pub(super) native: bool,
    pub(super) machine: bool,
    /// Whether the user supplied a kernel and its modules.
    pub(super) kernel: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Use this device, which already exists.
    Present(String),
    /// Load the module into the running kernel, and add a device.
    Native,
    /// Ask the user whether to load the module. If the answer is no, use a virtual machine.
    Ask,
    /// Use a virtual machine.
    Machine,
}

/// Returns the best way to provide SoftRoCE, and the reason for the choice.
pub(super) fn choose(host: &Host, wish: Wish) -> Result<(Way, String)> {
    let usable = host.devices.iter().find(|device| device.trouble.is_none());
    if let Some(device) = usable.filter(|_| !wish.machine) {
        let why = format!("this kernel has {}, which is active", device.name);
        return Ok((Way::Present(device.name.clone()), why));
    }
    if wish.native {
        return native(host);
    }
    let why = why_not_native(host, wish);
    match why {
        None => Ok((Way::Ask, format!("kernel {} can load rdma_rxe", host.kernel))),
        Some(why) => machine(host, wish).map(|()| (Way::Machine, why)),
    }
}

fn native(host: &Host) -> Result<(Way, String)> {
    let kernel = &host.kernel;
    if host.module == Module::Missing {
        bail!(
            "kernel {kernel} has no module rdma_rxe, so --native cannot work here; without it \
             a virtual machine is made. (Ubuntu has the module in linux-modules-extra-{kernel}.)"
        );
    }
    if !host.may_be_root {
        bail!(
            "--native loads a module, which needs root, and this machine has no `sudo`; run it as root"
        );
    }
    Ok((Way::Native, "--native was given".to_owned()))
}

/// Returns the reason why the running kernel's SoftRoCE cannot be used. `None` if it can, but the
/// user must be asked first.
fn why_not_native(host: &Host, wish: Wish) -> Option<String> {
    if wish.machine {
        return Some("--machine was given".to_owned());
    }
    if wish.kernel {
        return Some("--kernel was given".to_owned());
    }
    let broken = host.devices.iter().find_map(|Device { name, trouble }| {
        Some(format!("this kernel has {name}, but {}", trouble.as_ref()?))
    });
    if broken.is_some() {
        return broken;
    }
    let kernel = &host.kernel;
    match (host.module, host.may_be_root, host.terminal) {
        (Module::Missing, ..) => Some(format!("kernel {kernel} has no rdma_rxe")),
        (_, false, _) => Some(format!("loading rdma_rxe into kernel {kernel} needs root")),
        (_, true, false) => Some(format!(
            "kernel {kernel} can load rdma_rxe, but there is no terminal to ask on; --native does it"
        )),
        (_, true, true) => None,
    }
}

/// Checks that a virtual machine can be built here.
pub(super) fn machine(host: &Host, wish: Wish) -> Result<()> {
    if host.arch != "x86_64" {
        bail!(
            "the virtual machine supports only x86_64, and this is {}; load rdma_rxe on a \
             kernel that has it (`cargo xtask rxe-setup --native`), or use the software device",
            host.arch
        );
    }
    if !host.apt && !wish.kernel {
        bail!(
            "kernel packages are fetched with apt-get, which this machine lacks; give a kernel \
             that has rdma_rxe: --kernel /boot/vmlinuz-VERSION --modules /lib/modules/VERSION"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a container on a kernel without RDMA: it has no device and no module, runs as root,
    /// and has no terminal.
    fn host() -> Host {
        Host {
            arch: "x86_64".to_owned(),
            kernel: "6.18".to_owned(),
            devices: Vec::new(),
            module: Module::Missing,
            may_be_root: true,
            terminal: false,
            apt: true,
        }
    }

    fn device(trouble: Option<&str>) -> Vec<Device> {
        vec![Device { name: "rxe7".to_owned(), trouble: trouble.map(str::to_owned) }]
    }

    const NATIVE: Wish = Wish { native: true, machine: false, kernel: false };
    const MACHINE: Wish = Wish { native: false, machine: true, kernel: false };
    const KERNEL: Wish = Wish { native: false, machine: false, kernel: true };

    fn refusal(host: &Host, wish: Wish) -> String {
        choose(host, wish).unwrap_err().to_string()
    }

    #[test]
    fn an_existing_device_is_used_unless_a_machine_is_requested() {
        let host = Host { devices: device(None), module: Module::Loaded, ..host() };
        for wish in [Wish::default(), NATIVE, KERNEL] {
            let (way, why) = choose(&host, wish).unwrap();
            assert_eq!(way, Way::Present("rxe7".to_owned()));
            assert!(why.contains("rxe7"), "{why}");
        }
        assert_eq!(choose(&host, MACHINE).unwrap().0, Way::Machine);
    }

    #[test]
    fn a_device_that_cannot_be_used_is_the_reason_for_a_machine() {
        let host = Host { devices: device(Some("its port is down")), ..host() };
        let (way, why) = choose(&host, Wish::default()).unwrap();
        assert_eq!(way, Way::Machine);
        assert!(why.contains("rxe7") && why.contains("its port is down"), "{why}");
    }

    #[test]
    fn loading_a_module_needs_a_terminal_and_root() {
        for module in [Module::Loadable, Module::Loaded] {
            let host = Host { module, terminal: true, ..host() };
            assert_eq!(choose(&host, Wish::default()).unwrap().0, Way::Ask);
            assert_eq!(choose(&host, NATIVE).unwrap().0, Way::Native);
            assert_eq!(choose(&host, MACHINE).unwrap().0, Way::Machine);
            assert_eq!(choose(&host, KERNEL).unwrap().0, Way::Machine);
            let nobody = Host { terminal: false, ..host.clone() };
            let (way, why) = choose(&nobody, Wish::default()).unwrap();
            assert!(way == Way::Machine && why.contains("--native"), "{way:?} {why}");
            let user = Host { may_be_root: false, ..host };
            let (way, why) = choose(&user, Wish::default()).unwrap();
            assert!(way == Way::Machine && why.contains("needs root"), "{way:?} {why}");
            let why = refusal(&user, NATIVE);
            assert!(why.contains("needs root") && why.contains("sudo"), "{why}");
        }
    }

    #[test]
    fn a_kernel_without_the_module_leads_to_a_machine() {
        let host = Host { terminal: true, ..host() };
        let (way, why) = choose(&host, Wish::default()).unwrap();
        assert!(way == Way::Machine && why.contains("6.18 has no rdma_rxe"), "{way:?} {why}");
        let why = refusal(&host, NATIVE);
        assert!(why.contains("6.18") && why.contains("virtual machine"), "{why}");
    }

    #[test]
    fn another_architecture_supports_only_a_native_device() {
        let arm = Host { arch: "aarch64".to_owned(), ..host() };
        let why = refusal(&arm, Wish::default());
        assert!(why.contains("aarch64") && why.contains("--native"), "{why}");
        let able = Host { module: Module::Loadable, ..arm };
        assert_eq!(choose(&able, NATIVE).unwrap().0, Way::Native);
    }

    #[test]
    fn without_apt_a_kernel_must_be_given() {
        let host = Host { apt: false, ..host() };
        let why = refusal(&host, Wish::default());
        assert!(why.contains("--kernel") && why.contains("--modules"), "{why}");
        assert_eq!(choose(&host, KERNEL).unwrap().0, Way::Machine);
    }
}
