//! The counters, each declared once.

use std::ops::AddAssign;

use super::rare::Rare;

/// Adds the count of a connection of packets under the same name, if the unit of the counter is one of packets.
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
        /// Counts of a device since it was installed, from [`SoftDevice::counters`](crate::SoftDevice::counters).
        ///
        /// Messages to other processes ([`Builder::peers`](crate::Builder::peers)) and to other hosts
        /// ([`Builder::listen`](crate::Builder::listen)) pass as packets. So do messages of devices with
        /// [`Builder::force_wire`](crate::Builder::force_wire). All others are copies. A counter of "requests or
        /// packets" counts packets for the former and requests for the latter.
        ///
        /// Names are those of the kernel's SoftRoCE (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`,
        /// `/sys/class/infiniband/rxe0/ports/1/hw_counters`) if it has the same counter. mlx5 has the names
        /// `local_ack_timeout_err`, `roce_adp_retrans`, `implied_nak_seq_err`, `out_of_buffer`,
        /// `resp_remote_access_errors` and `rx_icrc_encapsulated`. `qkey_viol_cntr` and `bad_pkey_cntr` are fields of
        /// `ibv_port_attr`. The other names are new.
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

        /// A counter of each name, for events that are rare enough.
        #[derive(Debug, Default)]
        pub(crate) struct Rares {
            $(pub(crate) $name: Rare,)+
        }

        impl Rares {
            pub(super) fn get(&self) -> Counters {
                Counters { $($name: self.$name.get(),)+ }
            }

            /// Adds the counts of one side of a connection of packets. Its executed requests are counted elsewhere.
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

// The documentation is also the counter's row in docs/software-device.md, which a test below compares and writes. The
// units `requests or packets` and `packets of connections` have a meaning for `add_of_connection`.
counters! {
    /// Requests of this device that were executed, or sent without an acknowledgement to wait for. A message is one
    /// request, whatever its length.
    sent_pkts: requests, "a_request_counts_at_both_devices_even_after_the_queue_pairs_are_gone";
    /// Requests of peers that were executed here.
    rcvd_pkts: requests, "a_request_counts_at_both_devices_even_after_the_queue_pairs_are_gone";
    /// Requests of the connected peer with an earlier sequence number than the expected one. They are dropped;
    /// packets are answered again.
    duplicate_request: requests or packets, "earlier_and_later_sequence_numbers_have_separate_counters";
    /// Requests of the connected peer with a later sequence number than the expected one. They are dropped.
    out_of_seq_request: requests or packets, "earlier_and_later_sequence_numbers_have_separate_counters";
    /// Requests of this device that found their receiver without a receive request, each time.
    rcvd_rnr_err: requests or packets, "running_connections_are_counted";
    /// Requests of peers that found no receive request here, each time.
    send_rnr_err: requests or packets, "running_connections_are_counted";
    /// Reports of a peer that a packet is missing.
    rcvd_seq_err: packets of connections, "a_gap_is_counted_at_both_ends";
    /// Always 0: SoftRoCE counts here how often its completer was left to another thread.
    ack_deferred: nothing;
    /// Requests that failed because the peer did not answer.
    retry_exceeded_err: requests, "retries_are_counted_and_so_is_giving_up";
    /// Requests that failed because the peer had no receive request.
    retry_rnr_exceeded_err: requests,
        "a_receiver_that_is_not_ready_is_counted_by_both_and_giving_up_by_the_requester";
    /// Retries because the peer did not answer.
    completer_retry_err: requests or packets, "retries_are_counted_and_so_is_giving_up";
    /// Packets to other hosts that the network refused: it is full, has no route, or too small an MTU.
    send_err: packets, "datagrams_that_the_kernel_refuses_are_counted";
    /// Times that the port went down.
    link_downed: times, "a_port_counts_how_often_it_went_down";
    /// SEND requests that were executed.
    rdma_sends: requests, "sends_and_receives_are_counted_when_they_are_done";
    /// Receive requests that completed with success.
    rdma_recvs: requests, "sends_and_receives_are_counted_when_they_are_done";
    /// Expired acknowledgement timers.
    local_ack_timeout_err: packets of connections, "a_lost_acknowledgement_is_counted_as_a_timeout_and_a_duplicate";
    /// Probes: the oldest packet, sent again alone.
    roce_adp_retrans: packets of connections, "silence_is_probed";
    /// Responses past a READ or an atomic that was not answered.
    implied_nak_seq_err: packets of connections, "a_lost_response_is_counted_as_an_implied_nak";
    /// Messages without acknowledgements, datagrams too, that were dropped because the receive request was missing or
    /// too small.
    out_of_buffer: packets of connections, "lost_messages_are_counted";
    /// Requests that were refused because their key, range or rights are wrong.
    resp_remote_access_errors: packets of connections, "a_refused_request_is_counted_by_the_responder";
    /// Requests that were refused because they are invalid in themselves.
    resp_invalid_request_errors: packets of connections, "refused_requests_are_counted_by_reason";
    /// Requests, datagrams too, that were refused because the responder could not complete them.
    resp_remote_operation_errors: packets of connections, "an_unfinished_response_is_counted_once";
    /// Datagrams with another Q_Key than their receiver's, also without packets.
    qkey_viol_cntr: datagrams, "datagrams_to_groups_are_one_request_each_and_one_for_each_member";
    /// Requests before the expected one that are not answered: too old, different from the original, or with a PSN that
    /// was never received.
    unanswered_duplicate: packets of connections, "a_duplicate_that_is_too_old_is_dropped";
    /// Responses whose PSN is not in flight: duplicates, or answers to no request.
    unsolicited_response: packets of connections, "a_doubled_acknowledgement_is_counted_as_unsolicited";
    /// Negative acknowledgements of packets that are about to be sent again anyway.
    stale_nak: packets of connections, "a_doubled_negative_acknowledgement_is_counted_as_stale";
    /// Acknowledgements with a reserved syndrome, and responses with data whose syndrome is not ACK.
    reserved_syndrome: packets of connections, "reserved_syndromes_are_dropped";
    /// Responses that do not fit their request, which failed, and acknowledgements with a payload.
    bad_response: packets of connections, "a_response_that_does_not_match_is_counted";
    /// Packets of the right service with an opcode that their receiver does not accept.
    wrong_opcode: packets of connections, "packets_of_another_service_or_direction_are_dropped";
    /// Packets that arrived after a request of their connection had failed.
    after_end: packets of connections, "refused_requests_are_counted_by_reason";
    /// Requests that this process dropped for a reason of its own.
    dropped_by_host: packets of connections, "a_packet_dropped_by_the_host_arrives_again";
    /// Packets with a wrong ICRC: damaged on a simulated link, or received by UDP.
    rx_icrc_encapsulated: packets, "a_bad_network_is_recovered_from_and_the_same_each_time";
    /// Packets of another partition than the port's.
    bad_pkey_cntr: packets, "packets_of_other_partitions_are_dropped";
    /// Packets for an unknown or destroyed QPN.
    unknown_qp: packets, "a_turn_executes_sixteen_packets";
    /// Packets for a queue pair of another service: reliable connection, unreliable connection, datagrams.
    wrong_service: packets, "each_reason_has_its_counter";
    /// Packets for a connected queue pair from another address than its peer's.
    wrong_source: packets, "each_reason_has_its_counter";
    /// Packets for a queue pair that accepts none in its state.
    wrong_state: packets, "each_reason_has_its_counter";
    /// Packets that were lost because this port was down, sent or received.
    port_down: packets, "packets_lost_by_a_port_are_sent_again";
    /// Packets to an address of no device, or to a process that has ended.
    no_route: packets, "each_reason_has_its_counter";
    /// Datagrams that were lost because a process read nothing for a second, or more than 1 MiB waited for it.
    stalled: datagrams, "datagrams_are_lost_after_a_second_and_packets_of_connections_are_not";
    /// Times that a process of this host read and answered nothing for half of `Builder::peer_limit`, and had not
    /// ended.
    silent: times, "a_process_that_is_silent_for_too_long_is_given_up";
    /// Messages of other processes that no device sends, which close their connection, and UDP datagrams that are not
    /// packets.
    malformed: messages, "garbage_words_harm_only_their_own_connection";
    /// Connections of other processes that were closed at once: of another user, or too many. At most 64 of one
    /// process, 2,048 in all, or half of the files that the process may open are accepted.
    refused_connections: connections, "endless_connections_get_only_their_share";
    /// System calls that copied memory which may have been unmapped since its registration. `rdma-mem` notes that the
    /// memory of its regions stays mapped, except of `MemoryRegion` and `DmabufRegion`; programs in C note nothing.
    guarded_copies: calls, "packets_for_memory_that_is_gone_fail_as_with_a_bad_key";
    /// Times that connections of other processes waited because files sent by others hold up all threads that close
    /// them.
    held_up_connections: times, "files_of_another_user_hold_up_only_new_connections_on_an_earlier_kernel";
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::path::Path;
    use std::{env, fs};

    use super::*;

    const CRATE: &str = env!("CARGO_MANIFEST_DIR");

    /// `RDMA_SOFT_COUNTERS=write` writes the table.
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

    /// All sources of this crate and of the protocol's, tests included.
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
        // Counters of the protocol that are not added are counted in requests, or by the receiver of datagrams.
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
