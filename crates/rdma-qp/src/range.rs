//! Numbers of a builder that fit their Rust type and not their field in a packet, or not the device.

use rdma_mem::{DeviceAttributes, PortAttributes};

use crate::{Error, QueuePairBuilder};

/// Providers cut off the bits that a field does not have, or refuse them without a reason.
pub(crate) fn check(
    builder: &QueuePairBuilder<'_>,
    device: &DeviceAttributes,
    port: &PortAttributes,
) -> Result<(), Error> {
    let settings = &builder.settings;
    let places = port.pkey_table_length.saturating_sub(1);
    let depth = |depth: Option<u8>| u32::from(depth.unwrap_or(0));
    let knobs = [
        ("service_level", settings.service_level.into(), 0xf),
        ("flow_label", settings.flow_label, 0xf_ffff),
        ("pkey_index", settings.pkey_index.into(), places.into()),
        ("max_rd_atomic", depth(builder.max_rd_atomic), device.max_qp_init_rd_atom),
        ("max_dest_rd_atomic", depth(builder.max_dest_rd_atomic), device.max_qp_rd_atom),
    ];
    match knobs.into_iter().find(|&(_, value, most)| value > most) {
        Some((knob, value, most)) => Err(Error::TooLarge { knob, value, most }),
        None => Ok(()),
    }
}
