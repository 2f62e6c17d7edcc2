//! The attributes of a device beyond the first functions, their values, and the errors for unsupported features.

use std::mem::{offset_of, size_of};

use rdma_soft::{Builder, Limits};
use rdma_sys::*;

use crate::device::rig::connect::Side;
use crate::device::rig::device::gid_queries_of_size;
use crate::device::rig::{Context, LOCAL_WRITE, Size, errno, soft, verbs};

#[test]
fn the_extended_attributes_have_the_classic_ones_and_no_missing_features() {
    rdma_soft::install();
    for name in ["soft0", "softib0"] {
        let context = Context::open(name);
        let (classic, all) = (context.query_device(), context.query_device_ex());
        assert_eq!(all.orig_attr.node_guid, classic.node_guid);
        assert_eq!((all.orig_attr.max_qp, all.orig_attr.max_mr), (classic.max_qp, classic.max_mr));
        assert_eq!(all.device_cap_flags_ex, u64::from(classic.device_cap_flags));
        assert_eq!((all.phys_port_cnt_ex, all.comp_mask), (1, 0));
        assert_eq!((all.odp_caps.general_caps, all.xrc_odp_caps), (0, 0));
        assert_eq!((all.tso_caps.max_tso, all.rss_caps.supported_qpts), (0, 0));
        assert_eq!((all.tm_caps.max_num_tags, all.max_dm_size, all.raw_packet_caps), (0, 0, 0));
        assert_eq!(all.max_wq_type_rq, 0);
    }
}

#[test]
fn the_debug_output_of_a_device_names_it() {
    rdma_soft::install();
    let device = soft("softib0");
    assert_eq!(format!("{device:?}"), r#"SoftDevice { name: "softib0", .. }"#);
}

#[test]
fn programs_of_every_version_get_the_device_attributes_they_know() {
    let context = crate::device::rig::open_default("soft0");
    let size = size_of::<ibv_device_attr_ex>();
    let whole = context.query_device_ex_bytes(0, size).unwrap();
    let oldest = offset_of!(ibv_device_attr_ex, odp_caps);
    for size in [oldest, size - 8, size] {
        assert_eq!(context.query_device_ex_bytes(0, size).unwrap(), whole[..size], "{size}");
    }
    let newer = context.query_device_ex_bytes(0, size + 24).unwrap();
    assert_eq!((&newer[..size], &newer[size..]), (&whole[..], &[0; 24][..]));
    let refused = Err(Errno::EINVAL.raw());
    assert_eq!(context.query_device_ex_bytes(0, oldest - 1), refused, "older than the function");
    assert_eq!(context.query_device_ex_bytes(1, size), refused, "that bit is undefined");
}

#[test]
fn the_capability_flags_are_what_the_device_does() {
    let attr = crate::device::rig::open_default("soft0").query_device();
    let flags = ibv_device_cap_flags(attr.device_cap_flags);
    for flag in [
        ibv_device_cap_flags::IBV_DEVICE_BAD_QKEY_CNTR,
        ibv_device_cap_flags::IBV_DEVICE_CURR_QP_STATE_MOD,
        ibv_device_cap_flags::IBV_DEVICE_PORT_ACTIVE_EVENT,
        ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN,
        ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID,
    ] {
        assert_eq!(flags & flag, flag);
    }
    let none = ibv_device_cap_flags(0);
    assert_eq!(flags & ibv_device_cap_flags::IBV_DEVICE_AUTO_PATH_MIG, none);
    assert_eq!(flags & ibv_device_cap_flags::IBV_DEVICE_XRC, none);
    assert_eq!((attr.vendor_id, attr.sys_image_guid), (0x00ff_ffff, attr.node_guid));
    assert_eq!(attr.max_mr_size, 0x7fff_ffff_ffff_ffff, "larger than any process's address space");
}

#[test]
fn ethernet_ports_report_that_they_need_a_global_header() {
    rdma_soft::install();
    for (name, flags) in [("soft0", 1), ("softib0", 0)] {
        let port = Context::open(name).query_port();
        assert_eq!(port.flags, flags, "{name}");
        // 4 lanes of 25 Gb/s.
        assert_eq!((port.active_width, port.active_speed, port.phys_state), (2, 32, 5));
    }
}

#[test]
fn unsupported_calls_fail_with_an_error_number_and_change_nothing() {
    rdma_soft::install();
    let side = Side::new("soft0", &Size::default(), 8);
    let region = side.pd.register(8, LOCAL_WRITE);
    let input = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT;
    assert_eq!((region.try_reregister(), errno()), (input.0, Errno::EOPNOTSUPP));
    drop(region); // must still be deregistered, as the page describes
    let verbs = verbs();
    for refused in [
        verbs.query_ece().err(),
        verbs.set_ece().err(),
        verbs.import_mr().err(),
        verbs.import_dm().err(),
        verbs.query_qp_data_in_order().err(),
    ] {
        assert_eq!(refused.unwrap().provider, "soft");
    }
}

#[test]
fn a_bare_device_has_the_functions_that_programs_call_unchecked() {
    let bare = Builder::new("bare")
        .without_atomics()
        .without_extended()
        .limits(Limits::default().max_mw(0));
    bare.install().unwrap();
    assert!(Context::open("bare").has_unchecked_functions());
}

#[test]
fn gid_entries_may_be_larger_than_today() {
    let context = crate::device::rig::open_default("soft0");
    let size = size_of::<ibv_gid_entry>();
    for (bytes, said) in [(size, 0), (size + 8, 0), (size - 8, Errno::EINVAL.raw())] {
        assert_eq!(gid_queries_of_size(&context, bytes), [said; 2], "{bytes}");
    }
}
