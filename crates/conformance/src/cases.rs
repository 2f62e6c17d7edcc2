//! The cases.

mod extended_batches;
mod extended_fields;
mod extended_polls;
mod extended_posts;
mod extended_queue_pairs;
mod operations;

use crate::case::Case;

const PARTS: &[&[Case]] = &[
    extended_batches::CASES,
    extended_fields::CASES,
    extended_polls::CASES,
    extended_posts::CASES,
    extended_queue_pairs::CASES,
    operations::CASES,
];

pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    PARTS.iter().copied().flatten()
}
