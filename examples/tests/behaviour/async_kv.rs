//! `async_kv`: in one process, in two, and with `kv` at the other end.

use test_support::features::Feature;

use crate::common::has;
use crate::common::process::Process;

#[test]
fn the_demonstration_stores_and_finds_entries() {
    for device in ["soft0", "softib0"] {
        let said = Process::example("async_kv", &["--device", device]).succeed();
        let counted = match has(device, Feature::Atomics) {
            true => "65 operations",
            false => "operations not counted: the device has no atomics",
        };
        assert_eq!(said.trim(), format!("{device}: 32 keys, no plum, {counted}"));
    }
}

/// Runs each of both as the server, with both as clients.
#[test]
fn both_stores_work_with_each_other() {
    for server in ["async_kv", "kv"] {
        let mut serves = Process::to_kill(server, &["serve"]);
        let address = serves.address();
        for (client, value) in [("kv", "green"), ("async_kv", "red")] {
            let put = Process::example(client, &["put", "apple", value, "--connect", &address]);
            assert_eq!(put.succeed().trim(), "stored `apple`");
            for client in ["kv", "async_kv"] {
                let get = Process::example(client, &["get", "apple", "--connect", &address]);
                assert_eq!(get.succeed().trim(), value, "{server}, {client}");
            }
        }
        let none = Process::example("async_kv", &["get", "plum", "--connect", &address]).fail();
        assert!(none.contains("the key `plum` does not exist"), "{none}");
        let long = "k".repeat(41);
        let long = Process::example("async_kv", &["put", &long, "v", "--connect", &address]).fail();
        assert!(long.contains("the key has 41 bytes"), "{long}");
        serves.0.kill().unwrap();
        serves.0.wait().unwrap();
    }
}
