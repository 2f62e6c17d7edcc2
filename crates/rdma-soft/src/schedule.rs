//! Schedules, which decide when a device executes posted requests.

/// Decides when a device executes the requests that are posted to it.
///
/// A device that never has requests in flight cannot test how a program copes with them. Under every schedule, the
/// requests of one queue pair are executed in order.
///
/// On a device that sends packets, the schedule decides when the device may begin to send a request. On a device of a
/// [`Network`](crate::Network), a deferred request can begin at the next call that advances virtual time, instead of on
/// another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// Within the post, on the posting thread. This is the fastest schedule and the default.
    #[default]
    Immediate,
    /// At a later poll of the device, or slightly later on another thread, as the seed determines.
    Deferred {
        /// Determines which requests are executed at which poll; threads still race.
        seed: u64,
    },
    /// Only when [`SoftDevice::release`](crate::SoftDevice::release) or a similar call releases the request.
    Held,
}
