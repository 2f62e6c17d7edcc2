//! The capacities and features of a device.

pub(crate) mod patience;

use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::Refusal;
use crate::limits::patience::Patience;

/// A count of existing objects of one kind, checked against a limit.
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

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $usual:expr;)+) => {
        /// The capacities of a device, for [`Builder::limits`](crate::Builder::limits). Requests that exceed them are
        /// refused, as on hardware.
        ///
        /// The default value has the limits of a device without a profile; [`Profile::limits`](crate::Profile::limits)
        /// returns the limits of a piece of hardware. The names are the ones in `ibv_device_attr`, in which
        /// `ibv_query_device` returns most limits.
        ///
        /// ```
        /// use rdma_soft::{Builder, Limits, Profile};
        ///
        /// let few = Limits::default().max_qp(16).max_sge(2).max_inline_data(0);
        /// Builder::new("few0").limits(few).install()?;
        ///
        /// let profile = Profile::CONNECTX_7;
        /// Builder::new("tight0").like(profile).limits(profile.limits().memlock(1 << 16)).install()?;
        /// # Ok::<(), rdma_soft::InstallError>(())
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[must_use = "limits do nothing until a builder has them"]
        pub struct Limits {
            $(pub(crate) $name: $type,)+
            pub(crate) features: Features,
            pub(crate) patience: Patience,
        }

        impl Limits {
            pub(crate) const USUAL: Self =
                Self { $($name: $usual,)+ features: Features::ALL, patience: Patience::USUAL };

            $(
                $(#[doc = $doc])+
                pub const fn $name(mut self, most: $type) -> Self {
                    self.$name = most;
                    self
                }
            )+
        }
    };
}

limits! {
    /// Sets the maximum number of queue pairs; by default 65,536. Creating more fails with `ENOMEM`.
    max_qp: u32 = 1 << 16;
    /// Sets the maximum number of work requests in one queue; by default 16,384.
    max_qp_wr: u32 = 1 << 14;
    /// Sets the maximum number of scatter/gather elements in one request; by default 32.
    max_sge: u32 = 32;
    /// Sets the maximum number of bytes of inline data; by default 512. `ibv_query_device` does not return this limit.
    max_inline_data: u32 = 512;
    /// Sets the maximum number of completion queues; by default 65,536.
    max_cq: u32 = 1 << 16;
    /// Sets the maximum number of completions in one queue; by default 1,048,576.
    max_cqe: u32 = 1 << 20;
    /// Sets the maximum number of shared receive queues; by default 65,536. With 0, the device does not support them.
    max_srq: u32 = 1 << 16;
    /// Sets the maximum number of requests in one shared receive queue; by default 16,384.
    max_srq_wr: u32 = 1 << 14;
    /// Sets the maximum number of elements in a request of a shared receive queue; by default 32.
    max_srq_sge: u32 = 32;
    /// Sets the maximum number of memory regions; by default 1,048,576.
    max_mr: u32 = 1 << 20;
    /// Sets the maximum number of memory windows; by default 262,144. With 0, the device does not support windows:
    /// allocating one fails with `EOPNOTSUPP`.
    max_mw: u32 = 1 << 18;
    /// Sets the maximum number of protection domains; by default 32,768.
    max_pd: u32 = 1 << 15;
    /// Sets the maximum number of address handles; by default 65,536.
    max_ah: u32 = 1 << 16;
    /// Sets the maximum number of multicast groups with members on the device; by default 8192. With 0, the device does
    /// not support groups: joining one fails with `EOPNOTSUPP`.
    max_mcast_grp: u32 = 1 << 13;
    /// Sets the maximum number of the device's queue pairs in one multicast group; by default 256. Attaching more fails
    /// with `ENOMEM`.
    max_mcast_qp_attach: u32 = 1 << 8;
    /// Sets the maximum number of members on the device, summed over all multicast groups; by default 65,536. A queue
    /// pair counts once for each of its groups. Attaching more fails with `ENOMEM`.
    max_total_mcast_qp_attach: u32 = 1 << 16;
    /// Sets how many READs and atomics a queue pair can have in flight, and can answer at a time; by default 16. With
    /// 0, neither is supported.
    max_qp_rd_atom: u8 = 16;
    /// Sets how many bytes of memory, in whole pages, may be registered at a time, as `RLIMIT_MEMLOCK` does for
    /// hardware. Registering more fails with `ENOMEM`. There is no limit by default, because the device pins nothing.
    memlock: u64 = u64::MAX;
}

impl Default for Limits {
    fn default() -> Self {
        Self::USUAL
    }
}

/// The parts of the verbs API that a device supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) atomics: bool,
    pub(crate) window_type_1: bool,
    pub(crate) window_type_2: bool,
    /// Whether unreliable connections are supported.
    pub(crate) uc: bool,
    /// Whether datagram queue pairs are supported.
    pub(crate) ud: bool,
    pub(crate) dmabuf: bool,
    /// Whether extended queue pairs (`ibv_wr_*`) are supported.
    pub(crate) extended_qp: bool,
    /// Whether extended completion queues are supported.
    pub(crate) extended_cq: bool,
    /// Whether the device has a clock, which timestamps of completions require.
    pub(crate) timestamps: bool,
}

impl Features {
    pub(crate) const ALL: Self = Self {
        atomics: true,
        window_type_1: true,
        window_type_2: true,
        uc: true,
        ud: true,
        dmabuf: true,
        extended_qp: true,
        extended_cq: true,
        timestamps: true,
    };
}
