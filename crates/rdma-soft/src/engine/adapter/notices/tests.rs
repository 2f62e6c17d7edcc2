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
use crate::fabric::emitters::EMITTING;
use crate::fabric::random::Seed;
use crate::limits::Limits;
use crate::link::Link;
use crate::schedule::Schedule;

/// Forwards the events about packets, whichever thread emits them.
fn forward_to(sender: mpsc::Sender<Event>) -> Hears<impl Fn(Event)> {
    Hears(move |event: Event| {
        if event.target == "rdma_soft::wire" {
            sender.send(event).unwrap();
        }
    })
}

/// Lets one test run at a time. Only a few threads of a process emit events at the same time. A test that found all of
/// them busy would receive none.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no thread emits events, and then emits those that are due.
fn settle(subnet: &Subnet) {
    until("no thread emits events", || EMITTING.load(Ordering::Relaxed) == 0);
    subnet.run_queue.run();
}

/// Returns the next event. Call it only if one is due: it cannot detect that none will come.
fn next(events: &mpsc::Receiver<Event>) -> Event {
    events.recv_timeout(Duration::from_secs(20)).expect("an event")
}

/// Returns the device of an event, the name of the reason, and the number of packets.
fn summary(event: &Event) -> [&str; 3] {
    ["device", "reason", "packets"].map(|name| event.field(name).unwrap())
}

fn device(subnet: &'static Subnet, name: &str) -> Device {
    let (limits, schedule, seed) = (Limits::default(), Schedule::Immediate, Seed::new(1));
    Device::new(subnet, name.into(), Link::Ethernet, Vec::new(), limits, schedule, &seed)
}

const ENDPOINTS: Endpoints = Endpoints { qpn: 7, peer_qpn: None, address: None };

#[test]
fn one_event_a_minute_reports_the_number_of_packets() {
    let _alone = locked(&ALONE);
    static SUBNET: LazyLock<Subnet> = LazyLock::new(Subnet::with_set_clock);
    static DEVICES: LazyLock<[Device; 2]> =
        LazyLock::new(|| ["one", "other"].map(|name| device(&SUBNET, name)));
    let [one, other] = &*DEVICES;
    let drop_some = |device: &'static Device, reason, packets| {
        device.drop_packets(reason, packets, ENDPOINTS);
        settle(&SUBNET);
    };
    // Without a subscriber, no event is emitted, but the count is kept.
    drop_some(one, Reason::UnknownQp, 10);
    let (sender, events) = mpsc::channel();
    tracing::subscriber::with_default(forward_to(sender), || {
        drop_some(one, Reason::UnknownQp, 1);
        assert_eq!(summary(&next(&events)), ["one", "unknown_qp", "11"]);
        drop_some(one, Reason::UnknownQp, 2);
        SUBNET.clock.advance_to(SUBNET.clock.now() + (MIN_INTERVAL - Duration::from_nanos(1)));
        drop_some(one, Reason::UnknownQp, 3);
        // Each reason, and each device, has its own minute.
        drop_some(one, Reason::WrongState, 1);
        assert_eq!(summary(&next(&events)), ["one", "wrong_state", "1"]);
        drop_some(other, Reason::UnknownQp, 1);
        assert_eq!(summary(&next(&events)), ["other", "unknown_qp", "1"]);
        SUBNET.clock.advance_to(SUBNET.clock.now() + (Duration::from_nanos(1)));
        drop_some(one, Reason::UnknownQp, 4);
        // Earlier packets that no event reported are included.
        assert_eq!(summary(&next(&events)), ["one", "unknown_qp", "9"]);
        assert_eq!(events.try_recv(), Err(mpsc::TryRecvError::Empty));
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
    let (sender, events) = mpsc::channel();
    let subscriber = Dispatch::new(forward_to(sender));
    tracing::dispatcher::with_default(&subscriber, || {
        tracing::dispatcher::get_default(|_| {
            DEVICE.drop_packets(Reason::NoRoute, 1, ENDPOINTS);
            settle(&SUBNET);
        });
        DEVICE.drop_packets(Reason::NoRoute, 1, ENDPOINTS);
        settle(&SUBNET);
    });
    assert_eq!(summary(&next(&events)), ["within", "no_route", "2"]);
}

#[test]
fn an_event_names_both_ends_of_the_packets_and_gives_advice() {
    let _alone = locked(&ALONE);
    static SUBNET: LazyLock<Subnet> = LazyLock::new(Subnet::with_set_clock);
    static DEVICE: LazyLock<Device> = LazyLock::new(|| device(&SUBNET, "whose"));
    let (sender, events) = mpsc::channel();
    tracing::subscriber::with_default(forward_to(sender), || {
        let gid = Gid::from(std::net::Ipv6Addr::LOCALHOST);
        let address = Some(Address::Gid(GidEntry { gid, kind: GidType::ROCE_V2 }));
        for reason in Reason::ALL {
            let lid = Some(Address::Lid(3));
            let address = if reason == Reason::WrongSource { address } else { lid };
            DEVICE.drop_packets(reason, 1, Endpoints { qpn: 17, peer_qpn: Some(18), address });
        }
        settle(&SUBNET);
    });
    for reason in Reason::ALL {
        let event = next(&events);
        assert_eq!(event.field("reason"), Some(reason.name()));
        assert_eq!(["qpn", "peer_qpn"].map(|name| event.field(name)), [Some("17"), Some("18")]);
        let address = if reason == Reason::WrongSource { "::1" } else { "LID 3" };
        assert_eq!(event.field("address"), Some(address));
        let text = event.field("message").unwrap();
        assert!(text.contains(reason.advice()) && !text.contains("  "), "{text}");
        let level = match reason.severity() {
            Severity::Warns => Level::WARN,
            Severity::Informs => Level::INFO,
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
    let (sender, events) = mpsc::channel();
    let gone = forward_to(sender);
    drop(events);
    // Forwarding the first event fails, since the receiver is dropped.
    tracing::subscriber::with_default(gone, || {
        DEVICE.drop_packets(Reason::PortDown, 1, ENDPOINTS);
        settle(&SUBNET);
    });
    let (sender, events) = mpsc::channel();
    tracing::subscriber::with_default(forward_to(sender), || {
        SUBNET.clock.advance_to(SUBNET.clock.now() + MIN_INTERVAL);
        DEVICE.drop_packets(Reason::PortDown, 5, ENDPOINTS);
        settle(&SUBNET);
    });
    assert_eq!(summary(&next(&events)), ["panics", "port_down", "5"]);
}
