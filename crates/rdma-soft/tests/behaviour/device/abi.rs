//! The device list, and the attributes of a device, its port and its tables.

use std::net::UdpSocket;

use rdma_soft::{Builder, InstallError, Limits, Link, SoftDevice};
use rdma_sys::{ibv_atomic_cap, ibv_mtu, ibv_port_state};
use rdma_types::Gid;

use crate::device::rig::device::{devices, gid_table};
use crate::device::rig::{Context, soft};

#[test]
fn installing_twice_from_many_threads_gives_one_device_of_each_name() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(rdma_soft::install);
        }
    });
    let guid = soft("soft0").guid();
    rdma_soft::install();
    assert_eq!(soft("soft0").guid(), guid);
    for name in ["soft0", "softib0"] {
        assert_eq!(devices().iter().filter(|device| device.name == name).count(), 1);
    }
}

#[test]
fn device_list_has_names_guids_and_kinds() {
    rdma_soft::install();
    for (name, dev_name) in [("soft0", "uverbs8192"), ("softib0", "uverbs8193")] {
        let listed = devices().into_iter().find(|device| device.name == name).unwrap();
        assert_eq!(listed.guid, soft(name).guid());
        assert_eq!(listed.dev_name, dev_name, "the same in each process");
        assert_eq!(
            (listed.node_type, listed.transport),
            (1, 0),
            "a channel adapter with the InfiniBand transport"
        );
        assert_eq!(listed.index, -1, "not a device of the kernel");
    }
    assert_ne!(soft("soft0").guid(), soft("softib0").guid());
    assert!(SoftDevice::find("soft1").is_none());
}

#[test]
fn invalid_names_are_refused() {
    let long = "x".repeat(64);
    for name in ["", ".", "..", "with space", "umlaut-ä", "slash/", "nul\0", &long] {
        let refused = Builder::new(name).install().unwrap_err();
        assert_eq!(refused, InstallError::BadName(name.to_owned()));
        assert!(refused.to_string().contains("1 to 63"), "{refused}");
    }
    let longest = "x".repeat(63);
    assert_eq!(Builder::new(&longest).install().unwrap().name(), longest);
    let again = Builder::new(&longest).install().unwrap_err();
    assert_eq!(again, InstallError::NameTaken(longest.clone()));
    assert!(again.to_string().contains(&longest) && again.to_string().contains("another name"));
    assert!(devices().iter().any(|device| device.name == longest));
}

#[test]
fn devices_have_unique_addresses() {
    let installed: Vec<_> = (0..200)
        .flat_map(|n| [(n, Link::Ethernet), (n, Link::InfiniBand)])
        .map(|(n, link)| Builder::new(format!("own-{link:?}-{n}")).link(link).install().unwrap())
        .collect();
    let count = installed.len();
    let mut guids: Vec<_> = installed.iter().map(|device| device.guid().to_bytes()).collect();
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), count);
    let port = |device: &SoftDevice| Context::open(device.name()).query_port();
    let mut lids: Vec<_> = installed.iter().map(|device| port(device).lid).collect();
    lids.retain(|&lid| lid != 0);
    lids.sort_unstable();
    lids.dedup();
    assert_eq!(lids.len(), count / 2, "each InfiniBand port has its own LID");
}

#[test]
fn device_attributes_are_the_enforced_limits() {
    let limits = Limits::default().max_qp(11).max_qp_wr(12).max_sge(13).max_cqe(14).max_mr(15);
    let device = Builder::new("attributes").limits(limits).install().unwrap();
    let attr = Context::open("attributes").query_device();
    assert_eq!((attr.max_qp, attr.max_qp_wr, attr.max_sge), (11, 12, 13));
    assert_eq!((attr.max_cqe, attr.max_mr, attr.max_sge_rd), (14, 15, 13));
    assert_eq!((attr.max_qp_rd_atom, attr.max_qp_init_rd_atom), (16, 16));
    assert_eq!((attr.phys_port_cnt, attr.max_pkeys), (1, 1));
    assert_eq!(attr.atomic_cap, ibv_atomic_cap::IBV_ATOMIC_GLOB);
    assert_eq!(attr.node_guid.to_ne_bytes(), device.guid().to_bytes(), "network order");
    assert!(attr.max_pd > 0 && attr.max_ah > 0 && attr.max_cq > 0 && attr.max_mr_size > 1 << 40);
}

#[test]
fn port_attributes_report_the_kind_of_link() {
    let (roce, ib) = (
        crate::device::rig::open_default("soft0").query_port(),
        Context::open("softib0").query_port(),
    );
    for port in [&roce, &ib] {
        assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
        assert_eq!((port.max_mtu, port.active_mtu), (ibv_mtu::IBV_MTU_4096, ibv_mtu::IBV_MTU_4096));
        assert_eq!((port.max_msg_sz, port.pkey_tbl_len, port.phys_state), (1 << 31, 1, 5));
    }
    assert_eq!((roce.link_layer, roce.lid, roce.gid_tbl_len), (2, 0, 5));
    assert_eq!((ib.link_layer, ib.gid_tbl_len), (1, 1));
    assert!((1..0xc000).contains(&ib.lid));
}

#[test]
fn programs_of_every_version_get_the_port_attributes_they_know() {
    let context = crate::device::rig::open_default("softib0");
    let whole = context.query_port_bytes(56);
    assert_eq!(whole.len(), 56);
    for length in [48, 52, 56] {
        assert_eq!(context.query_port_bytes(length), whole[..length], "{length}");
    }
    // Newer than this device: the remaining bytes are zero.
    let newer = context.query_port_bytes(72);
    assert_eq!((&newer[..56], &newer[56..]), (&whole[..], &[0; 16][..]));
    // The old function's own symbol fills 48 bytes and leaves the bytes after them.
    assert_eq!(context.query_port_compat(), whole[..48]);
}

#[test]
fn gids_have_the_kinds_of_their_link_and_the_last_of_roce_is_of_the_loopback_interface() {
    let any = UdpSocket::bind("127.0.0.1:0").unwrap();
    let loopback = rustix::net::netdevice::name_to_index(any, "lo").unwrap();
    for (name, kinds, interfaces) in [
        ("soft0", &[1, 2, 1, 2, 2][..], &[0, 0, 0, 0, loopback][..]),
        ("softib0", &[0][..], &[0][..]),
    ] {
        let context = crate::device::rig::open_default(name);
        let table = gid_table(&context, 8, 0).unwrap();
        assert!(table.iter().map(|row| row.gid).eq(soft(name).gids()));
        assert!(table.iter().map(|row| row.kind).eq(kinds.iter().copied()));
        assert!(table.iter().map(|row| row.interface).eq(interfaces.iter().copied()));
        assert!(table.iter().all(|row| row.port == 1));
    }
    let last = *soft("soft0").gids().last().unwrap();
    assert!(last.to_ipv4().unwrap().is_loopback(), "{last}");
}

#[test]
fn roce_gids_are_link_local_and_ipv4_mapped_outside_of_real_networks() {
    let gids = soft(crate::device::rig::open_default("soft0").name()).gids();
    assert!(gids[0] == gids[1] && gids[2] == gids[3]);
    assert!(gids[0].is_link_local());
    assert!(gids[2].to_ipv4().unwrap().octets()[0] >= 240, "{}", gids[2]);
    assert_eq!(gids[0], Gid::from_parts(Gid::LINK_LOCAL_PREFIX, soft("soft0").guid()));
}

#[test]
fn a_context_has_one_completion_vector() {
    assert_eq!(crate::device::rig::open_default("soft0").completion_vectors(), 1);
}
