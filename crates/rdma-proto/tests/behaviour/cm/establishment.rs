//! Connections that are established, although messages are lost, repeated, late, or cross.

use std::time::Duration;

use rdma_proto::cm::wire::{Answer, Message, Mra, Reason, Subject, Timeout};
use rdma_proto::cm::{Address, CommId, Error, Event};
use rdma_types::{Gid, Qpn};

use crate::cm::network::Side::{Left, Right};
use crate::cm::network::{
    Fate, LATENCY, LONGEST, Pair, Phase, RETRIES, response, round_trip, service, timeout,
};

const UNDISTURBED: [&str; 6] =
    ["-> REQ", "   right requested", "<- REP", "   left replied", "-> RTU", "   right established"];

fn established(pair: &Pair) -> [usize; 2] {
    [&pair.left, &pair.right]
        .map(|end| end.phases.values().filter(|&&phase| phase == Phase::Established).count())
}

#[test]
fn three_messages_establish_a_connection() {
    let mut pair = Pair::new();
    pair.connect(Left);
    assert_eq!(pair.run(), UNDISTURBED);
    assert_eq!(established(&pair), [1, 1]);
    assert_eq!(pair.now.as_nanos(), 3 * LATENCY);
    assert_eq!((pair.left.manager.deadline(), pair.right.manager.deadline()), (None, None));
}

#[test]
fn a_lost_req_is_repeated() {
    let mut pair = Pair::new().fates([(Left, 0, Fate::Lost)]);
    pair.connect(Left);
    assert_eq!(pair.run(), [&["-> REQ, lost"][..], &UNDISTURBED].concat());
    assert_eq!(
        u128::from(pair.now.as_nanos()),
        (response() + Duration::from_nanos(3 * LATENCY)).as_nanos()
    );
}

#[test]
fn a_lost_rep_is_repeated() {
    let mut pair = Pair::new().fates([(Right, 0, Fate::Lost)]);
    pair.connect(Left);
    // The repeated REQ and the timer of the REP both repeat the REP.
    let trace = ["-> REQ", "   right requested", "<- REP, lost", "-> REQ", "<- REP", "<- REP"];
    let end = ["   left replied", "-> RTU", "-> RTU", "   right established"];
    assert_eq!(pair.run(), [&trace[..], &end].concat());
    assert_eq!(established(&pair), [1, 1]);
}

#[test]
fn a_lost_rtu_is_repeated_for_each_rep() {
    let mut pair = Pair::new().fates([(Left, 1, Fate::Lost), (Left, 2, Fate::Lost)]);
    pair.connect(Left);
    let trace = ["-> REQ", "   right requested", "<- REP", "   left replied", "-> RTU, lost"];
    let end = ["<- REP", "-> RTU, lost", "<- REP", "-> RTU", "   right established"];
    assert_eq!(pair.run(), [&trace[..], &end].concat());
    assert_eq!(established(&pair), [1, 1]);
}

#[test]
fn a_copy_of_any_message_changes_nothing() {
    for (side, n) in [(Left, 0), (Left, 1), (Right, 0)] {
        let mut pair = Pair::new().fates([(side, n, Fate::Twice)]);
        pair.connect(Left);
        let trace = pair.run();
        let events: Vec<_> = trace.iter().filter(|line| line.starts_with("   ")).collect();
        assert_eq!(events, ["   right requested", "   left replied", "   right established"]);
        assert_eq!(established(&pair), [1, 1], "{trace:#?}");
        let duplicates = [&pair.left, &pair.right].map(|end| end.manager.counters().duplicates);
        assert!(duplicates.iter().sum::<u64>() >= 1, "{trace:#?}");
    }
}

#[test]
fn late_copies_change_nothing() {
    // The first REQ and the first REP arrive after the connection is established.
    let mut pair = Pair::new().fates([(Left, 0, Fate::Late(400)), (Right, 0, Fate::Late(300))]);
    pair.connect(Left);
    let trace = pair.run();
    let events: Vec<_> = trace.iter().filter(|line| line.starts_with("   ")).collect();
    assert_eq!(events, ["   right requested", "   left replied", "   right established"]);
    assert_eq!(established(&pair), [1, 1], "{trace:#?}");
}

#[test]
fn a_slow_program_is_reported_to_the_peer_by_mras() {
    let mut pair = Pair::new();
    (pair.left.decides, pair.right.decides) = (false, false);
    pair.connect(Left);
    let trace = pair.run_for(response() * 2);
    assert_eq!(trace, ["-> REQ", "   right requested", "-> REQ", "<- MRA of Req"]);
    // The active end now waits for the service timeout before it repeats the REQ.
    assert!(timeout(6).duration() > response());
    assert_eq!(pair.run_for(response() / 2), [""; 0]);
    pair.decide(Right);
    assert_eq!(pair.run_for(response() / 2), ["<- REP", "   left replied"]);
    assert_eq!(pair.run_for(response()), ["<- REP", "-> MRA of Rep"]);
    pair.decide(Left);
    assert_eq!(pair.run(), ["-> RTU", "   right established"]);
    assert_eq!(established(&pair), [1, 1]);
}

#[test]
fn each_try_is_prolonged_once() {
    let mut pair = Pair::new();
    pair.right.decides = false;
    pair.connect(Left);
    let trace = pair.run();
    let requests = trace.iter().filter(|line| *line == "-> REQ").count();
    assert_eq!(requests, 1 + usize::from(RETRIES), "{trace:#?}");
    // The request is withdrawn, so the program does not answer it later.
    let end = ["-> REJ 4 of Other", "   left ended: unanswered", "   right ended: rejected 4"];
    assert_eq!(trace[trace.len() - 3..], end);
    let longest = response() + (response() + timeout(6).duration() * 2) * u32::from(RETRIES);
    assert!(u128::from(pair.now.as_nanos()) <= longest.as_nanos());
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

fn mra(remote_id: CommId, local_id: CommId, subject: Subject) -> Message<'static> {
    let service_timeout = timeout(5);
    Message::Mra(Mra { local_id, remote_id, subject, service_timeout, private_data: &[] })
}

#[test]
fn only_the_first_mra_of_the_peer_about_the_message_prolongs_a_try() {
    let mut pair = Pair::new().network(Box::new(|_, _| Fate::Lost));
    let id = pair.connect(Left);
    let stranger = Address::Gid(Gid::from_ipv4([10, 0, 0, 3].into()));
    let peer = pair.right.address;
    let first = pair.left.manager.deadline();
    pair.deliver(Left, stranger, mra(id, CommId::new(1), Subject::Req));
    pair.deliver(Left, peer, mra(CommId::new(1), CommId::new(1), Subject::Req));
    pair.deliver(Left, peer, mra(id, CommId::new(1), Subject::Rep));
    assert_eq!(pair.left.manager.deadline(), first);
    pair.deliver(Left, peer, mra(id, CommId::new(1), Subject::Req));
    let prolonged = pair.now.after(timeout(5).duration() + round_trip());
    assert_eq!(pair.left.manager.deadline(), Some(prolonged));
    assert_eq!(pair.run_for(Duration::from_nanos(LATENCY * 20)), ["-> REQ, lost"]);
    pair.deliver(Left, peer, mra(id, CommId::new(1), Subject::Req));
    assert_eq!(pair.left.manager.deadline(), Some(prolonged));
    let counters = pair.left.manager.counters();
    assert_eq!((counters.unmatched, counters.duplicates), (3, 1));
}

#[test]
fn an_mra_with_a_short_time_hastens_nothing() {
    let mut pair = Pair::new();
    let id = pair.connect(Left);
    let (first, peer) = (pair.left.manager.deadline(), pair.right.address);
    let (local_id, subject) = (CommId::new(1), Subject::Req);
    let service_timeout = Timeout::default();
    let mra = Mra { local_id, remote_id: id, subject, service_timeout, private_data: &[] };
    pair.deliver(Left, peer, Message::Mra(mra));
    assert_eq!(pair.left.manager.deadline(), first);
}

#[test]
fn the_mra_of_a_rep_has_both_ids() {
    let mut pair = Pair::new().network(Box::new(|side, _| match side {
        Left => Fate::Arrives,
        Right => Fate::Lost,
    }));
    let left = pair.connect(Left);
    pair.run_for(Duration::from_nanos(LATENCY));
    let (right, peer) = (pair.right.last, pair.left.address);
    let first = pair.right.manager.deadline();
    pair.deliver(Right, peer, mra(right, CommId::new(1), Subject::Rep));
    pair.deliver(Right, peer, mra(right, left, Subject::Req));
    assert_eq!(pair.right.manager.deadline(), first);
    pair.deliver(Right, peer, mra(right, left, Subject::Rep));
    assert!(pair.right.manager.deadline() > first);
}

#[test]
fn longer_times_of_a_peer_are_reduced_to_the_longest_time() {
    let mut pair = Pair::new();
    let mut offer = pair.offer(Left);
    offer.local_response_timeout = Timeout::LONGEST;
    offer.primary.ack_timeout = Timeout::LONGEST;
    let id = pair.connect_with(Left, &offer);
    pair.run_for(Duration::from_nanos(LATENCY));
    let longest = timeout(LONGEST).duration();
    assert_eq!(pair.right.manager.deadline(), Some(pair.now.after(longest)));
    pair.run_for(Duration::from_nanos(LATENCY * 2));
    pair.disconnect(Left, id);
    pair.run_for(Duration::from_nanos(LATENCY));
    assert_eq!(pair.right.phases[&pair.right.last], Phase::TimeWait);
    assert_eq!(pair.right.manager.deadline(), Some(pair.now.after(longest)));
}

#[test]
fn an_unanswered_req_ends_after_all_retries() {
    let mut pair = Pair::new().network(Box::new(|_, _| Fate::Lost));
    pair.connect(Left);
    let requests = vec!["-> REQ, lost"; 1 + usize::from(RETRIES)];
    let end = ["-> REJ 4 of Other, lost", "   left ended: unanswered"];
    assert_eq!(pair.run(), [&requests[..], &end].concat());
    let time = response() * (1 + u32::from(RETRIES));
    assert_eq!(u128::from(pair.now.as_nanos()), time.as_nanos());
    assert!(pair.left.manager.is_empty());
    let counters = pair.left.manager.counters();
    assert_eq!((counters.retries, counters.timeouts), (RETRIES.into(), 1));
}

#[test]
fn an_unanswered_rep_ends_both_ends() {
    let lost = |side, n| if side == Left && n > 0 { Fate::Lost } else { Fate::Arrives };
    let mut pair = Pair::new().network(Box::new(lost));
    pair.connect(Left);
    let trace = pair.run_for(response() * (2 + u32::from(RETRIES)));
    let last: Vec<_> = trace.iter().filter(|line| !line.contains("RTU")).collect();
    let end = [
        "<- REJ 4 of Other",
        "   right ended: unanswered, TimeWait",
        "   left ended: rejected 4, TimeWait",
    ];
    assert_eq!(last[last.len() - 5..last.len() - 2], end, "{trace:#?}");
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn a_packet_on_the_queue_pair_replaces_the_rtu() {
    let mut pair = Pair::new().fates([(Left, 1, Fate::Lost)]);
    pair.connect(Left);
    pair.run_for(Duration::from_nanos(3 * LATENCY));
    let (left, right) = (pair.left.last, pair.right.last);
    pair.right.manager.communication_established(right).unwrap();
    assert_eq!(pair.right.manager.communication_established(right), Err(Error::State(right)));
    assert_eq!(pair.run(), [""; 0]);
    pair.right.phases.insert(right, Phase::Established);
    pair.disconnect(Left, left);
    pair.run();
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn crossing_reqs_establish_a_connection_each() {
    let mut pair = Pair::new();
    pair.connect(Left);
    pair.connect(Right);
    let trace = pair.run();
    assert_eq!(established(&pair), [2, 2], "{trace:#?}");
    assert_eq!((pair.left.manager.len(), pair.right.manager.len()), (2, 2));
}

#[test]
fn crossing_reqs_without_listeners_are_both_rejected() {
    let mut pair = Pair::new();
    assert!(pair.left.manager.stop_listening(service()));
    assert!(pair.right.manager.stop_listening(service()));
    assert!(!pair.right.manager.stop_listening(service()));
    pair.connect(Left);
    pair.connect(Right);
    let trace = pair.run();
    let reason = Reason::INVALID_SERVICE_ID.get();
    for name in ["left", "right"] {
        assert!(trace.contains(&format!("   {name} ended: rejected {reason}")), "{trace:#?}");
    }
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn the_queue_pair_of_a_req_accepts_no_crossing_req() {
    let mut pair = Pair::new();
    pair.right.decides = false;
    let offer = pair.offer(Right);
    pair.connect_with(Right, &offer);
    pair.connect(Left);
    pair.run_for(Duration::from_nanos(LATENCY));
    // The right end's program cannot accept with the queue pair of its own request.
    let id = pair.right.last;
    let answer = Answer { qpn: offer.qpn, ..Answer::default() };
    let accepted = pair.right.manager.accept(pair.now, id, &answer);
    assert_eq!(accepted.unwrap_err(), Error::QueuePairInUse(offer.qpn));
}

#[test]
fn a_manager_connects_to_itself() {
    let mut pair = Pair::new();
    let mut offer = pair.offer(Left);
    offer.primary.remote_gid = pair.left.gid;
    let (manager, address, now) = (&mut pair.left.manager, pair.left.address, pair.now);
    let (active, req) = manager.connect(now, address, &offer).unwrap();
    let requested = manager.receive(now, address, &req.mad).event;
    let Some(Event::Requested { id: passive, .. }) = requested else { panic!() };
    let qpn = Qpn::masked(0x999);
    let answer = Answer { qpn, ..Answer::default() };
    let rep = manager.accept(now, passive, &answer).unwrap();
    assert!(manager.receive(now, address, &rep.mad).event.is_some());
    let rtu = manager.ready(active, b"").unwrap();
    assert!(manager.receive(now, address, &rtu.mad).event.is_some());
    let dreq = manager.disconnect(now, passive, b"").unwrap();
    let drep = manager.receive(now, address, &dreq.mad).transmit.unwrap();
    assert!(manager.receive(now, address, &drep.mad).event.is_some());
    while let Some(deadline) = manager.deadline() {
        assert!(manager.expire(deadline).is_some());
    }
    assert!(manager.is_empty());
}
