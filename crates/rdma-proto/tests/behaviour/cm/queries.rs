//! Queries for the queue pair of a datagram service.

use std::time::Duration;

use rdma_proto::Time;
use rdma_proto::cm::wire::{Message, Query, Resolution, SidrRep, SidrReq, SidrStatus};
use rdma_proto::cm::{Address, CommId, Event, Manager, ServiceId, Settings};
use rdma_types::{Gid, Guid, Qpn};

use crate::cm::network::Side::{Left, Right};
use crate::cm::network::{Fate, LATENCY, Pair, RETRIES, datagram_service, service, timeout};

const QPN: Qpn = Qpn::masked(0x1234);

pub(crate) fn query(pair: &mut Pair, service_id: ServiceId) -> CommId {
    let (to, now) = (pair.right.address, pair.now);
    let query = Query { service_id, private_data: b"where", ..Query::default() };
    let sent = pair.left.manager.query(now, to, &query, timeout(4), RETRIES);
    let (id, transmit) = sent.unwrap();
    pair.left.begin(now, id);
    pair.depart(Left, &transmit);
    id
}

fn answer(pair: &mut Pair, status: SidrStatus) {
    let resolution = Resolution { status, qpn: QPN, qkey: 7, ..Resolution::default() };
    let id = pair.right.last;
    pair.right.phases.remove(&id);
    let transmit = pair.right.manager.answer(id, &resolution).unwrap();
    pair.depart(Right, &transmit);
}

#[test]
fn a_query_is_resolved() {
    let mut pair = Pair::new();
    query(&mut pair, datagram_service());
    let tick = Duration::from_nanos(LATENCY);
    assert_eq!(pair.run_for(tick), ["-> SIDR_REQ", "   right queried"]);
    answer(&mut pair, SidrStatus::VALID);
    assert_eq!(pair.run(), ["<- SIDR_REP 0", "   left resolved: status 0"]);
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn a_lost_query_or_answer_is_repeated_by_the_active_end() {
    for side in [Left, Right] {
        let mut pair = Pair::new().fates([(side, 0, Fate::Lost)]);
        query(&mut pair, datagram_service());
        let mut resolved = false;
        for _ in 0..20 {
            let trace = pair.run_for(timeout(4).duration() / 4);
            if trace.contains(&"   right queried".to_owned()) {
                answer(&mut pair, SidrStatus::VALID);
            }
            resolved |= trace.contains(&"   left resolved: status 0".to_owned());
        }
        assert!(resolved);
        assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
    }
}

#[test]
fn repeated_queries_reach_a_slow_program_once() {
    let mut pair = Pair::new();
    query(&mut pair, datagram_service());
    let trace = pair.run();
    assert_eq!(
        trace.iter().filter(|line| *line == "-> SIDR_REQ").count(),
        1 + usize::from(RETRIES)
    );
    assert_eq!(trace.iter().filter(|line| *line == "   right queried").count(), 1);
    assert_eq!(trace.last().unwrap(), "   left ended: unanswered");
    assert_eq!(pair.right.manager.counters().duplicates, u64::from(RETRIES));
    // A late answer is for no query.
    answer(&mut pair, SidrStatus::VALID);
    assert_eq!(pair.run(), ["<- SIDR_REP 0"]);
    assert_eq!(pair.left.manager.counters().unmatched, 1);
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn a_service_without_listener_is_unsupported() {
    let mut pair = Pair::new();
    query(&mut pair, ServiceId::new(5));
    let trace = ["-> SIDR_REQ", "<- SIDR_REP 1", "   left resolved: status 1"];
    assert_eq!(pair.run(), trace);
}

#[test]
fn a_service_for_connections_answers_no_query() {
    let mut pair = Pair::new();
    query(&mut pair, service());
    let trace = ["-> SIDR_REQ", "<- SIDR_REP 1", "   left resolved: status 1"];
    assert_eq!(pair.run(), trace);
    assert!(pair.right.manager.is_empty());
}

#[test]
fn an_answer_without_a_queue_pair_need_not_name_the_service() {
    let mut pair = Pair::new();
    let (to, now) = (pair.right.address, pair.now);
    let query = Query { service_id: datagram_service(), ..Query::default() };
    let (id, request) = pair.left.manager.query(now, to, &query, timeout(4), RETRIES).unwrap();
    pair.left.begin(now, id);
    // A peer that knows only another version cannot read the service ID.
    let mut other_version = request.mad;
    other_version[2] = 1;
    let reply = pair.right.manager.receive(now, pair.left.address, &other_version).transmit;
    assert_eq!(pair.deliver_bytes(Left, to, &reply.unwrap().mad), ["resolved: status 5"]);
    assert!(pair.left.manager.is_empty());
}

#[test]
fn a_query_is_repeated_at_most_15_times() {
    for (retries, most) in [(0, 0), (15, 15), (16, 15), (u8::MAX, 15)] {
        let mut manager = Manager::new(&Settings::new(Guid::default(), 0, 0));
        let to = Address::Gid(Gid::default());
        let sent = manager.query(Time::default(), to, &Query::default(), timeout(4), retries);
        assert!(sent.is_ok());
        while let Some(deadline) = manager.deadline() {
            assert!(manager.expire(deadline).is_some());
        }
        assert_eq!(manager.counters().retries, most, "{retries}");
    }
}

#[test]
fn only_the_peer_answers_for_the_service() {
    let mut pair = Pair::new();
    let request_id = query(&mut pair, datagram_service());
    let stranger = Address::Gid(Gid::from_ipv4([10, 0, 0, 3].into()));
    let reply = |request_id, service_id| {
        Message::SidrRep(SidrRep { request_id, service_id, resolution: Resolution::default() })
    };
    let peer = pair.right.address;
    assert_eq!(pair.deliver(Left, stranger, reply(request_id, datagram_service())), [""; 0]);
    assert_eq!(pair.deliver(Left, peer, reply(request_id, ServiceId::new(5))), [""; 0]);
    assert_eq!(pair.deliver(Left, peer, reply(CommId::new(5), datagram_service())), [""; 0]);
    assert_eq!(pair.left.manager.counters().unmatched, 3);
    let resolved = ["resolved: status 0"];
    assert_eq!(pair.deliver(Left, peer, reply(request_id, datagram_service())), resolved);
}

#[test]
fn unanswered_queries_count_as_half_open() {
    let mut pair = Pair::new();
    let from = pair.left.address;
    let query = Query { service_id: datagram_service(), ..Query::default() };
    let mut queried = 0;
    for n in 0..2 * Manager::MAX_HALF_OPEN {
        let request = SidrReq { request_id: CommId::new(n), query };
        queried += pair.deliver(Right, from, Message::SidrReq(request)).len();
    }
    assert_eq!(queried, Manager::MAX_HALF_OPEN as usize);
    let dropped = pair.right.manager.counters().half_open_full;
    assert_eq!(dropped, Manager::MAX_HALF_OPEN.into());
}

#[test]
fn an_event_contains_the_query_and_its_answer() {
    let mut pair = Pair::new();
    let (left, right) = (pair.left.address, pair.right.address);
    let query =
        Query { service_id: datagram_service(), private_data: b"where", ..Query::default() };
    let sent = pair.left.manager.query(pair.now, right, &query, timeout(4), 0);
    let (id, request) = sent.unwrap();
    let Some(Event::Queried { id: theirs, from, query }) =
        pair.right.manager.receive(pair.now, left, &request.mad).event
    else {
        panic!()
    };
    assert_eq!((from, query.service_id), (left, datagram_service()));
    assert!(query.private_data.starts_with(b"where\0"));
    let status = SidrStatus::REDIRECT;
    let resolution = Resolution { status, qpn: QPN, qkey: 7, info: b"there", private_data: b"x" };
    let reply = pair.right.manager.answer(theirs, &resolution).unwrap();
    let Some(Event::Resolved { id: mine, resolution: found }) =
        pair.left.manager.receive(pair.now, right, &reply.mad).event
    else {
        panic!()
    };
    assert_eq!((mine, found.status, found.qpn, found.qkey), (id, status, QPN, 7));
    assert_eq!(found.info, b"there");
    assert!(found.private_data.starts_with(b"x\0"));
}
