//! The first checks of a modification: whether its transition and its mask are allowed.

use rdma_types::{QpAttributes, QpState, QpTransition, QpType};

use crate::engine::Refusal;
use crate::engine::queue_pair::service::Service;

/// Checks whether a transition is allowed with the given attributes.
pub(crate) fn check(
    service: Service,
    from: QpState,
    to: QpState,
    given: QpAttributes,
) -> Result<(), Refusal> {
    let qp_type = match service {
        Service::ReliableConnection => QpType::RC,
        Service::UnreliableConnection => QpType::UC,
        Service::UnreliableDatagram => QpType::UD,
    };
    let transition = QpTransition::between(qp_type, from, to).ok_or(Refusal::Invalid)?;
    if !transition.lacking(given).is_empty() || !transition.forbidden(given).is_empty() {
        return Err(Refusal::Invalid);
    }
    // Automatic path migration is optional, and this device has no second path.
    if given.intersects(QpAttributes::ALT_PATH | QpAttributes::PATH_MIG_STATE) {
        return Err(Refusal::Unsupported);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RC: Service = Service::ReliableConnection;
    const RTS: QpState = QpState::RTS;

    #[test]
    fn attributes_that_do_not_fit_the_transition_are_invalid() {
        let first = QpAttributes::SQ_PSN;
        let (uc, rtr) = (Service::UnreliableConnection, QpState::RTR);
        assert_eq!(check(uc, rtr, RTS, first), Ok(()));
        let none = QpAttributes::empty();
        assert_eq!(check(uc, rtr, RTS, none), Err(Refusal::Invalid), "the number is required");
        assert_eq!(check(RC, rtr, RTS, first), Err(Refusal::Invalid), "RC requires more");
        let qkey = first | QpAttributes::QKEY;
        assert_eq!(check(uc, rtr, RTS, qkey), Err(Refusal::Invalid), "for UD only");
        assert_eq!(check(Service::UnreliableDatagram, rtr, RTS, qkey), Ok(()));
        assert_eq!(check(uc, QpState::INIT, RTS, first), Err(Refusal::Invalid));
    }

    #[test]
    fn a_second_path_is_unsupported_where_it_would_fit_and_invalid_elsewhere() {
        for bit in [QpAttributes::ALT_PATH, QpAttributes::PATH_MIG_STATE] {
            assert_eq!(check(RC, RTS, RTS, bit), Err(Refusal::Unsupported));
            let datagrams = check(Service::UnreliableDatagram, RTS, RTS, bit);
            assert_eq!(datagrams, Err(Refusal::Invalid));
        }
    }
}
