//! The cases that run on an iWARP device. The kernel's rdma_cm connects their queue pairs.

use std::fs;
use std::path::Path;

use crate::case::Case;

/// The parts with connections by address, and with data.
const PARTS: [&str; 4] = ["by_address", "operations", "over_tcp", "sends"];

const ACKNOWLEDGED: &str = "iWARP does not acknowledge messages, so the sender's requests succeed";
const EMPTY: &str = "siw accepts no receives without elements";
const IMMEDIATES: &str = "iWARP has no immediate data";
const LATE: &str = "siw counts the elements after the post";
const ONE_ELEMENT: &str = "iWARP reads into one element";

/// The cases that an iWARP device, or the kernel's siw, cannot run, with the reasons.
const LACKING: &[(&str, &str)] = &[
    ("operations::read_fetches_bytes_from_the_peers_memory", ONE_ELEMENT),
    ("operations::read_scatters_to_as_many_elements_as_the_queue_pair_has", ONE_ELEMENT),
    ("operations::read_tells_its_target_nothing", EMPTY),
    ("operations::write_tells_its_target_nothing", EMPTY),
    ("operations::write_with_immediate_comes_after_the_bytes_of_the_writes_before_it", IMMEDIATES),
    ("operations::write_with_immediate_moves_exactly_its_bytes_whatever_their_number", IMMEDIATES),
    ("sends::empty_message_takes_a_receive", EMPTY),
    ("sends::empty_write_with_immediate_needs_a_receive_without_elements_only", IMMEDIATES),
    ("sends::fence_alone_changes_nothing", EMPTY),
    ("sends::immediate_data_arrives_bit_for_bit_in_network_order", IMMEDIATES),
    ("sends::inline_data_of_every_length_up_to_the_limit_arrives", IMMEDIATES),
    (
        "sends::inline_data_that_is_too_long_is_refused_at_the_post",
        "siw does not report the state of a queue pair",
    ),
    ("sends::list_of_receives_stops_at_the_request_that_is_refused", LATE),
    ("sends::list_stops_at_the_request_that_is_refused", LATE),
    (
        "sends::message_may_be_as_long_as_the_port_says_and_not_longer",
        "the longest message has 4 GiB",
    ),
    ("sends::message_without_immediate_data_says_so", IMMEDIATES),
    ("sends::queue_pair_has_the_inline_data_that_it_was_made_for", EMPTY),
    ("sends::receive_into_another_protection_domain_is_an_error_on_both_sides", ACKNOWLEDGED),
    ("sends::receive_out_of_bounds_or_without_local_write_is_an_error_on_both_sides", ACKNOWLEDGED),
    ("sends::receive_that_may_not_be_filled_is_a_protection_error", ACKNOWLEDGED),
    ("sends::receive_too_small_is_a_length_error_here_and_an_invalid_request_there", ACKNOWLEDGED),
    ("sends::receive_too_small_is_an_error_on_both_sides", ACKNOWLEDGED),
    ("sends::receive_with_a_bad_key_is_an_error_on_both_sides", ACKNOWLEDGED),
    ("sends::too_many_elements_are_refused_at_the_post", LATE),
    ("sends::too_many_elements_of_a_receive_are_refused_at_the_post", LATE),
    ("sends::write_with_immediate_takes_a_receive_and_leaves_its_memory_alone", IMMEDIATES),
];

/// Returns true if the device with this name speaks iWARP.
pub(crate) fn is_iwarp(name: &str) -> bool {
    let file = Path::new("/sys/class/infiniband").join(name).join("node_type");
    // RDMA_NODE_RNIC
    fs::read_to_string(file).is_ok_and(|text| text.starts_with("4:"))
}

/// Returns true if a run on an iWARP device includes the case.
pub(crate) fn includes(case: &Case) -> bool {
    PARTS.contains(&case.part)
}

/// Returns the reason why an iWARP device cannot run the case.
pub(crate) fn lacking(case: &Case) -> Option<&'static str> {
    let name = case.name();
    LACKING.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn each_lacking_case_exists_and_is_included() {
        for (name, _) in LACKING {
            assert!(cases::all().any(|case| case.name() == *name && includes(case)), "{name}");
        }
    }
}
