//! Programs that must not compile. Each has a twin that differs in one line and compiles.
//!
//! Many are named after defects of other crates, which `docs/memory-and-ownership.md` lists. The messages are those of
//! Rust 1.95. If another compiler words them differently, `TRYBUILD=overwrite` rewrites them.

#![allow(warnings, clippy::all)] // users' programs, in any style

test_support::twins! {
    a_shared_element_is_not_inline_data
    an_element_with_a_key_is_not_inline_data
    h01_a_borrowed_region_is_not_for_peers
    h01_a_region_with_an_element_is_not_forgotten
    h01_an_element_keeps_its_region_registered
    h01_an_element_proves_its_memory_alive
    h01_borrowed_memory_is_left_alone
    h01_borrowed_memory_outlives_its_region
    h01_memory_for_peers_is_unsafe_to_register
    h07_offsets_are_not_signed
    h08_a_field_is_one_of_the_struct
    h08_a_typed_field_has_its_own_length
    h09_a_registered_slice_is_exclusive
    h09_an_element_is_of_a_region
    h09_room_is_for_one_element
    h10_an_atomic_lives_no_longer_than_its_region
    h10_shared_memory_is_never_a_slice
    h10_shared_memory_is_not_freed_under_its_region
    h16_a_region_outlives_the_window_that_borrows_it
    h16_lent_memory_is_out_of_reach
    inline_data_borrows_its_bytes
    inline_data_has_no_key
}
