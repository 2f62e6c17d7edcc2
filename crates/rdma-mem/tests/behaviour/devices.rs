//! Devices, contexts and domains, on both software devices.
#![allow(unsafe_code)]

use std::env;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Once;

use rdma_mem::{
    Context, DeviceCapabilities, Errno, Error, Gid, GidType, Lid, LinkLayer, Mtu, NodeType,
    PhysicalState, PortState, TransportType, list_devices, open_device,
};
use test_support::namespaces::{can_run, inside};
use test_support::program::{is_emulated, this_program};
use test_support::rig::until;

const DEVICES: [&str; 2] = ["soft0", "softib0"];

fn open(name: &str) -> Context {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(rdma_soft::install);
    open_device(name).unwrap()
}

#[test]
fn the_list_has_both_and_finds_them_again() {
    rdma_soft::install();
    let list = list_devices();
    assert!(list.len() >= 2 && !list.is_empty() && list.get(list.len()).is_none());
    for name in DEVICES {
        let device = list.iter().find(|device| device.name() == name).unwrap();
        let context = device.open().unwrap();
        assert_eq!(context.device().guid(), device.guid());
        assert_eq!(context.query_device().unwrap().node_guid, device.guid());
        assert!(!device.guid().is_reserved());
        assert!(!list.errors().iter().any(|error| error.to_string().is_empty()));
    }
}

#[test]
fn a_device_outlives_its_list() {
    rdma_soft::install();
    let device = list_devices().iter().find(|device| device.name() == "soft0").unwrap().clone();
    assert_eq!(device.open().unwrap().device().name(), "soft0");
}

#[test]
fn one_provider_alone_can_be_listed() {
    rdma_soft::install();
    // SAFETY: SAFETY.md F2: the table of the software device.
    let list = unsafe { rdma_mem::DeviceList::of(rdma_soft::verbs()) };
    assert!(list.errors().is_empty());
    assert!(list.iter().all(|device| device.verbs().name == "soft"));
    for name in DEVICES {
        assert!(list.iter().any(|device| device.name() == name));
    }
}

#[test]
fn an_unknown_device_is_an_error_with_the_names_that_exist() {
    rdma_soft::install();
    let error = open_device("mlx5_77").unwrap_err();
    assert!(matches!(error, Error::UnknownDevice(_)));
    let text = error.to_string();
    assert!(
        text.contains("`mlx5_77`") && text.contains("soft0") && text.contains("softib0"),
        "{text}"
    );
}

#[test]
fn ports_report_their_attributes() {
    let roce = open("soft0").query_port(1).unwrap();
    assert_eq!((roce.link_layer, roce.state), (LinkLayer::ETHERNET, PortState::ACTIVE));
    assert_eq!((roce.lid, roce.number), (Lid::NONE, 1));
    let ib = open("softib0").query_port(1).unwrap();
    assert_eq!((ib.link_layer, ib.state), (LinkLayer::INFINIBAND, PortState::ACTIVE));
    assert!(ib.lid.is_unicast());
    for port in [roce, ib] {
        assert!(port.active_mtu >= Some(Mtu::MTU1024) && port.active_mtu <= port.max_mtu);
    }
    for name in DEVICES {
        let Err(Error::Verb(error)) = open(name).query_port(9) else { panic!("port 9 of {name}") };
        assert_eq!((error.verb, error.errno), ("ibv_query_port", Errno::EINVAL));
    }
}

#[test]
fn the_table_of_gids_agrees_with_single_queries() {
    let context = open("soft0");
    let table = context.gid_table().unwrap();
    assert_eq!(table.len(), 5);
    for entry in &table {
        assert_eq!(context.query_gid(entry.port, entry.index).unwrap(), entry.gid);
    }
    let of = |gid_type, mapped| {
        table.iter().filter(|e| e.gid_type == gid_type && e.gid.is_ipv4_mapped() == mapped).count()
    };
    assert_eq!((of(GidType::ROCE_V1, true), of(GidType::ROCE_V1, false)), (1, 1));
    // The last entry is an address of the interface `lo`.
    assert_eq!((of(GidType::ROCE_V2, true), of(GidType::ROCE_V2, false)), (2, 1));
    let ib = open("softib0").gid_table().unwrap();
    assert!(ib.iter().all(|entry| entry.gid_type == GidType::IB));
    assert!(context.query_gid(1, u32::MAX).is_err());
}

/// The variable that marks the process with a network namespace of its own.
const NETWORK: &str = "RDMA_TEST_NETWORK";

#[test]
fn a_changed_mask_of_an_interface_is_seen_while_the_context_is_open() {
    if env::var_os(NETWORK).is_none() {
        if is_emulated() || !can_run(&["--net"]) {
            return;
        }
        let mut program = inside(&["--net"], &this_program());
        let test = "devices::a_changed_mask_of_an_interface_is_seen_while_the_context_is_open";
        let output = program.args([test, "--exact"]).env(NETWORK, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(" 1 passed;"), "{text}");
        return;
    }
    let ip = |arguments: &str| {
        let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    };
    ip("link set lo up");
    rdma_soft::Builder::new("network0").listen("127.0.0.1").install().unwrap();
    let context = open_device("network0").unwrap();
    let length = || {
        let table = context.gid_table().unwrap();
        let own = table.iter().find(|entry| entry.gid == Gid::from_ipv4(Ipv4Addr::LOCALHOST));
        own.unwrap().prefix_length
    };
    assert_eq!(length(), Some(104));
    // The GID stays the same.
    ip("address add 127.0.0.1/16 dev lo");
    ip("address del 127.0.0.1/8 dev lo");
    until("the GID has the new prefix length", || length() == Some(112));
}

#[test]
fn closing_goes_from_the_leaves_to_the_root() {
    for name in DEVICES {
        let context = open(name);
        let pd = context.allocate_pd().unwrap();
        let (context, error) = context.close().unwrap_err();
        assert!(matches!(error, Error::StillUsed { what: "context" }), "{error}");
        let region = pd.allocate_region(100).unwrap();
        let (pd, error) = pd.close().unwrap_err();
        assert!(matches!(error, Error::StillUsed { what: "protection domain" }), "{error}");
        region.close().unwrap();
        pd.close().unwrap();
        context.close().unwrap();
    }
}

#[test]
fn an_object_keeps_its_parents_alive() {
    let mut region = {
        let pd = open("soft0").allocate_pd().unwrap();
        pd.allocate_region(4096).unwrap()
    };
    region.fill(7);
    assert_eq!(region.pd().context().device().name(), "soft0");
}

#[test]
fn a_device_reports_its_kind_and_capabilities() {
    for (name, grh_required) in [("soft0", true), ("softib0", false)] {
        let context = open(name);
        let device = context.device();
        assert_eq!(
            (device.node_type(), device.transport_type()),
            (NodeType::CA, TransportType::IB)
        );
        assert_eq!(device.index(), None, "it is not the kernel's");
        let attributes = context.query_device().unwrap();
        assert!(attributes.capabilities.contains(DeviceCapabilities::PORT_ACTIVE_EVENT));
        let extended = context.query_device_extended().unwrap();
        assert!(extended.odp.is_empty() && extended.max_device_memory == 0);
        let port = context.query_port(1).unwrap();
        assert_eq!((port.rate_mbps(), port.virtual_lanes()), (Some(100_000), Some(1)));
        assert_eq!(
            (port.physical_state, port.grh_required),
            (PhysicalState::LINK_UP, grh_required)
        );
        // Each field occurs once, and has a value.
        let fields = attributes.fields().chain(extended.fields()).chain(port.fields());
        let fields: Vec<_> = fields.collect();
        assert!(fields.iter().all(|(_, value)| !value.is_empty()), "{fields:?}");
        let names: std::collections::HashSet<_> = fields.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), fields.len());
    }
}
