//! Builder options for devices that lack features, as some hardware does.

use super::Builder;
use crate::limits::Limits;
use crate::profile::Profile;

impl Builder {
    /// Makes the device look like a particular piece of hardware. The device gets the hardware's limits, vendor and
    /// link layer, and lacks the same features, as far as these are public. Options that are set after this call
    /// override the profile.
    ///
    /// For the devices that [`install`](crate::install) makes, the environment variable `RDMA_SOFT_LIKE` contains the
    /// [name](Profile::name) of a profile.
    ///
    /// ```
    /// use rdma_soft::{Builder, Profile};
    ///
    /// // Without shared receive queues, atomics and unreliable connections.
    /// let device = Builder::new("e810-0").like(Profile::INTEL_E810).install()?;
    /// assert_eq!(device.name(), "e810-0");
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn like(mut self, profile: Profile) -> Self {
        // How long to wait for peers does not depend on the hardware.
        let patience = self.limits.patience;
        self.limits = Limits { patience, ..profile.limits() };
        self.link = profile.link();
        self.model = profile.model();
        self
    }

    /// Sets the vendor ID and the vendor part ID, which programs and libraries look up in their own tables. The default
    /// vendor is 0xffffff, which means none.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// Builder::new("tuned0").vendor(0x02c9, 4129).firmware("28.42.1000").install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn vendor(mut self, id: u32, part: u32) -> Self {
        (self.model.vendor, self.model.part) = (id, part);
        self
    }

    /// Sets the firmware version; queries return its first 63 bytes. The default is the version of this crate.
    pub fn firmware(mut self, version: impl Into<String>) -> Self {
        self.model.firmware = version.into().into();
        self
    }

    /// Removes unreliable connections: creating a queue pair of this type fails with `EOPNOTSUPP`.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// Builder::new("reliable0").without_uc().without_ud().without_dmabuf().install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn without_uc(mut self) -> Self {
        self.limits.features.uc = false;
        self
    }

    /// Removes datagram queue pairs: creating one fails with `EOPNOTSUPP`.
    pub fn without_ud(mut self) -> Self {
        self.limits.features.ud = false;
        self
    }

    /// Removes support for dma-bufs: `ibv_reg_dmabuf_mr` fails with `EOPNOTSUPP`.
    pub fn without_dmabuf(mut self) -> Self {
        self.limits.features.dmabuf = false;
        self
    }

    /// Removes extended queue pairs (`ibv_wr_*`): creating one fails with `EOPNOTSUPP`.
    pub fn without_extended_queue_pairs(mut self) -> Self {
        self.limits.features.extended_qp = false;
        self
    }

    /// Removes extended completion queues: creating one fails with `EOPNOTSUPP`.
    pub fn without_extended_completions(mut self) -> Self {
        self.limits.features.extended_cq = false;
        self
    }

    /// Removes the clock: creating a completion queue with timestamps and reading the clock fail with `EOPNOTSUPP`.
    pub fn without_timestamps(mut self) -> Self {
        self.limits.features.timestamps = false;
        self
    }
}
