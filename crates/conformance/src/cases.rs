//! The cases.

mod async_events;
mod attributes;
mod channels;
mod extended_batches;
mod extended_fields;
mod extended_polls;
mod extended_posts;
mod extended_queue_pairs;
mod keys;
mod objects;
mod operations;
mod overflow;
mod queries;
mod registration;
mod states;

use crate::case::Case;

const PARTS: &[&[Case]] = &[
    async_events::CASES,
    attributes::CASES,
    channels::CASES,
    extended_batches::CASES,
    extended_fields::CASES,
    extended_polls::CASES,
    extended_posts::CASES,
    extended_queue_pairs::CASES,
    keys::CASES,
    objects::CASES,
    operations::CASES,
    overflow::CASES,
    queries::CASES,
    registration::CASES,
    states::CASES,
];

pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    PARTS.iter().copied().flatten()
}
