//! Programs that must not compile. Each has a twin that differs in one line and compiles.
//!
//! The messages are those of Rust 1.95. For a compiler with other messages, `TRYBUILD=overwrite` writes them again.

#![allow(warnings, clippy::all)] // users may write their programs in any style

test_support::twins! {
    a_batch_has_no_inline_elements_of_a_region
    a_blocking_call_waits_for_unpolled_handles_to_go
    a_blocking_write_has_no_inline_elements_of_a_region
    a_channel_does_not_block_inside_its_scope
    a_channel_is_not_dropped_inside_its_scope
    a_handle_is_not_returned
    a_handle_stays_in_its_scope
    a_handle_stays_on_its_thread
    a_message_of_a_ring_is_read_before_the_next_is_waited_for
    a_peer_is_not_removed_under_its_handles
    a_peer_stays_in_its_scope
    a_region_is_not_dropped_while_its_memory_is_in_flight
    a_rented_request_is_not_inline
    a_rented_request_keeps_its_memory
    a_scope_is_not_kept
    a_scope_is_not_smuggled_into_another
    a_scope_is_not_taken_for_another
    a_scope_sends_no_inline_elements_of_a_region
    a_scope_stays_on_its_thread
    an_element_posted_for_two_messages_is_not_read_after_the_first
    an_exchange_does_not_receive_into_what_it_sends
    elements_of_a_region_are_not_inline_to_a_peer
    h04_a_channel_outlives_its_unpolled_handles
    handles_of_peers_stay_in_their_scope
    memory_for_each_peer_outlives_the_scope
    memory_in_flight_is_not_freed
    memory_in_flight_is_not_moved
    memory_in_flight_is_not_read
    memory_in_flight_is_not_written
    memory_is_posted_for_one_message
    memory_of_a_batch_of_any_length_outlives_the_scope
    memory_outlives_the_scope
    only_inline_data_is_written_after_its_post
    only_what_is_lent_is_rented
    plain_bytes_are_not_rented
    rented_memory_does_not_leave_with_its_handle
    rented_memory_is_not_freed
    rented_memory_is_not_moved
    rented_memory_is_not_read
    rented_memory_is_not_written
    rented_memory_is_rented_once
    rented_memory_outlives_the_scope
    unpolled_operations_are_unsafe
}
