//! What a device can hold.

pub(crate) mod patience;

use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::Refusal;
use crate::limits::patience::Patience;

/// How many objects of a kind there are, below a limit.
#[derive(Debug, Default)]
pub(crate) struct Quota(AtomicU32);

impl Quota {
    pub(crate) fn take(&self, limit: u32) -> Result<(), Refusal> {
        let one_more = |count: u32| (count < limit).then(|| count + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.map(drop).map_err(|_| Refusal::NoRoom)
    }

    pub(crate) fn give(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a device can and can hold; asking for more is refused as hardware refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_srq: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) max_srq_sge: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_mw: u32,
    pub(crate) max_pd: u32,
    pub(crate) max_ah: u32,
    /// Multicast groups with members here; the members of one; those of all together.
    pub(crate) max_groups: u32,
    pub(crate) max_group_members: u32,
    pub(crate) max_memberships: u32,
    /// READs and atomics of a queue pair in flight, each way.
    pub(crate) max_rd_atomic: u8,
    pub(crate) atomics: bool,
    pub(crate) window_type_1: bool,
    pub(crate) window_type_2: bool,
    /// Queue pairs of unreliable connections, and of datagrams.
    pub(crate) uc: bool,
    pub(crate) ud: bool,
    pub(crate) dmabuf: bool,
    /// Extended queue pairs; extended completion queues; the clock of their timestamps.
    pub(crate) extended_qp: bool,
    pub(crate) extended_cq: bool,
    pub(crate) timestamps: bool,
    pub(crate) memlock_bytes: Option<u64>,
    pub(crate) patience: Patience,
}

impl Limits {
    /// The limits of a device whose builder sets none.
    pub(crate) const USUAL: Self = Self {
        max_qp: 1 << 16,
        max_qp_wr: 1 << 14,
        max_sge: 32,
        max_inline: 512,
        max_cq: 1 << 16,
        max_cqe: 1 << 20,
        max_srq: 1 << 16,
        max_srq_wr: 1 << 14,
        max_srq_sge: 32,
        max_mr: 1 << 20,
        max_mw: 1 << 18,
        max_pd: 1 << 15,
        max_ah: 1 << 16,
        max_groups: 1 << 13,
        max_group_members: 1 << 8,
        max_memberships: 1 << 16,
        max_rd_atomic: 16,
        atomics: true,
        window_type_1: true,
        window_type_2: true,
        uc: true,
        ud: true,
        dmabuf: true,
        extended_qp: true,
        extended_cq: true,
        timestamps: true,
        memlock_bytes: None,
        patience: Patience::USUAL,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::USUAL
    }
}
