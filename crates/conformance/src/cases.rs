//! The cases.

mod address_handles;
mod async_events;
mod atomics;
mod attributes;
mod binds;
mod channels;
mod channels_to_many;
mod completions;
mod concurrency;
mod connected_channels;
mod datagram_errors;
mod datagrams;
mod drained;
mod endings;
mod extended_batches;
mod extended_fields;
mod extended_polls;
mod extended_posts;
mod extended_queue_pairs;
mod failing_destruction;
mod failing_polls;
mod flush;
mod forks;
mod invalidation;
mod keys;
mod locked_memory;
mod multicast;
mod not_ready;
mod objects;
mod operations;
mod overflow;
mod queries;
mod queues;
mod registration;
mod resizing;
mod sends;
mod shared_receive_queues;
mod shared_receives;
mod sharing;
mod sizes;
mod states;
mod threads;
mod unpolled_channels;
mod unreachable;
mod unreliable;
mod unreliable_errors;
mod values;
mod windows;

use crate::case::Case;

const PARTS: &[&[Case]] = &[
    address_handles::CASES,
    async_events::CASES,
    atomics::CASES,
    attributes::CASES,
    binds::CASES,
    channels::CASES,
    channels_to_many::CASES,
    completions::CASES,
    concurrency::CASES,
    connected_channels::CASES,
    datagram_errors::CASES,
    datagrams::CASES,
    drained::CASES,
    endings::CASES,
    extended_batches::CASES,
    extended_fields::CASES,
    extended_polls::CASES,
    extended_posts::CASES,
    extended_queue_pairs::CASES,
    failing_destruction::CASES,
    failing_polls::CASES,
    flush::CASES,
    forks::CASES,
    invalidation::CASES,
    keys::CASES,
    locked_memory::CASES,
    multicast::CASES,
    not_ready::CASES,
    objects::CASES,
    operations::CASES,
    overflow::CASES,
    queries::CASES,
    queues::CASES,
    registration::CASES,
    resizing::CASES,
    sends::CASES,
    shared_receive_queues::CASES,
    shared_receives::CASES,
    sharing::CASES,
    sizes::CASES,
    states::CASES,
    threads::CASES,
    unpolled_channels::CASES,
    unreachable::CASES,
    unreliable::CASES,
    unreliable_errors::CASES,
    values::CASES,
    windows::CASES,
];

pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    PARTS.iter().copied().flatten()
}
