//! The counters and events of connections whose peers broke the protocol or died.
//!
//! Each test runs in its own process, because the counters are those of the process.

use std::sync::mpsc;
use std::thread;

use rdma_channel::message::{ConnectionError, Messages, Options, Stream, losses, violations};
use rdma_channel::{Buffer, Channel};
use rdma_message::frame::{Body, Mode, Remote, Role};
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tracing::Level;

use super::ends::{frame, frame_after, garbage, hello};
use super::rig::{Rig, once};

/// The length of the longest message.
const LONGEST: u32 = 3000;

/// The end under test.
enum End {
    Messages(Messages),
    Stream(Stream),
}

impl End {
    fn new(rig: &Rig, mode: Mode, channel: Channel) -> Self {
        let options = Options::new().max_message(LONGEST);
        if mode == Mode::Messages {
            Self::Messages(Messages::new(channel, &rig.pool, options).unwrap())
        } else {
            Self::Stream(Stream::new(channel, &rig.pool, options).unwrap())
        }
    }

    /// Receives until the connection fails. Returns the address of the peer.
    fn fail(&mut self) -> String {
        let address = match self {
            Self::Messages(end) => {
                while end.receive().is_ok() {}
                end.peer_addr()
            }
            Self::Stream(end) => {
                while end.read_chunk().is_ok() {}
                end.peer_addr()
            }
        };
        address.unwrap().to_string()
    }
}

/// Returns the level and the error of the only event about an end whose peer sends these frames, and then dies if it
/// `dies`. The event names the peer.
fn report(rig: &Rig, mode: Mode, frames: &[Buffer], dies: bool) -> (Level, String) {
    let (channel, mut peer) = rig.channels(Options::new());
    let mut end = End::new(rig, mode, channel);
    let (heard, events) = mpsc::channel();
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            heard.send(event).unwrap();
        }
    });
    let address = thread::scope(|threads| {
        threads.spawn(move || {
            frames.iter().for_each(|frame| peer.send_from(frame).unwrap());
            if !dies {
                // The hello and the close frame of the end find receives.
                let mut memory = [(); 2].map(|()| rig.pool.allocate(4096).unwrap());
                memory.iter_mut().for_each(|memory| drop(peer.receive_into(memory)));
            }
        });
        tracing::subscriber::with_default(hears, || end.fail())
    });
    let events: Vec<_> = events.try_iter().collect();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(event.field("peer"), Some(&*address), "{event:?}");
    (event.level, event.field("error").unwrap().to_owned())
}

/// Checks that the end of each of these connections is a violation.
fn each_is_a_violation(rig: &Rig, mode: Mode, cases: &[(&str, Vec<Buffer>)]) {
    for (expected, frames) in cases {
        let before = (violations(), losses());
        let (level, error) = report(rig, mode, frames, false);
        assert!(level == Level::WARN && error.contains(expected), "{level}: {error}, {expected}");
        assert_eq!((violations(), losses()), (before.0 + 1, before.1), "{expected}");
    }
}

fn violate(rig: &Rig) {
    let after = |body| vec![hello(rig, Mode::Messages), frame(rig, body)];
    let offer = |length| {
        let source = Remote { va: 0, rkey: 7.into() };
        Body::Offer { role: Role::Message, length, source }
    };
    let counts = vec![hello(rig, Mode::Messages), frame_after(rig, 1, Body::Credit)];
    let cases = [
        ("invalid frame", vec![garbage(rig)]),
        ("must be a hello", vec![frame(rig, Body::Finish)]),
        ("3000 B are accepted", after(offer(LONGEST + 1))),
        ("0 were offered", counts),
        ("not due", after(Body::Acknowledge)),
    ];
    each_is_a_violation(rig, Mode::Messages, &cases);
    let after = vec![hello(rig, Mode::Stream), frame(rig, offer(9))];
    let cases = [("invalid frame", vec![garbage(rig)]), ("does not belong to this kind", after)];
    each_is_a_violation(rig, Mode::Stream, &cases);
}

#[test]
fn each_violation_of_the_protocol_is_counted_and_reported_with_the_address_of_the_peer() {
    let name = "message::reports::each_violation_of_the_protocol_is_counted_and_reported_with_the_address_of_the_peer";
    in_own_process(name, || once(|rig| violate(&rig)));
}

#[test]
fn a_peer_that_no_end_watches_is_reported_with_its_address() {
    let name = "message::reports::a_peer_that_no_end_watches_is_reported_with_its_address";
    in_own_process(name, || once(|rig| violate(&rig.unwatched())));
}

#[test]
fn a_peer_that_dies_is_counted_and_reported_with_its_address_but_no_violation() {
    let name = "message::reports::a_peer_that_dies_is_counted_and_reported_with_its_address_but_no_violation";
    in_own_process(name, || once(died));
}

fn died(rig: Rig) {
    for mode in [Mode::Messages, Mode::Stream] {
        let before = losses();
        let (level, error) = report(&rig, mode, &[hello(&rig, mode)], true);
        assert_eq!((level, error), (Level::DEBUG, ConnectionError::Lost.to_string()), "{mode:?}");
        assert_eq!((violations(), losses()), (0, before + 1), "{mode:?}");
    }
}

#[test]
fn a_peer_of_another_kind_is_reported_but_no_violation() {
    let name = "message::reports::a_peer_of_another_kind_is_reported_but_no_violation";
    in_own_process(name, || once(mismatched));
}

fn mismatched(rig: Rig) {
    for (own, other) in [(Mode::Messages, Mode::Stream), (Mode::Stream, Mode::Messages)] {
        let (level, error) = report(&rig, own, &[hello(&rig, other)], false);
        assert_eq!((level, error), (Level::WARN, ConnectionError::Mode(other).to_string()));
        assert_eq!((violations(), losses()), (0, 0), "{own:?}");
    }
}
