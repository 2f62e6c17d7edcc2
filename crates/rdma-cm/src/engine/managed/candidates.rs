//! The addresses that are tried in turn to reach a listener.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use rdma_proto::cm::PortSpace;

use crate::error::Error;

/// The source addresses of a device that are tried for one destination.
const SOURCES: usize = 16;

/// Addresses that are resolved in turn, until the device reaches one.
pub(super) struct Candidates {
    pub(super) space: PortSpace,
    /// The addresses with the sources from which they are tried. The first one is being resolved.
    pub(super) waiting: VecDeque<(Option<IpAddr>, SocketAddr)>,
    /// The addresses of the device.
    pub(super) own: BTreeSet<IpAddr>,
    /// The reason that the first address failed.
    pub(super) failed: Option<Error>,
    /// The time after which no other address is tried; `None` for no limit.
    pub(super) until: Option<Instant>,
    /// Whether a call waits for the result. Otherwise, it is an event.
    pub(super) is_awaited: bool,
}

impl Candidates {
    /// Returns the address to try next.
    pub(super) fn next(&self, now: Instant) -> Option<(Option<IpAddr>, SocketAddr)> {
        let is_late = self.failed.is_some() && self.until.is_some_and(|until| until <= now);
        self.waiting.front().copied().filter(|_| !is_late)
    }

    /// Notes that the first address failed. `is_other` is true if it leads through another device.
    pub(super) fn fail(&mut self, error: Error, is_other: bool) {
        let failed = self.waiting.pop_front();
        self.failed.get_or_insert(error);
        let Some((None, to)) = failed else { return };
        // The kernel's rdma_cm does not connect over the loopback interface.
        let is_loopback = to.ip().is_loopback() || to.ip().is_unspecified();
        if !is_loopback && !is_other {
            return;
        }
        // The kernel may prefer another device, unless the source is an address of this one.
        let own = self.own.iter().filter(|ip| ip.is_ipv4() == to.is_ipv4()).take(SOURCES);
        for &ip in own.collect::<Vec<_>>().into_iter().rev() {
            let to = if is_loopback { SocketAddr::new(ip, to.port()) } else { to };
            self.waiting.push_front((Some(ip), to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_tried_in_turn_and_from_the_addresses_of_the_device() {
        let ip = |last| IpAddr::from([192, 0, 2, last]);
        let to = |ip| SocketAddr::new(ip, 7);
        let own = [ip(8), ip(9), "2001:db8::8".parse().unwrap()];
        let localhost = IpAddr::from([127, 0, 0, 1]);
        let error = |last| Error::NotOwn { address: ip(last) };
        let candidates = |all: &[IpAddr]| Candidates {
            space: PortSpace::Tcp,
            waiting: all.iter().map(|&ip| (None, to(ip))).collect(),
            own: own.into(),
            failed: None,
            until: None,
            is_awaited: false,
        };
        // Through another device: from each address of the same IP version, and then the next address.
        let mut tried = candidates(&[ip(1), ip(2)]);
        tried.fail(error(1), true);
        let expected = [(Some(ip(8)), to(ip(1))), (Some(ip(9)), to(ip(1))), (None, to(ip(2)))];
        assert_eq!(tried.waiting, expected);
        (0..3).for_each(|_| tried.fail(error(2), false));
        assert!(tried.waiting.is_empty());
        assert!(matches!(tried.failed, Some(Error::NotOwn { address }) if address == ip(1)));
        // A loopback address stands for those of the device.
        let mut tried = candidates(&[localhost]);
        tried.fail(error(1), false);
        assert_eq!(tried.waiting, [(Some(ip(8)), to(ip(8))), (Some(ip(9)), to(ip(9)))]);
        // Without a route, no other source helps.
        let mut tried = candidates(&[ip(1)]);
        tried.fail(error(1), false);
        assert!(tried.waiting.is_empty());

        // After the time limit, only the first address is tried.
        let now = Instant::now();
        for (until, next) in [(None, Some((None, to(ip(2))))), (Some(now), None)] {
            let mut tried = Candidates { until, ..candidates(&[ip(1), ip(2), ip(3)]) };
            assert_eq!(tried.next(now), Some((None, to(ip(1)))));
            tried.fail(error(1), false);
            assert_eq!(tried.next(now), next);
        }
    }
}
