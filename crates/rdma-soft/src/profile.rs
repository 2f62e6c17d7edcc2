//! Profiles, which make a device look like a particular piece of hardware.

use crate::device::model::Model;
use crate::limits::{Features, Limits};
use crate::link::Link;

/// A piece of hardware that a software device can imitate, for [`Builder::like`](crate::Builder::like).
///
/// A program that runs on the default device may use features that its NIC lacks: shared receive queues, atomics,
/// inline data, extended queue pairs. A device with the NIC's profile refuses them as the NIC does.
///
/// Each profile is based on public figures. Sources are the output of `ibv_devinfo -v` on a machine with the hardware,
/// the `query_device` of the kernel driver, and the provider in rdma-core (64). The documentation of each profile names
/// its sources. A limit without a public figure, such as one decided by the firmware, has the default device's value. A
/// profile changes neither speed nor order, and does not imitate bugs of the hardware.
///
/// ```
/// use rdma_soft::Profile;
///
/// assert_eq!(Profile::named("intel-e810"), Some(Profile::INTEL_E810));
/// for profile in Profile::ALL {
///     println!("{}", profile.name());
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile(&'static Sheet);

/// The contents of a profile.
#[derive(Debug, PartialEq, Eq)]
struct Sheet {
    name: &'static str,
    link: Link,
    limits: Limits,
    model: Model<&'static str>,
}

const fn model(
    vendor: u32,
    part: u32,
    revision: u32,
    firmware: &'static str,
) -> Model<&'static str> {
    Model { vendor, part, revision, firmware }
}

/// The firmware version of profiles whose real version is not public.
const NO_FIRMWARE: &str = "0.0.0";

const NO_WINDOWS: Features =
    Features { window_type_1: false, window_type_2: false, ..Features::ALL };

/// The limits of NVIDIA's provider and driver, which differ little between adapters.
const MLX5: Limits = Limits { max_qp_wr: 32_768, max_cqe: 4_194_303, max_sge: 30, ..Limits::USUAL };

impl Profile {
    /// NVIDIA ConnectX-7, as a RoCE port.
    ///
    /// - Vendor 0x02c9, part 4129, firmware 28.42.1000: `ibv_devinfo` in
    ///   [DeepEP issue 355](https://github.com/deepseek-ai/DeepEP/issues/355).
    /// - 30 elements: `mlx5_ib_query_device` of the kernel. A request has at most 512 bytes: a control and a remote
    ///   segment of 16 bytes each, and 16 bytes for each element.
    /// - 32,768 requests and 4,194,303 completions in a queue, 16 READs. These values are the same in all outputs of
    ///   `ibv_devinfo -v` for mlx5 that we found, for example in [libfabric pull request
    ///   9940](https://github.com/ofiwg/libfabric/pull/9940).
    /// - 828 bytes of inline data: `mlx5_calc_send_wqe` and `_sq_overhead` of rdma-core, for a reliable connection with
    ///   all operations and few elements. This is 1,024 bytes, minus 192 for the longest operation and 4 for the
    ///   length.
    pub const CONNECTX_7: Self = Self(&Sheet {
        name: "connectx-7",
        link: Link::Ethernet,
        limits: Limits { max_inline_data: 828, ..MLX5 },
        model: model(0x02c9, 4129, 0, "28.42.1000"),
    });

    /// Broadcom BCM57508 (Thor), with the driver `bnxt_re`.
    ///
    /// - Vendor 0x14e4, part 0x1750: the provider of rdma-core, `bnxt_re/main.c`. Its firmware is not public.
    /// - Reliable connections and datagrams only: `bnxt_re_check_qp_limits` of rdma-core refuses other types.
    /// - No windows, no extended completion queues (and therefore no timestamps), and no multicast: the provider does
    ///   not implement these operations.
    /// - 96 bytes of inline data: `BNXT_RE_MAX_INLINE_SIZE` of rdma-core.
    /// - 6 elements, 65,536 protection domains, no atomics: `bnxt_qplib_get_dev_attr` of Linux, `qplib_sp.c`, for this
    ///   generation of chips. Newer drivers offer atomics if the PCIe root port completes them.
    /// - The firmware decides all other limits.
    pub const BROADCOM_THOR: Self = Self(&Sheet {
        name: "broadcom-thor",
        link: Link::Ethernet,
        limits: Limits {
            max_sge: 6,
            max_srq_sge: 6,
            max_inline_data: 96,
            max_pd: 65_536,
            max_mcast_grp: 0,
            max_mw: 0,
            features: Features {
                atomics: false,
                uc: false,
                extended_cq: false,
                timestamps: false,
                ..NO_WINDOWS
            },
            ..Limits::USUAL
        },
        model: model(0x14e4, 0x1750, 0, NO_FIRMWARE),
    });

    /// Intel E810, with the driver `irdma` in RoCE mode.
    ///
    /// - All limits, no atomics, no shared receive queues, no windows, no timestamps, vendor 0x8086, part 5522,
    ///   revision 2, firmware 1.74: `ibv_devinfo -v` in [3FS issue 192](https://github.com/deepseek-ai/3FS/issues/192).
    ///   (That output shows the flags for windows, but `max_mw` is 0. Linux now reports windows only for later
    ///   generations.)
    /// - 101 bytes of inline data: `IRDMA_MAX_INLINE_DATA_SIZE` of rdma-core, `irdma/user.h`.
    /// - Reliable connections and datagrams only, no extended queue pairs: `irdma_ucreate_qp` and the operations of the
    ///   provider in rdma-core.
    pub const INTEL_E810: Self = Self(&Sheet {
        name: "intel-e810",
        link: Link::Ethernet,
        limits: Limits {
            max_qp: 4092,
            max_qp_wr: 8127,
            max_sge: 6,
            max_inline_data: 101,
            max_cq: 8189,
            max_cqe: 1_048_574,
            max_srq: 0,
            max_mr: 4_194_301,
            max_pd: 262_141,
            max_ah: 131_072,
            max_mcast_grp: 4096,
            max_mcast_qp_attach: 8,
            max_total_mcast_qp_attach: 32_768,
            max_qp_rd_atom: 8,
            max_mw: 0,
            features: Features {
                atomics: false,
                uc: false,
                extended_qp: false,
                timestamps: false,
                ..NO_WINDOWS
            },
            ..Limits::USUAL
        },
        model: model(0x8086, 5522, 2, "1.74"),
    });

    /// The RoCE engine of HiSilicon's Kunpeng 920 (hip08), with the driver `hns`.
    ///
    /// - Limits: `HNS_ROCE_V2_MAX_WQE_NUM`, `_SRQ_NUM`, `_SRQ_WR`, `_SRQ_SGE`, `_CQ_NUM`, `_CQE_NUM`, `_SQ_SGE_NUM`,
    ///   `_SQ_INLINE`, `_MTPT_NUM`, `_QP_DEST_RDMA` of Linux before 6.0, `hns_roce_hw_v2.h`. The number of queue pairs
    ///   differs between versions.
    /// - No datagrams: `hns_roce_create_ah` of Linux refuses programs on hip08. No unreliable connections:
    ///   `check_qp_create_attr` of rdma-core, `hns_roce_u_verbs.c`.
    /// - No windows, dma-buf or multicast: the provider does not implement these operations.
    /// - Vendor 0x19e5, part 0xa222, one of several: the provider of rdma-core, `hns_roce_u.c`.
    pub const HIP08: Self = Self(&Sheet {
        name: "hip08",
        link: Link::Ethernet,
        limits: Limits {
            max_qp_wr: 0x8000,
            max_sge: 64,
            max_inline_data: 32,
            max_cq: 0x0010_0000,
            max_cqe: 0x0040_0000,
            max_srq: 0x0010_0000,
            max_srq_wr: 0x8000,
            max_srq_sge: 64,
            max_mr: 0x0010_0000,
            max_mcast_grp: 0,
            max_qp_rd_atom: 128,
            max_mw: 0,
            features: Features {
                uc: false,
                ud: false,
                dmabuf: false,
                timestamps: false,
                ..NO_WINDOWS
            },
            ..Limits::USUAL
        },
        model: model(0x19e5, 0xa222, 0, NO_FIRMWARE),
    });

    /// Microsoft Azure Network Adapter (MANA).
    ///
    /// - Reliable connections only, no shared receive queues, no extended queue pairs of this type, no extended
    ///   completion queues, no multicast, no inline data. Source: the provider of rdma-core, `mana.c`, `qp.c` and
    ///   `wr.c`.
    /// - No atomics, no flags for windows: `mana_ib_query_device` of Linux.
    /// - Vendor 0x1414, part 3 (the type of the device, `GDMA_DEVICE_MANA_IB`): the same function. Its firmware is not
    ///   public.
    /// - The firmware decides all limits.
    pub const MANA: Self = Self(&Sheet {
        name: "mana",
        link: Link::Ethernet,
        limits: Limits {
            max_inline_data: 0,
            max_srq: 0,
            max_mcast_grp: 0,
            max_mw: 0,
            features: Features {
                atomics: false,
                uc: false,
                ud: false,
                extended_qp: false,
                extended_cq: false,
                timestamps: false,
                ..NO_WINDOWS
            },
            ..Limits::USUAL
        },
        model: model(0x1414, 3, 0, NO_FIRMWARE),
    });

    /// Mellanox Connect-IB, an InfiniBand adapter of 2012.
    ///
    /// - All limits except those of shared receive queues, no atomics, no windows, vendor 0x02c9, part 4113, firmware
    ///   10.16.1200: `ibv_devinfo -v` in [libfabric pull request 9940](https://github.com/ofiwg/libfabric/pull/9940).
    /// - 828 bytes of inline data, like [`CONNECTX_7`](Self::CONNECTX_7), which uses the same provider.
    pub const CONNECT_IB: Self = Self(&Sheet {
        name: "connect-ib",
        link: Link::InfiniBand,
        limits: Limits {
            max_qp: 262_144,
            max_inline_data: 828,
            max_cq: 16_777_216,
            max_mr: 16_777_216,
            max_pd: 16_777_216,
            max_mcast_grp: 2_097_152,
            max_mcast_qp_attach: 48,
            max_mw: 0,
            features: Features { atomics: false, ..NO_WINDOWS },
            ..MLX5
        },
        model: model(0x02c9, 4113, 0, "10.16.1200"),
    });

    /// All profiles.
    pub const ALL: [Self; 6] = [
        Self::CONNECTX_7,
        Self::BROADCOM_THOR,
        Self::INTEL_E810,
        Self::HIP08,
        Self::MANA,
        Self::CONNECT_IB,
    ];

    /// Returns the name of the profile, as used in `RDMA_SOFT_LIKE` and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the profile with this name. Its hyphens may be omitted.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let is_named = |known: &str| known == name || known.replace('-', "") == name;
        Self::ALL.into_iter().find(|profile| is_named(profile.name()))
    }

    pub(crate) fn link(self) -> Link {
        self.0.link
    }

    /// Returns true if the hardware can have such ports. The ports of a ConnectX-7 can be of either kind.
    pub(crate) fn allows(self, link: Link) -> bool {
        self == Self::CONNECTX_7 || self.link() == link
    }

    /// Returns the limits of the profile, which [`Builder::like`](crate::Builder::like) sets. A program that changes
    /// only some of them can start from these.
    pub fn limits(self) -> Limits {
        self.0.limits
    }

    pub(crate) fn model(self) -> Model {
        let Model { vendor, part, revision, firmware } = self.0.model;
        Model { vendor, part, revision, firmware: firmware.into() }
    }
}
