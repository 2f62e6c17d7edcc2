//! The same tests over the kernel's rdma_cm and the machine's librdmacm, on the device and at the address that the
//! variables of `common` name. They are ignored, because few machines have such a device: the job `rxe` runs them in
//! its virtual machine.

use std::net::SocketAddr;
use std::process::Command;

use rdma_cm::{BindOptions, End, Error, Listener, Reason};
use rdma_sys::interface_addresses;

use crate::common::{self, LIMIT, Node, address, ended, is_over_kernel, open, system_device};
use crate::options::serves;

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
        // On RoCE v2, the kernel joins no groups of IPv6.
        if test == "members_of_a_group" && address().is_ipv6() {
            continue;
        }
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

/// The kernel has room for 128 requests that the program has not received, so each is received at once.
#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn a_listener_has_128_undecided_requests() {
    assert!(is_over_kernel());
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let connect = || resolved.connect(node.queue_pair(), b"").unwrap();
    let undecided = [(); 128].map(|()| (connect(), listener.incoming(LIMIT).unwrap()));
    let End::Rejected { reason, .. } = ended(connect().wait(LIMIT)) else { panic!("not rejected") };
    assert_eq!(reason, Reason::CONSUMER_DEFINED);

    // A decision makes room.
    drop(undecided);
    let _next = connect();
    let _request = listener.incoming(LIMIT).unwrap();
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn a_listener_of_one_ip_version_rejects_requests_of_the_other() {
    assert!(is_over_kernel());
    let node = Node::new(&open("soft0"));
    let one = BindOptions::new().with_one_ip_version(true);
    for (at, options, [by_ipv4, by_ipv6]) in [
        ("[::]:0", BindOptions::new(), [true, true]),
        ("[::]:0", one, [false, true]),
        ("0.0.0.0:0", one, [true, false]),
    ] {
        let listener = Listener::bind_with(&node.channel, at, options).unwrap();
        let expected = if address().is_ipv4() { by_ipv4 } else { by_ipv6 };
        assert_eq!(serves(&node, &listener, address()), expected, "{at} {options:?}");
    }
}

/// Returns the link-local address of the device's interface, with its scope.
fn link_local() -> SocketAddr {
    let all = interface_addresses().unwrap();
    let own = |of: &SocketAddr| of.ip() == address();
    let interface = &all.iter().find(|it| it.address.as_ref().is_some_and(own)).unwrap().interface;
    let of_interface = all.iter().filter(|it| it.interface == *interface);
    let link_local = of_interface.filter_map(|it| match it.address? {
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() => Some(at),
        _ => None,
    });
    let found = link_local.min().unwrap();
    assert_ne!(found.scope_id(), 0);
    found.into()
}

#[test]
#[ignore = "it needs the kernel's rdma_cm"]
fn a_listener_at_a_link_local_address_needs_its_scope() {
    assert!(is_over_kernel());
    let (server, client) = (Node::new(&open("soft0")), Node::new(&open("soft0")));
    let mut address = link_local();
    let listener = Listener::bind(&server.channel, address).unwrap();
    address.set_port(listener.local_address().port());
    let resolved = client.channel.resolve(address).unwrap();
    let _connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    assert_eq!(listener.incoming(LIMIT).unwrap().peer_address().ip(), address.ip());

    let error = Listener::bind(&server.channel, (address.ip(), 0)).unwrap_err();
    assert!(error.to_string().contains("add its scope"), "{error}");
}
