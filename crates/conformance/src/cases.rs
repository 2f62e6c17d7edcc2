//! The cases.

mod operations;

use crate::case::Case;

const PARTS: &[&[Case]] = &[operations::CASES];

pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    PARTS.iter().copied().flatten()
}
