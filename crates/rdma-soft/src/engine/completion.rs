//! Completion queues, and the slots that polling releases.

mod entry;
#[cfg(test)]
#[cfg(loom)]
mod loom_resize_tests;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
mod queue;
mod reclaimed;
mod resize;
mod rings;
mod seats;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
pub(crate) mod work_completion;

pub(crate) use entry::Seat;
pub(crate) use queue::{CompletionQueue, Notifier, User};
pub(crate) use reclaimed::Reclaimed;
