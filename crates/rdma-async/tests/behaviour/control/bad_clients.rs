//! Misbehaving clients, which must not delay others.

use std::fs::File;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::crowd::{ELSEWHERE, allow_files, crowd, is_kept, last_words};
use test_support::program::in_own_process;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::control::{Host, SHORT, run};

async fn say(address: std::net::SocketAddr, bytes: &[u8]) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.writable().await.unwrap();
    assert_eq!(stream.try_write(bytes).unwrap(), bytes.len());
    stream
}

#[test]
fn an_error_about_incompatible_ends_names_both_devices() {
    run(|| async {
        let (host, other) = (Host::new("soft0"), Host::new("softib0"));
        let (listener, address) = host.listen().await;
        let error = other.driver.connect(address, other.options()).await.unwrap_err();
        let late = listener_refuses(&listener).await;
        for error in [error.to_string(), late] {
            assert!(error.contains("the server's device is soft0; the link layers"), "{error}");
            assert!(error.ends_with("; the client's device is softib0"), "{error}");
        }
    });
}

/// Waits until the listener has refused a client, and returns the reason.
async fn listener_refuses(listener: &rdma_async::Listener) -> String {
    let refused = async {
        loop {
            match listener.last_refused() {
                Some(why) => return why,
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(crate::common::HANG, refused).await.unwrap()
}

#[test]
fn garbage_and_other_versions_are_counted_and_named() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let bad: [(&[u8], &str); 4] = [
            (b"GET / HTTP/1.1\r\n\r\n", "uses another protocol"),
            (b"RDRV\0\x09\0\x01", "version 9"),
            (b"RDRV\0\x02\0\x03\0\0", "an unexpected message of kind 3"),
            (b"RDRV\0\x02\0\x01\xff\xff", "announced 65535 bytes"),
        ];
        for (count, (bytes, why)) in (1..).zip(bad) {
            let _stream = say(address, bytes).await;
            while listener.refused() < count {
                sleep(Duration::from_millis(1)).await;
            }
            let said = listener.last_refused().unwrap();
            assert!(said.contains(why), "{said}");
        }
        let connect = host.driver.connect(address, host.options());
        let (client, server) = tokio::join!(connect, listener.accept());
        host.talk(&client.unwrap().0, &server.unwrap(), b"good").await;
    });
}

#[test]
fn silent_clients_time_out_and_are_counted() {
    run(|| async {
        let host = Host::new("soft0");
        let options = host.options().rendezvous_timeout(SHORT);
        let listener = host.driver.listen("127.0.0.1:0", options).await.unwrap();
        let _silent = crowd(ELSEWHERE, listener.local_addr(), 80, b"");
        while listener.dropped_half_open() < 80 {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(listener.refused(), 80);
        assert!(listener.last_refused().unwrap().contains("within 100ms"));
    });
}

#[test]
fn silent_clients_do_not_block_others() {
    allow_files(3_000);
    run(|| async {
        let host = Host::new("soft0");
        for from in [ELSEWHERE, Ipv4Addr::LOCALHOST] {
            let options = host.options().rendezvous_timeout(Duration::MAX);
            let listener = host.driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
            let address = listener.local_addr();
            let silent = crowd(from, address, 300, b"");
            let connect = host.driver.connect(address, options);
            let (client, server) = tokio::join!(connect, listener.accept());
            host.talk(&client.unwrap().0, &server.unwrap(), b"good").await;
            // The listener has dropped clients that it has no room for, the oldest first.
            let dropped = listener.dropped_half_open();
            assert!((44..=45).contains(&dropped), "{dropped}");
            assert!(last_words(&silent[0]).ends_with(b"connect again"));
            let kept = silent.iter().filter(|client| is_kept(client)).count();
            assert_eq!(kept as u64 + dropped, 300);
        }
    });
}

#[test]
fn without_files_a_listener_reports_an_error_once_a_second() {
    let test = "control::bad_clients::without_files_a_listener_reports_an_error_once_a_second";
    in_own_process(test, without_files);
}

fn without_files() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum }).unwrap();
        let mut files: Vec<_> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
        files.pop();
        let begin = Instant::now();
        let waits = std::net::TcpStream::connect(address).unwrap();
        for _ in 0..3 {
            let error = listener.accept().await.unwrap_err();
            assert!(error.to_string().contains("ulimit -n"), "{error}");
        }
        assert!(begin.elapsed() >= Duration::from_secs(2), "it was busy with the same error");
        drop((files, waits));
        let connect = host.driver.connect(address, host.options());
        let (client, server) = tokio::join!(connect, listener.accept());
        host.talk(&client.unwrap().0, &server.unwrap(), b"good").await;
    });
}

/// A client that closes in each phase.
#[test]
fn clients_that_close_are_not_listener_errors() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        drop(TcpStream::connect(address).await.unwrap());
        drop(say(address, b"RDRV\0\x02").await);
        // Up to the verdict, which the client does not wait for.
        for limit in [0, 1, 2, 5] {
            let connect = host.driver.connect(address, host.options());
            let limit = Duration::from_millis(limit);
            let dropped = tokio::time::timeout(limit, connect).await;
            assert!(dropped.is_err(), "the client was not accepted");
        }
        let connect = host.driver.connect(address, host.options());
        let (client, server) = tokio::join!(connect, async {
            loop {
                let server = listener.accept().await.unwrap();
                // A client that has just closed is accepted, and then found to be gone.
                sleep(Duration::from_millis(20)).await;
                if server.closed().is_none() {
                    break server;
                }
            }
        });
        host.talk(&client.unwrap().0, &server, b"good").await;
    });
}
