//! Requests that an end rejects, cancels, or drops, and messages that it does not support.

use std::time::Duration;

use rdma_proto::cm::wire::{
    Answer, MAD_LEN, Mad, Message, Offer, Path, Reason, Rej, Rejection, Rep, Req, Subject,
    Transport,
};
use rdma_proto::cm::{Address, Cause, CommId, Error, Event, Manager, ServiceId, Settings};
use rdma_types::{Gid, Guid, Lid, Qpn};

use crate::cm::network::Side::{Left, Right};
use crate::cm::network::{Fate, LATENCY, Pair, datagram_service, describe, service};

fn tick() -> Duration {
    Duration::from_nanos(LATENCY)
}

/// The REQ of another peer than the left end, with this communication ID and queue pair.
fn req(pair: &mut Pair, from: Gid, id: u32, qpn: u32) -> Req<'static> {
    let offer = pair.offer(Left);
    let primary = Path { local_gid: from, ..offer.primary };
    let offer = Offer { qpn: Qpn::masked(qpn), primary, ..offer };
    Req { local_id: CommId::new(id), ca_guid: Guid::from_u64(3), offer }
}

fn stranger() -> Gid {
    Gid::from_ipv4([10, 0, 0, 3].into())
}

#[test]
fn the_program_rejects_a_request_with_its_reason() {
    let mut pair = Pair::new();
    pair.right.decides = false;
    let offer = pair.offer(Left);
    pair.connect_with(Left, &offer);
    pair.run_for(tick());
    let rejection =
        Rejection { reason: Reason::CONSUMER_DEFINED, info: b"info", private_data: b"not today" };
    let (left, right, id) = (pair.left.address, pair.right.address, pair.right.last);
    let rej = pair.right.manager.reject(pair.now, id, &rejection).unwrap();
    assert_eq!((rej.to, describe(&rej.mad)), (left, "REJ 28 of Req".to_owned()));
    let output = pair.left.manager.receive(pair.now, right, &rej.mad);
    let Some(Event::Ended { cause: Cause::Rejected(found), time_wait, .. }) = output.event else {
        panic!("{output:?}")
    };
    assert_eq!((found.reason, found.info, time_wait), (rejection.reason, rejection.info, false));
    assert!(found.private_data.starts_with(b"not today\0"));
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
    // The queue pair was never used, so it needs no TimeWait.
    assert!(pair.left.manager.connect(pair.now, right, &offer).is_ok());
}

#[test]
fn the_reason_timeout_always_has_the_guid() {
    let mut pair = Pair::new();
    pair.right.decides = false;
    pair.connect(Left);
    pair.run_for(tick());
    let rejection = Rejection { info: b"other", ..Rejection::new(Reason::TIMEOUT) };
    let rej = pair.right.manager.reject(pair.now, pair.right.last, &rejection).unwrap();
    let Ok(Mad { message: Message::Rej(rej), .. }) = Mad::parse(&rej.mad) else { panic!() };
    assert_eq!(rej.rejection.info, Guid::from_u64(2).as_bytes());
}

#[test]
fn a_reply_can_be_rejected() {
    let mut pair = Pair::new();
    pair.left.decides = false;
    pair.connect(Left);
    pair.run_for(tick() * 2);
    pair.reject(Left, &Rejection::new(Reason::CONSUMER_DEFINED));
    let trace = pair.run();
    let end = [
        "-> REJ 28 of Rep",
        "   right ended: rejected 28, TimeWait",
        "   left released",
        "   right released",
    ];
    assert_eq!(trace[trace.len() - 4..], end);
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

#[test]
fn a_cancelled_request_ends_at_both_ends() {
    for accepted in [false, true] {
        let mut pair = Pair::new();
        pair.right.decides = false;
        pair.connect(Left);
        pair.run_for(tick());
        if accepted {
            pair.decide(Right);
        }
        pair.reject(Left, &Rejection::new(Reason::CONSUMER_DEFINED));
        let trace = pair.run_for(tick());
        let waits = if accepted { ", TimeWait" } else { "" };
        assert!(trace.contains(&"-> REJ 4 of Other".to_owned()), "{trace:#?}");
        assert!(trace.contains(&format!("   right ended: rejected 4{waits}")), "{trace:#?}");
        pair.run();
        assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
    }
}

#[test]
fn a_reply_to_a_cancelled_request_is_rejected() {
    let mut pair = Pair::new().fates([(Left, 1, Fate::Lost)]);
    pair.right.decides = false;
    pair.connect(Left);
    pair.run_for(tick());
    pair.reject(Left, &Rejection::new(Reason::TIMEOUT));
    pair.decide(Right);
    let trace = ["-> REJ 4 of Other, lost", "<- REP", "-> REJ 6 of Rep"];
    let end = ["   right ended: rejected 6, TimeWait", "   right released"];
    assert_eq!(pair.run(), [&trace[..], &end].concat());
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty());
}

fn rep((local_id, remote_id): (CommId, CommId)) -> Message<'static> {
    let (ca_guid, answer) = (Guid::default(), Answer::default());
    Message::Rep(Rep { local_id, remote_id, ca_guid, failover: 0, answer })
}

#[test]
fn only_the_peer_answers_a_request() {
    let mut pair = Pair::new().network(Box::new(|_, _| Fate::Lost));
    let id = pair.connect(Left);
    let (other, peer) = (Address::Gid(stranger()), pair.right.address);
    let (local_id, subject) = (CommId::new(5), Subject::Req);
    let rejection = Rejection::new(Reason::CONSUMER_DEFINED);
    let rej = Message::Rej(Rej { local_id, remote_id: id, subject, rejection });
    assert_eq!(pair.deliver(Left, other, rep((local_id, id))), [""; 0]);
    assert_eq!(pair.deliver(Left, other, rej), [""; 0]);
    assert_eq!(pair.left.manager.counters().unmatched, 2);
    assert_eq!(pair.deliver(Left, peer, rep((local_id, id))), ["replied"]);
}

#[test]
fn a_rep_with_the_id_of_another_connection_is_refused() {
    let mut pair = Pair::new();
    let (_, right) = pair.establish();
    let id = pair.connect(Left);
    let peer = pair.right.address;
    let refused = ["REJ 30 of Rep", "ended: refused 30"];
    assert_eq!(pair.deliver(Left, peer, rep((right, id))), refused);
    assert_eq!(pair.left.manager.len(), 1);
}

#[test]
fn a_rep_for_the_passive_end_is_dropped() {
    let mut pair = Pair::new();
    let ids = pair.establish();
    let peer = pair.left.address;
    assert_eq!(pair.deliver(Right, peer, rep(ids)), [""; 0]);
    assert_eq!(pair.right.manager.counters().unexpected, 1);
}

#[test]
fn only_the_guid_of_the_peer_cancels_its_request() {
    let mut pair = Pair::new();
    pair.right.decides = false;
    let left = pair.connect(Left);
    pair.run_for(tick());
    let guids = [2, 1].map(|guid| Guid::from_u64(guid).to_bytes());
    let from = pair.left.address;
    for (info, ends) in [(&[][..], false), (&guids[0], false), (&guids[1], true)] {
        let rejection = Rejection { info, ..Rejection::new(Reason::TIMEOUT) };
        let (remote_id, subject) = (CommId::NONE, Subject::Other);
        let rej = Message::Rej(Rej { local_id: left, remote_id, subject, rejection });
        assert_eq!(pair.deliver(Right, from, rej).len(), usize::from(ends));
    }
    assert!(pair.right.manager.is_empty());
}

#[test]
fn a_flood_of_requests_is_bounded_per_listener() {
    let mut pair = Pair::new();
    let other = ServiceId::new(5);
    pair.right.manager.listen(other).unwrap();
    assert_eq!(pair.right.manager.listen(other), Err(Error::ServiceInUse(other)));
    pair.right.decides = false;
    let most = Manager::MAX_HALF_OPEN;
    let from = Address::Gid(stranger());
    for n in 0..2 * most {
        let req = req(&mut pair, stranger(), n, n);
        let events = pair.deliver(Right, from, Message::Req(req));
        assert_eq!(events.len(), usize::from(n < most), "no queue pair, no answer");
    }
    assert_eq!(pair.right.manager.len(), most as usize);
    assert_eq!(pair.right.manager.counters().half_open_full, most.into());

    // Neither the other listener nor this end's own requests are affected.
    let mut for_other = req(&mut pair, stranger(), 1_000, 1_000);
    for_other.offer.service_id = other;
    assert_eq!(pair.deliver(Right, from, Message::Req(for_other)), ["requested"]);
    pair.connect(Right);
    pair.run_for(tick() * 4);
    // One decision lets one further request in.
    let id = *pair.right.phases.keys().next().unwrap();
    pair.right.manager.reject(pair.now, id, &Rejection::new(Reason::NO_RESOURCES)).unwrap();
    for (n, requested) in [(2_000, 1), (2_001, 0)] {
        let req = req(&mut pair, stranger(), n, n);
        assert_eq!(pair.deliver(Right, from, Message::Req(req)).len(), requested);
    }
}

#[test]
fn a_request_whose_path_begins_elsewhere_is_dropped() {
    let mut pair = Pair::new();
    let forged = req(&mut pair, stranger(), 1, 1);
    let left = pair.left.address;
    assert_eq!(pair.deliver(Right, left, Message::Req(forged)), [""; 0]);
    assert_eq!(pair.right.manager.counters().wrong_source, 1);
    // Without a route header, the LID decides.
    let mut by_lid = forged;
    by_lid.offer.primary.local_lid = Lid::new(7);
    for (lid, answers) in [(8, 0), (7, 1)] {
        let from = Address::Lid(Lid::new(lid));
        assert_eq!(pair.deliver(Right, from, Message::Req(by_lid)).len(), answers);
    }
    assert_eq!(pair.right.manager.counters().wrong_source, 2);
}

#[test]
fn unacceptable_requests_are_rejected_by_reason() {
    let mut pair = Pair::new();
    let from = Address::Gid(stranger());
    let valid = req(&mut pair, stranger(), 1, 1);
    let with = |change: &dyn Fn(&mut Offer<'_>)| {
        let mut req = valid;
        change(&mut req.offer);
        Message::Req(req)
    };
    let mut rejected = |message| pair.deliver(Right, from, message);
    assert_eq!(rejected(with(&|it| it.transport = Transport::Rd)), ["REJ 9 of Req"]);
    assert_eq!(rejected(with(&|it| it.transport = Transport::Extended)), ["REJ 9 of Req"]);
    assert_eq!(rejected(with(&|it| it.mtu_code = 0)), ["REJ 26 of Req"]);
    assert_eq!(rejected(with(&|it| it.mtu_code = 6)), ["REJ 26 of Req"]);
    assert_eq!(rejected(with(&|it| it.service_id = ServiceId::new(5))), ["REJ 8 of Req"]);
    assert_eq!(rejected(with(&|it| it.service_id = datagram_service())), ["REJ 8 of Req"]);
    assert_eq!(rejected(with(&|it| it.transport = Transport::Uc)), ["requested"]);
    // The same communication ID, but another queue pair.
    assert_eq!(rejected(with(&|it| it.qpn = Qpn::masked(2))), ["REJ 30 of Req"]);
    // Another communication ID, but the same queue pair.
    let other = Req { local_id: CommId::new(2), ..valid };
    assert_eq!(rejected(Message::Req(other)), ["REJ 10 of Req"]);
    assert_eq!(pair.right.manager.counters().rejects, 8);
}

#[test]
fn an_alternate_path_is_declined_in_the_rep() {
    for (lid, failover) in [(0, 0), (5, 1)] {
        let mut pair = Pair::new();
        let mut req = req(&mut pair, stranger(), 1, 1);
        req.offer.alternate.local_lid = Lid::new(lid);
        pair.deliver(Right, Address::Gid(stranger()), Message::Req(req));
        let id = pair.right.last;
        let rep = pair.right.manager.accept(pair.now, id, &Answer::default()).unwrap();
        let Ok(Mad { message: Message::Rep(rep), .. }) = Mad::parse(&rep.mad) else { panic!() };
        assert_eq!(rep.failover, failover);
    }
}

/// Delivers a changed REQ to the right end, and returns the answer.
fn changed(pair: &mut Pair, changes: &[(usize, u8)]) -> Option<[u8; MAD_LEN]> {
    let req = req(pair, stranger(), 1, 1);
    let mut mad = Mad { tid: 0x1234, message: Message::Req(req) }.emit().unwrap();
    for &(at, value) in changes {
        mad[at] = value;
    }
    let output = pair.right.manager.receive(pair.now, Address::Gid(stranger()), &mad);
    assert_eq!(output.event, None);
    output.transmit.map(|transmit| transmit.mad)
}

#[test]
fn other_versions_are_answered_with_the_supported_one() {
    let mut pair = Pair::new();
    let rej = changed(&mut pair, &[(2, 3)]).unwrap();
    let Ok(Mad { tid: 0x1234, message: Message::Rej(rej) }) = Mad::parse(&rej) else { panic!() };
    assert_eq!((rej.remote_id, rej.rejection.reason.get()), (CommId::new(1), 31));
    assert_eq!(rej.rejection.info, [2]);
    let sidr = changed(&mut pair, &[(2, 1), (17, 0x17)]).unwrap();
    assert_eq!(describe(&sidr), "SIDR_REP 5");
    // A REP and a REJ.
    assert_eq!(changed(&mut pair, &[(2, 1), (17, 0x13)]), None);
    assert_eq!(changed(&mut pair, &[(2, 1), (17, 0x12)]), None);
    assert_eq!(pair.right.manager.counters().unsupported_version, 4);
}

#[test]
fn reads_and_writes_of_attributes_are_refused_with_their_status() {
    let mut pair = Pair::new();
    for (changes, status) in [
        (&[(3, 1)][..], 0x0c),
        (&[(3, 2)], 0x0c),
        (&[(3, 1), (1, 4)], 0x0c),
        (&[(3, 1), (2, 1)], 0x04),
    ] {
        let answer = changed(&mut pair, changes).unwrap();
        assert_eq!(answer[3..6], [0x81, 0, status], "GetResp");
        assert_eq!(answer[8..16], 0x1234_u64.to_be_bytes());
    }
    let counters = pair.right.manager.counters();
    assert_eq!((counters.unsupported, counters.unsupported_version), (3, 1));
}

#[test]
fn other_messages_are_dropped_and_counted() {
    let mut pair = Pair::new();
    // LAP, APR, an unknown attribute, a Report, a GetResp, and another class.
    for change in [(17, 0x19), (17, 0x1a), (17, 0x40), (3, 6), (3, 0x81), (1, 4)] {
        assert_eq!(changed(&mut pair, &[change]), None);
    }
    assert_eq!(pair.right.manager.counters().unsupported, 6);
    assert_eq!(changed(&mut pair, &[(0, 2), (3, 1)]), None);
    let short = pair.right.manager.receive(pair.now, Address::Gid(stranger()), &[1; 255]);
    assert_eq!((short.transmit, short.event), (None, None));
    assert_eq!(pair.right.manager.counters().malformed, 2);
}

#[test]
fn the_number_of_connections_is_limited() {
    let mut settings = Settings::new(Guid::from_u64(1), 0xabc, 0);
    settings.max_connections = 3;
    let mut manager = Manager::new(&settings);
    manager.listen(service()).unwrap();
    let mut pair = Pair::new();
    let now = pair.now;
    for _ in 0..3 {
        let offer = pair.offer(Left);
        let (id, _) = manager.connect(now, pair.right.address, &offer).unwrap();
        assert_eq!(id.slot(), 0xabc);
    }
    let offer = pair.offer(Left);
    let full = manager.connect(now, pair.right.address, &offer);
    assert_eq!(full.unwrap_err(), Error::TooManyConnections(3));
    let req = req(&mut pair, stranger(), 1, 1);
    let mad = Mad { tid: 1, message: Message::Req(req) }.emit().unwrap();
    let output = manager.receive(now, Address::Gid(stranger()), &mad);
    assert_eq!((output.transmit, output.event), (None, None));
    assert_eq!(manager.counters().table_full, 1);
}

#[test]
fn calls_in_another_state_change_nothing() {
    let mut pair = Pair::new();
    let (left, right) = pair.establish();
    let now = pair.now;
    let manager = &mut pair.left.manager;
    let state = Error::State(left);
    assert_eq!(manager.accept(now, left, &Answer::default()).unwrap_err(), state);
    assert_eq!(manager.ready(left, &[]).unwrap_err(), state);
    assert_eq!(manager.reject(now, left, &Rejection::default()).unwrap_err(), state);
    assert_eq!(manager.communication_established(left), Err(state));
    assert_eq!(manager.answer(left, &Default::default()).unwrap_err(), state);
    assert_eq!(manager.disconnect(now, right, &[]).unwrap_err(), Error::Unknown(right));
    let Err(Error::TooLong(too_long)) = manager.disconnect(now, left, &[0; 221]) else { panic!() };
    assert_eq!((too_long.len, too_long.most), (221, 220));
    assert!(manager.disconnect(now, left, &[0; 220]).is_ok());
}
