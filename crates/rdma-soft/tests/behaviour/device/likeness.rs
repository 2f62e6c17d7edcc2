//! Devices that imitate hardware, and each feature that they may lack.

use std::env;
use std::os::fd::AsRawFd as _;

use rdma_soft::{Builder, Profile};
use rdma_sys::{
    Errno, ibv_atomic_cap, ibv_cq_init_attr_ex, ibv_qp_create_send_ops_flags as Operation,
    ibv_qp_type,
};
use rustix::fs::SealFlags;
use test_support::program::this_program;

use crate::device::rig::device::devices;
use crate::device::rig::dmabuf::{Part, memfd};
use crate::device::rig::extended::{STANDARD, TIMESTAMP, init};
use crate::device::rig::transition::{RC, SERVICES, UC, UD};
use crate::device::rig::window::{TYPE_1, TYPE_2};
use crate::device::rig::{Context, LOCAL_WRITE, Pd, Size};

const LACKS: Option<Errno> = Some(Errno::EOPNOTSUPP);

/// The types of queue pairs that a device has.
fn types(context: &Context) -> Vec<ibv_qp_type> {
    let (cq, pd) = (context.cq(4), context.pd());
    let has = |qp_type: &ibv_qp_type| {
        let size = Size { qp_type: *qp_type, sge: 1, inline: 0, ..Size::default() };
        let refused = pd.try_qp(&cq, &cq, &size).err();
        assert!([None, LACKS].contains(&refused), "{refused:?}");
        refused.is_none()
    };
    SERVICES.into_iter().filter(has).collect()
}

/// Whether a device has extended queue pairs, extended completion queues, and timestamps.
fn extensions(context: &Context) -> [bool; 3] {
    let (cq, pd) = (context.cq(4), context.pd());
    let sends = u64::from(Operation::IBV_QP_EX_WITH_SEND.0);
    let size = Size { sge: 1, inline: 0, ..Size::default() };
    let queue_pair = context.try_qp_ex(&init(&pd, &cq, &cq, &size, sends)).err();
    let queue = |wc_flags| {
        context.try_cq_ex(&ibv_cq_init_attr_ex { cqe: 8, wc_flags, ..Default::default() }).err()
    };
    let refused = [queue_pair, queue(STANDARD), queue(STANDARD | TIMESTAMP)];
    assert!(refused.iter().all(|refused| [None, LACKS].contains(refused)), "{refused:?}");
    let has_clock = context.query_rt_values(1).0 == 0;
    let has = refused.map(|refused| refused.is_none());
    assert_eq!(context.query_device_ex().completion_timestamp_mask != 0, has_clock);
    [has[0], has[1], has[2] && has_clock]
}

fn registers_files(pd: &Pd) -> bool {
    let file = memfd("likeness", 4096, SealFlags::SHRINK);
    let refused = pd
        .try_import(Part { offset: 0, length: 4096, iova: 0 }, file.as_raw_fd(), LOCAL_WRITE)
        .err();
    assert!([None, LACKS].contains(&refused), "{refused:?}");
    refused.is_none()
}

#[test]
fn each_knob_removes_only_its_own_feature() {
    let builder = |name: &str| Builder::new(name);
    let all = || (vec![RC, UC, UD], [true; 3], true);
    let knobs = [
        (builder("lacks-nothing"), all()),
        (builder("lacks-uc").without_uc(), (vec![RC, UD], [true; 3], true)),
        (builder("lacks-ud").without_ud(), (vec![RC, UC], [true; 3], true)),
        (builder("lacks-dmabuf").without_dmabuf(), (all().0, [true; 3], false)),
        (
            builder("lacks-calls").without_extended_queue_pairs(),
            (all().0, [false, true, true], true),
        ),
        (
            builder("lacks-polls").without_extended_completions(),
            (all().0, [true, false, false], true),
        ),
        (builder("lacks-times").without_timestamps(), (all().0, [true, true, false], true)),
    ];
    for (builder, expected) in knobs {
        let name = builder.install().unwrap().name();
        let context = Context::open(name);
        let found = (types(&context), extensions(&context), registers_files(&context.pd()));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_device_has_the_vendor_and_firmware_that_it_was_built_with() {
    let long = "9".repeat(80);
    let device = Builder::new("vendor").vendor(0x1234, 0x5678).firmware(&*long).install().unwrap();
    let attr = Context::open(device.name()).query_device();
    assert_eq!((attr.vendor_id, attr.vendor_part_id), (0x1234, 0x5678));
    let firmware: String = attr.fw_ver.iter().map(|&c| char::from(c.to_ne_bytes()[0])).collect();
    assert_eq!(firmware, format!("{}\0", &long[..63]));
    let own = crate::device::rig::open_default("soft0").query_device();
    assert_eq!((own.vendor_id, own.vendor_part_id), (0x00ff_ffff, 0));
}

/// The first properties that a program sees of a device that imitates hardware.
struct Looks {
    /// Vendor and part.
    model: (u32, u32),
    /// Elements of a request, and bytes of inline data.
    sizes: (i32, u32),
    types: &'static [ibv_qp_type],
    extensions: [bool; 3],
    files: bool,
    /// Shared receive queues, atomics and windows.
    has: [bool; 3],
}

fn expect(profile: Profile, looks: &Looks) {
    let name = format!("looks-like-{}", profile.name());
    Builder::new(&name).like(profile).install().unwrap();
    assert_eq!(Profile::named(profile.name()), Some(profile));
    let context = Context::open(&name);
    let attr = context.query_device();
    assert_eq!((attr.vendor_id, attr.vendor_part_id), looks.model, "{name}");
    assert_eq!(attr.max_sge, looks.sizes.0, "{name}");
    assert_eq!(types(&context), looks.types, "{name}");
    assert_eq!(extensions(&context), looks.extensions, "{name}");
    let (cq, pd) = (context.cq(4), context.pd());
    assert_eq!(registers_files(&pd), looks.files, "{name}");
    let with = |inline| Size { sge: 1, inline, ..Size::default() };
    let inline = looks.sizes.1;
    assert!(pd.try_qp(&cq, &cq, &with(inline)).is_ok(), "{name}");
    assert_eq!(pd.try_qp(&cq, &cq, &with(inline + 1)).err(), Some(Errno::EINVAL), "{name}");
    let windows = [TYPE_1, TYPE_2].map(|kind| pd.try_mw(kind).is_ok());
    assert_eq!(windows, [attr.max_mw > 0; 2], "{name}");
    let has_queues = pd.try_srq(1, 1).is_ok();
    assert_eq!(attr.max_srq > 0, has_queues, "{name}");
    let atomics = attr.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE;
    assert_eq!([has_queues, atomics, windows[0]], looks.has, "{name}");
    let row = row(profile, looks, attr.max_mcast_grp > 0, context.query_port().link_layer == 1);
    assert!(PAGE.lines().any(|line| line == row), "the page on the device lacks this row: {row}");
}

const PAGE: &str = include_str!("../../../../../docs/software-device.md");

/// The row of a profile on the page on the device.
fn row(profile: Profile, looks: &Looks, has_groups: bool, is_infiniband: bool) -> String {
    let Looks { sizes: (sge, inline), types, extensions, files, has, .. } = looks;
    let lacks = [
        (has[0], "shared receive queues"),
        (has[1], "atomics"),
        (has[2], "windows"),
        (types.contains(&UC), "UC"),
        (types.contains(&UD), "UD"),
        (has_groups, "multicast"),
        (*inline > 0, "inline data"),
        (*files, "dma-buf"),
        (extensions[0], "extended queue pairs"),
        (extensions[1], "extended completion queues"),
        (extensions[2], "timestamps"),
    ];
    let lacks = lacks.into_iter().filter(|(has, _)| !has).map(|(_, what)| what);
    let lacks = lacks.collect::<Vec<_>>().join(", ");
    let space = if lacks.is_empty() { "" } else { " " };
    let link = if is_infiniband { " (InfiniBand)" } else { "" };
    format!("| `{}`{link} |{space}{lacks} | {inline} | {sge} |", profile.name())
}

#[test]
fn profiles_have_the_limits_and_gaps_of_their_hardware() {
    const ALL: &[ibv_qp_type] = &[RC, UC, UD];
    let mlx5 = Looks {
        model: (0x02c9, 4129),
        sizes: (30, 828),
        types: ALL,
        extensions: [true; 3],
        files: true,
        has: [true; 3],
    };
    expect(Profile::CONNECTX_7, &mlx5);
    expect(
        Profile::CONNECT_IB,
        &Looks { model: (0x02c9, 4113), has: [true, false, false], ..mlx5 },
    );
    let thor = Looks {
        model: (0x14e4, 0x1750),
        sizes: (6, 96),
        types: &[RC, UD],
        extensions: [true, false, false],
        files: true,
        has: [true, false, false],
    };
    expect(Profile::BROADCOM_THOR, &thor);
    let e810 = Looks {
        model: (0x8086, 5522),
        sizes: (6, 101),
        extensions: [false, true, false],
        has: [false; 3],
        ..thor
    };
    expect(Profile::INTEL_E810, &e810);
    let hip08 = Looks {
        model: (0x19e5, 0xa222),
        sizes: (64, 32),
        types: &[RC],
        extensions: [true, true, false],
        files: false,
        has: [true, true, false],
    };
    expect(Profile::HIP08, &hip08);
    let mana = Looks {
        model: (0x1414, 3),
        sizes: (32, 0),
        types: &[RC],
        extensions: [false; 3],
        files: true,
        has: [false; 3],
    };
    expect(Profile::MANA, &mana);
    let link = |name: &str| Context::open(name).query_port().link_layer;
    assert_eq!((link("looks-like-connect-ib"), link("looks-like-mana")), (1, 2));
}

/// Marks the process that a test has started.
const CHILD: &str = "RDMA_TEST_LIKE";

/// Runs a process with that environment. Returns its success and its output.
fn ask(like: &str) -> (bool, String) {
    let mut command = this_program();
    command.args([
        "--exact",
        "device::likeness::the_environment_selects_the_profile_of_both_devices",
        "--nocapture",
    ]);
    command.env(CHILD, "1").env("RDMA_SOFT_LIKE", like);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_environment_selects_the_profile_of_both_devices() {
    if env::var_os(CHILD).is_some() {
        rdma_soft::install();
        assert!(devices().len() == 2);
        for name in ["soft0", "softib0"] {
            let attr = Context::open(name).query_device();
            println!("{name} {:#x} {}", attr.vendor_id, attr.max_srq);
        }
        return;
    }
    let (succeeds, text) = ask("intel-e810");
    assert!(
        succeeds && text.contains("soft0 0x8086 0\n") && text.contains("softib0 0x8086 0\n"),
        "{text}"
    );
    let (succeeds, text) = ask("");
    assert!(succeeds && text.contains("soft0 0xffffff 65536\n"), "{text}");
    let (succeeds, text) = ask("intel-e811");
    let said = "`RDMA_SOFT_LIKE` is `intel-e811`, but the profiles are connectx-7, broadcom-thor, \
        intel-e810";
    assert!(!succeeds && text.contains(said), "{text}");
}
