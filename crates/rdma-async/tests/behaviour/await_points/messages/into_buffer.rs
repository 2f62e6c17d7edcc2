//! The future that returns the memory of a message, and waits for its pool.

use std::iter;
use std::sync::mpsc;

use super::*;
use crate::common::provider::Call;

/// A message that is copied, one in a part of a frame, one in memory of its own, and one that was lent.
const LENGTHS: [usize; 4] = [20, 200, 800, LENT];
/// Messages shorter than this are copied.
const OWN: usize = LENGTHS[2];
/// The number of polls during which the pool cannot grow.
const WAITS: usize = 3;

/// The message is lost, and a request refused. The next message arrives.
#[test]
fn a_dropped_into_buffer_loses_only_its_own_message() {
    for device in devices("soft-held-buffer") {
        run_long_in_one_thread(|| async {
            for (length, is_request) in LENGTHS.into_iter().flat_map(|n| [(n, false), (n, true)]) {
                for polls in 0..=WAITS {
                    drop_into_buffer(device, length, is_request, polls).await;
                }
            }
        });
    }
}

/// Drops the future that returns the memory of a message, while the pool is full and cannot grow.
async fn drop_into_buffer(device: &str, length: usize, is_request: bool, polls: usize) {
    let case = format!("{length} bytes, request: {is_request}, after {polls} polls");
    let (ends, provider) = Ends::open(device).await;
    let [first, later] = [(1, length), (2, 800)].map(|(n, length)| message(n, length));
    let outcome = Cell::new(None);
    let mut peer = Box::pin(async {
        let sent = match is_request {
            true => ends.one.call(&first).await.map(drop),
            false => ends.one.send(&first).await,
        };
        outcome.set(Some(sent));
        pending::<()>().await;
    });
    let received = receive_while(&ends, &mut peer).await;
    let (open, closed) = mpsc::channel::<()>();
    provider.at_region(move |call| {
        if call == Call::RegisterRegion {
            assert!(closed.recv().is_err());
        }
    });
    let pool = &ends.pair.pool;
    let fill = |size| iter::from_fn(move || pool.try_allocate(size).unwrap());
    let kept: Vec<_> = (6..23).rev().map(|power| 1 << power).flat_map(fill).collect();
    let buffer = give_up(&ends.pair, polls, received.into_buffer(), &mut peer).await;
    assert_eq!(buffer.is_some(), polls > 0 && length >= OWN, "{case}");
    assert!(buffer.is_none_or(|buffer| *buffer.unwrap() == first[..]), "{case}");
    drop((kept, open));
    let sent = ends.pair.released(set_by(&mut peer, &outcome)).await;
    drop(peer);
    match sent {
        Ok(()) if !is_request => {}
        Err(MessageError::Operation { error: OperationError::Refused, ended: None })
            if is_request => {}
        other => panic!("{case}: {other:?}"),
    }
    let talk = async { tokio::join!(ends.one.send(&later), ends.other.receive()) };
    let (sent, received) = ends.pair.released(talk).await;
    sent.unwrap();
    assert!(*received.unwrap().unwrap() == later[..], "{case}");
    ends.assert_returned(&case).await;
    ends.end(&provider).await;
    provider.gone().await;
}
