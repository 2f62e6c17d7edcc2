//! The attributes of a device, its ports and its tables, and the texts that describe numeric codes.

use std::path::Path;

use rdma_sys::{Errno, ibv_atomic_cap, ibv_mtu, ibv_port_state};
use test_support::rig::device::{
    Listed, Row, devices, event_text, gid_table, node_text, port_state_text, query_gid,
    query_gid_ex, query_pkey, status_text,
};

use crate::case::cases;
use crate::device::Device;

cases![
    the_list_names_each_device_once,
    the_list_has_the_device_with_its_kind,
    the_list_has_the_files_of_each_device,
    the_list_is_the_same_each_time,
    an_open_device_has_the_name_of_the_list,
    the_devices_guid_is_the_lists,
    a_device_says_the_same_each_time,
    extended_attributes_have_the_classic_ones,
    extended_attributes_count_as_many_ports,
    a_device_has_room_for_something_of_everything,
    requests_in_flight_are_no_more_than_all_queue_pairs_have,
    a_port_is_active_and_known,
    a_port_moves_no_more_than_it_could,
    a_port_has_a_table_of_partition_keys,
    ports_that_do_not_exist_are_refused,
    gids_of_ports_that_do_not_exist_are_refused,
    partition_keys_of_ports_that_do_not_exist_are_refused,
    gids_behind_the_table_are_refused,
    partition_keys_behind_the_table_are_refused,
    every_place_of_the_gid_table_can_be_queried,
    single_gids_are_those_of_the_table,
    single_gids_have_their_kind_and_place,
    a_gid_table_that_does_not_fit_is_refused,
    flags_of_gid_queries_that_nobody_knows_are_refused,
    kinds_of_gids_are_those_of_the_link,
    no_gid_is_there_twice_with_one_kind,
    the_firmware_has_a_version_in_characters,
    the_default_partition_is_there,
    the_place_of_a_partition_key_is_found,
    partition_keys_that_are_not_there_have_no_place,
    an_ethernet_port_has_no_lid_and_an_infiniband_port_has_one,
    a_context_has_completion_vectors_and_a_descriptor,
    a_context_has_the_functions_that_programs_call_without_a_look,
    every_status_has_a_text_of_its_own,
    every_event_has_a_text_of_its_own,
    every_state_of_a_port_has_a_text_of_its_own,
    numbers_that_nobody_knows_are_called_unknown,
];

fn listed(device: &Device) -> Listed {
    devices().into_iter().find(|listed| listed.name == **device).unwrap()
}

fn the_list_names_each_device_once(_: &Device) {
    let mut names: Vec<_> = devices().into_iter().map(|listed| listed.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// Programs form file paths from these names (`/dev/infiniband/uverbs0`, attributes in sysfs).
fn the_list_has_the_files_of_each_device(device: &Device) {
    let all = devices();
    for listed in &all {
        let number = listed.dev_name.strip_prefix("uverbs").map(str::parse::<u32>);
        assert!(matches!(number, Some(Ok(_))), "{}", listed.dev_name);
        assert!(listed.dev_path.ends_with(&format!("/class/infiniband_verbs/{}", listed.dev_name)));
        assert!(listed.ibdev_path.ends_with(&format!("/class/infiniband/{}", listed.name)));
        let same = all.iter().filter(|other| other.dev_name == listed.dev_name).count();
        assert_eq!(same, 1, "{}", listed.dev_name);
        // If the path exists in the kernel's file system, the device must be one of the kernel's.
        let is_there = Path::new(&listed.dev_path).exists();
        assert!(!is_there || !device.is_software(), "{}", listed.dev_path);
    }
}

fn the_list_has_the_device_with_its_kind(device: &Device) {
    let listed = listed(device);
    assert_eq!(node_text(listed.node_type), "InfiniBand channel adapter");
    assert_eq!(listed.transport, 0, "InfiniBand");
}

fn the_list_is_the_same_each_time(_: &Device) {
    let entries = || devices().into_iter().map(|listed| (listed.name, listed.guid, listed.index));
    assert!(entries().eq(entries()));
}

fn an_open_device_has_the_name_of_the_list(device: &Device) {
    assert_eq!(device.open().name(), &**device);
}

fn the_devices_guid_is_the_lists(device: &Device) {
    let guid = device.attributes().node_guid;
    assert_eq!(guid.to_ne_bytes(), listed(device).guid.to_bytes());
    assert_ne!(guid, 0);
}

fn a_device_says_the_same_each_time(device: &Device) {
    let (one, other) = (device.attributes(), device.attributes());
    assert_eq!((one.node_guid, one.sys_image_guid), (other.node_guid, other.sys_image_guid));
    assert_eq!(
        (one.max_qp, one.max_qp_wr, one.max_sge),
        (other.max_qp, other.max_qp_wr, other.max_sge)
    );
    assert_eq!((one.max_cq, one.max_cqe, one.max_mr), (other.max_cq, other.max_cqe, other.max_mr));
    assert_eq!(one.device_cap_flags, other.device_cap_flags);
}

fn extended_attributes_have_the_classic_ones(device: &Device) {
    let (all, classic) = (device.open().query_device_ex(), device.attributes());
    let orig = &all.orig_attr;
    assert_eq!((orig.node_guid, orig.vendor_id), (classic.node_guid, classic.vendor_id));
    assert_eq!((orig.max_qp, orig.max_qp_wr), (classic.max_qp, classic.max_qp_wr));
    assert_eq!((orig.max_cq, orig.max_cqe), (classic.max_cq, classic.max_cqe));
    assert_eq!((orig.max_mr, orig.max_pd), (classic.max_mr, classic.max_pd));
    assert_eq!(orig.device_cap_flags, classic.device_cap_flags);
    assert_eq!(orig.atomic_cap, classic.atomic_cap);
}

fn extended_attributes_count_as_many_ports(device: &Device) {
    let all = device.open().query_device_ex();
    let few = all.orig_attr.phys_port_cnt;
    assert!(all.phys_port_cnt_ex == u32::from(few) || few == u8::MAX);
}

fn a_device_has_room_for_something_of_everything(device: &Device) {
    let attr = device.attributes();
    for most in [
        attr.max_qp,
        attr.max_qp_wr,
        attr.max_sge,
        attr.max_cq,
        attr.max_cqe,
        attr.max_mr,
        attr.max_pd,
        attr.max_sge_rd,
    ] {
        assert!(most > 0);
    }
    assert!(attr.phys_port_cnt > 0 && attr.max_pkeys > 0 && attr.max_mr_size > 0);
    // The field has one bit for each page size that regions can have. One of them is the system's
    // page size.
    assert!(attr.page_size_cap >= 4096);
    assert!(attr.atomic_cap.0 <= ibv_atomic_cap::IBV_ATOMIC_GLOB.0);
}

fn requests_in_flight_are_no_more_than_all_queue_pairs_have(device: &Device) {
    let attr = device.attributes();
    let all = i64::from(attr.max_qp) * i64::from(attr.max_qp_rd_atom);
    assert!(i64::from(attr.max_res_rd_atom) <= all, "{} of {all}", attr.max_res_rd_atom);
    assert!(attr.max_qp_rd_atom <= attr.max_res_rd_atom);
}

fn a_port_is_active_and_known(device: &Device) {
    let port = device.open().query_port();
    assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
    assert_eq!(port.phys_state, 5, "link up");
    assert!([1, 2].contains(&port.link_layer), "InfiniBand or Ethernet");
    assert!(port.active_width > 0 && port.active_speed > 0);
}

fn a_port_moves_no_more_than_it_could(device: &Device) {
    let port = device.open().query_port();
    let known = ibv_mtu::IBV_MTU_256.0..=ibv_mtu::IBV_MTU_4096.0;
    assert!(known.contains(&port.max_mtu.0) && known.contains(&port.active_mtu.0));
    assert!(port.active_mtu.0 <= port.max_mtu.0);
    assert!((1..=1 << 31).contains(&port.max_msg_sz));
}

fn a_port_has_a_table_of_partition_keys(device: &Device) {
    let context = device.open();
    let places = context.query_port().pkey_tbl_len;
    assert!((1..=context.query_device().max_pkeys).contains(&places));
    for place in 0..places.into() {
        assert!(query_pkey(&context, 1, place).is_ok());
    }
}

/// Returns numbers that no port has, considering that an adapter may have many ports.
fn no_ports(device: &Device) -> [u8; 3] {
    [0, device.attributes().phys_port_cnt + 1, u8::MAX]
}

fn ports_that_do_not_exist_are_refused(device: &Device) {
    let context = device.open();
    for port in no_ports(device) {
        assert_eq!(context.try_query_port(port), Errno::EINVAL.raw(), "port {port}");
    }
}

fn gids_of_ports_that_do_not_exist_are_refused(device: &Device) {
    let context = device.open();
    for port in no_ports(device) {
        assert!(query_gid(&context, port, 0).is_err(), "port {port}");
        assert_eq!(query_gid_ex(&context, port.into(), 0, 0).err(), Some(Errno::EINVAL));
    }
}

fn partition_keys_of_ports_that_do_not_exist_are_refused(device: &Device) {
    let context = device.open();
    for port in no_ports(device) {
        assert!(query_pkey(&context, port, 0).is_err(), "port {port}");
    }
}

fn gids_behind_the_table_are_refused(device: &Device) {
    let context = device.open();
    let end = context.query_port().gid_tbl_len;
    for index in [end, i32::MAX] {
        assert!(query_gid(&context, 1, index).is_err(), "{index}");
        let refused = query_gid_ex(&context, 1, index.cast_unsigned(), 0);
        assert_eq!(refused.err(), Some(Errno::EINVAL), "{index}");
    }
}

fn partition_keys_behind_the_table_are_refused(device: &Device) {
    let context = device.open();
    let end = context.query_port().pkey_tbl_len;
    for index in [end.into(), i32::MAX] {
        assert!(query_pkey(&context, 1, index).is_err(), "{index}");
    }
}

fn every_place_of_the_gid_table_can_be_queried(device: &Device) {
    let context = device.open();
    let places = context.query_port().gid_tbl_len;
    let rows = gid_table(&context, 1024, 0).unwrap();
    assert!(places > 0 && !rows.is_empty());
    for index in 0..places {
        let gid = query_gid(&context, 1, index).unwrap();
        let row = rows.iter().find(|row| row.port == 1 && row.index == index.cast_unsigned());
        assert_eq!(row.is_none(), gid.is_zero(), "an empty entry must have no row: {index}");
    }
}

fn single_gids_are_those_of_the_table(device: &Device) {
    let context = device.open();
    for row in gid_table(&context, 1024, 0).unwrap() {
        let port = u8::try_from(row.port).unwrap();
        let index = i32::try_from(row.index).unwrap();
        assert_eq!(query_gid(&context, port, index).unwrap(), row.gid);
    }
}

fn single_gids_have_their_kind_and_place(device: &Device) {
    let context = device.open();
    let ports = device.attributes().phys_port_cnt;
    for row in gid_table(&context, 1024, 0).unwrap() {
        assert!((1..=u32::from(ports)).contains(&row.port));
        assert_eq!(query_gid_ex(&context, row.port, row.index, 0).unwrap(), row);
    }
}

fn a_gid_table_that_does_not_fit_is_refused(device: &Device) {
    let context = device.open();
    let rows = gid_table(&context, 1024, 0).unwrap();
    assert_eq!(
        gid_table(&context, rows.len(), 0).unwrap(),
        rows,
        "the buffer has exactly the right size"
    );
    let refused = gid_table(&context, rows.len() - 1, 0);
    assert_eq!(refused.err(), Some(Errno::EINVAL));
}

fn flags_of_gid_queries_that_nobody_knows_are_refused(device: &Device) {
    let context = device.open();
    for flags in [1, 1 << 31] {
        assert!(query_gid_ex(&context, 1, 0, flags).is_err());
        assert!(gid_table(&context, 1024, flags).is_err());
    }
}

fn kinds_of_gids_are_those_of_the_link(device: &Device) {
    let context = device.open();
    let ethernet = context.query_port().link_layer == 2;
    for row in gid_table(&context, 1024, 0).unwrap() {
        // 0 is InfiniBand, 1 and 2 are the versions of RoCE.
        assert_eq!(row.kind != 0, ethernet, "GID {}", row.index);
        assert!(row.kind <= 2);
    }
}

fn the_default_partition_is_there(device: &Device) {
    let context = device.open();
    let places = 0..i32::from(context.query_port().pkey_tbl_len);
    let full = places.filter(|&place| query_pkey(&context, 1, place) == Ok(0xffff));
    assert_eq!(full.count(), 1);
}

fn the_place_of_a_partition_key_is_found(device: &Device) {
    let context = device.open();
    let place = context.pkey_index(0xffff).unwrap();
    assert_eq!(query_pkey(&context, 1, place), Ok(0xffff));
}

fn partition_keys_that_are_not_there_have_no_place(device: &Device) {
    let context = device.open();
    let places = context.query_port().pkey_tbl_len;
    let keys: Vec<_> =
        (0..i32::from(places)).map(|place| query_pkey(&context, 1, place).unwrap()).collect();
    let none = (1..=u16::MAX).find(|key| !keys.contains(key)).unwrap();
    assert!(context.pkey_index(none).is_err());
    // Full and limited members of one partition have different keys.
    for other in keys.iter().map(|key| key ^ 0x8000).filter(|other| !keys.contains(other)) {
        assert!(context.pkey_index(other).is_err(), "{other:#x}");
    }
}

fn an_ethernet_port_has_no_lid_and_an_infiniband_port_has_one(device: &Device) {
    let port = device.open().query_port();
    match port.link_layer {
        2 => assert_eq!(port.lid, 0),
        _ => assert!((1..0xc000).contains(&port.lid), "a unicast LID"),
    }
}

fn a_context_has_completion_vectors_and_a_descriptor(device: &Device) {
    let (one, other) = (device.open(), device.open());
    assert!(one.completion_vectors() > 0 && one.async_fd() >= 0);
    assert_ne!(one.async_fd(), other.async_fd(), "each context has its own");
}

fn a_context_has_the_functions_that_programs_call_without_a_look(device: &Device) {
    let context = device.open();
    assert!(context.is_extended() && context.has_unchecked_functions());
}

/// Checks that each number has a unique text, and that no text is "unknown".
fn expect_texts(numbers: impl Iterator<Item = u32>, text: fn(u32) -> &'static str) {
    let mut texts: Vec<_> = numbers.map(text).collect();
    let count = texts.len();
    assert!(texts.iter().all(|text| !text.is_empty() && *text != "unknown"), "{texts:?}");
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), count, "{texts:?}");
}

fn every_status_has_a_text_of_its_own(_: &Device) {
    expect_texts(0..24, status_text);
    assert_eq!((status_text(0), status_text(12)), ("success", "transport retry counter exceeded"));
}

fn every_event_has_a_text_of_its_own(_: &Device) {
    expect_texts(0..20, event_text);
    assert_eq!(event_text(9), "port active");
}

fn every_state_of_a_port_has_a_text_of_its_own(_: &Device) {
    expect_texts(0..6, port_state_text);
    assert_eq!((port_state_text(1), port_state_text(4)), ("down", "active"));
}

fn numbers_that_nobody_knows_are_called_unknown(_: &Device) {
    for number in [99, u32::MAX] {
        let texts = [status_text(number), event_text(number), port_state_text(number)];
        assert_eq!(texts, ["unknown"; 3]);
    }
    assert_eq!([node_text(i32::MIN), node_text(99)], ["unknown"; 2]);
}

fn no_gid_is_there_twice_with_one_kind(device: &Device) {
    let rows = gid_table(&device.open(), 1024, 0).unwrap();
    let same = |a: &Row, b: &Row| (a.port, a.gid, a.kind) == (b.port, b.gid, b.kind);
    for (n, row) in rows.iter().enumerate() {
        assert!(!rows[..n].iter().any(|before| same(before, row)), "GID {}", row.index);
    }
}

fn the_firmware_has_a_version_in_characters(device: &Device) {
    let attr = device.attributes();
    let end = attr.fw_ver.iter().position(|&char| char == 0).expect("a C string");
    assert!(attr.fw_ver[..end].iter().all(|&char| (0x20..0x7f).contains(&char)));
    assert!(attr.local_ca_ack_delay < 32, "5 bits");
}
