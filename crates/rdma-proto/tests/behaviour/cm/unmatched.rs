//! Messages from a wrong source, with a wrong communication ID, or for a wrong queue pair: in each state, they change
//! nothing.

use std::time::Duration;

use rdma_proto::cm::wire::{
    Answer, Drep, Dreq, Message, Mra, Reason, Rej, Rejection, Rep, Resolution, Rtu, SidrRep,
    Subject,
};
use rdma_proto::cm::{Address, CommId};
use rdma_types::{Gid, Guid, Qpn};

use crate::cm::network::Side::{self, Left, Right};
use crate::cm::network::{LATENCY, Pair, datagram_service, timeout};
use crate::cm::queries::query;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    ActiveEstablished,
    PassiveEstablished,
    DreqSent,
    TimeWait,
    SidrSent,
    SidrReceived,
}

const STATES: [State; 10] = [
    State::ReqSent,
    State::ReqReceived,
    State::RepSent,
    State::RepReceived,
    State::ActiveEstablished,
    State::PassiveEstablished,
    State::DreqSent,
    State::TimeWait,
    State::SidrSent,
    State::SidrReceived,
];

/// Returns a pair and its end that has a connection or query in this state.
fn in_state(state: State) -> (Pair, Side) {
    let (mut pair, tick) = (Pair::new(), Duration::from_nanos(LATENCY));
    pair.left.decides = state != State::RepReceived;
    pair.right.decides = state != State::ReqReceived;
    if matches!(state, State::SidrSent | State::SidrReceived) {
        query(&mut pair, datagram_service());
    } else {
        pair.connect(Left);
    }
    let side = match state {
        State::ReqSent | State::SidrSent => return (pair, Left),
        State::ReqReceived | State::RepSent | State::SidrReceived => {
            pair.run_for(tick);
            return (pair, Right);
        }
        State::RepReceived => {
            pair.run_for(tick * 2);
            return (pair, Left);
        }
        State::PassiveEstablished => Right,
        _ => Left,
    };
    pair.run();
    if state == State::DreqSent {
        let id = pair.left.last;
        pair.disconnect(Left, id);
    } else if state == State::TimeWait {
        let id = pair.right.last;
        pair.disconnect(Right, id);
        pair.run_for(tick);
    }
    (pair, side)
}

/// Returns a message of each kind except requests, and whether it names the sender's ID.
fn messages(
    local_id: CommId,
    remote_id: CommId,
    remote_qpn: Qpn,
) -> [(Message<'static>, bool); 10] {
    let mra = |subject| {
        let service_timeout = timeout(6);
        Message::Mra(Mra { local_id, remote_id, subject, service_timeout, private_data: &[] })
    };
    let rej = |reason| {
        let rejection = Rejection::new(reason);
        Message::Rej(Rej { local_id, remote_id, subject: Subject::Other, rejection })
    };
    let answer = Answer { qpn: Qpn::masked(0x999), ..Answer::default() };
    let rep = Rep { local_id, remote_id, ca_guid: Guid::default(), failover: 0, answer };
    let (resolution, service_id) = (Resolution::default(), datagram_service());
    [
        (mra(Subject::Req), true),
        (mra(Subject::Rep), true),
        (rej(Reason::CONSUMER_DEFINED), true),
        (rej(Reason::TIMEOUT), true),
        (rej(Reason::STALE_CONNECTION), true),
        (Message::Rep(rep), true),
        (Message::Rtu(Rtu { local_id, remote_id, private_data: &[] }), true),
        (Message::Dreq(Dreq { local_id, remote_id, remote_qpn, private_data: &[] }), true),
        (Message::Drep(Drep { local_id, remote_id, private_data: &[] }), true),
        (Message::SidrRep(SidrRep { request_id: remote_id, service_id, resolution }), false),
    ]
}

/// Delivers a message, and checks that the receiver has neither an event nor another deadline.
fn changes_nothing(state: State, from: Option<Gid>, message: Message<'_>) {
    let (mut pair, side) = in_state(state);
    let from = from.map_or(pair.end(side.other()).address, Address::Gid);
    let manager = &pair.end(side).manager;
    let before = (manager.len(), manager.deadline());
    let lines = pair.deliver(side, from, message);
    let is_answer = |line: &String| ["DREP", "REJ 6 of Rep"].contains(&line.as_str());
    assert!(lines.iter().all(is_answer), "{state:?}, {from:?}, {message:?}: {lines:?}");
    let manager = &pair.end(side).manager;
    assert_eq!((manager.len(), manager.deadline()), before, "{state:?}, {from:?}, {message:?}");
}

#[test]
fn unmatched_messages_change_nothing_in_any_state() {
    let stranger = Gid::from_ipv4([10, 0, 0, 3].into());
    for state in STATES {
        let (mut pair, side) = in_state(state);
        let (own, peer) = (pair.end(side).last, pair.end(side.other()).last);
        let qpn = pair.end(side).links.get(&own).map_or(Qpn::default(), |&(local, _)| local);
        let other = |id: CommId| CommId::new(id.get() ^ 0x8_0000);
        for (n, (message, names_sender)) in messages(peer, own, qpn).into_iter().enumerate() {
            changes_nothing(state, Some(stranger), message);
            let (message, _) = messages(peer, other(own), qpn)[n];
            changes_nothing(state, None, message);
            // The sender of a REQ does not know the peer's ID yet.
            if names_sender && state != State::ReqSent {
                let (message, _) = messages(other(peer), own, qpn)[n];
                changes_nothing(state, None, message);
            }
        }
        let other_qpn = Qpn::masked(qpn.get() ^ 1);
        let dreq =
            Dreq { local_id: peer, remote_id: own, remote_qpn: other_qpn, private_data: &[] };
        changes_nothing(state, None, Message::Dreq(dreq));
    }
}

/// The sender knows both IDs as soon as it has received the REP.
#[test]
fn a_request_is_withdrawn_without_the_id_of_its_receiver_until_its_sender_confirms() {
    for state in STATES {
        let (mut pair, side) = in_state(state);
        let peer = pair.end(side.other());
        let (from, local_id) = (peer.address, peer.last);
        let guid = Guid::from_u64(if side == Right { 1 } else { 2 }).to_bytes();
        let rejection = Rejection { info: &guid, ..Rejection::new(Reason::TIMEOUT) };
        let (remote_id, subject) = (CommId::NONE, Subject::Req);
        let rej = Message::Rej(Rej { local_id, remote_id, subject, rejection });
        let ends = matches!(state, State::ReqReceived | State::RepSent);
        assert_eq!(pair.deliver(side, from, rej).len(), usize::from(ends), "{state:?}");
    }
}
