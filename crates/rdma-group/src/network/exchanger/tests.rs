use std::sync::Arc;
use std::thread;

use test_support::loopback::free_address;

use super::*;
use crate::bootstrap::tests::pair;
use crate::network::{NodeConfig, RawNetworkConfig};

const LIMIT: Duration = Duration::from_secs(60);

fn config(hosts: &[&str]) -> NetworkConfig {
    let port = free_address().port();
    let node = |(rankid, host): (usize, &&str)| NodeConfig {
        hostname: (*host).to_owned(),
        port,
        ibdev: "soft0".to_owned(),
        rankid,
        comment: String::new(),
    };
    let nodes = hosts.iter().enumerate().map(node);
    nodes.fold(NetworkConfig::builder(), RawNetworkConfig::add_node).build().unwrap()
}

/// Joins as a rank, and returns its connection with rank 0.
fn joined(rank: usize, network: &NetworkConfig) -> Link {
    let settings = settings(rank, network, None);
    let entry = |ip| Ok(Entry { address: (ip, 1).into(), host: "host".to_owned() });
    let keys = Keys::new(settings.secret.as_deref().unwrap_or_default());
    let (_, star) = bootstrap::join(&settings, LIMIT, &keys.into(), entry).unwrap();
    star.into_links().remove(0).unwrap()
}

/// Runs rank 0, and `act` as rank 1 after it has joined. Returns the error of rank 0.
fn error_of_root(act: impl FnOnce(Link)) -> String {
    let host = free_address().ip().to_string();
    let network = config(&[&host, "host1"]);
    let limits = ExchangeConfig::default();
    thread::scope(|threads| {
        let root = threads.spawn(|| exchange(0, &network, b"7".to_vec(), &limits));
        act(joined(1, &network));
        root.join().unwrap().unwrap_err().to_string()
    })
}

#[test]
fn a_rank_that_ends_during_the_exchange_is_named() {
    let error = error_of_root(drop);
    let expected = "the exchange with rank 1 on host1 has failed: it closed the connection";
    assert!(error.starts_with(expected), "{error}");
}

/// The reason may be longer than a value.
#[test]
fn the_reason_of_rank_0_is_received_if_values_are_short() {
    let host = free_address().ip().to_string();
    let network = config(&[&host, "host1", "host2"]);
    let limits = ExchangeConfig { max_bytes: 1, ..ExchangeConfig::default() };
    thread::scope(|threads| {
        let run = |rank| exchange(rank, &network, b"7".to_vec(), &limits).unwrap_err().to_string();
        let ranks = [0, 1].map(|rank| threads.spawn(move || run(rank)));
        drop(joined(2, &network));
        let [root, other] = ranks.map(|rank| rank.join().unwrap());
        assert!(root.contains("rank 2 on host2"), "{root}");
        assert!(other.ends_with(&root), "{other}");
    });
}

#[test]
fn a_rank_that_sends_another_message_is_named() {
    let error = error_of_root(|mut link| {
        link.send(Kind::Goodbye, b"", after(LIMIT)).unwrap();
        // Rank 0 sends its reason.
        let (kind, reason) = link.receive(after(LIMIT)).unwrap();
        assert_eq!(kind, Kind::Refusal);
        assert!(String::from_utf8(reason).unwrap().contains("rank 1 on host1"));
    });
    assert!(error.ends_with("it sent Goodbye in place of its value"), "{error}");
}

/// Returns the connections of rank 0 with two ranks, and the other ends.
fn star() -> (Vec<Option<Link>>, [Link; 2]) {
    let [[first, one], [second, two]] = [0, 1].map(|_| pair(&Arc::new(Keys::new(b""))));
    (vec![None, Some(first), Some(second)], [one, two])
}

#[test]
fn a_rank_that_sends_no_value_is_named_after_the_limit() {
    let network = config(&["host0", "host1", "host2"]);
    let (links, [mut sender, _silent]) = star();
    sender.send(Kind::Value, b"7", after(LIMIT)).unwrap();
    let of_sender = links[1].as_ref().unwrap().awaited(PollFlags::IN);
    assert!(wait_for(&[of_sender], after(LIMIT)).unwrap());
    let values = vec![Vec::new(); 3];
    let (until, limit) = (Instant::now(), Duration::from_millis(1));
    let mut root = Root { links, values, network: &network, until, limit };
    let error = root.collect().unwrap_err().to_string();
    assert_eq!(error, "rank 2 on host2 did not take part within 1ms");
    assert_eq!(root.values[1], b"7");
}

#[test]
fn a_rank_that_does_not_read_keeps_no_other_from_its_values() {
    let network = config(&["host0", "host1", "host2"]);
    let (links, [_silent, mut reader]) = star();
    // No socket has room for the second value.
    let values = vec![b"0".to_vec(), b"1".to_vec(), vec![2; 16 << 20]];
    let (until, limit) = (Instant::now(), Duration::from_millis(1));
    let mut root = Root { links, values, network: &network, until, limit };
    let error = root.distribute().unwrap_err().to_string();
    let expected = "the exchange with rank 1 on host1 has failed: it neither sent nor received";
    assert!(error.starts_with(expected), "{error}");
    for value in ["0", "1"] {
        assert_eq!(reader.receive(after(LIMIT)).unwrap(), (Kind::Value, value.into()));
    }
}
