//! The facts about a machine: limits, huge pages, cores, IOMMU, versions.

use std::env;

use super::facts::{Cores, Fact, HugePages, Iommu, Machine, Memlock};
use super::root::Root;
use crate::output::printable;

/// The bit for `CAP_IPC_LOCK` in a capability set (linux/capability.h).
const CAP_IPC_LOCK: u64 = 1 << 14;

pub(crate) fn machine(root: &Root, sysroot: Option<String>) -> Machine {
    let options = root.text("proc/cmdline").map(|line| {
        let is_about_it = |word: &&str| word.contains("iommu") || word.starts_with("pci=");
        line.split_whitespace().filter(is_about_it).map(str::to_owned).collect()
    });
    Machine {
        kernel: root.text("proc/sys/kernel/osrelease"),
        rdma_core: rdma_core(root),
        sysroot,
        memlock: memlock(root),
        huge_pages: huge_pages(root),
        cores: cores(root),
        iommu: Iommu { units: root.names("sys/class/iommu"), options },
        environment: if root.is_copy() { Vec::new() } else { environment() },
    }
}

fn memlock(root: &Root) -> Fact<Memlock> {
    let limits = root.text("proc/self/limits");
    let capabilities = root.text("proc/self/status").and_then(|status| {
        let text = line(&status, "CapEff:").map(|text| u64::from_str_radix(text, 16));
        or_unknown(text.and_then(Result::ok), "/proc/self/status has no line `CapEff`")
    });
    limits.and_then(|limits| {
        let limit = line(&limits, "Max locked memory").and_then(|line| {
            match line.split_whitespace().next()? {
                "unlimited" => Some(None),
                bytes => bytes.parse().ok().map(Some),
            }
        });
        let limit = or_unknown(limit, "/proc/self/limits has no line `Max locked memory`");
        limit.and_then(|limit| {
            capabilities.map(|set| Memlock { limit, is_lifted: set & CAP_IPC_LOCK != 0 })
        })
    })
}

fn huge_pages(root: &Root) -> Fact<HugePages> {
    root.text("proc/meminfo").and_then(|text| {
        let number = |name| line(&text, name)?.split_whitespace().next()?.parse().ok();
        let pages = || {
            let (total, free) = (number("HugePages_Total:")?, number("HugePages_Free:")?);
            Some(HugePages { total, free, size_kib: number("Hugepagesize:")? })
        };
        or_unknown(pages(), "/proc/meminfo has no lines about huge pages")
    })
}

fn cores(root: &Root) -> Fact<Cores> {
    let nodes: Vec<_> = root
        .names("sys/devices/system/node")
        .iter()
        .filter_map(|name| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            let cores = root.text(&format!("sys/devices/system/node/{name}/cpulist"));
            Some((number, cores.value()?.clone()))
        })
        .collect();
    let allowed = root.text("proc/self/status").and_then(|status| {
        let list = line(&status, "Cpus_allowed_list:").map(str::to_owned);
        or_unknown(list, "/proc/self/status has no line `Cpus_allowed_list`")
    });
    // The processor is the 39th field (`man 5 proc_pid_stat`). The second field is in parentheses
    // and may contain spaces.
    let current = root.text("proc/self/stat").and_then(|stat| {
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
        let field = rest.and_then(|rest| rest.split_whitespace().nth(36)?.parse().ok());
        or_unknown(field, "/proc/self/stat does not name the processor")
    });
    current.and_then(|current| allowed.map(|allowed| Cores { current, allowed, nodes }))
}

/// Returns the version of rdma-core, derived from the name of the library that this process has
/// loaded. For example, `libibverbs.so.1.14.44.0` belongs to rdma-core 44.
fn rdma_core(root: &Root) -> Fact<String> {
    if root.is_copy() {
        return Fact::Unknown("--sysroot".to_owned());
    }
    let Ok(maps) = root.bytes("proc/self/maps") else {
        return Fact::Unknown("/proc/self/maps cannot be read".to_owned());
    };
    let maps = String::from_utf8_lossy(&maps);
    let Some(name) =
        maps.lines().find_map(|line| line.rsplit_once("/libibverbs.so.").map(|(_, name)| name))
    else {
        return Fact::Unknown("libibverbs is not installed".to_owned());
    };
    match name.split('.').nth(2) {
        Some(version) => Fact::Value(format!("{version} (libibverbs.so.{name})")),
        None => Fact::Unknown(format!("the library's file is libibverbs.so.{name}")),
    }
}

/// Returns the environment variables that affect this stack.
fn environment() -> Vec<String> {
    let variables = env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_owned();
        let is_ours = name.starts_with("RDMA_") && !name.starts_with("RDMA_TEST_");
        is_ours.then(|| printable(&format!("{name}={}", shown(&name, &value.to_string_lossy()))))
    });
    let mut variables: Vec<_> = variables.collect();
    variables.sort();
    variables
}

/// Returns the value of a variable for findings and reports, which do not contain secrets.
fn shown<'v>(name: &str, value: &'v str) -> &'v str {
    if name == "RDMA_GROUP_SECRET" { "(not shown)" } else { value }
}

/// Returns the rest of the first line that begins with `name`.
fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn or_unknown<T>(value: Option<T>, reason: &str) -> Fact<T> {
    value.map_or_else(|| Fact::Unknown(reason.to_owned()), Fact::Value)
}

/// Returns true if a list of cores in the kernel's format, such as `0-3,8`, contains this core.
pub(crate) fn has_core(list: &str, core: u32) -> bool {
    ranges(list).any(|(first, last)| (first..=last).contains(&core))
}

/// Returns true if two lists of cores have a core in common.
pub(crate) fn overlap(a: &str, b: &str) -> bool {
    ranges(a).any(|(first, last)| ranges(b).any(|other| first <= other.1 && other.0 <= last))
}

fn ranges(list: &str) -> impl Iterator<Item = (u32, u32)> {
    list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_ranges() {
        assert!(has_core("0-3,8", 2) && has_core("0-3,8", 8) && !has_core("0-3,8", 4));
        assert!(overlap("0-3,8", "7-9") && !overlap("0-3,8", "4-7"));
        assert!(!has_core("", 0) && !overlap("x-y,-", "0-9") && !has_core("9-0", 5));
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(shown("RDMA_GROUP_SECRET", "swordfish"), "(not shown)");
        assert_eq!(shown("RDMA_MASTER", "host:7"), "host:7");
    }

    #[test]
    fn this_machine_has_known_limits_and_cores() {
        let machine = machine(&Root::of_this_machine().unwrap(), None);
        let cores = machine.cores.value().unwrap();
        assert!(has_core(&cores.allowed, cores.current), "{cores:?}");
        assert!(machine.memlock.value().is_some() && machine.kernel.value().is_some());
    }
}
