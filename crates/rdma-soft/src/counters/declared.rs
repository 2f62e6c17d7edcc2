//! The counters, each declared once.

use std::ops::AddAssign;

use super::rare::Rare;

/// Adds a connection's count to the device's counter with the same name. Only two units of counters include such
/// counts: `packets of connections` and `requests or packets`.
macro_rules! add_of_connection {
    ([packets of connections] $rare:expr, $counted:expr) => {
        let packets = $counted;
        if packets != 0 {
            $rare.add(packets);
        }
    };
    ([requests or packets] $($rest:tt)*) => {
        add_of_connection!([packets of connections] $($rest)*);
    };
    ($($rest:tt)*) => {};
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident: $($unit:ident)+ $(, $test:literal)?;)+) => {
        /// Counters of a device since it was installed, returned by
        /// [`SoftDevice::counters`](crate::SoftDevice::counters).
        ///
        /// Messages to other processes ([`Builder::peers`](crate::Builder::peers)) and to other hosts
        /// ([`Builder::listen`](crate::Builder::listen)) are sent as packets. So are messages of devices with
        /// [`Builder::force_wire`](crate::Builder::force_wire) or
        /// [`Builder::between_processes`](crate::Builder::between_processes). All other messages are copied directly. A counter whose
        /// unit is "requests or packets" counts packets for messages sent as packets, and requests for messages copied
        /// directly.
        ///
        /// Counters that the kernel's SoftRoCE also has keep their names
        /// (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`, `/sys/class/infiniband/rxe0/ports/1/hw_counters`). The names
        /// `local_ack_timeout_err`, `roce_adp_retrans`, `implied_nak_seq_err`, `out_of_buffer`,
        /// `resp_remote_access_errors` and `rx_icrc_encapsulated` come from mlx5. `qkey_viol_cntr` and `bad_pkey_cntr`
        /// are fields of `ibv_port_attr`. The other names are new.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nUnit: ", stringify!($($unit)+), ".")]
                pub $name: u64,
            )+
        }

        impl Counters {
            /// Returns each name with its value, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }

        /// An atomic counter for each name, for events that are rare enough to afford an atomic addition.
        #[derive(Debug, Default)]
        pub(crate) struct Rares {
            $(pub(crate) $name: Rare,)+
        }

        impl Rares {
            pub(super) fn get(&self) -> Counters {
                Counters { $($name: self.$name.get(),)+ }
            }

            /// Adds the counts of one side of a connection that uses packets. Its executed requests are counted
            /// elsewhere.
            #[cold]
            pub(crate) fn add(&self, counted: &rdma_proto::Counters) {
                $(add_of_connection!([$($unit)+] self.$name, counted.$name);)+
            }
        }

        /// The name, unit and documentation of each counter, and the test that increments it.
        #[cfg(all(test, not(loom)))]
        const DECLARED: &[(&str, &str, &str, &[&str])] = &[
            $((stringify!($name), stringify!($($unit)+), concat!($($doc),+), &[$($test)?]),)+
        ];
    };
}

// The documentation of each counter is also its row in docs/software-device.md. A test below compares the two, and can
// write the table. `add_of_connection` decides by the unit whether the counts of connections are added.
counters! {
    /// Requests of this device that were executed, or sent without expecting an acknowledgement. A message of any
    /// length is one request.
    sent_pkts: requests, "a_request_counts_at_both_devices_even_after_the_queue_pairs_are_gone";
    /// Requests of peers that this device executed.
    rcvd_pkts: requests, "a_request_counts_at_both_devices_even_after_the_queue_pairs_are_gone";
    /// Requests of the connected peer with an earlier sequence number than expected. They are dropped; packets are
    /// answered again.
    duplicate_request: requests or packets, "earlier_and_later_sequence_numbers_have_separate_counters";
    /// Requests of the connected peer with a later sequence number than expected. They are dropped.
    out_of_seq_request: requests or packets, "earlier_and_later_sequence_numbers_have_separate_counters";
    /// Attempts of this device's requests that failed because the receiver had no receive request.
    rcvd_rnr_err: requests or packets, "running_connections_are_counted";
    /// Attempts of peers' requests that failed because there was no receive request here.
    send_rnr_err: requests or packets, "running_connections_are_counted";
    /// NAKs from peers that report a missing packet.
    rcvd_seq_err: packets of connections, "a_gap_is_counted_at_both_ends";
    /// Always 0. SoftRoCE counts the work that its completer left to another thread.
    ack_deferred: nothing;
    /// Requests that failed because the peer did not answer.
    retry_exceeded_err: requests, "retries_are_counted_and_so_is_giving_up";
    /// Requests that failed because the peer had no receive request.
    retry_rnr_exceeded_err: requests,
        "a_receiver_that_is_not_ready_is_counted_by_both_and_giving_up_by_the_requester";
    /// Retries after the peer did not answer.
    completer_retry_err: requests or packets, "retries_are_counted_and_so_is_giving_up";
    /// Packets to other hosts that the network refused: its queue is full, it has no route, or its MTU is too small.
    send_err: packets, "datagrams_that_the_kernel_refuses_are_counted";
    /// Times that the port went down.
    link_downed: times, "a_port_counts_how_often_it_went_down";
    /// SEND requests that were executed.
    rdma_sends: requests, "sends_and_receives_are_counted_when_they_are_done";
    /// Receive requests that completed with success.
    rdma_recvs: requests, "sends_and_receives_are_counted_when_they_are_done";
    /// Bytes of the messages of `sent_pkts`, in both directions. An atomic has eight bytes.
    sent_bytes: bytes, "each_end_counts_the_bytes_of_executed_requests";
    /// Bytes of the messages of `rcvd_pkts`, in both directions.
    rcvd_bytes: bytes, "each_end_counts_the_bytes_of_executed_requests";
    /// Expired acknowledgement timers.
    local_ack_timeout_err: packets of connections, "a_lost_acknowledgement_is_counted_as_a_timeout_and_a_duplicate";
    /// Probes: the oldest unacknowledged packet, retransmitted alone.
    roce_adp_retrans: packets of connections, "silence_is_probed";
    /// Responses to requests that follow a READ or an atomic whose own response is missing.
    implied_nak_seq_err: packets of connections, "a_lost_response_is_counted_as_an_implied_nak";
    /// Unacknowledged messages (unreliable connections and datagrams) that were dropped because the receive request was
    /// missing or too small.
    out_of_buffer: packets of connections, "lost_messages_are_counted";
    /// Requests that were refused because of their key, range or rights.
    resp_remote_access_errors: packets of connections, "a_refused_request_is_counted_by_the_responder";
    /// Requests that were refused as invalid requests.
    resp_invalid_request_errors: packets of connections, "refused_requests_are_counted_by_reason";
    /// Requests (datagrams included) that were refused because the responder could not complete them.
    resp_remote_operation_errors: packets of connections, "an_unfinished_response_is_counted_once";
    /// Datagrams, sent as packets or not, whose Q_Key differs from their receiver's.
    qkey_viol_cntr: datagrams, "datagrams_to_groups_are_one_request_each_and_one_for_each_member";
    /// Duplicate requests (PSN before the expected one) without an answer: too old, different from the original, or
    /// with a PSN that was never received.
    unanswered_duplicate: packets of connections, "a_duplicate_that_is_too_old_is_dropped";
    /// Responses whose PSN is not in flight: duplicates, or responses that match no request.
    unsolicited_response: packets of connections, "a_doubled_acknowledgement_is_counted_as_unsolicited";
    /// NAKs for packets that are about to be retransmitted anyway.
    stale_nak: packets of connections, "a_doubled_negative_acknowledgement_is_counted_as_stale";
    /// Acknowledgements with a reserved syndrome, and responses with data whose syndrome is not ACK.
    reserved_syndrome: packets of connections, "reserved_syndromes_are_dropped";
    /// Acknowledgements with a payload, and responses that do not match their request. Such a request fails.
    bad_response: packets of connections, "a_response_that_does_not_match_is_counted";
    /// Packets of the right service with an opcode that the receiver does not accept.
    wrong_opcode: packets of connections, "packets_of_another_service_or_direction_are_dropped";
    /// Packets that arrived after a request of their connection failed.
    after_end: packets of connections, "refused_requests_are_counted_by_reason";
    /// Requests that this process dropped for its own reasons.
    dropped_by_host: packets of connections, "a_packet_dropped_by_the_host_arrives_again";
    /// Packets with a wrong ICRC: damaged on a simulated link, or received over UDP.
    rx_icrc_encapsulated: packets, "a_bad_network_is_recovered_from_and_the_same_each_time";
    /// Packets whose partition is not the port's.
    bad_pkey_cntr: packets, "packets_of_other_partitions_are_dropped";
    /// Packets for an unknown or destroyed QPN.
    unknown_qp: packets, "a_turn_executes_sixteen_packets";
    /// Packets for a queue pair with a different service: reliable connection, unreliable connection, datagrams.
    wrong_service: packets, "each_reason_has_its_counter";
    /// Packets for a connected queue pair from an address other than its peer's.
    wrong_source: packets, "each_reason_has_its_counter";
    /// Packets for a queue pair whose state accepts none.
    wrong_state: packets, "each_reason_has_its_counter";
    /// Packets sent or received that were lost because this port was down.
    port_down: packets, "packets_lost_by_a_port_are_sent_again";
    /// Packets to an address that no device has, or to a process that has exited.
    no_route: packets, "each_reason_has_its_counter";
    /// Datagrams that were lost because a process read nothing for a second, or had a backlog of more than 1 MiB.
    stalled: datagrams, "datagrams_are_lost_after_a_second_and_packets_of_connections_are_not";
    /// Times that a live process of this host neither read nor answered for half of `Builder::peer_limit`.
    silent: times, "a_process_that_is_silent_for_too_long_is_given_up";
    /// Malformed messages from other processes (each closes the connection), and UDP datagrams that are not packets.
    malformed: messages, "garbage_words_harm_only_their_own_connection";
    /// Connections from other processes that were closed at once, because of their user or a limit. At most 64 are
    /// accepted from one process. In all, at most 8,192 are accepted, or half of the process's limit on open files if
    /// that is less.
    refused_connections: connections, "endless_connections_get_only_their_share";
    /// System calls that copied memory which may have been unmapped since its registration.
    guarded_copies: calls, "packets_for_memory_that_is_gone_fail_as_with_a_bad_key";
    /// Times that connections from other processes waited, because files sent by others held up all threads that close
    /// files.
    held_up_connections: times, "files_of_another_user_hold_up_only_new_connections_on_an_earlier_kernel";
    /// Requests that this device executed itself, on memory of another process that it has mapped. `sent_pkts` includes
    /// them. The counters of the other process include only WRITEs with immediate data.
    mapped_requests: requests, "mapped_memory_is_used_without_its_process";
    /// Regions and grants that a process could not map, for lack of memory or because of a limit on open files or
    /// mappings. Their requests are sent as packets.
    unmapped_regions: times, "without_descriptors_requests_go_as_packets";
    /// Faults that the device injected (`Builder::faults`): failed calls and requests, lost packets, times that the
    /// port went down, and times that GIDs moved.
    injected_faults: times, "faults_are_the_same_in_each_run_with_a_seed";
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::path::Path;
    use std::{env, fs};

    use super::*;

    const CRATE: &str = env!("CARGO_MANIFEST_DIR");

    /// With `RDMA_SOFT_COUNTERS=write`, writes the table instead of comparing it.
    #[test]
    fn the_page_has_a_row_for_each_counter() {
        const HEAD: &str = "| counter | counts | unit |\n|---|---|---|\n";
        let path = format!("{CRATE}/../../docs/software-device.md");
        let page = fs::read_to_string(&path).unwrap();
        let start = page.find(HEAD).unwrap() + HEAD.len();
        let end = start + page[start..].find("\n\n").unwrap() + 1;
        let row =
            |(name, unit, docs, _): &(_, _, &str, _)| format!("| `{name}` |{docs} | {unit} |\n");
        let rows: String = DECLARED.iter().map(row).collect();
        if env::var("RDMA_SOFT_COUNTERS").is_ok_and(|value| value == "write") {
            fs::write(&path, [&page[..start], &rows, &page[end..]].concat()).unwrap();
            return;
        }
        assert_eq!(&page[start..end], rows, "RDMA_SOFT_COUNTERS=write writes the table");
    }

    /// Appends the text of all Rust files below `folder` to `into`.
    fn sources(folder: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn each_counter_has_a_test_that_increments_it() {
        let mut files = Vec::new();
        for folder in ["src", "tests", "../rdma-proto/tests"] {
            sources(&Path::new(CRATE).join(folder), &mut files);
        }
        for (name, unit, _, tests) in DECLARED {
            assert_eq!(tests.is_empty(), *unit == "nothing", "`{name}` names its test");
            for test in *tests {
                let declaration = format!("fn {test}(");
                let file = files.iter().find(|file| file.contains(&declaration));
                let file = file.unwrap_or_else(|| panic!("`{name}`: there is no test `{test}`"));
                assert!(file.contains(name), "`{name}` is not in the file of its test `{test}`");
            }
        }
    }

    #[test]
    fn a_device_adds_the_counts_of_its_connections() {
        let mut counted = rdma_proto::Counters::default();
        (counted.sent_pkts, counted.retry_exceeded_err, counted.qkey_viol_cntr) = (1, 2, 3);
        (counted.duplicate_request, counted.stale_nak) = (4, 5);
        let rares = Rares::default();
        rares.add(&counted);
        rares.add(&counted);
        let added: Vec<_> = rares.get().iter().filter(|&(_, value)| value > 0).collect();
        assert_eq!(added, [("duplicate_request", 8), ("stale_nak", 10)]);
        // The device does not add the protocol's other counters: it counts requests itself, and the receiver of a
        // datagram counts its wrong Q_Key.
        let of_device = |name: &str| DECLARED.iter().find(|declared| declared.0 == name).unwrap().1;
        let others = counted.iter().map(|(name, _)| name);
        let others = others.filter(|name| !of_device(name).contains("packets"));
        let names = [
            "sent_pkts",
            "rcvd_pkts",
            "retry_exceeded_err",
            "retry_rnr_exceeded_err",
            "qkey_viol_cntr",
        ];
        assert!(others.eq(names));
    }
}
