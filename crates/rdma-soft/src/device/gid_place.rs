//! The layout of a port's GID table.

use rdma_types::GidType;

use crate::link::Link;

/// The kind of address in one entry of a port's GID table, for [`Builder::gids`](crate::Builder::gids). The address
/// itself is random.
///
/// Entries with the same family but different types have the same address. Likewise, on hardware, each address of the
/// network interface has one entry for RoCE v1 and one for v2. A second entry with the same family and type gets the
/// second address of that family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidPlace {
    /// No address, as if an address had been removed: queries return the zero GID, or `ENODATA`.
    Empty,
    /// An address from `fe80::/64`. The first one is derived from the device's GUID.
    LinkLocal(GidType),
    /// An address from 240.0.0.0/5, mapped to IPv6.
    Ipv4Mapped(GidType),
    /// An address from `2001:db8::/32`, which is set aside for documentation (RFC 3849).
    Global(GidType),
}

impl GidPlace {
    /// Returns the default table for a link layer.
    pub(crate) fn usual(link: Link) -> Vec<Self> {
        match link {
            Link::InfiniBand => vec![Self::LinkLocal(GidType::IB)],
            Link::Ethernet => vec![
                Self::LinkLocal(GidType::ROCE_V1),
                Self::LinkLocal(GidType::ROCE_V2),
                Self::Ipv4Mapped(GidType::ROCE_V1),
                Self::Ipv4Mapped(GidType::ROCE_V2),
            ],
        }
    }

    pub(crate) fn gid_type(self) -> GidType {
        match self {
            Self::Empty => GidType::IB,
            Self::LinkLocal(kind) | Self::Ipv4Mapped(kind) | Self::Global(kind) => kind,
        }
    }
}
