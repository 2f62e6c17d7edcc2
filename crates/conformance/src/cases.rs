//! The cases, in folders by topic. A file's name is the first part of its cases' names.

mod channel;
mod completion;
mod connection;
mod datagram;
mod device;
mod memory;
mod process;
mod queue_pair;
mod request;
mod shared_queue;

use crate::case::Case;

const PARTS: &[&[Case]] = &[
    datagram::address_handles::CASES,
    connection::async_connections::CASES,
    connection::async_leases::CASES,
    connection::by_address::CASES,
    connection::over_tcp::CASES,
    device::async_events::CASES,
    request::atomics::CASES,
    queue_pair::attributes::CASES,
    memory::binds::CASES,
    completion::channels::CASES,
    channel::channels_to_many::CASES,
    completion::completions::CASES,
    process::concurrency::CASES,
    channel::connected_channels::CASES,
    datagram::datagram_errors::CASES,
    datagram::datagrams::CASES,
    queue_pair::drained::CASES,
    queue_pair::endings::CASES,
    request::extended_batches::CASES,
    completion::extended_fields::CASES,
    completion::extended_polls::CASES,
    request::extended_posts::CASES,
    queue_pair::extended_queue_pairs::CASES,
    channel::failing_destruction::CASES,
    channel::failing_polls::CASES,
    queue_pair::flush::CASES,
    process::forks::CASES,
    channel::groups::CASES,
    memory::invalidation::CASES,
    memory::keys::CASES,
    memory::locked_memory::CASES,
    datagram::multicast::CASES,
    connection::not_ready::CASES,
    device::objects::CASES,
    request::operations::CASES,
    completion::overflow::CASES,
    device::queries::CASES,
    queue_pair::queues::CASES,
    channel::messages::CASES,
    memory::registration::CASES,
    completion::resizing::CASES,
    request::sends::CASES,
    channel::servers::CASES,
    datagram::services::CASES,
    shared_queue::shared_receive_queues::CASES,
    shared_queue::shared_receives::CASES,
    completion::sharing::CASES,
    device::sizes::CASES,
    channel::sleeping_channels::CASES,
    queue_pair::states::CASES,
    process::threads::CASES,
    channel::unpolled_channels::CASES,
    connection::unreachable::CASES,
    connection::unreliable::CASES,
    connection::unreliable_errors::CASES,
    queue_pair::values::CASES,
    memory::windows::CASES,
];

pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    PARTS.iter().copied().flatten()
}
