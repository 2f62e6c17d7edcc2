//! The times and the contents of events.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A failing helper fails its test.

use std::sync::atomic::Ordering;
use std::sync::{LazyLock, mpsc};

use rdma_types::{Gid, GidType};
use test_support::events::{Event, Hears};
use test_support::rig::until;
use tracing::{Dispatch, Level};

use super::*;
use crate::address::GidEntry;
use crate::device::Device;
use crate::device::subnet::Subnet;
use crate::fabric::random::Seed;
use crate::fabric::tellers::TELLING;
use crate::limits::Limits;
use crate::link::Link;
use crate::schedule::Schedule;

/// Forwards the events about packets, whichever thread emits them.
fn hears(say: mpsc::Sender<Event>) -> Hears<impl Fn(Event)> {
    Hears(move |event: Event| {
        if event.target == "rdma_soft::wire" {
            say.send(event).unwrap();
        }
    })
}

/// Lets one test run at a time. Only a few threads of a process emit events at the same time. A test that found all of
/// them busy would receive none.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no thread emits events, and then emits those that are due.
fn settle(subnet: &Subnet) {
    until("no thread emits events", || TELLING.load(Ordering::Relaxed) == 0);
    subnet.run_queue.run();
}

/// Returns the next event. Call it only if one is due: it cannot detect that none will come.
fn next(heard: &mpsc::Receiver<Event>) -> Event {
    heard.recv_timeout(Duration::from_secs(20)).expect("an event")
}

/// Returns the device of an event, the name of the reason, and the number of packets.
fn summary(event: &Event) -> [&str; 3] {
    ["device", "reason", "packets"].map(|name| event.field(name).unwrap())
}

fn device(subnet: &'static Subnet, name: &str) -> Device {
    let (limits, schedule, seed) = (Limits::default(), Schedule::Immediate, Seed::new(1));
    Device::new(subnet, name.into(), Link::Ethernet, Vec::new(), limits, schedule, &seed)
}

const WHOSE: Whose = Whose { qpn: 7, peer_qpn: None, address: None };

#[test]
fn one_event_a_minute_reports_the_number_of_packets() {
    let _alone = locked(&ALONE);
    static SUBNET: LazyLock<Subnet> = LazyLock::new(Subnet::with_set_clock);
    static DEVICES: LazyLock<[Device; 2]> =
        LazyLock::new(|| ["one", "other"].map(|name| device(&SUBNET, name)));
    let [one, other] = &*DEVICES;
    let drop_some = |device: &'static Device, reason, packets| {
        device.drop_packets(reason, packets, WHOSE);
        settle(&SUBNET);
    };
    // Without a subscriber, no event is emitted, but the count is kept.
    drop_some(one, Reason::UnknownQp, 10);
    let (say, heard) = mpsc::channel();
    tracing::subscriber::with_default(hears(say), || {
        drop_some(one, Reason::UnknownQp, 1);
        assert_eq!(summary(&next(&heard)), ["one", "unknown_qp", "11"]);
        drop_some(one, Reason::UnknownQp, 2);
        SUBNET.clock.go_on_to(SUBNET.clock.now() + (APART - Duration::from_nanos(1)));
        drop_some(one, Reason::UnknownQp, 3);
        // Each reason, and each device, has its own minute.
        drop_some(one, Reason::WrongState, 1);
        assert_eq!(summary(&next(&heard)), ["one", "wrong_state", "1"]);
        drop_some(other, Reason::UnknownQp, 1);
        assert_eq!(summary(&next(&heard)), ["other", "unknown_qp", "1"]);
        SUBNET.clock.go_on_to(SUBNET.clock.now() + (Duration::from_nanos(1)));
        drop_some(one, Reason::UnknownQp, 4);
        // Earlier packets that no event reported are included.
        assert_eq!(summary(&next(&heard)), ["one", "unknown_qp", "9"]);
        assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Empty));
    });
    assert_eq!((one.tally.counters().unknown_qp, other.tally.counters().unknown_qp), (20, 1));
}

/// A thread that is inside a subscriber cannot emit events. After the next dropped packet, an event reports the earlier
/// packets too.
#[test]
fn a_thread_within_a_subscriber_defers_the_event() {
    let _alone = locked(&ALONE);
    static SUBNET: LazyLock<Subnet> = LazyLock::new(Subnet::with_set_clock);
    static DEVICE: LazyLock<Device> = LazyLock::new(|| device(&SUBNET, "within"));
    let (say, heard) = mpsc::channel();
    let subscriber = Dispatch::new(hears(say));
    tracing::dispatcher::with_default(&subscriber, || {
        tracing::dispatcher::get_default(|_| {
            DEVICE.drop_packets(Reason::NoRoute, 1, WHOSE);
            settle(&SUBNET);
        });
        DEVICE.drop_packets(Reason::NoRoute, 1, WHOSE);
        settle(&SUBNET);
    });
    assert_eq!(summary(&next(&heard)), ["within", "no_route", "2"]);
}

#[test]
fn an_event_names_both_ends_of_the_packets_and_gives_advice() {
    let _alone = locked(&ALONE);
    static SUBNET: LazyLock<Subnet> = LazyLock::new(Subnet::with_set_clock);
    static DEVICE: LazyLock<Device> = LazyLock::new(|| device(&SUBNET, "whose"));
    let (say, heard) = mpsc::channel();
    tracing::subscriber::with_default(hears(say), || {
        let gid = Gid::from(std::net::Ipv6Addr::LOCALHOST);
        let address = Some(Address::Gid(GidEntry { gid, kind: GidType::ROCE_V2 }));
        for reason in Reason::ALL {
            let lid = Some(Address::Lid(3));
            let address = if reason == Reason::WrongSource { address } else { lid };
            DEVICE.drop_packets(reason, 1, Whose { qpn: 17, peer_qpn: Some(18), address });
        }
        settle(&SUBNET);
    });
    for reason in Reason::ALL {
        let event = next(&heard);
        assert_eq!(event.field("reason"), Some(reason.name()));
        assert_eq!(["qpn", "peer_qpn"].map(|name| event.field(name)), [Some("17"), Some("18")]);
        let address = if reason == Reason::WrongSource { "::1" } else { "LID 3" };
        assert_eq!(event.field("address"), Some(address));
        let text = event.field("message").unwrap();
        assert!(text.contains(reason.advice()) && !text.contains("  "), "{text}");
        let level = match reason.gravity() {
            Gravity::Warns => Level::WARN,
            Gravity::Informs => Level::INFO,
        };
        assert_eq!(event.level, level);
    }
    // Each reason has a counter with its name.
    let counted: Vec<_> = DEVICE.tally.counters().iter().filter(|counter| counter.1 > 0).collect();
    let mut names: Vec<_> = Reason::ALL.map(|reason| (reason.name(), 1)).into();
    names.sort_by_key(|(name, _)| DEVICE.tally.counters().iter().position(|(n, _)| n == *name));
    assert_eq!(counted, names);
}

/// A panic of a subscriber ends the thread that reports to it. The next event is emitted all the same.
#[test]
fn a_subscriber_may_panic() {
    let _alone = locked(&ALONE);
    static SUBNET: LazyLock<Subnet> = LazyLock::new(Subnet::with_set_clock);
    static DEVICE: LazyLock<Device> = LazyLock::new(|| device(&SUBNET, "panics"));
    let (say, heard) = mpsc::channel();
    let gone = hears(say);
    drop(heard);
    // Forwarding the first event fails, since the receiver is dropped.
    tracing::subscriber::with_default(gone, || {
        DEVICE.drop_packets(Reason::PortDown, 1, WHOSE);
        settle(&SUBNET);
    });
    let (say, heard) = mpsc::channel();
    tracing::subscriber::with_default(hears(say), || {
        SUBNET.clock.go_on_to(SUBNET.clock.now() + APART);
        DEVICE.drop_packets(Reason::PortDown, 5, WHOSE);
        settle(&SUBNET);
    });
    assert_eq!(summary(&next(&heard)), ["panics", "port_down", "5"]);
}
