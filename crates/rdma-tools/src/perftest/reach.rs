//! Whether the device reaches the peer's device.

use anyhow::{Result, bail};
use rdma::qp::QueuePairEndpoint;
use rdma::soft::SoftDevice;

/// Refuses a peer on another link layer, and one that a software device does not reach.
///
/// A software device reaches devices of its name in processes of the same user on the host. With `RDMA_SOFT_LISTEN` it
/// reaches other hosts, too.
///
/// # Errors
/// States which devices reach each other.
pub(super) fn check_reach(
    device: &str,
    own: &QueuePairEndpoint,
    peer: &QueuePairEndpoint,
) -> Result<()> {
    let layers = (own.link_layer(), peer.link_layer());
    if layers.0 != layers.1 {
        bail!(
            "{device} is on {}, the peer's device on {}: use two devices of one link layer",
            layers.0,
            layers.1
        );
    }
    let gids = peer.gids();
    let same = own.lid() == peer.lid()
        && (gids.is_empty() || gids.iter().any(|gid| own.gids().contains(gid)));
    let listens = std::env::var_os("RDMA_SOFT_LISTEN").is_some_and(|places| !places.is_empty());
    if SoftDevice::find(device).is_some() && !same && !listens {
        bail!(
            "the software device {device} does not reach the peer's device: set RDMA_SOFT_LISTEN to an address of this \
             host, or use a device of the kernel, such as `--device rxe0`"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rdma::device::{Gid, GidType, Lid};
    use rdma::qp::{Psn, Qpn};

    use super::*;

    fn on_ethernet(gid: u8) -> QueuePairEndpoint {
        let end = QueuePairEndpoint::new(Qpn::masked(1), Psn::masked(2));
        end.with_gid(Gid::from_bytes([gid; 16]), GidType::ROCE_V2)
    }

    #[test]
    fn a_software_device_reaches_its_own_address_alone() {
        rdma::soft::install();
        let own = on_ethernet(1);
        assert!(check_reach("soft0", &own, &on_ethernet(1)).is_ok());
        assert!(check_reach("rxe0", &own, &on_ethernet(2)).is_ok());
        let error = check_reach("soft0", &own, &on_ethernet(2)).unwrap_err().to_string();
        assert!(error.contains("RDMA_SOFT_LISTEN"), "{error}");
    }

    #[test]
    fn different_link_layers_are_refused() {
        let infiniband =
            QueuePairEndpoint::new(Qpn::masked(1), Psn::masked(2)).with_lid(Lid::new(7));
        let error = check_reach("rxe0", &on_ethernet(1), &infiniband).unwrap_err().to_string();
        assert!(error.contains("Ethernet") && error.contains("InfiniBand"), "{error}");
    }
}
