//! Connections that end: requested by one end or both, without an answer, or because they are stale.

use std::time::Duration;

use rdma_proto::cm::wire::{Dreq, Message, Reason, Rej, Rejection, Subject};
use rdma_proto::cm::{Address, CommId, Error};
use rdma_types::{Gid, Qpn};

use crate::cm::network::Side::{Left, Right};
use crate::cm::network::{Fate, LATENCY, Pair, Phase, RETRIES, response, round_trip};

#[test]
fn a_disconnected_queue_pair_is_unused_until_time_wait_is_over() {
    let mut pair = Pair::new();
    let offer = pair.offer(Left);
    let left = pair.connect_with(Left, &offer);
    pair.run();
    pair.disconnect(Left, left);
    let trace = pair.run_for(Duration::from_nanos(2 * LATENCY));
    let ends = [
        "-> DREQ",
        "<- DREP",
        "   right ended: disconnected, TimeWait",
        "   left ended: disconnected, TimeWait",
    ];
    assert_eq!(trace, ends);
    let to = pair.right.address;
    let again = pair.left.manager.connect(pair.now, to, &offer);
    assert_eq!(again.unwrap_err(), Error::QueuePairInUse(offer.qpn));
    // The peer does not accept the queue pair either.
    let mut other = Pair::new();
    std::mem::swap(&mut other.right, &mut pair.right);
    other.now = pair.now;
    other.connect_with(Left, &offer);
    let trace = other.run_for(Duration::from_nanos(2 * LATENCY));
    assert_eq!(trace, ["-> REQ", "<- REJ 10 of Req", "   left ended: rejected 10, TimeWait"]);
    std::mem::swap(&mut other.right, &mut pair.right);

    let start = pair.now.as_nanos();
    assert_eq!(pair.run(), ["   right released", "   left released"]);
    let passed = Duration::from_nanos(pair.now.as_nanos() - start);
    assert!(passed <= round_trip());
    pair.connect_with(Left, &offer);
    assert!(pair.run().contains(&"   right established".to_owned()));
}

#[test]
fn a_lost_dreq_is_repeated() {
    let mut pair = Pair::new().fates([(Right, 1, Fate::Lost)]);
    let (_, right) = pair.establish();
    pair.disconnect(Right, right);
    let trace = pair.run_for(response() + Duration::from_nanos(2 * LATENCY));
    assert_eq!(trace[..3], ["<- DREQ, lost", "<- DREQ", "-> DREP"]);
    pair.run();
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn a_lost_drep_is_repeated_during_and_after_time_wait() {
    let mut pair = Pair::new().fates([(Right, 1, Fate::Lost), (Right, 2, Fate::Lost)]);
    let (left, _) = pair.establish();
    pair.disconnect(Left, left);
    let trace = pair.run();
    let dreps: Vec<_> = trace.iter().filter(|line| line.contains("DREP")).collect();
    assert_eq!(dreps, ["<- DREP, lost", "<- DREP, lost", "<- DREP"], "{trace:#?}");
    let ended = trace.iter().filter(|line| line.contains("ended: disconnected")).count();
    assert_eq!(ended, 2, "each end once: {trace:#?}");
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn crossing_dreqs_end_the_connection_once() {
    let mut pair = Pair::new();
    let (left, right) = pair.establish();
    pair.disconnect(Left, left);
    pair.disconnect(Right, right);
    let trace = pair.run();
    let ends = [
        "-> DREQ",
        "<- DREQ",
        "<- DREP",
        "   right ended: disconnected, TimeWait",
        "-> DREP",
        "   left ended: disconnected, TimeWait",
        "   left released",
        "   right released",
    ];
    assert_eq!(trace, ends);
}

#[test]
fn an_unanswered_dreq_ends_in_time_wait() {
    let lost = |side, n| if side == Left && n > 1 { Fate::Lost } else { Fate::Arrives };
    let mut pair = Pair::new().network(Box::new(lost));
    let (left, right) = pair.establish();
    let start = pair.now.as_nanos();
    pair.disconnect(Left, left);
    let requests = vec!["-> DREQ, lost"; 1 + usize::from(RETRIES)];
    let end = ["   left ended: unanswered, TimeWait", "   left released"];
    assert_eq!(pair.run(), [&requests[..], &end].concat());
    let time = response() * (1 + u32::from(RETRIES)) + round_trip();
    assert_eq!(u128::from(pair.now.as_nanos() - start), time.as_nanos());
    // The other end notices when it disconnects.
    pair.disconnect(Right, right);
    assert_eq!(pair.run()[..2], ["<- DREQ", "-> DREP, lost"]);
}

/// Returns a DREQ and a REJ that are for the left end of the connection.
fn endings((left, right): (CommId, CommId), remote_qpn: Qpn) -> [Message<'static>; 2] {
    let rejection = Rejection::new(Reason::CONSUMER_DEFINED);
    [
        Message::Dreq(Dreq { local_id: right, remote_id: left, remote_qpn, private_data: &[] }),
        Message::Rej(Rej { local_id: right, remote_id: left, subject: Subject::Other, rejection }),
    ]
}

#[test]
fn only_the_peer_with_both_ids_and_the_queue_pair_ends_a_connection() {
    let mut pair = Pair::new();
    let offer = pair.offer(Left);
    let left = pair.connect_with(Left, &offer);
    pair.run();
    let ids = (left, pair.right.last);
    let peer = pair.right.address;
    let unmatched = |pair: &Pair| pair.left.manager.counters().unmatched;

    let stranger = Address::Gid(Gid::from_ipv4([10, 0, 0, 3].into()));
    let other = CommId::new(ids.1.get() ^ 1);
    for (from, ids) in [(stranger, ids), (peer, (ids.0, other))] {
        let before = unmatched(&pair);
        let [dreq, rej] = endings(ids, offer.qpn);
        // No connection has these IDs, so the sender need not repeat the DREQ.
        assert_eq!(pair.deliver(Left, from, dreq), ["DREP"]);
        assert_eq!(pair.deliver(Left, from, rej), [""; 0]);
        assert_eq!(unmatched(&pair), before + 2);
    }
    let [dreq, _] = endings(ids, Qpn::masked(offer.qpn.get() ^ 1));
    assert_eq!(pair.deliver(Left, peer, dreq), [""; 0], "another queue pair");
    assert_eq!(pair.left.phases[&left], Phase::Established);

    let [dreq, rej] = endings(ids, offer.qpn);
    let ended = ["DREP", "ended: disconnected, TimeWait"];
    assert_eq!(pair.deliver(Left, peer, dreq), ended);
    assert_eq!(pair.deliver(Left, peer, rej), [""; 0], "it has ended");
}

#[test]
fn a_rej_ends_an_established_connection() {
    let mut pair = Pair::new();
    let ids = pair.establish();
    let [_, rej] = endings(ids, Qpn::default());
    let peer = pair.right.address;
    assert_eq!(pair.deliver(Left, peer, rej), ["ended: rejected 28, TimeWait"]);
    pair.run();
    assert!(pair.left.manager.is_empty());
}

#[test]
fn a_dreq_for_a_forgotten_connection_is_answered() {
    let mut pair = Pair::new();
    let (local_id, remote_id) = (CommId::new(5), CommId::new(6));
    let remote_qpn = Qpn::masked(7);
    let dreq = Message::Dreq(Dreq { local_id, remote_id, remote_qpn, private_data: &[] });
    let peer = pair.right.address;
    assert_eq!(pair.deliver(Left, peer, dreq), ["DREP"]);
}

#[test]
fn a_req_of_a_restarted_host_ends_the_stale_connection() {
    let mut pair = Pair::new();
    let offer = pair.offer(Left);
    pair.connect_with(Left, &offer);
    pair.run();
    pair.restart(Left);
    pair.connect_with(Left, &offer);
    let trace = pair.run_for(Duration::from_nanos(4 * LATENCY));
    let expected = [
        "-> REQ",
        "<- REJ 10 of Req",
        "<- DREQ",
        "   left ended: rejected 10, TimeWait",
        "-> DREP",
        "   right ended: disconnected, TimeWait",
    ];
    assert_eq!(trace, expected);
    let counters = pair.right.manager.counters();
    assert_eq!((counters.stale, counters.retries), (1, 0));
    pair.run();
    // After TimeWait, the queue pair connects again.
    pair.connect_with(Left, &offer);
    assert!(pair.run().contains(&"   right established".to_owned()));
}

#[test]
fn a_rep_of_a_restarted_host_ends_the_stale_connection() {
    let mut pair = Pair::new();
    let (left, _) = pair.establish();
    // The first queue pair after the restart is that of the stale connection.
    pair.restart(Right);
    pair.connect(Left);
    let trace = pair.run_for(Duration::from_nanos(5 * LATENCY));
    let expected = [
        "-> REQ",
        "   right requested",
        "<- REP",
        "-> REJ 10 of Rep",
        "   left ended: refused 10",
        "-> DREQ",
        "   right ended: rejected 10, TimeWait",
        "<- DREP",
        "   left ended: disconnected, TimeWait",
    ];
    assert_eq!(trace, expected);
    assert_eq!(pair.left.phases[&left], Phase::TimeWait);
}

#[test]
fn ids_and_queue_pairs_return_after_time_wait() {
    let mut pair = Pair::new();
    for _ in 0..50 {
        let (left, right) = pair.establish();
        pair.disconnect(Right, right);
        let trace = pair.run();
        assert!(trace.contains(&"   left released".to_owned()), "{trace:#?}");
        let unknown = pair.left.manager.disconnect(pair.now, left, &[]);
        assert_eq!(unknown.unwrap_err(), Error::Unknown(left));
    }
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
    assert_eq!(pair.left.manager.expire(pair.now), None);
}
