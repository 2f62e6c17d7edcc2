//! The futures that end a connection, reconnect it, or create a further one.

use crate::await_points::*;
use crate::common::polled_slowly;

/// A number of polls of both ends within which they may or may not agree on a queue pair.
const POLLS_TO_MEET: usize = 20;

/// A driver of that device. Its connections are made by an address.
struct Host {
    driver: Driver,
    pd: ProtectionDomain,
    provider: Arc<Provider>,
}

impl Host {
    fn new(device: &str) -> Self {
        let (pd, provider) = Provider::faulty(device);
        Self { driver: Driver::spawn(pd.context()).unwrap(), pd, provider }
    }

    async fn pair(&self) -> Pair {
        Pair::by_address(self.driver.clone(), self.pd.clone()).await.0
    }

    async fn gone(self) {
        assert_queue_pairs(&self.provider, 0).await;
        drop((self.driver, self.pd));
        self.provider.gone().await;
    }
}

/// Checks that a message gets from one end to the other.
async fn assert_talks(pair: &Pair, one: &Connection, other: &Connection) {
    let talk = async {
        let receive = other.receive(pair.buffer(&[0; BYTES])).post().await.unwrap();
        one.send(pair.buffer(&[8; BYTES])).await.unwrap();
        assert_eq!(*receive.await.unwrap().memory, [8; BYTES]);
    };
    pair.released(talk).await;
}

/// Earlier messages are received. After it has started, no further messages are sent.
#[test]
fn disconnect_is_dropped_after_any_poll() {
    for device in ["soft0", HELD, DEFERRED] {
        run(move || async move {
            let host = Host::new(device);
            for polls in (0..8).chain([usize::MAX]) {
                let pair = host.pair().await;
                let (one, other) = (&pair.one, &pair.other);
                let receive = other.receive(pair.buffer(&[0; BYTES])).post().await.unwrap();
                drop(one.send(pair.buffer(&[8; BYTES])).post().await.unwrap());
                let disconnect = polled(polls, one.disconnect(HANG));
                let outcome = pair.released(disconnect).await;
                let received = pair.released(receive.into_future()).await.unwrap();
                assert_eq!(*received.memory, [8; BYTES]);
                drop(received);
                match outcome {
                    Some(outcome) => outcome.unwrap(),
                    None if polls == 0 => assert_talks(&pair, one, other).await,
                    None => {
                        let refused = one.send(pair.buffer(&[9; BYTES])).await.unwrap_err();
                        let is_asked = matches!(
                            refused.error,
                            TransportError::Closed { reason: CloseReason::Asked, .. }
                        );
                        assert!(is_asked, "{refused}");
                        // A second call waits for the same end.
                        pair.released(one.disconnect(HANG)).await.unwrap();
                    }
                }
                pair.assert_given_back().await;
            }
            host.gone().await;
        });
    }
}

/// After a reconnect was dropped, both ends reconnect to the same epoch. Neither finds the abandoned attempt.
#[test]
fn reconnect_is_dropped_after_any_poll() {
    for device in ["soft0", DEFERRED] {
        run(move || async move {
            let host = Host::new(device);
            let pair = host.pair().await;
            let (one, other) = (&pair.one, &pair.other);
            let (mut is_over, mut highest) = (false, 0);
            for polls in (0..2).flat_map(|_| 0..=POLLS_TO_MEET).chain([usize::MAX]) {
                let ends = if polls % 2 == 0 { [one, other] } else { [other, one] };
                let [first, second] = ends.map(Connection::reconnect);
                let (first, second) = tokio::join!(
                    polled_slowly(polls, first),
                    polled_slowly(polls.max(POLLS_TO_MEET), second)
                );
                is_over |= matches!((first, second), (Some(Ok(_)), Some(Ok(_))));
                let both = async { tokio::join!(ends[0].reconnect(), ends[1].reconnect()) };
                let (first, second) = timeout(HANG, both).await.unwrap();
                let (first, second) = (first.unwrap(), second.unwrap());
                assert!(first == second && first > highest, "{first}, {second}, {highest}");
                highest = first;
                assert_talks(&pair, one, other).await;
                assert_queue_pairs(&host.provider, 2).await;
            }
            assert!(is_over, "the polls were not enough");
            pair.assert_given_back().await;
            drop(pair);
            host.gone().await;
        });
    }
}

/// The number of a further connection is free again at both ends after the attempt was dropped. The connection that it
/// was requested on continues.
#[test]
fn connect_additional_is_dropped_after_any_poll() {
    run(|| async {
        let host = Host::new("soft0");
        let pair = host.pair().await;
        let (one, other) = (&pair.one, &pair.other);
        let mut is_over = false;
        for polls in (0..2).flat_map(|_| 0..=POLLS_TO_MEET).chain([usize::MAX]) {
            let further = |end: &Connection| {
                let (end, qp) = (end.clone(), host.pd.create_qp());
                async move { end.connect_additional(7, qp).await }
            };
            let (first, second) = tokio::join!(
                polled_slowly(polls, further(one)),
                polled_slowly(polls.max(POLLS_TO_MEET), further(other))
            );
            is_over |= matches!((first, second), (Some(Ok(_)), Some(Ok(_))));
            let both = async { tokio::join!(further(one), further(other)) };
            let (first, second) = timeout(HANG, both).await.unwrap();
            assert_talks(&pair, &first.unwrap(), &second.unwrap()).await;
            assert_talks(&pair, one, other).await;
            assert_queue_pairs(&host.provider, 2).await;
        }
        assert!(is_over, "the polls were not enough");
        drop(pair);
        host.gone().await;
    });
}
