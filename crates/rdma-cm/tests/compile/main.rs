//! Programs that must not compile: they use connections, requests, listeners or events that have ended. Each has a twin
//! that differs in one line and compiles.
//!
//! The messages are those of Rust 1.95. If another compiler words them differently, `TRYBUILD=overwrite` rewrites them.

#![allow(warnings, clippy::all)] // users' programs, in any style

test_support::twins! {
    a_connection_disconnects_once
    a_dropped_listener_receives_nothing
    a_request_is_answered_before_it_is_established
    a_request_is_decided_once
    an_event_is_for_one_connection
    an_event_is_read_before_it_is_passed_on
    an_id_ends_with_its_disconnect
    parts_replace_a_connection
    the_previous_state_has_ended
    the_queue_pair_lives_as_long_as_its_connection
}
