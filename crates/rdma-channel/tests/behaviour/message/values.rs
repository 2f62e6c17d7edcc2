//! Messages whose bytes are not a value.

use std::sync::mpsc;
use std::thread;

use rdma_channel::message::{Message, Messages, Options, ValueError, malformed_values};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tracing::Level;

use super::rig::{Rig, once};

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
    in_own_process(name, || once(hostile));
}

fn hostile(rig: Rig) {
    // The victim is the client, which knows the address of its peer.
    let (victim, hostile) = rig.messages(Options::new());
    let (friend, other) = rig.messages(Options::new());
    let (heard, events) = mpsc::channel();
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            heard.send(event).unwrap();
        }
    });
    tracing::subscriber::with_default(hears, || {
        // Lists without end, and a list that is too deep.
        let endless = [&[0xff; 9][..], &[1]].concat();
        for (bytes, fails) in [
            (endless.clone(), fails::<Vec<()>> as Fails),
            (endless, fails::<Vec<String>>),
            (vec![1; 100_000], fails::<List>),
        ] {
            let message = thread::scope(|threads| {
                threads.spawn(|| hostile.send(&bytes).unwrap());
                victim.receive().unwrap().unwrap()
            });
            assert!(fails(&message), "{}", bytes.len());
            talk(&hostile, &victim);
            talk(&friend, &other);
        }
    });
    let peer = victim.peer_addr().unwrap().to_string();
    let events: Vec<_> = events.try_iter().collect();
    for event in &events {
        assert_eq!((event.level, event.field("peer")), (Level::WARN, Some(&*peer)), "{event:?}");
    }
    assert_eq!((events.len(), malformed_values()), (3, 3));
}

/// Sends a value in each direction.
fn talk(one: &Messages, other: &Messages) {
    for (from, to) in [(one, other), (other, one)] {
        thread::scope(|threads| {
            threads.spawn(|| from.send_value(&("apples", 3_u32)).unwrap());
            let order = to.receive().unwrap().unwrap();
            assert_eq!(order.value::<(String, u32)>().unwrap(), ("apples".to_owned(), 3));
        });
    }
}
