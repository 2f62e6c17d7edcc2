//! Programs that must not compile. Each has a twin that differs in one line and compiles.
//!
//! Many are named after defects of other crates, which `docs/memory-and-ownership.md` lists. The messages are those of
//! Rust 1.95. If another compiler words them differently, `TRYBUILD=overwrite` rewrites them.

#![allow(warnings, clippy::all)] // users' programs, in any style

test_support::twins! {
    a_dmabuf_is_not_inline_data
    a_queue_pair_is_connected_before_it_is_used
    a_zero_based_region_is_not_inline_data
    an_element_of_any_address_is_not_inline_data
    completions_keep_their_slots
    h04_a_queue_pair_connects_once
    h05_a_failed_poll_completes_nothing
    h09_a_request_borrows_its_memory
    h09_room_is_for_one_request
    h14_a_failed_request_says_nothing_undefined
    h18_an_atomic_writes_its_result
    inline_data_lives_until_it_is_posted
    posting_is_unsafe
}
