//! The schedules by which a device executes posted requests.

/// The schedule by which a device executes the requests that are posted to it.
///
/// A device that never has requests in flight cannot test a program that must cope with them. The requests of one queue
/// pair are executed in order under every schedule.
///
/// On a device that sends packets, the schedule decides when sending a request may begin. This includes devices of a
/// [`Network`](crate::Network). There, a deferred request may begin at the next call that lets virtual time pass,
/// instead of on another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// Within the post, on the posting thread: the fastest, and the default.
    #[default]
    Immediate,
    /// At a later poll of the device, or a moment later on another thread, according to the seed.
    Deferred {
        /// Decides which requests are executed at which poll; threads still race.
        seed: u64,
    },
    /// Not before a call of [`SoftDevice::release`](crate::SoftDevice::release) or its relatives.
    Held,
}
