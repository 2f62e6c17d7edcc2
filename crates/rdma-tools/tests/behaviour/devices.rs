use std::process::Stdio;

use crate::{printed, program, rdmatool};

#[test]
fn devices_are_a_table_with_a_line_for_each_port() {
    let table = printed(&["devices"]);
    let head = table.lines().next().unwrap();
    for column in ["device", "provider", "link layer", "state", "Gb/s", "MTU", "NUMA", "GID"] {
        assert!(head.contains(column), "{head}");
    }
    let line = table.lines().find(|line| line.starts_with("soft0 ")).unwrap();
    for cell in ["soft", "Ethernet", "active", "4096", "::ffff:"] {
        assert!(line.contains(cell), "{line}");
    }
    let one = printed(&["devices", "softib0"]);
    assert_eq!(one.lines().count(), 2, "{one}");
    assert!(one.contains("InfiniBand") && !one.contains("soft0 "), "{one}");
}

#[test]
fn the_option_v_prints_all_attributes() {
    let text = printed(&["devices", "-v", "soft0"]);
    for name in ["max_qp_wr", "active_mtu", "gid[0]", "odp_rc"] {
        assert!(text.contains(name), "{name}: {text}");
    }
}

#[test]
fn devices_are_listed_as_json() {
    let json: serde_json::Value = serde_json::from_str(&printed(&["devices", "--json"])).unwrap();
    let all = json.as_array().unwrap();
    for name in ["soft0", "softib0"] {
        let device = all.iter().find(|device| device["name"] == name).unwrap();
        let context = rdma::device::open_device(name).unwrap();
        assert_eq!(device["max_qp_wr"], context.query_device().unwrap().max_qp_wr);
        let (port, gids) = (&device["ports"][0], context.gid_table().unwrap());
        assert_eq!((&port["state"], &port["active_width"]), (&"active".into(), &"4X".into()));
        assert_eq!(port["gids"].as_array().unwrap().len(), gids.len());
    }
}

#[test]
fn an_unknown_device_is_an_error_that_lists_the_existing_ones() {
    for command in ["devices", "doctor"] {
        let output = rdmatool(&[command, "mlx5_77"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(error.contains("mlx5_77") && error.contains("soft0"), "{error}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    for command in ["devices", "doctor"] {
        let mut program = program(&[command]);
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("panicked") && !error.contains("standard output"), "{error}");
    }
}
