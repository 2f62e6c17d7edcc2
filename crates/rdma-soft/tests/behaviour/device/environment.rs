//! The devices that the environment describes.

use rdma_soft::SoftDevice;
use rdma_sys::{Errno, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND};
use test_support::program::this_program;

use crate::device::rig::Context;
use crate::device::rig::connect::{acquaint, pair};
use crate::device::rig::device::devices;

/// Prints the devices, and what happens when each is used.
#[test]
#[ignore = "started by other tests"]
fn child() {
    rdma_soft::install();
    for device in devices() {
        let name = device.name;
        let context = match Context::try_open(&name) {
            Ok(context) => context,
            Err(errno) => {
                println!("{name} fails with {errno}");
                continue;
            }
        };
        let port = match u32::from(context.query_port().link_layer) {
            IBV_LINK_LAYER_ETHERNET => "roce",
            IBV_LINK_LAYER_INFINIBAND => "ib",
            other => panic!("{other}"),
        };
        let device = SoftDevice::find(&name).unwrap();
        println!("{name} {port} vendor {:#x}", context.query_device().vendor_id);
        println!("{name} has the GUID {} and the GIDs {:?}", device.guid(), device.gids());
        let failed = [(); 3].map(|()| context.try_pd().err() == Some(Errno::ENOMEM));
        println!("{name} fails {failed:?}");
        let (a, b) = pair(&name);
        acquaint(&a, &b);
    }
}

/// The variables that choose the devices and their properties.
const VARIABLES: [&str; 9] = [
    "RDMA_SOFT_DEVICES",
    "RDMA_SOFT_DIRECTORY",
    "RDMA_SOFT_FAULTS",
    "RDMA_SOFT_LIKE",
    "RDMA_SOFT_LISTEN",
    "RDMA_SOFT_MAPPED",
    "RDMA_SOFT_PEERS",
    "RDMA_SOFT_PEER_LIMIT",
    "RDMA_SOFT_RETRY_TIME",
];

/// Runs a process with these variables. Returns its output.
fn ask(variables: &[(&str, &str)]) -> String {
    let mut command = this_program();
    command.args(["--exact", "device::environment::child", "--ignored", "--nocapture"]);
    for other in VARIABLES {
        command.env_remove(other);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success() && text.contains(" 1 passed"), "{text}");
    text
}

#[test]
fn the_environment_describes_devices() {
    let devices =
        "soft0,like=connectx7,address=127.5.7.1;soft1,port=ib;late,schedule=deferred:3,packets";
    let variables = [
        ("RDMA_SOFT_DEVICES", devices),
        ("RDMA_SOFT_LIKE", "intel-e810"),
        ("RDMA_SOFT_FAULTS", ""),
    ];
    let text = ask(&variables);
    for line in
        ["soft0 roce vendor 0x2c9\n", "soft1 ib vendor 0x8086\n", "late roce vendor 0x8086\n"]
    {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("127.5.7.1") && !text.contains("softib0"), "{text}");
    // Without its own options, each usual device is the usual one.
    let [usual, named] = [&[][..], &[("RDMA_SOFT_DEVICES", "softib0;soft0")]].map(ask);
    let identity = |text: &str, name: &str| {
        let start = format!("{name} has the GUID ");
        text.lines().find(|line| line.starts_with(&start)).unwrap().to_owned()
    };
    for name in ["soft0", "softib0"] {
        assert_eq!(identity(&usual, name), identity(&named, name));
    }
    // All processes of the host share the other devices, too.
    let again = ask(&variables);
    assert_eq!(identity(&text, "soft1"), identity(&again, "soft1"));
    assert_ne!(identity(&text, "soft1"), identity(&text, "soft0"));
}

#[test]
fn the_environment_sets_faults_of_each_device() {
    let text = ask(&[("RDMA_SOFT_FAULTS", "alloc_pd@2=ENOMEM")]);
    for name in ["soft0", "softib0"] {
        assert!(text.contains(&format!("{name} fails [false, true, false]\n")), "{text}");
    }
}

/// Each device is listed, and opening it prints the mistake.
#[test]
fn a_mistake_in_the_environment_is_named_when_a_device_is_opened() {
    let devices = "RDMA_SOFT_DEVICES";
    for (variable, value, names, mistake) in [
        (
            devices,
            "soft3,port=opa;soft4",
            ["soft3", "soft4"],
            "`RDMA_SOFT_DEVICES` has a mistake: `port=opa` is not an option of `soft3`: the ports are roce and ib",
        ),
        (
            devices,
            "so/ft",
            ["soft0", "softib0"],
            "`RDMA_SOFT_DEVICES` has a mistake: `so/ft` in `so/ft` is not a device name: use 1 to 63 ",
        ),
        (
            "RDMA_SOFT_FAULTS",
            "create_qc@3=ENOMEM",
            ["soft0", "softib0"],
            "`RDMA_SOFT_FAULTS` has a mistake: `create_qc` in `create_qc@3=ENOMEM`: the verbs are alloc_mw, ",
        ),
        (
            devices,
            "..",
            ["soft0", "softib0"],
            "`RDMA_SOFT_DEVICES` has a mistake: `..` in `..` is not a device name: use 1 to 63 ",
        ),
        (
            "RDMA_SOFT_PEERS",
            "all",
            ["soft0", "softib0"],
            "`RDMA_SOFT_PEERS` has a mistake: `all` is not one of user, any and none",
        ),
        (
            "RDMA_SOFT_MAPPED",
            "no",
            ["soft0", "softib0"],
            "`RDMA_SOFT_MAPPED` has a mistake: `no` is neither 0 nor 1",
        ),
        (
            "RDMA_SOFT_PEER_LIMIT",
            "1s",
            ["soft0", "softib0"],
            "`RDMA_SOFT_PEER_LIMIT` has a mistake: `1s` is not a number of seconds from 0 to 31536000, such as 0.5",
        ),
        (
            "RDMA_SOFT_RETRY_TIME",
            "-1",
            ["soft0", "softib0"],
            "`RDMA_SOFT_RETRY_TIME` has a mistake: `-1` is not a number of seconds from 0 to 31536000, such as 0.5",
        ),
        (
            "RDMA_SOFT_DIRECTORY",
            "/no/such",
            ["soft0", "softib0"],
            "`RDMA_SOFT_DIRECTORY` has a mistake: the directory /no/such cannot be used: No such file or directory",
        ),
    ] {
        let text = ask(&[(variable, value)]);
        for name in names {
            assert!(
                text.contains(&format!("rdma-soft: `{name}` is not opened: {mistake}")),
                "{text}"
            );
            assert!(text.contains(&format!("{name} fails with ")), "{text}");
        }
    }
}

#[test]
fn empty_variables_have_no_effect() {
    let [usual, empty] = [&[][..], &VARIABLES.map(|name| (name, ""))].map(ask);
    let identities = |text: &str| {
        let lines = text.lines().filter(|line| line.contains(" has the GUID "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // The devices are those that all processes share.
    assert_eq!(identities(&usual).len(), 2, "{usual}");
    assert_eq!(identities(&usual), identities(&empty), "{empty}");
}
