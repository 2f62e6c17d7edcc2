//! The key-value store: in one process, in two, and what happens when one of them dies.

use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::prelude::*;
use rdma_examples::kv::SLOTS;
use rdma_examples::kv::client::Client;
use rdma_examples::kv::entry::VALUE;
use rdma_examples::kv::server::Store;
use test_support::features::Feature;
use test_support::flag::SetWhenDropped;

use crate::common::has;
use crate::common::process::Process;
use crate::examples::kv;

#[test]
fn the_demonstration_stores_and_finds_entries() {
    let late = "kv_deferred";
    let schedule = rdma::soft::Schedule::Deferred { seed: 7 };
    rdma::soft::Builder::new(late).schedule(schedule).install().unwrap();
    for device in ["soft0", "softib0", late] {
        let arguments = kv::Arguments::parse_from(["kv", "--device", device]);
        let told = kv::run(&arguments).unwrap();
        let lines: Vec<_> = told.lines().collect();
        let counted = match has(device, Feature::Atomics) {
            true => "the server counted 6 operations",
            false => "the server counted no operations: its device has no atomics",
        };
        assert_eq!(
            lines,
            [
                &format!("{device}: an apple is red, no plum"),
                "apple=red",
                "cherry=black",
                "2 of 256 slots have an entry",
                counted,
            ]
        );
    }
}

/// Runs the function even if the test fails, which would otherwise wait forever for its threads.
struct WhenDropped<F: Fn()>(F);

impl<F: Fn()> Drop for WhenDropped<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Serves at most this many clients at a time while the closure runs, which gets the address.
fn served(clients: u32, visit: impl FnOnce(&ProtectionDomain, &str)) -> Option<u64> {
    let pd = open_device("soft0").unwrap().allocate_pd().unwrap();
    let mut store = Store::new(&pd, "127.0.0.1:0", clients).unwrap();
    let (address, waker) = (store.address(), store.waker());
    thread::scope(|threads| {
        let serves = threads.spawn(|| store.run());
        let ends = WhenDropped(|| waker.wake());
        visit(&pd, &address);
        drop(ends);
        serves.join().unwrap().unwrap()
    })
}

#[test]
fn readers_see_whole_entries_while_a_client_puts() {
    let values = ["a".repeat(VALUE), "b".repeat(VALUE)];
    served(2, |pd, address| {
        let stop = AtomicBool::new(false);
        let mut reader = Client::connect(pd, address).unwrap();
        let mut writer = Client::connect(pd, address).unwrap();
        writer.put("key", &values[0]).unwrap();
        thread::scope(|threads| {
            threads.spawn(|| {
                while !stop.load(Relaxed) {
                    values.iter().for_each(|value| writer.put("key", value).unwrap());
                }
            });
            let _stops = SetWhenDropped(&stop);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(1) {
                let value = reader.get("key").unwrap().unwrap();
                assert!(values.iter().any(|whole| whole.as_bytes() == value), "{value:?}");
                let entries = reader.scan(0..SLOTS).unwrap();
                assert_eq!(entries.len(), 1);
                assert!(values.iter().any(|whole| whole.as_bytes() == entries[0].value));
            }
        });
    });
}

#[test]
fn every_key_is_found_until_its_slots_are_full() {
    let mut begun = None;
    let counted = served(1, |pd, address| {
        let mut client = Client::connect(pd, address).unwrap();
        let stored: Vec<_> = (0..SLOTS)
            .map(|key| key.to_string())
            .filter(|key| {
                let outcome = client.put(key, &format!("value {key}"));
                let error = outcome.err().map(|error| error.to_string());
                assert!(error.iter().all(|why| why.contains("hold other keys")), "{error:?}");
                error.is_none()
            })
            .collect();
        assert!(stored.len() > SLOTS / 2 && stored.len() < SLOTS, "{}", stored.len());
        for key in &stored {
            assert_eq!(client.get(key).unwrap().unwrap(), format!("value {key}").as_bytes());
        }
        assert_eq!(client.get("no such key").unwrap(), None);
        assert_eq!(client.scan(0..SLOTS).unwrap().len(), stored.len());
        let counts = has("soft0", Feature::Atomics);
        begun = counts.then_some((SLOTS + stored.len() + 2) as u64);
        assert_eq!(client.operations().unwrap(), begun);
    });
    assert_eq!(counted, begun);
}

/// A server process, which ends with its test, even if that fails.
struct Serving(Option<Process>);

impl Serving {
    fn start(options: &[&str]) -> (Self, String) {
        let mut process = Process::to_kill("kv", &[&["serve"], options].concat());
        let address = process.address();
        (Self(Some(process)), address)
    }

    /// Kills it, and returns its standard error.
    fn kill(mut self) -> String {
        let mut process = self.0.take().unwrap();
        process.0.kill().unwrap(); // SIGKILL
        let output = process.end();
        assert!(!output.status.success(), "it was killed");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.0.kill();
            let _ = process.0.wait();
        }
    }
}

fn client(options: &[&str], address: &str) -> Process {
    Process::example("kv", &[options, &["--connect", address]].concat())
}

#[test]
fn processes_put_and_get() {
    ["soft0", "softib0"].into_iter().for_each(put_and_get);
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn processes_put_and_get_on_rxe() {
    put_and_get("rxe0");
}

fn put_and_get(device: &str) {
    let (server, address) = Serving::start(&["--device", device]);
    let run =
        |options: &[&str]| client(&[options, &["--device", device]].concat(), &address).succeed();
    assert_eq!(run(&["put", "apple", "red"]), "stored `apple`");
    assert_eq!(run(&["get", "apple"]), "red");
    assert_eq!(run(&["scan"]), "1 of 256 slots have an entry");
    let line = run(&["bench", "1000"]);
    assert!(line.starts_with(&format!("{device}: 1000 slots in ")), "{line}");
    server.kill();
}

#[test]
fn the_next_client_is_served_after_one_was_killed() {
    ["soft0", "softib0"].into_iter().for_each(kill_a_client);
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn the_next_client_is_served_after_one_was_killed_on_rxe() {
    kill_a_client("rxe0");
}

fn kill_a_client(device: &str) {
    let (server, address) = Serving::start(&["--clients", "1", "--device", device]);
    let endless = ["bench", "1000000000", "--device", device, "--connect", &address];
    let mut killed = Process::to_kill("kv", &endless);
    killed.line("connected to ");
    killed.0.kill().unwrap(); // SIGKILL
    assert!(!killed.end().status.success());
    // The server accepts one client; the dead one counts until the server notices its end, which it does immediately.
    let begin = Instant::now();
    loop {
        let put = client(&["put", "after", "it", "--device", device], &address).end();
        if put.status.success() {
            break;
        }
        let why = String::from_utf8(put.stderr).unwrap();
        assert!(why.contains("its limit (`max_peers` is 1)"), "{why}");
        assert!(begin.elapsed() < Duration::from_secs(30), "{why}");
    }
    server.kill();
}

/// Returns the time that a process has spent on processors, from /proc/PID/stat (`man 5 proc_pid_stat`), in ticks.
fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, behind_name) = stat.rsplit_once(") ").unwrap();
    behind_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_server_with_idle_clients_uses_no_processor_time() {
    let (server, address) = Serving::start(&["--clients", "20"]);
    let pd = open_device("soft0").unwrap().allocate_pd().unwrap();
    let clients: Vec<_> = (0..20).map(|_| Client::connect(&pd, &address).unwrap()).collect();
    let pid = server.0.as_ref().unwrap().0.id();
    let before = processor_ticks(pid);
    // Time passes in which nothing should happen.
    thread::sleep(Duration::from_secs(1));
    let had = processor_ticks(pid) - before;
    assert!(had <= 20, "{had} of 100 ticks");
    drop(clients);
    server.kill();
}

#[test]
fn clients_report_that_the_server_was_killed() {
    ["soft0", "softib0"].into_iter().for_each(kill_the_server);
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn clients_report_that_the_server_was_killed_on_rxe() {
    kill_the_server("rxe0");
}

fn kill_the_server(device: &str) {
    let (server, address) = Serving::start(&["--device", device]);
    let mut reads = client(&["bench", "1000000000", "--device", device], &address);
    reads.line("connected to ");
    server.kill();
    let text = reads.fail();
    assert!(text.contains(&format!("the server at {address} is lost")), "{text}");
    let text = client(&["get", "key", "--device", device], &address).fail();
    assert!(text.contains("no process is listening on"), "{text}");
}

#[test]
fn wrong_input_is_an_error_message() {
    let (server, address) = Serving::start(&[]);
    let (key, value) = ("k".repeat(41), "v".repeat(193));
    for (options, said) in [
        (&["put", &key, "value"][..], "the key has 41 bytes, and a slot has room for 40"),
        (&["get", &key], "room for 40"),
        (&["get", ""], "at least 1 byte"),
        (&["put", "key", &value], "the value has 193 bytes, and a slot has room for 192"),
        (&["get", "key"], "the key `key` does not exist"),
        (&["get", "key", "--device", "mlx5_77"], "available: "),
        (&["get", "key", "--device", "softib0"], "link layer"),
    ] {
        let text = client(options, &address).fail();
        assert!(text.contains(said), "{options:?}: {text}");
    }
    let text = Process::example("kv", &["serve", "--listen", &address]).fail();
    assert!(text.contains("another program listens there"), "{text}");
    let text = Process::example("kv", &["--device", "mlx5_77"]).fail();
    assert!(text.contains("soft0"), "{text}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let text = client(&["get", "key"], &nobody).fail();
    assert!(text.contains("start the server first"), "{text}");
    // None of this did any harm.
    assert_eq!(client(&["put", "key", "value"], &address).succeed(), "stored `key`");
    server.kill();
}
