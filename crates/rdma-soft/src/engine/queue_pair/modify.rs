//! A queue pair's attributes, and the checks of new values, which `queue_pair` then applies. All new values are checked
//! before any attribute is changed.

use rdma_types::{AccessFlags, Mtu, QpAttributes};

use crate::engine::Refusal;
use crate::engine::queue_pair::settings::Settings;
use crate::memory::probe;

const LARGEST_24_BITS: u32 = 0x00ff_ffff;

/// A queue pair's attributes as they were last set, and its incarnation. Their lock comes before the queue pair's other
/// locks. Transitions start from the state stored here.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) settings: Settings,
    /// The number of resets.
    pub(crate) incarnation: u32,
    /// Whether an event has reported the queue pair's failure.
    pub(crate) reported: bool,
}

impl std::fmt::Debug for Attributes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attributes")
            .field("state", &self.settings.state)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

pub(super) fn check_values(
    new: &Settings,
    max_rd_atomic: u8,
    mtu: Mtu,
    has: impl Fn(QpAttributes) -> bool,
) -> Result<(), Refusal> {
    let mtus = 1..=u32::from(mtu.code());
    let access = AccessFlags::LOCAL_WRITE.bits() | probe::FROM_PEERS;
    let bad = has(QpAttributes::PORT) && new.port != 1
        || has(QpAttributes::PKEY_INDEX) && new.pkey_index != 0
        || has(QpAttributes::ACCESS_FLAGS) && new.access & !access != 0
        || has(QpAttributes::PATH_MTU) && !mtus.contains(&new.path_mtu)
        || has(QpAttributes::DEST_QPN) && new.peer_qpn > LARGEST_24_BITS
        || has(QpAttributes::TIMEOUT) && new.timeout > 31
        || has(QpAttributes::MIN_RNR_TIMER) && new.min_rnr_timer > 31
        || has(QpAttributes::RETRY_CNT) && new.retries > 7
        || has(QpAttributes::RNR_RETRY) && new.rnr_retries > 7
        || has(QpAttributes::MAX_QP_RD_ATOMIC) && new.max_rd_atomic > max_rd_atomic
        || has(QpAttributes::MAX_DEST_RD_ATOMIC) && new.max_dest_rd_atomic > max_rd_atomic;
    if bad { Err(Refusal::Invalid) } else { Ok(()) }
}
