use crate::{printed, rdmatool};

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
    let output = rdmatool(&["devices", "mlx5_77"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("mlx5_77") && error.contains("soft0"), "{error}");
}
