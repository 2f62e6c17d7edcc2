//! Findings about the machine: memory, versions, the environment.

use super::facts::{Fact, Facts, Kind, Machine};
use super::finding::{Finding, Severity};

/// The limit on locked memory, in bytes, below which only small programs are expected to run.
const ENOUGH_LOCKED: u64 = 64 << 20;

const LIMIT_CURE: &str = "raise it: `ulimit -l unlimited`, `* - memlock unlimited` in /etc/security/limits.d, \
    `LimitMEMLOCK=infinity` of a systemd service, or `docker run --ulimit memlock=-1`";

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    let machine = &facts.machine;
    let pins = facts.devices.iter().any(|device| device.kind == Kind::Kernel);
    let mut findings = vec![memlock(machine, pins), huge_pages(machine), rdma_core(machine, pins)];
    findings.extend(environment(machine));
    findings
}

fn memlock(machine: &Machine, pins: bool) -> Finding {
    let found = |severity, text| Finding::new("memlock", severity, text);
    let memlock = match &machine.memlock {
        Fact::Unknown(reason) => return found(Severity::Unknown, reason.clone()),
        Fact::Value(memlock) => memlock,
    };
    let Some(limit) = memlock.limit else {
        return found(Severity::Ok, "RLIMIT_MEMLOCK is unlimited".to_owned());
    };
    let text = format!("RLIMIT_MEMLOCK is {}", size(limit));
    if memlock.is_lifted {
        return found(Severity::Ok, text + ", and does not count: the process has CAP_IPC_LOCK");
    }
    if !pins {
        return found(Severity::Ok, text + "; software devices lock no memory");
    }
    let severity = if limit < ENOUGH_LOCKED { Severity::Warning } else { Severity::Note };
    let fails = "; registering more memory fails with ENOMEM, and queues count, too";
    found(severity, text + fails).cure(LIMIT_CURE)
}

fn huge_pages(machine: &Machine) -> Finding {
    let pages = match &machine.huge_pages {
        Fact::Unknown(reason) => {
            return Finding::new("huge-pages", Severity::Unknown, reason.clone());
        }
        Fact::Value(pages) => pages,
    };
    let size = size(pages.size_kib.saturating_mul(1024));
    let text = format!("{} of {} huge pages of {size} are free", pages.free, pages.total);
    if pages.free > 0 {
        return Finding::new("huge-pages", Severity::Ok, text);
    }
    Finding::new("huge-pages", Severity::Note, text + "; regions on huge pages fail").cure(
        "only if a program wants them: write their number to /proc/sys/vm/nr_hugepages \
         (large regions on them need fewer entries of the NIC's table)",
    )
}

fn rdma_core(machine: &Machine, is_needed: bool) -> Finding {
    let text = format!("rdma-core {}, Linux {}", machine.rdma_core, machine.kernel);
    let is_known = machine.rdma_core.value().is_some();
    match (is_known, is_needed) {
        (true, _) => Finding::new("versions", Severity::Ok, text),
        (false, true) if machine.sysroot.is_none() => {
            Finding::new("versions", Severity::Error, text).cure(
                "install rdma-core's libraries (Debian: libibverbs1 ibverbs-providers, Fedora: libibverbs)",
            )
        }
        (false, _) => Finding::new("versions", Severity::Unknown, text),
    }
}

/// The environment variables that programs of this stack read.
const VARIABLES: [&str; 27] = [
    "RDMA_DEVICE",
    "RDMA_DROPIN_FILES",
    "RDMA_DROPIN_STATS",
    "RDMA_GID_INDEX",
    "RDMA_GID_NETWORK",
    "RDMA_GROUP_SECRET",
    "RDMA_LIBIBVERBS",
    "RDMA_LIBRDMACM",
    "RDMA_LOCAL_WORLD_SIZE",
    "RDMA_MASTER",
    "RDMA_PROVIDERS",
    "RDMA_RANK",
    "RDMA_RELAXED_ORDERING",
    "RDMA_SERVICE_LEVEL",
    "RDMA_SOFT_COUNTERS",
    "RDMA_SOFT_DEVICES",
    "RDMA_SOFT_DIRECTORY",
    "RDMA_SOFT_FAULTS",
    "RDMA_SOFT_LIKE",
    "RDMA_SOFT_LISTEN",
    "RDMA_SOFT_MAPPED",
    "RDMA_SOFT_PCAP",
    "RDMA_SOFT_PEERS",
    "RDMA_SOFT_PEER_LIMIT",
    "RDMA_SOFT_RETRY_TIME",
    "RDMA_TRAFFIC_CLASS",
    "RDMA_WORLD_SIZE",
];

fn environment(machine: &Machine) -> Vec<Finding> {
    let is_read = |variable: &&String| {
        variable.split_once('=').is_some_and(|(name, _)| VARIABLES.contains(&name))
    };
    let (read, others): (Vec<_>, Vec<_>) = machine.environment.iter().partition(is_read);
    let list = |variables: &[&String]| {
        variables.iter().map(|variable| variable.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut findings = Vec::new();
    if !read.is_empty() {
        let text = format!("set, and followed by programs: {}", list(&read));
        let finding = Finding::new("environment", Severity::Note, text);
        findings.push(finding.cure("unset what is not meant for this machine"));
    }
    if !others.is_empty() {
        let text = format!("set, but read by no program of this library: {}", list(&others));
        let cure = format!("check the spelling; the variables are {}", VARIABLES.join(", "));
        findings.push(Finding::new("environment", Severity::Warning, text).cure(cure));
    }
    findings
}

/// Formats a number of bytes in the largest unit that divides it without a remainder.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}
