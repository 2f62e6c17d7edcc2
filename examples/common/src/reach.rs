//! Checks that a device can reach the peer's device.

use rdma::qp::QueuePairEndpoint;
use rdma::soft::SoftDevice;

use crate::Failure;

/// Refuses a peer that has another link layer, or that a software device cannot reach. `soft0` and
/// `softib0` reach the devices with the same name in the same user's other processes on the same
/// host. Other software devices reach only devices of their own process. For a kernel device, only
/// the link layer is checked, and likewise for a software device if `RDMA_SOFT_LISTEN` is set.
///
/// # Errors
/// Returns an error if the device does not reach the peer. The message names the device that both
/// processes should use.
pub fn check_reach(
    device: &str,
    own: &QueuePairEndpoint,
    peer: &QueuePairEndpoint,
) -> Result<(), Failure> {
    if own.link_layer() != peer.link_layer() {
        let (own, peer) = (own.link_layer(), peer.link_layer());
        return Err(format!(
            "{device} is a device of {own}, but the peer's is one of {peer}: give both processes \
             the same `--device`"
        )
        .into());
    }
    let gids = peer.gids();
    let same = own.lid() == peer.lid()
        && (gids.is_empty() || gids.iter().any(|gid| own.gids().contains(gid)));
    let listens = std::env::var_os("RDMA_SOFT_LISTEN").is_some_and(|places| !places.is_empty());
    match SoftDevice::find(device) {
        Some(_) if !same && !listens => Err(format!(
            "the peer's device cannot be reached from {device}, a software device: start both \
             processes as the same user on one host, with `--device soft0` or `--device softib0`; \
             on two hosts, set RDMA_SOFT_LISTEN on each to one of its addresses, and use \
             `--device soft0`; or give both a kernel device, such as `--device rxe0`"
        )
        .into()),
        _ => Ok(()),
    }
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
    fn an_unreachable_software_device_is_refused_with_the_reachable_ones() {
        rdma::soft::install();
        let own = on_ethernet(1);
        assert!(check_reach("soft0", &own, &on_ethernet(1)).is_ok());
        assert!(check_reach("rxe0", &own, &on_ethernet(2)).is_ok());
        let error = check_reach("soft0", &own, &on_ethernet(2)).unwrap_err().to_string();
        assert!(error.contains("as the same user on one host"), "{error}");
    }

    #[test]
    fn different_link_layers_are_named() {
        let infiniband =
            QueuePairEndpoint::new(Qpn::masked(1), Psn::masked(2)).with_lid(Lid::new(7));
        let error = check_reach("rxe0", &on_ethernet(1), &infiniband).unwrap_err().to_string();
        assert!(error.contains("Ethernet") && error.contains("InfiniBand"), "{error}");
    }
}
