//! The same tests over the kernel's rdma_cm and the machine's librdmacm, on the device and at the address that the
//! variables of `common` name. They are ignored, because few machines have such a device: the job `rxe` runs them in
//! its virtual machine.

use std::process::Command;

use rdma_cm::{BindOptions, Error, Listener};

use crate::common::{self, Node, address, is_over_kernel, open, system_device};

/// Runs the tests whose names contain a text, except some, and checks how many pass.
fn pass(names: &str, except: &[&str], expected: usize) {
    assert!(is_over_kernel(), "set {} to a device of the kernel", common::SYSTEM);
    common::pass(names, except, expected, |_: &mut Command| {});
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn connections_are_established_used_and_ended() {
    // The test opens a software device.
    pass("connecting::", &["on_infiniband"], 12);
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn connections_are_refused() {
    let except = [
        // It compares with a software device; see below.
        "a_port_has_one_listener_per_device",
        // The kernel's rdma_cm does not connect over the loopback interface, whose addresses stand for the device's.
        "a_listener_at_one_address",
        // SoftRoCE has the UDP port at all addresses.
        "a_queue_pair_has_one_connection_to_another_host",
        // The errors differ. Module `library` has tests of them.
        "addresses_of_other_hosts",
        "queue_pairs_that_do_not_fit",
        "the_cure_of_a_device_that_cannot_listen",
        // They need a software device.
        "queue_pairs_of_another_provider",
        "several_connections_to_its_own_host",
        // The kernel does not report it. Module `library` has a test of it.
        "a_request_that_is_withdrawn",
    ];
    pass("refusals::", &except, 8);
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn everything_is_dropped_in_any_order() {
    // SoftRoCE has the UDP port at all addresses. The kernel does not report a request that is withdrawn.
    pass("orders::", &["two_hosts", "until_they_are_withdrawn"], 2);
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn connections_have_files_and_parts() {
    let except = [
        // The rejection may arrive later.
        "a_request_without_a_listener",
        // SoftRoCE has the UDP port at all addresses.
        "a_closed_channel",
    ];
    pass("parts::", &except, 9);
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn connections_pass_each_phase_together() {
    pass("phases::", &[], 1);
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn processes_that_exit_end_their_connections() {
    pass("processes::", &[], 3);
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn the_kernel_does_the_same_as_the_library() {
    let tests = [
        "a_datagram_service",
        "a_request_that_is_withdrawn",
        "a_shared_port",
        "a_thread_that_waits",
        "both_ends_use_the_traffic_class",
        "members_of_a_group",
        "queue_pairs_that_the_kernel",
        "the_module_for_own_queue_pairs",
        "the_reads_of_both_ends",
    ];
    for test in tests {
        let count = if test == "a_datagram_service" { 2 } else { 1 };
        pass(&format!("library::{test}"), &[], count);
    }
}

/// The kernel reports a conflict with a listener at all addresses by another error.
#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn a_port_is_in_use_at_one_address_and_at_all() {
    assert!(is_over_kernel());
    let node = Node::new(&open("soft0"));
    let expected = |port| {
        let device = system_device().unwrap();
        format!("port {port} of `{device}` is in use: use another port, or 0 for any free one")
    };
    let all = "0.0.0.0".parse().unwrap();
    for (first, others) in [(address(), [address(), all]), (all, [address(), all])] {
        let listener = Listener::bind(&node.channel, (first, 0)).unwrap();
        let port = listener.local_address().port();
        for other in others {
            let error = Listener::bind(&node.channel, (other, port)).unwrap_err();
            assert_eq!(error.to_string(), expected(port), "{first} and {other}");
        }
        drop(listener);
        let shared = BindOptions::new().with_shared_port(true);
        assert!(Listener::bind_with(&node.channel, (all, port), shared).is_ok(), "{first}");
    }
    let error = Listener::bind(&node.channel, "192.0.2.1:7471").unwrap_err();
    assert!(matches!(error, Error::NotOwn { .. }), "{error}");
}
