//! The programs that list devices.

use crate::library::{command, output};

#[test]
fn ibv_devices_lists_the_software_devices() {
    let Some(ibv_devices) = command("ibv_devices") else { return };
    let list = output(ibv_devices);
    let names: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["device", "------", "soft0", "softib0"], "{list}");
}

#[test]
fn ibv_devinfo_prints_both_link_layers_and_the_types_of_gids() {
    let Some(mut ibv_devinfo) = command("ibv_devinfo") else { return };
    ibv_devinfo.arg("-v");
    let text = output(ibv_devinfo);
    assert!(text.contains("link_layer:\t\tEthernet"), "{text}");
    assert!(text.contains("link_layer:\t\tInfiniBand"), "{text}");
    assert!(text.contains("PORT_ACTIVE"), "{text}");
    // The types come from `ibv_query_gid_type`, one of the private symbols.
    assert!(text.contains("RoCE v2"), "{text}");
}

#[test]
fn identities_are_the_same_in_each_process() {
    let (Some(one), Some(other)) = (command("ibv_devices"), command("ibv_devices")) else { return };
    assert_eq!(output(one), output(other));
}
