//! Messages whose bytes are not a value.

use std::sync::{Arc, Mutex};

use rdma_async::ValueError;
use rdma_async::message::{Message, Messages, Options, malformed_values};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tracing::Level;

use super::rig::{endpoint, messages};
use crate::common::run_in_one_thread;

/// A list as deep as its bytes are long.
#[derive(Debug, Deserialize)]
struct List(#[expect(dead_code, reason = "only decoded")] Option<Box<Self>>);

/// Decodes a value, and returns whether that has failed.
type Fails = fn(&Message) -> bool;

fn fails<T: DeserializeOwned>(message: &Message) -> bool {
    matches!(message.value::<T>(), Err(ValueError::Malformed(_)))
}

/// Runs in its own process, because of the counter and the subscriber.
#[test]
fn hostile_bytes_for_a_value_are_reported_and_harm_no_connection() {
    let name = "message::values::hostile_bytes_for_a_value_are_reported_and_harm_no_connection";
    in_own_process(name, || run_in_one_thread(hostile));
}

async fn hostile() {
    let endpoint = endpoint("soft0");
    let (hostile, victim) = messages(&endpoint, Options::new()).await;
    let (friend, other) = messages(&endpoint, Options::new()).await;
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            heard.lock().unwrap().push(event);
        }
    });
    let _guard = tracing::subscriber::set_default(hears);
    // Lists without end, and a list that is too deep.
    let endless = [&[0xff; 9][..], &[1]].concat();
    for (bytes, fails) in [
        (endless.clone(), fails::<Vec<()>> as Fails),
        (endless, fails::<Vec<String>>),
        (vec![1; 100_000], fails::<List>),
    ] {
        hostile.send(&bytes).await.unwrap();
        let message = victim.receive().await.unwrap().unwrap();
        assert!(fails(&message), "{}", bytes.len());
        talk(&hostile, &victim).await;
        talk(&friend, &other).await;
    }
    let peer = victim.peer_addr().unwrap().to_string();
    let events = events.lock().unwrap();
    for event in &*events {
        assert_eq!((event.level, event.field("peer")), (Level::WARN, Some(&*peer)), "{event:?}");
    }
    assert_eq!((events.len(), malformed_values()), (3, 3));
}

/// Sends a value in each direction.
async fn talk(one: &Messages, other: &Messages) {
    for (from, to) in [(one, other), (other, one)] {
        from.send_value(&("apples", 3_u32)).await.unwrap();
        let order = to.receive().await.unwrap().unwrap();
        assert_eq!(order.value::<(String, u32)>().unwrap(), ("apples".to_owned(), 3));
    }
}
