//! `rdmatool doctor`: finds out what prevents RDMA from working or makes it slow.

mod choice;
mod dcb;
mod device;
mod facts;
mod features;
mod finding;
mod hardware;
mod host;
mod machine;
mod networks;
mod peer;
mod ports;
mod report;
mod root;

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use rdma::device::{ListError, list_devices};

use crate::devices;
use crate::output::print;

use facts::{Device, Facts};
use finding::{Finding, Severity};
use report::Report;
use root::Root;

/// Finds problems that keep RDMA from working or make it slow, and their remedies
///
/// Examines the machine's NICs or, if it has none, the software devices. The checks cover ports,
/// GIDs and their networks, MTU, PFC, NUMA node, IOMMU, PCI link, locked memory, versions and
/// missing features. It does not need root, and changes nothing.
///
/// Exit status: 0 without warnings, 3 with warnings, 4 with errors, 1 if the examination itself
/// fails, 2 for wrong arguments. A fact that cannot be determined is reported as `unknown` with the
/// reason, and does not count as a warning.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Examine only this device
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    /// Show which GID is used towards this host, and whether each pair of GIDs reaches it
    ///
    /// `rdmatool doctor --listen` must be running on that host. Each pair of GIDs of the same type
    /// is probed, up to 16 pairs. A probe connects a reliable queue pair, and sends a message of 16
    /// bytes and one that fills a packet.
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: Option<String>,
    /// Wait for `doctor --peer` from other hosts, one at a time, at this address (default:
    /// [::]:18514)
    ///
    /// Any host that can connect to the TCP port can make this process create queue pairs and
    /// receive messages into its own memory. Therefore listen only during an examination. DEVICE
    /// must precede this option.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        conflicts_with_all = ["peer", "json", "report", "sysroot"]
    )]
    listen: Option<Option<SocketAddr>>,
    /// Print JSON: the findings and the facts
    #[arg(long)]
    json: bool,
    /// Write the findings, the facts and the output of `devices -v` to a new file, as JSON
    ///
    /// You can send the file to the maintainers. It contains names of devices and interfaces, IP
    /// and hardware addresses (in GIDs), versions, limits, and the folder of --sysroot. It also
    /// contains the environment variables that begin with RDMA_; a path in one of them may contain
    /// a user's name. The host's name is not included. An existing file is not overwritten.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Read `sys` and `proc` in this folder instead of this machine's, and open no device
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(address) = arguments.listen {
        peer::listen(address, devices::open(arguments.device.as_deref())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (root, sysroot) = match &arguments.sysroot {
        Some(path) => {
            let root = Root::of_copy(path);
            let root = root.with_context(|| format!("--sysroot {}", path.display()))?;
            if !root.names("").iter().any(|name| name == "sys") {
                bail!("--sysroot {}: contains no folder `sys`, a copy of /sys", path.display());
            }
            (root, Some(path.display().to_string()))
        }
        None => (Root::of_this_machine().context("/ cannot be opened")?, None),
    };
    let (devices, mut findings) = match &sysroot {
        Some(_) => (of_files(&root, arguments.device.as_deref())?, Vec::new()),
        None => of_this_machine(&root, arguments.device.as_deref())?,
    };
    let facts = Facts { machine: machine::machine(&root, sysroot), devices };
    let mut ports = facts.devices.iter().flat_map(|device| &device.ports);
    let has_active = ports.any(|port| port.is_active() == Some(true));
    findings.extend(no_devices(&facts, arguments.device.is_none()));
    findings.extend(host::findings(&facts));
    for device in &facts.devices {
        findings.extend(hardware::findings(&facts.machine, device));
        findings.extend(ports::findings(device, has_active));
    }
    if let Some(peer) = &arguments.peer {
        findings.extend(towards(&facts, peer, arguments.device.as_deref())?);
    }
    let report = Report::new(facts, findings);
    if let Some(path) = &arguments.report {
        write(path, &report).with_context(|| format!("--report {}", path.display()))?;
    }
    if arguments.json {
        print(serde_json::to_string_pretty(&report)?)?;
    } else {
        print(report.text())?;
    }
    Ok(ExitCode::from(report.worst().exit_status()))
}

/// Returns the devices found in a copy of `/sys` and `/proc`.
fn of_files(root: &Root, only: Option<&str>) -> anyhow::Result<Vec<Device>> {
    let mut names = root.names(device::CLASS);
    if let Some(only) = only {
        if !names.iter().any(|name| name == only) {
            bail!("no device `{only}` in /{}; available: {}", device::CLASS, names.join(", "));
        }
        names.retain(|name| name == only);
    }
    Ok(names.iter().map(|name| device::of_kernel(root, name)).collect())
}

/// Returns this machine's devices, and findings for providers that failed.
fn of_this_machine(root: &Root, only: Option<&str>) -> anyhow::Result<(Vec<Device>, Vec<Finding>)> {
    let list = list_devices();
    let of_kernel = root.names(device::CLASS);
    let mut names: Vec<_> = list.iter().map(|device| device.name().to_owned()).collect();
    names
        .extend(of_kernel.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
    match only {
        Some(only) if names.iter().any(|name| name == only) => names.retain(|name| name == only),
        Some(only) => bail!("no device `{only}`; available: {}", names.join(", ")),
        // Software devices are examined only on a machine without other devices.
        None if !of_kernel.is_empty() => names.retain(|name| of_kernel.contains(name)),
        None => {}
    }
    let mut devices = Vec::new();
    for name in names {
        let mut found = if of_kernel.contains(&name) {
            device::of_kernel(root, &name)
        } else {
            device::of_software(&name)
        };
        match list.iter().find(|device| device.name() == name) {
            Some(listed) => {
                let opened = listed.open();
                let added = opened.and_then(|it| device::add_attributes(root, &mut found, &it));
                found.open_error = added.err().map(|error| error.to_string());
            }
            None => found.open_error = Some("libibverbs does not list it".to_owned()),
        }
        devices.push(found);
    }
    let findings = list.errors().iter().map(|error| provider(error, of_kernel.is_empty()));
    Ok((devices, findings.collect()))
}

fn provider(error: &ListError, is_needless: bool) -> Finding {
    let severity = if is_needless { Severity::Note } else { Severity::Error };
    Finding::new("provider", severity, error.to_string())
}

/// Returns a warning if the kernel has no RDMA device, unless the user named a device.
fn no_devices(facts: &Facts, is_meant: bool) -> Option<Finding> {
    let has = facts.devices.iter().any(|device| device.kind == facts::Kind::Kernel);
    (is_meant && !has).then(|| {
        let text = "the kernel has no RDMA device: /sys/class/infiniband is missing or empty";
        Finding::new("devices", Severity::Warning, text).cure(
            "with a NIC, load its driver (`lspci -k`, `modprobe mlx5_ib`) and ib_uverbs; without one, SoftRoCE (`rdma link \
             add rxe0 type rxe netdev INTERFACE`) or the software device soft0",
        )
    })
}

/// Probes a peer, and reports which GIDs programs use to reach it. With `--sysroot`, or if the
/// probe fails, assumes that the peer's address is a GID of the peer.
fn towards(facts: &Facts, peer: &str, device: Option<&str>) -> anyhow::Result<Vec<Finding>> {
    let address = address_of(peer)?;
    if facts.machine.sysroot.is_some() {
        return Ok(assumed(facts, None, address.ip()));
    }
    let context = devices::open(device)?;
    let name = context.device().name().to_owned();
    match peer::probe(address, context) {
        Ok(met) => {
            let ports = facts.devices.iter().filter(|device| device.name == name);
            let port = ports.flat_map(|device| &device.ports).find(|port| port.number == met.port);
            let ends = (&met.own, &met.peer);
            let chosen = port.filter(|port| port.is_ethernet()).map(|port| {
                let how = "by the tables of both ends";
                let mut finding =
                    choice::finding(port, ends, how).about(format!("{name}/{}", met.port));
                if met.is_reached {
                    finding.severity = Severity::Ok;
                    finding.text += "; it reaches the peer";
                }
                finding
            });
            Ok(chosen.into_iter().chain(met.findings).collect())
        }
        Err(error) => {
            let finding = Finding::new("peer", Severity::Error, format!("not examined: {error:#}"));
            let finding = finding.cure(
                "run `rdmatool doctor --listen` there, of the same version, and let its TCP port through firewalls",
            );
            let assumed = assumed(facts, source_of(address.ip()), address.ip());
            Ok([finding].into_iter().chain(assumed).collect())
        }
    }
}

/// Reports which GIDs would be used to reach a host, if only its address is known.
fn assumed(facts: &Facts, own: Option<IpAddr>, peer: IpAddr) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &facts.devices {
        for port in device.ports.iter().filter(|port| port.is_ethernet()) {
            let ends = (&choice::own_end(port, own, peer), &choice::assumed_end(own, peer));
            let how = format!("if {peer} is an address of the peer's NIC");
            let finding = choice::finding(port, ends, &how);
            findings.push(finding.about(format!("{}/{}", device.name, port.number)));
        }
    }
    findings
}

/// Resolves the name or the address of a host, with or without a port.
fn address_of(peer: &str) -> anyhow::Result<SocketAddr> {
    // An address with several colons and no bracket is an IPv6 address without a port.
    let has_port = match peer.rsplit_once(':') {
        Some((host, _)) => !host.contains(':') || host.ends_with(']'),
        None => false,
    };
    let found = match has_port {
        true => peer.to_socket_addrs(),
        false => (peer, peer::PORT).to_socket_addrs(),
    };
    let mut addresses =
        found.with_context(|| format!("--peer {peer}: not HOST or HOST:PORT of a known host"))?;
    let address = addresses.next().with_context(|| format!("--peer {peer}: no address"))?;
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Returns the local address from which packets to this address are sent. Sends no packet.
fn source_of(address: IpAddr) -> Option<IpAddr> {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((address, peer::PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Writes the report to a new file. Without `--sysroot`, adds all attributes of the devices.
fn write(path: &Path, report: &Report) -> anyhow::Result<()> {
    let mut whole = serde_json::to_value(report)?;
    if report.facts.machine.sysroot.is_none() {
        whole["devices"] = devices::all_as_json();
    }
    let created = std::fs::File::create_new(path);
    let mut file = created.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow!("the file exists: delete it, or name another one"),
        _ => error.into(),
    })?;
    writeln!(file, "{whole:#}")?;
    Ok(())
}
