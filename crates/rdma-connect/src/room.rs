//! The room for half-open clients: how many there may be, and in which order they are dropped.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The maximum number of half-open clients, if the limit of open files allows it. Each client uses one file, and the
/// queue pair of a channel uses another.
const MOST: u64 = 256;

/// Half-open clients use at most one in this many files. This is a quarter of the limit, or half of it with the files
/// of their queue pairs. The rest is left to the program.
const PART_OF_FILES: u64 = 4;

/// The time within which a client normally sends its next message. A client that takes longer is late, and is dropped
/// when room is needed. If no room is needed, the client can use the whole time limit of the rendezvous, because its
/// machine may be busy.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(1);

/// Returns the maximum number of half-open clients under this limit of open files.
pub(crate) fn most_half_open(files: Option<u64>) -> usize {
    let most = files.map_or(MOST, |files| (files / PART_OF_FILES).clamp(1, MOST));
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Returns the maximum number of connected clients that wait for the program. Other clients wait in the socket's
/// backlog.
pub(crate) fn most_connected(files: Option<u64>) -> usize {
    (most_half_open(files) / 4).max(1)
}

/// The addresses that share one allotment of room: an IPv4 address, or an IPv6 /64 network, which a single host may
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network(IpAddr);

impl Network {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

/// The properties of a half-open client that determine when it is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupant {
    pub(crate) key: u64,
    pub(crate) network: Network,
    /// The time at which the listener started to wait for the client's next message.
    pub(crate) since: Instant,
    /// Whether the client has sent nothing at all.
    pub(crate) is_mute: bool,
}

impl Occupant {
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Returns true if the listener has waited at least [`FIRST_BYTE`] for the client's next message.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.waited(now) >= FIRST_BYTE
    }
}

/// Returns the clients that may be dropped when room is needed, in order.
///
/// All of them belong to the networks with the most clients (usually one), so no network can shut out others. Late
/// clients that have sent nothing come first, then the others; in each group, the longest wait comes first. If
/// `is_scarce` is set, because late clients were dropped recently, clients that are not late but have sent nothing are
/// also included. If, in addition, one network uses more than half of the room, all of its clients are included.
pub(crate) fn eviction_order(
    mut clients: Vec<Occupant>,
    room: usize,
    is_scarce: bool,
    now: Instant,
) -> Vec<Occupant> {
    let counts = counts(&clients);
    let most = counts.values().copied().max().unwrap_or(0);
    let is_over_share = most > room / 2;
    clients.retain(|client| {
        counts.get(&client.network) == Some(&most)
            && (client.is_late(now) || is_scarce && (client.is_mute || is_over_share))
    });
    sort(&mut clients, now);
    clients
}

/// Returns the clients whose queue pairs may go to a newcomer, in order. These are late clients, and clients of a
/// network that has more queue pairs than the newcomer's network will have. Clients of the network with the most queue
/// pairs come first, and among them the longest wait.
pub(crate) fn yield_order(
    mut clients: Vec<Occupant>,
    newcomer: Network,
    now: Instant,
) -> Vec<Occupant> {
    let counts = counts(&clients);
    let count = |network: Network| counts.get(&network).copied().unwrap_or(0);
    clients.retain(|client| client.is_late(now) || count(client.network) > count(newcomer) + 1);
    clients.sort_by_key(|client| Reverse((count(client.network), client.waited(now))));
    clients
}

/// Returns the late clients, in the order in which to drop them.
pub(crate) fn late(mut clients: Vec<Occupant>, now: Instant) -> Vec<Occupant> {
    clients.retain(|client| client.is_late(now));
    sort(&mut clients, now);
    clients
}

fn sort(clients: &mut [Occupant], now: Instant) {
    clients
        .sort_by_key(|client| Reverse((client.is_mute && client.is_late(now), client.waited(now))));
}

fn counts(clients: &[Occupant]) -> HashMap<Network, usize> {
    let mut counts = HashMap::new();
    for client in clients {
        *counts.entry(client.network).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str) -> Network {
        Network::of(address.parse().unwrap())
    }

    /// Returns a client for whose next message the listener has waited this long at `now`.
    fn client(key: u64, address: &str, now: Instant, waited_ms: u64, is_mute: bool) -> Occupant {
        let since = now.checked_sub(Duration::from_millis(waited_ms)).unwrap();
        Occupant { key, network: network(address), since, is_mute }
    }

    fn now() -> Instant {
        // Later than the start of any client's wait.
        Instant::now() + Duration::from_secs(3600)
    }

    fn keys(clients: &[Occupant]) -> Vec<u64> {
        clients.iter().map(|client| client.key).collect()
    }

    #[test]
    fn ipv4_addresses_are_networks_and_ipv6_networks_have_64_bits() {
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.1"));
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:1:ffff::2"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:2::1"));
    }

    #[test]
    fn late_clients_of_the_network_that_has_most_go_and_no_others() {
        let now = now();
        let clients = vec![
            client(1, "192.0.2.9", now, 900_000, false),
            client(2, "192.0.2.1", now, 2_000, true),
            client(3, "192.0.2.1", now, 3_000, true),
            client(4, "192.0.2.1", now, 999, true),
        ];
        assert_eq!(keys(&eviction_order(clients, 4, false, now)), [3, 2]);
    }

    #[test]
    fn a_client_that_has_sent_nothing_within_a_second_goes_before_older_ones_that_have() {
        let now = now();
        let clients = vec![
            client(1, "192.0.2.1", now, 5_000, false),
            client(2, "192.0.2.1", now, 1_000, true),
            client(3, "192.0.2.1", now, 2_000, true),
        ];
        assert_eq!(keys(&eviction_order(clients.clone(), 8, false, now)), [3, 2, 1]);
        assert_eq!(keys(&late(clients, now)), [3, 2, 1]);
    }

    #[test]
    fn if_room_is_scarce_clients_go_that_have_sent_nothing_or_are_more_than_half() {
        let now = now();
        let clients = vec![
            client(1, "192.0.2.1", now, 500, false),
            client(2, "192.0.2.1", now, 10, true),
            client(3, "192.0.2.1", now, 20, true),
            client(4, "192.0.2.2", now, 600, true),
        ];
        assert!(eviction_order(clients.clone(), 4, false, now).is_empty());
        assert_eq!(keys(&eviction_order(clients.clone(), 6, true, now)), [3, 2]);
        assert_eq!(keys(&eviction_order(clients, 4, true, now)), [1, 3, 2]);
    }

    #[test]
    fn networks_that_have_the_same_number_are_as_one() {
        let now = now();
        let clients = vec![
            client(1, "192.0.2.1", now, 1_010, true),
            client(2, "192.0.2.2", now, 1_030, true),
            client(3, "192.0.2.1", now, 1_040, true),
            client(4, "192.0.2.2", now, 1_020, true),
        ];
        assert_eq!(keys(&eviction_order(clients, 4, false, now)), [3, 2, 4, 1]);
    }

    #[test]
    fn a_queue_pair_goes_after_a_second_or_from_a_network_that_has_more() {
        let now = now();
        let clients = vec![
            client(1, "192.0.2.1", now, 999, false),
            client(2, "192.0.2.1", now, 500, false),
            client(3, "192.0.2.2", now, 1_000, false),
        ];
        let yields = |newcomer| keys(&yield_order(clients.clone(), network(newcomer), now));
        assert_eq!(yields("192.0.2.3"), [1, 2, 3]);
        // With the newcomer, both networks have the same number.
        assert_eq!(yields("192.0.2.2"), [3]);
        assert_eq!(yields("192.0.2.1"), [3]);
    }
}
