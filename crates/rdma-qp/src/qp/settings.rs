//! The options of a queue pair that are passed to the device.

use rdma_mem::{AccessFlags, Lid};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer};

use crate::ah::vector::{AddressVector, GlobalRoute};

/// The options that are passed to the device unchanged when the queue pair is connected or activated. A UD queue pair
/// also uses them for its address handles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) access: AccessFlags,
    /// The key that datagrams must carry; used only for UD.
    pub(crate) qkey: u32,
    pub(crate) ack_timeout: AckTimeout,
    pub(crate) max_ack_retries: MaxAckRetries,
    pub(crate) max_rnr_retries: MaxRnrRetries,
    pub(crate) min_rnr_timer: MinRnrTimer,
    pub(crate) pkey_index: u16,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
}

impl Settings {
    /// Returns the route from this port to `lid`, with these settings.
    pub(crate) fn vector(
        &self,
        port: u8,
        (lid, route): (Lid, Option<GlobalRoute>),
    ) -> AddressVector {
        AddressVector {
            route,
            service_level: self.service_level,
            traffic_class: self.traffic_class.unwrap_or(0),
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            ..AddressVector::new(port, lid)
        }
    }
}
