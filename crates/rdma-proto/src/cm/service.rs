//! Service IDs, and the ports in them.

use core::fmt;

/// The name of a service on a host: a listener has one, and a REQ or SIDR_REQ names one (IBTA
/// volume 1, chapter 12).
///
/// # Examples
///
/// ```
/// use rdma_proto::cm::{PortSpace, ServiceId};
///
/// let service = PortSpace::Tcp.service_id(7471);
/// assert_eq!(service, ServiceId::new(0x0000_0000_0106_1d2f));
/// assert_eq!(service.port(), Some((PortSpace::Tcp, 7471)));
/// assert_eq!(service.to_string(), "0x0000000001061d2f");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(u64);

impl ServiceId {
    /// Creates the service ID with this number.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the port space and the port, or `None` if the ID belongs to no known port space.
    #[must_use]
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let [prefix @ .., high, low] = self.0.to_be_bytes();
        let space = PortSpace::ALL.into_iter().find(|space| space.prefix() == prefix)?;
        Some((space, u16::from_be_bytes([high, low])))
    }

    /// Returns true if a listener with this ID may receive REQs.
    pub(super) fn has_connections(self) -> bool {
        !matches!(self.port(), Some((PortSpace::Udp, _)))
    }

    /// Returns true if a listener with this ID may receive SIDR_REQs.
    pub(super) fn has_datagrams(self) -> bool {
        !matches!(self.port(), Some((PortSpace::Tcp, _)))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({self})")
    }
}

/// A set of ports of rdma_cm (IBTA annex A11).
#[doc(alias = "rdma_port_space")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u16)]
pub enum PortSpace {
    /// Connections whose ends have IP addresses (`RDMA_PS_TCP`).
    Tcp = 0x0106,
    /// Datagrams whose ends have IP addresses (`RDMA_PS_UDP`).
    Udp = 0x0111,
    /// Connections and datagrams whose ends may have only GIDs (`RDMA_PS_IB`).
    Ib = 0x013f,
}

impl PortSpace {
    const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Ib];

    /// Returns the part of a service ID before the port.
    const fn prefix(self) -> [u8; 6] {
        let [high, low] = (self as u16).to_be_bytes();
        [0, 0, 0, 0, high, low]
    }

    /// Returns the service ID of a port.
    #[must_use]
    pub const fn service_id(self, port: u16) -> ServiceId {
        ServiceId((self as u64) << 16 | port as u64)
    }

    /// Returns true if the private data of a REQ or SIDR_REQ always begins with an
    /// [`IpCmHeader`](super::IpCmHeader). In the IB port space, Linux writes the header only if the
    /// ends have IP addresses.
    #[must_use]
    pub const fn has_ip_header(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_the_service_id_of_the_annex() {
        for (space, first) in [
            (PortSpace::Tcp, 0x0106_0000),
            (PortSpace::Udp, 0x0111_0000),
            (PortSpace::Ib, 0x013f_0000),
        ] {
            for port in [0, 1, 0x1234, u16::MAX] {
                let service = space.service_id(port);
                assert_eq!(service.get(), first + u64::from(port));
                assert_eq!(service.port(), Some((space, port)));
            }
        }
        for other in [0, 0x0107_0000, 0x1_0106_0000, 0x0200_0000_0106_0001] {
            assert_eq!(ServiceId::new(other).port(), None);
        }
    }
}
