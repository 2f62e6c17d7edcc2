//! Findings about a device: permissions, versions, NUMA node, IOMMU, PCI, features.

use super::facts::{Device, Fact, Iommu, Kind, Machine, Pci};
use super::finding::{Finding, Severity};
use super::machine::{has_core, overlap};
use super::root::may_use;

pub(crate) fn findings(machine: &Machine, device: &Device) -> Vec<Finding> {
    let mut findings = Vec::new();
    if device.kind == Kind::Kernel {
        findings.extend(access(machine, device));
        findings.push(driver(device));
        findings.push(numa(machine, device));
        findings.push(iommu(&machine.iommu, device));
        findings.extend(pci_link(&device.pci));
        findings.push(relaxed_ordering(&device.pci));
    } else {
        let text = "a software device: it has no NUMA node, IOMMU, PCI link, PFC or driver";
        findings.push(Finding::new("device", Severity::Ok, text));
    }
    findings.extend(device.queue_pair_error.as_ref().map(|error| {
        let text = format!("a queue pair with the usual options cannot be created: {error}");
        Finding::new("queue-pair", Severity::Error, text)
            .cure("see the other findings: a variable RDMA_*, a port without GIDs, locked memory")
    }));
    findings.push(features(device));
    findings.into_iter().map(|finding| finding.about(&device.name)).collect()
}

fn access(machine: &Machine, device: &Device) -> Option<Finding> {
    if machine.sysroot.is_some() {
        return None;
    }
    let path = device.file.value().map(|file| format!("/dev/infiniband/{file}"));
    let denied = path.as_ref().and_then(|path| may_use(path).err().map(|error| (path, error)));
    Some(match (denied, &device.open_error) {
        (Some((path, error)), _) => {
            Finding::new("access", Severity::Error, format!("{path}: {error}")).cure(
                "add the user to the group of the file, or a udev rule such as KERNEL==\"uverbs*\", MODE=\"0666\"; if \
                 the file is missing, `modprobe ib_uverbs`; in a container `docker run --device=/dev/infiniband`",
            )
        }
        (None, Some(error)) => Finding::new("access", Severity::Error, error.clone())
            .cure("see the kernel's log (`dmesg`), and whether rdma-core is as new as the driver"),
        (None, None) => Finding::new("access", Severity::Ok, "the device can be opened"),
    })
}

fn driver(device: &Device) -> Finding {
    let Device { driver, driver_version, firmware, hardware, board, .. } = device;
    // The list of facts contains the reasons why these values are unknown. Only the firmware's
    // reason is repeated here.
    let or_unknown = |fact: &Fact<String>| fact.value().cloned().unwrap_or("unknown".to_owned());
    let version = driver_version.value().map_or(String::new(), |version| format!(" {version}"));
    let [driver, hardware, board] = [driver, hardware, board].map(or_unknown);
    let text = format!(
        "driver {driver}{version}, firmware {firmware}, hardware {hardware}, board {board}"
    );
    let is_known = firmware.value().is_some();
    Finding::new("device", if is_known { Severity::Ok } else { Severity::Unknown }, text)
}

fn numa(machine: &Machine, device: &Device) -> Finding {
    let found = |severity, text| Finding::new("numa", severity, text);
    let cores = match (&machine.cores, &device.numa_node) {
        (Fact::Unknown(reason), _) | (_, Fact::Unknown(reason)) => {
            return found(Severity::Unknown, reason.clone());
        }
        (Fact::Value(_), Fact::Value(..0)) => {
            return found(Severity::Ok, "the device belongs to no NUMA node".to_owned());
        }
        (Fact::Value(cores), Fact::Value(node)) => (cores, node),
    };
    let (cores, node) = cores;
    let Some((_, of_node)) = cores.nodes.iter().find(|(number, _)| i64::from(*number) == *node)
    else {
        let text = format!("the device is at node {node}, whose cores are not listed");
        return found(Severity::Unknown, text);
    };
    let text = format!(
        "the device is at node {node} (cores {of_node}); this process runs on core {}, and may use {}",
        cores.current, cores.allowed
    );
    let cure = format!("start programs with `numactl --cpunodebind={node} --membind={node}`");
    if has_core(of_node, cores.current) {
        found(Severity::Ok, text)
    } else if overlap(of_node, &cores.allowed) {
        found(Severity::Note, text).cure(cure)
    } else {
        found(Severity::Warning, text + ", none of that node").cure(cure)
    }
}

fn iommu(iommu: &Iommu, device: &Device) -> Finding {
    let options = match &iommu.options {
        Fact::Value(options) if options.is_empty() => String::new(),
        Fact::Value(options) => format!(" (kernel options: {})", options.join(" ")),
        Fact::Unknown(reason) => format!(" (kernel options: {reason})"),
    };
    let found = |severity, text: &str| Finding::new("iommu", severity, format!("{text}{options}"));
    match &device.iommu_type {
        Fact::Value(kind) if kind == "identity" => {
            found(Severity::Ok, "the IOMMU passes the device's addresses through (identity)")
        }
        Fact::Value(kind) => {
            let text = format!("the IOMMU translates the device's addresses ({kind})");
            let cure = "for the best speed boot with `iommu=pt`, unless the device is for a virtual machine";
            found(Severity::Note, &text).cure(cure)
        }
        Fact::Unknown(_) if iommu.units.is_empty() => {
            found(Severity::Ok, "the machine has no active IOMMU")
        }
        Fact::Unknown(reason) => found(Severity::Unknown, reason),
    }
}

fn pci_link(pci: &Pci) -> Option<Finding> {
    let (width, most) = (pci.link_width.value()?, pci.max_link_width.value()?);
    let (speed, fastest) = (pci.link_speed.value()?, pci.max_link_speed.value()?);
    let text = format!("PCI link {speed} x{width}, the device can {fastest} x{most}");
    // The text has a form such as "16.0 GT/s PCIe".
    let rate = |text: &str| text.split_whitespace().next()?.parse::<f64>().ok();
    let is_slower = rate(speed).zip(rate(fastest)).is_some_and(|(now, most)| now < most);
    if width < most || is_slower {
        let finding = Finding::new("pci-link", Severity::Warning, text);
        let cure = "use a slot with more lanes or of a newer generation; a link that was full before: reseat the card";
        return Some(finding.cure(cure));
    }
    Some(Finding::new("pci-link", Severity::Ok, text))
}

fn relaxed_ordering(pci: &Pci) -> Finding {
    match &pci.relaxed_ordering {
        Fact::Value(true) => {
            let text = "PCI relaxed ordering is allowed; regions use it if they are registered so";
            Finding::new("relaxed-ordering", Severity::Ok, text)
        }
        Fact::Value(false) => {
            let text = "PCI relaxed ordering is not allowed to the device";
            Finding::new("relaxed-ordering", Severity::Note, text)
                .cure("allow it in the firmware of the machine, if reads are slow on many-core processors")
        }
        Fact::Unknown(reason) => {
            Finding::new("relaxed-ordering", Severity::Unknown, reason.clone())
        }
    }
}

fn features(device: &Device) -> Finding {
    match &device.missing_features {
        Fact::Unknown(reason) => Finding::new("features", Severity::Unknown, reason.clone()),
        Fact::Value(missing) if missing.is_empty() => {
            Finding::new("features", Severity::Ok, "the device has all features of this stack")
        }
        Fact::Value(missing) => {
            let names: Vec<_> = missing.iter().map(|missing| missing.feature).collect();
            let instead = missing.iter().map(|it| format!("{}: {}", it.feature, it.instead));
            let instead: Vec<_> = instead.collect();
            Finding::new(
                "features",
                Severity::Note,
                format!("the device lacks {}", names.join(", ")),
            )
            .cure(instead.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::of_software;
    use super::super::machine::machine;
    use super::super::root::Root;
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_an_error_with_a_cure() {
        let machine = machine(&Root::of_this_machine().unwrap(), None);
        let mut device = of_software("mlx5_77");
        device.file = Fact::Value("uverbs-of-a-test".to_owned());
        let found = access(&machine, &device).unwrap();
        assert_eq!((found.check, found.severity), ("access", Severity::Error));
        assert!(found.text.starts_with("/dev/infiniband/uverbs-of-a-test: "), "{found:?}");
        assert!(found.cure.unwrap().contains("udev rule"));
        device.file = Fact::Unknown("a test".to_owned());
        assert_eq!(access(&machine, &device).unwrap().severity, Severity::Ok);
        device.open_error = Some("ibv_open_device: EIO".to_owned());
        assert_eq!(access(&machine, &device).unwrap().severity, Severity::Error);
    }
}
