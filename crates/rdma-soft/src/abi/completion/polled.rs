//! The data that a thread reads while it polls an extended completion queue.

use rdma_sys::{ibv_create_cq_wc_flags as Fields, ibv_wc};

use crate::device::Device;
use crate::fabric::clock::{Clock, Time};

/// The completion that the poll has reached, and the settings that decide which of its fields can be read.
pub(crate) struct Polled {
    /// The fields with which the queue was created (`enum ibv_create_cq_wc_flags`).
    fields: u64,
    pub(super) wc: ibv_wc,
    /// The time at which the request completed.
    pub(super) timestamp: Time,
    /// The clock that `timestamp` was read from.
    pub(super) clock: &'static Clock,
}

impl Polled {
    pub(super) fn new(device: &Device, fields: u64) -> Self {
        let clock = &device.fabric.clock;
        Self { fields, wc: ibv_wc::default(), timestamp: Time::AT_ONCE, clock }
    }

    /// Returns a field's value if the queue was created with that field.
    pub(super) fn field<T>(&self, flag: Fields, value: T) -> Option<T> {
        (self.fields & u64::from(flag.0) != 0).then_some(value)
    }
}

/// The fields that contain times.
pub(super) const TIMESTAMPS: u64 = (Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0
    | Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0)
    as u64;

/// Returns true if a queue with these fields records the times of its completions.
pub(super) fn has_timestamps(fields: u64) -> bool {
    fields & TIMESTAMPS != 0
}
