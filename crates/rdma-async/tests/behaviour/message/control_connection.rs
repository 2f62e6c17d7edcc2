//! The control connection of two ends: messages and streams never travel over TCP.

use rdma_async::message::{Options, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::rig::{check, endpoint, message};
use crate::common::relay::Relay;
use crate::common::run_long_in_one_thread;

/// The length of a message.
const LENGTH: usize = 10 << 20;
/// The greatest number of bytes that an end may send over TCP, to connect and to end the connection.
const MOST: usize = 4096;

/// Checks that the control connection exists, and has carried few bytes.
fn assert_few(relay: &Relay, case: &str) {
    let sent = relay.bytes().map(|bytes| bytes.len());
    assert!(sent.iter().all(|sent| (1..=MOST).contains(sent)), "{case}: {sent:?} bytes over TCP");
}

#[test]
fn long_messages_put_few_bytes_on_the_control_connection() {
    let lent = Options::new();
    for (case, options) in [("lent", lent), ("in frames", lent.offer_bytes(0))] {
        run_long_in_one_thread(|| async {
            let endpoint = endpoint("soft0");
            let listener = endpoint.listen_for_messages("127.0.0.1:0", options).await.unwrap();
            let relay = Relay::of(listener.local_addr()).await;
            let client = endpoint.connect_messages(relay.address, options);
            let (one, other) = tokio::try_join!(client, listener.accept()).unwrap();
            let bytes = message(LENGTH);
            // The first message is sent in frames while the pool grows.
            for _ in 0..2 {
                let sends = async { tokio::try_join!(one.send(&bytes), other.send(&bytes)) };
                let receives = async { tokio::try_join!(one.receive(), other.receive()) };
                let (sent, received) = tokio::join!(sends, receives);
                sent.unwrap();
                let (at_one, at_other) = received.unwrap();
                assert!([at_one, at_other].map(Option::unwrap).iter().all(|all| **all == *bytes));
            }
            tokio::try_join!(one.finish(), other.finish()).unwrap();
            drop((one, other));
            assert_few(&relay, case);
        });
    }
}

#[test]
fn streams_put_few_bytes_on_the_control_connection() {
    run_long_in_one_thread(|| async {
        let (endpoint, options) = (endpoint("soft0"), Options::new());
        let listener = endpoint.listen_for_streams("127.0.0.1:0", options).await.unwrap();
        let relay = Relay::of(listener.local_addr()).await;
        let client = endpoint.connect_stream(relay.address, options);
        let (mut one, mut other) = tokio::try_join!(client, listener.accept()).unwrap();
        let bytes = message(LENGTH);
        let transfer = async |from: &mut Stream, to: &mut Stream| {
            let write = async {
                from.write_all(&bytes).await.unwrap();
                from.shutdown().await.unwrap();
            };
            let mut all = Vec::new();
            let ((), read) = tokio::join!(write, to.read_to_end(&mut all));
            read.unwrap();
            assert_eq!(check(0, &all), LENGTH as u64);
        };
        transfer(&mut one, &mut other).await;
        transfer(&mut other, &mut one).await;
        assert_few(&relay, "a stream");
    });
}
