//! `librdmacm.so.1`: a program that uses it, with both ends in one process.

use std::path::Path;

use test_support::packages::skip_without;

use crate::c_programs;

/// The header of the distribution's librdmacm, with which the program is compiled.
const HEADER: &str = "/usr/include/rdma/rdma_cma.h";
/// The symbols of the library.
const SYMBOLS: &str = include_str!("../../../rdma-dropin-cm/librdmacm.map");

/// Runs a case of the program. It prints nothing on standard output, and exits with an error if something is wrong.
fn passes(case: &str) {
    passes_in("manager.c", case);
}

fn passes_in(program: &str, case: &str) {
    if !Path::new(HEADER).exists() {
        return skip_without(HEADER, "librdmacm-dev");
    }
    if let Some(text) = c_programs::run(program, |program| _ = program.arg(case)) {
        assert_eq!(text, "", "{case}");
    }
}

#[test]
fn two_ends_connect_and_exchange_messages_and_disconnect() {
    passes("connection");
}

#[test]
fn the_file_of_a_channel_is_readable_while_events_wait() {
    passes("non-blocking");
}

#[test]
fn rejections_have_a_reason_and_private_data() {
    passes("rejection");
}

#[test]
fn a_listener_that_ends_rejects_unreceived_requests() {
    passes("unreceived");
}

#[test]
fn a_withdrawn_request_is_not_reported() {
    passes("withdrawal");
}

#[test]
fn a_request_belongs_to_the_current_channel_of_its_listener() {
    passes("request migration");
}

#[test]
fn each_end_is_disconnected_once() {
    passes("both disconnect");
}

#[test]
fn nothing_follows_the_end_of_a_connection_that_was_not_established() {
    passes("early disconnect");
}

#[test]
fn a_listener_rejects_requests_of_another_type() {
    passes("types");
}

#[test]
fn an_id_ends_after_its_events_are_acknowledged() {
    passes("acknowledgement");
}

#[test]
fn a_bound_port_is_in_use_until_its_id_ends() {
    passes("ports");
}

#[test]
fn functions_of_an_id_without_a_channel_wait() {
    passes("waiting");
}

#[test]
fn events_move_to_the_channel_of_their_id() {
    passes("migration");
}

#[test]
fn a_datagram_service_is_resolved() {
    passes("datagrams");
}

#[test]
fn members_of_a_multicast_group_receive_its_datagrams() {
    passes_in("manager_groups.c", "Ethernet");
    passes_in("manager_groups.c", "InfiniBand");
}

#[test]
fn a_group_is_joined_by_its_address_and_left_once() {
    passes_in("manager_groups.c", "refusals");
}

#[test]
fn an_id_that_has_joined_a_group_twice_is_a_member_until_it_has_left_twice() {
    passes_in("manager_groups.c", "twice");
}

#[test]
fn a_program_can_move_its_own_queue_pairs() {
    passes("own queue pairs");
}

#[test]
fn the_death_of_a_process_disconnects_its_peer() {
    passes("death");
}

#[test]
fn both_ends_send_with_the_traffic_class_and_the_timeout_of_the_active_end() {
    passes_in("manager_options.c", "path");
}

#[test]
fn ids_that_reuse_an_address_share_its_port() {
    passes_in("manager_options.c", "shared port");
}

#[test]
fn an_id_that_could_not_listen_on_all_devices_can_listen_later() {
    passes_in("manager_options.c", "two devices");
}

#[test]
fn a_listener_of_one_address_family_rejects_requests_of_the_other() {
    passes_in("manager_options.c", "one IP version");
}

#[test]
fn a_call_that_waits_for_an_event_is_restarted_after_a_signal() {
    passes_in("manager_options.c", "restart");
}

#[test]
fn a_queue_pair_has_extended_attributes() {
    passes_in("manager_queues.c", "extended attributes");
}

#[test]
fn an_id_whose_queues_were_refused_can_get_others() {
    passes_in("manager_queues.c", "refused attributes");
}

#[test]
fn the_queue_pair_of_an_id_receives_from_its_shared_receive_queue() {
    passes_in("manager_queues.c", "shared receive queues");
}

#[test]
fn a_notification_establishes_a_connection_before_its_confirmation() {
    passes_in("manager_queues.c", "notification");
}

#[test]
fn an_end_that_needs_options_of_a_vendor_rejects_with_a_reason_of_its_own() {
    passes_in("manager_queues.c", "options");
}

#[test]
fn functions_and_addresses_that_the_library_lacks_are_named_once() {
    // All of rsockets, and the functions of newer versions.
    let exported = SYMBOLS.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let of_sockets = exported.filter(|name| name.starts_with('r') && !name.starts_with("rdma_"));
    let newer = ["rdma_query_addrinfo", "rdma_write_cm_event"];
    let names: Vec<_> = of_sockets.chain(newer).collect();
    assert_eq!(names.len(), 27 + 3 + 2, "{names:?}");
    let lines = c_programs::with_program("lacking.c", |mut program| {
        let output = program.args(&names).output().unwrap();
        let [out, error] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let invalid = "-1 Invalid argument\n".repeat(2);
        let functions = "-1 Function not implemented\n".repeat(4 + names.len());
        assert_eq!(out, format!("{functions}{invalid}-1 No data available\n"));
        error.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let Some(mut lines) = lines else { return };
    let addresses = lines.pop().unwrap();
    assert!(
        addresses.starts_with("librdmacm: addresses of the family AF_IB are not implemented: ")
    );
    let mut functions = vec!["rsocket", "rrecv", "rdma_resolve_addrinfo"];
    names.iter().for_each(|name| {
        if !functions.contains(name) {
            functions.push(name);
        }
    });
    assert_eq!(lines.len(), functions.len(), "{lines:?}");
    for (line, function) in lines.iter().zip(functions) {
        assert!(line.starts_with(&format!("librdmacm: {function} is not implemented: ")), "{line}");
    }
}
