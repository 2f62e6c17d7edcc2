//! Findings about ports: state, addresses, MTU and lossless traffic.

use rdma::device::{GidType, Mtu};

use super::facts::{Device, Fact, Interface, Kind, Port};
use super::finding::{Finding, Severity};

/// The number of bytes that the RoCE headers take in an Ethernet frame, according to the kernel
/// (`iboe_get_mtu` in rdma/ib_addr.h).
const ROCE_HEADERS: u32 = 96;

/// Returns the findings about a device's ports. `has_active` is true if any of the examined devices
/// has an active port.
pub(crate) fn findings(device: &Device, has_active: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for port in &device.ports {
        let mut of_port = vec![state(port, has_active)];
        // A card with two ports often has a cable in only one of them.
        let is_unused = has_active && port.is_active() == Some(false);
        if port.is_ethernet() && !is_unused {
            of_port.push(gids(port));
            of_port.extend(port.interfaces.iter().filter_map(interface));
            of_port.push(mtu(port));
            if device.kind == Kind::Kernel {
                of_port.extend(port.interfaces.iter().map(lossless));
                of_port.push(traffic_class(port));
            }
        }
        let subject = format!("{}/{}", device.name, port.number);
        findings.extend(of_port.into_iter().map(|finding| finding.about(&subject)));
    }
    if device.ports.is_empty() {
        let finding = Finding::new("port", Severity::Unknown, "the device shows no port");
        findings.push(finding.about(&device.name));
    }
    findings
}

fn state(port: &Port, has_active: bool) -> Finding {
    let Port { state, physical_state, link_layer, rate, .. } = port;
    let text = format!("{state} (link: {physical_state}), {link_layer}, {rate}");
    match port.is_active() {
        Some(true) => Finding::new("port", Severity::Ok, text),
        Some(false) => {
            let severity = if has_active { Severity::Note } else { Severity::Error };
            Finding::new("port", severity, text).cure(if port.is_ethernet() {
                "`ip link set INTERFACE up`; check the cable and the switch's port (`ethtool INTERFACE`)"
            } else {
                "check the cable, and whether a subnet manager runs (`sminfo`)"
            })
        }
        None => Finding::new("port", Severity::Unknown, text),
    }
}

fn gids(port: &Port) -> Finding {
    let is_v2 = |gid: &&super::facts::PortGid| gid.gid_type == GidType::ROCE_V2;
    let v2: Vec<_> = port.gids.iter().filter(is_v2).collect();
    let routed = v2.iter().filter(|gid| !gid.gid.is_link_local()).count();
    let text = format!(
        "{} GIDs, {} of them for RoCE v2, {routed} of these of IP addresses",
        port.gids.len(),
        v2.len()
    );
    let cure = "`ip address add ADDRESS/LENGTH dev INTERFACE`: each address of the interface becomes a GID";
    if routed > 0 {
        Finding::new("gids", Severity::Ok, text)
    } else if port.gids.is_empty() {
        Finding::new("gids", Severity::Error, text + ": queue pairs cannot be connected").cure(cure)
    } else {
        let text = text + ": packets reach hosts of the same link only";
        Finding::new("gids", Severity::Warning, text).cure(cure)
    }
}

fn interface(interface: &Interface) -> Option<Finding> {
    let state = interface.state.value()?;
    // Loopback interfaces and tunnels have the state "unknown".
    (state == "down" || state == "lowerlayerdown").then(|| {
        let text = format!("the interface {} is {state}", interface.name);
        let cure = format!("`ip link set {} up`; check its cable", interface.name);
        Finding::new("interface", Severity::Warning, text).cure(cure)
    })
}

/// Returns the largest RDMA MTU whose packets fit into the interface's frames.
fn fitting(mtu: u32) -> Option<u32> {
    let room = mtu.saturating_sub(ROCE_HEADERS);
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .filter_map(Mtu::from_bytes)
        .map(Mtu::bytes)
        .find(|mtu| *mtu <= room)
}

fn mtu(port: &Port) -> Finding {
    let mtus: Vec<_> = port
        .interfaces
        .iter()
        .filter_map(|interface| Some((interface.name.as_str(), *interface.mtu.value()?)))
        .collect();
    let list: Vec<_> = mtus.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect();
    let list = if list.is_empty() { "no interface".to_owned() } else { list.join(", ") };
    let text = format!("active MTU {}, interfaces: {list}", port.active_mtu);
    let found = |severity, text| Finding::new("mtu", severity, text);
    let fits = mtus.iter().map(|(_, mtu)| fitting(*mtu));
    let least = fits.clone().min();
    // The MTU in use is the port's active MTU. If that is unknown, assume the largest MTU that any
    // of its interfaces allows.
    let used = port.active_mtu.value().copied().or(fits.max().flatten());
    match (used, least) {
        (Some(used), Some(least)) if least.is_none_or(|least| least < used) => {
            let (name, mtu) = mtus.iter().min_by_key(|(_, mtu)| *mtu).copied().unwrap_or_default();
            let needs = used + ROCE_HEADERS;
            let text = format!("{text}. Packets of {used} bytes do not fit through {name} ({mtu})");
            found(Severity::Warning, text).cure(format!(
                "`ip link set {name} mtu {needs}` or more, there, on the peer and on switches; or limit the path MTU (`mtu` of builders)"
            ))
        }
        _ if port.active_mtu.value().is_none() => found(Severity::Unknown, text),
        _ => match (port.active_mtu.value(), port.max_mtu.value()) {
            (Some(active), Some(max)) if active < max && !mtus.is_empty() => {
                found(Severity::Note, format!("{text}; the port could carry {max}")).cure(format!(
                    "`ip link set INTERFACE mtu {}` or more, if the peer and the switches have that, too",
                    max + ROCE_HEADERS
                ))
            }
            _ => found(Severity::Ok, text),
        },
    }
}

fn lossless(interface: &Interface) -> Finding {
    let found = |severity, text| Finding::new("pfc", severity, text);
    match &interface.dcb {
        Fact::Unknown(reason) => found(Severity::Unknown, reason.clone()),
        Fact::Value(dcb) => {
            let name = &interface.name;
            let trust =
                if dcb.dscp.is_empty() { "no DSCP (trust pcp)" } else { "DSCP (trust dscp)" };
            let Some(_) = dcb.pfc else {
                let text = format!("{name}: the driver reports no PFC; it trusts {trust}");
                return found(Severity::Unknown, text);
            };
            match dcb.lossless().as_slice() {
                [] => {
                    let text =
                        format!("{name}: no priority is lossless (PFC is off); it trusts {trust}");
                    found(Severity::Note, text).cure(
                        "on a lossless fabric set PFC as its switches have it (`dcb pfc set`, `mlnx_qos`); without PFC \
                         the NIC relies on its congestion control",
                    )
                }
                on => found(
                    Severity::Ok,
                    format!("{name}: PFC for priorities {on:?}; it trusts {trust}"),
                ),
            }
        }
    }
}

/// Checks that the priority of this stack's packets is among those that PFC protects from loss.
fn traffic_class(port: &Port) -> Finding {
    let of_system = port.traffic_class.value().and_then(|text| tclass(text));
    let of_environment =
        std::env::var("RDMA_TRAFFIC_CLASS").ok().and_then(|text| text.parse().ok());
    let class: u8 = of_environment.unwrap_or(0);
    let system = match (of_system, &port.traffic_class) {
        (Some(class), _) => format!("the driver's is {class}"),
        (None, Fact::Value(text)) if text.is_empty() => "the driver sets none".to_owned(),
        (None, Fact::Value(text)) => format!("the driver's is `{text}`"),
        (None, Fact::Unknown(reason)) => format!("the driver's is unknown ({reason})"),
    };
    let text = format!("queue pairs of this stack use traffic class {class}; {system}");
    let found = |severity, text| Finding::new("traffic-class", severity, text);
    let lossy = port.interfaces.iter().find_map(|interface| {
        let dcb = interface.dcb.value().filter(|dcb| !dcb.dscp.is_empty())?;
        // A traffic class that is set in the driver overrides that of the queue pair.
        let (dscp, lossless) = (of_system.unwrap_or(class) >> 2, dcb.lossless());
        let priority = dcb.priority_of(dscp);
        (!lossless.is_empty() && !lossless.contains(&priority)).then_some((dcb, priority, lossless))
    });
    if let Some((dcb, priority, lossless)) = lossy {
        let dscp = dcb.dscp.iter().find(|(_, priority)| lossless.contains(priority));
        let proposal =
            dscp.map_or("4 x DSCP".to_owned(), |(dscp, _)| (u16::from(*dscp) * 4).to_string());
        let text = format!(
            "{text}. It has priority {priority}, which PFC does not protect ({lossless:?} are)"
        );
        return found(Severity::Warning, text)
            .cure(format!("RDMA_TRAFFIC_CLASS={proposal}, at both ends"));
    }
    match of_system {
        Some(of_system) if of_system != class && of_environment.is_some() => {
            found(Severity::Note, text)
                .cure("set both to the same value, or leave RDMA_TRAFFIC_CLASS unset")
        }
        _ => found(Severity::Ok, text),
    }
}

/// Returns the number in a line such as "Global tclass=106".
fn tclass(text: &str) -> Option<u8> {
    let (_, rest) = text.split_once("Global tclass=")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::dcb::Dcb;
    use super::*;

    fn port(active_mtu: Fact<u32>, interfaces: &[(&str, u32)]) -> Port {
        let interface = |&(name, mtu): &(&str, u32)| Interface {
            name: name.to_owned(),
            mtu: Fact::Value(mtu),
            state: Fact::Value("up".to_owned()),
            dcb: Fact::Unknown("a test".to_owned()),
        };
        Port {
            number: 1,
            state: Fact::Value("active".to_owned()),
            physical_state: Fact::Value("linkup".to_owned()),
            link_layer: Fact::Value("Ethernet".to_owned()),
            rate: Fact::Value("100 Gb/sec".to_owned()),
            active_mtu,
            max_mtu: Fact::Value(4096),
            lid: Fact::Value("0x0".to_owned()),
            gids: Vec::new(),
            interfaces: interfaces.iter().map(interface).collect(),
            traffic_class: Fact::Value("Global tclass=106".to_owned()),
        }
    }

    #[test]
    fn an_mtu_fits_through_every_interface_or_is_a_warning() {
        let severity = |active, interfaces| mtu(&port(active, interfaces)).severity;
        let unknown = || Fact::Unknown("a test".to_owned());
        assert_eq!(severity(Fact::Value(4096), &[("eth0", 1500)]), Severity::Warning);
        assert_eq!(
            severity(Fact::Value(4096), &[("eth0", 9000), ("eth0.7", 1500)]),
            Severity::Warning
        );
        assert_eq!(severity(unknown(), &[("eth0", 9000), ("eth0.7", 1500)]), Severity::Warning);
        assert_eq!(severity(unknown(), &[("eth0", 9000)]), Severity::Unknown);
        assert_eq!(severity(Fact::Value(1024), &[("eth0", 1500)]), Severity::Note);
        assert_eq!(severity(Fact::Value(4096), &[("eth0", 4200)]), Severity::Ok);
        assert_eq!(severity(Fact::Value(4096), &[("eth0", 20)]), Severity::Warning);
    }

    #[test]
    fn a_class_outside_of_the_lossless_priorities_is_a_warning() {
        let mut port = port(Fact::Value(4096), &[("eth0", 9000)]);
        assert_eq!(traffic_class(&port).severity, Severity::Ok);
        port.interfaces[0].dcb = Fact::Value(Dcb { pfc: Some(0b1000), dscp: vec![(26, 3)] });
        assert_eq!(traffic_class(&port).severity, Severity::Ok, "the driver's class is 106");
        port.traffic_class = Fact::Value(String::new());
        let found = traffic_class(&port);
        assert_eq!(
            (found.severity, found.cure.unwrap()),
            (Severity::Warning, "RDMA_TRAFFIC_CLASS=104, at both ends".to_owned())
        );
        port.interfaces[0].dcb = Fact::Value(Dcb { pfc: Some(1), dscp: vec![(26, 3)] });
        assert_eq!(traffic_class(&port).severity, Severity::Ok);
        assert_eq!(lossless(&port.interfaces[0]).severity, Severity::Ok);
    }

    #[test]
    fn the_drivers_class_is_a_number_in_its_text() {
        assert_eq!(tclass("Global tclass=106\ntclass=1 src ip"), Some(106));
        assert_eq!([tclass(""), tclass("Global tclass=999"), tclass("Global tclass=")], [None; 3]);
    }
}
