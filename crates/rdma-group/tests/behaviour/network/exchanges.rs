//! Exchanges of values between ranks.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use rdma_group::Error;
use rdma_group::network::{ExchangeConfig, ExchangeError, Exchanger};
use serde::Serialize;
use serde::de::DeserializeOwned;
use test_support::program::in_own_process;

use super::{NetworkConfig, config, limits, threads};

fn exchange<T: Serialize + DeserializeOwned + Clone>(
    rank: usize,
    config: &NetworkConfig,
    value: &T,
) -> Result<Vec<T>, ExchangeError> {
    Exchanger::await_exchange_all(rank, config, value, &limits())
}

/// Rank 0 listens again and again at one address. A process that another test starts would keep it in use, so this test
/// has a process of its own.
#[test]
fn all_ranks_get_all_values_in_order_again_and_again() {
    let test = "network::exchanges::all_ranks_get_all_values_in_order_again_and_again";
    in_own_process(test, || {
        let config = config(5);
        let all: Vec<_> = (0..5).map(|rank| (rank, format!("value {rank}"), Some(0.5))).collect();
        threads(5, |rank| {
            for _ in 0..10 {
                assert_eq!(exchange(rank, &config, &all[rank]).unwrap(), all);
            }
        });
    });
}

/// No socket has room for such a value.
#[test]
fn long_values_are_exchanged() {
    let config = config(3);
    let all: Vec<_> = ["a", "b", "c"].map(|text| text.repeat(3 << 20)).into();
    threads(3, |rank| assert!(exchange(rank, &config, &all[rank]).unwrap() == all));
}

#[test]
fn a_single_rank_needs_no_address() {
    let node = super::NodeConfig { hostname: "nowhere.invalid".to_owned(), ..config(1)[0].clone() };
    let config = NetworkConfig::builder().add_node(node).build().unwrap();
    assert_eq!(exchange(0, &config, &7).unwrap(), [7]);
    let error = exchange(1, &config, &7).unwrap_err().to_string();
    assert_eq!(error, "rank 1 is not in the configuration, which has 1 ranks from 0");
}

#[test]
fn missing_ranks_are_named_with_their_hosts() {
    let config = config(3);
    let limits = ExchangeConfig { exchange_timeout: Duration::from_millis(1), ..limits() };
    let error = Exchanger::await_exchange_all(0, &config, &7, &limits).unwrap_err().to_string();
    let host = &config[0].hostname;
    let expected = format!("rank 1 on {host}, rank 2 on {host} did not take part within 1ms");
    assert_eq!(error, expected);
}

#[test]
fn values_that_are_too_long_are_named_at_both_ends() {
    let config = config(2);
    let errors = threads(2, |rank| {
        let limits = match rank {
            0 => ExchangeConfig { max_bytes: 100, ..limits() },
            _ => limits(),
        };
        let value = "x".repeat(98 * (1 + rank));
        let own = Exchanger::await_exchange_all(rank, &config, &value, &limits);
        own.unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("a frame of 198 bytes, 100 are allowed"), "{error}");
    }
    let limits = ExchangeConfig { max_bytes: 8, ..limits() };
    let error = Exchanger::await_exchange_all(0, &config, &"123456789".to_owned(), &limits);
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "the encoded value has 11 bytes, but `max_bytes` is 8");
}

#[test]
fn a_value_of_another_type_is_named() {
    let config = config(2);
    let errors = threads(2, |rank| match rank {
        0 => exchange(0, &config, &7).map(drop).unwrap_err(),
        _ => exchange(1, &config, &"seven".to_owned()).map(drop).unwrap_err(),
    });
    for (rank, error) in errors.iter().enumerate() {
        let ExchangeError::SerdeError { rank: of, .. } = error else { panic!("{error}") };
        assert_eq!(*of, 1 - rank);
    }
}

#[test]
fn processes_that_do_not_fit_are_refused_by_name() {
    let config = config(3);
    let smaller = config.iter().take(2).cloned();
    let smaller = smaller.fold(NetworkConfig::builder(), |all, node| all.add_node(node));
    let smaller = smaller.build().unwrap();
    let (errors, first) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let spawn = |rank, config| scope.spawn(move || exchange(rank, config, &rank));
        let root = spawn(0, &config);
        let error = spawn(1, &smaller).join().unwrap().unwrap_err().to_string();
        assert!(error.contains("expects 2 ranks, but rank 0 expects 3"), "{error}");
        // A stranger that sends garbage, and one that is silent.
        let address = (&*config[0].hostname, config[0].port);
        let mut strangers = [0, 1].map(|_| TcpStream::connect(address).unwrap());
        strangers[0].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        // One of two processes of rank 1 is refused. Without rank 2, no other can be accepted.
        for _ in 0..2 {
            let (config, errors) = (&config, errors.clone());
            scope.spawn(move || errors.send(exchange(1, config, &1)).unwrap());
        }
        let error = first.recv().unwrap().unwrap_err();
        let ExchangeError::Join(Error::Refused { reason, .. }) = &error else { panic!("{error}") };
        assert!(reason.contains("has already joined from"), "{reason}");
        assert_eq!(spawn(2, &config).join().unwrap().unwrap(), [0, 1, 2]);
        assert_eq!(root.join().unwrap().unwrap(), [0, 1, 2]);
        assert_eq!(first.recv().unwrap().unwrap(), [0, 1, 2]);
    });
}

#[test]
fn another_secret_is_named_and_other_hosts_need_one() {
    let config = config(2);
    let with = |secret: &str| ExchangeConfig { secret: Some(secret.into()), ..limits() };
    let run = |rank, secret| Exchanger::await_exchange_all(rank, &config, &rank, &with(secret));
    std::thread::scope(|scope| {
        let root = scope.spawn(|| run(0, "one"));
        let error = run(1, "other").unwrap_err().to_string();
        assert!(error.contains("another secret: set RDMA_GROUP_SECRET"), "{error}");
        assert_eq!(run(1, "one").unwrap(), [0, 1]);
        assert_eq!(root.join().unwrap().unwrap(), [0, 1]);
    });
    let hosts = config
        .iter()
        .map(|node| super::NodeConfig { hostname: "192.0.2.1".to_owned(), ..node.clone() });
    let open =
        hosts.fold(NetworkConfig::builder(), |all, node| all.add_node(node)).build().unwrap();
    let error = exchange(1, &open, &1).unwrap_err();
    assert!(matches!(error, ExchangeError::Join(Error::SecretRequired { .. })), "{error}");
    assert!(!format!("{:?}", with("swordfish")).contains("swordfish"));
}
