//! Clients that are bad, and stop nobody.

use std::time::{Duration, Instant};

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
fn garbage_and_other_versions_are_counted_and_named() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let bad: [(&[u8], &str); 4] = [
            (b"GET / HTTP/1.1\r\n\r\n", "speaks something else"),
            (b"RDRV\0\x09\0\x01", "version 9"),
            (b"RDRV\0\x02\0\x03\0\0", "does not belong here"),
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

/// More silent clients than are served at a time: a good one comes behind them when their time is over.
#[test]
fn silent_clients_are_ended_in_time() {
    run(|| async {
        let host = Host::new("soft0");
        let options = host.options().rendezvous_timeout(SHORT);
        let listener = host.driver.listen("127.0.0.1:0", options).await.unwrap();
        let address = listener.local_addr();
        let mut silent = Vec::new();
        for _ in 0..80 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let begin = Instant::now();
        let (client, server) = tokio::join!(
            async {
                // On a slow machine it is late, too.
                loop {
                    if let Ok((client, _)) = host.driver.connect(address, host.options()).await {
                        break client;
                    }
                }
            },
            listener.accept()
        );
        host.talk(&client, &server.unwrap(), b"good").await;
        assert!(begin.elapsed() >= SHORT / 2, "it has waited for the others");
        // So many had to go before it was its turn.
        assert!(listener.refused() >= 17, "{}", listener.refused());
    });
}

/// A client that goes in each phase.
#[test]
fn clients_that_go_are_no_error_of_the_listener() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        drop(TcpStream::connect(address).await.unwrap());
        drop(say(address, b"RDRV\0\x02").await);
        // As far as the verdict, which it does not wait for.
        for limit in [0, 1, 2, 5] {
            let connect = host.driver.connect(address, host.options());
            let limit = Duration::from_millis(limit);
            let dropped = tokio::time::timeout(limit, connect).await;
            assert!(dropped.is_err(), "nobody has accepted it");
        }
        let connect = host.driver.connect(address, host.options());
        let (client, server) = tokio::join!(connect, async {
            loop {
                let server = listener.accept().await.unwrap();
                // One that has gone just then is accepted, and found to be gone.
                sleep(Duration::from_millis(20)).await;
                if server.closed().is_none() {
                    break server;
                }
            }
        });
        host.talk(&client.unwrap().0, &server, b"good").await;
    });
}
