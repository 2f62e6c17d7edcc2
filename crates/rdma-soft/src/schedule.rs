//! When the device executes what was posted to it.

/// When a device executes the requests that are posted to it.
///
/// A device on which nothing is ever in flight proves nothing about a program that must cope with
/// requests in flight. The requests of one queue pair are executed in order under every schedule.
///
/// On a device that sends packets the schedule says when a request may begin to be sent. So it does
/// on those of a [`Network`](crate::Network), where another thread is the next call that lets
/// virtual time pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// Within the post, on the poster's thread: the fastest, and the default.
    #[default]
    Immediate,
    /// At a later poll of the device, or a moment later on another thread, as the seed decides.
    Deferred {
        /// Decides what is executed when; threads still race.
        seed: u64,
    },
    /// Not before [`SoftDevice::release`](crate::SoftDevice::release) and its relatives say so.
    Held,
}
