//! Any bytes, as a MAD that a communication manager receives. A parsed message is written so that it parses to the same
//! values, and each answer can be parsed.

use rdma_proto::Time;
use rdma_proto::cm::wire::{Answer, MAD_LEN, Mad, Message, Rejection};
use rdma_proto::cm::{Address, Event, IpCmHeader, Manager, Output, ServiceId, Settings, Transmit};
use rdma_types::{Gid, Guid, Qpn};
use test_support::fuzz::trace;

/// The attribute ID of the first message, and the number of attributes.
const FIRST: u8 = 0x10;
const ATTRIBUTES: u8 = 11;

pub(crate) fn run(bytes: &[u8]) {
    parse(bytes);
    manage(bytes);
    // The same content with a valid header, for each attribute.
    let mut mad = [0; MAD_LEN];
    let len = bytes.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&bytes[..len]);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    for attribute in 0..ATTRIBUTES {
        mad[16..18].copy_from_slice(&[0, FIRST + attribute]);
        parse(&mad);
        manage(&mad);
    }
}

/// Reads a MAD, and writes it again.
fn parse(bytes: &[u8]) {
    let parsed = Mad::parse(bytes);
    trace(&parsed);
    let Ok(mad) = parsed else { return };
    let written = mad.emit().expect("fields have at most their size");
    assert_eq!(written[8..18], bytes[8..18], "the transaction and the attribute");
    assert_eq!(Mad::parse(&written), Ok(mad));
    let private_data = match mad.message {
        Message::Req(req) => req.offer.private_data,
        Message::SidrReq(request) => request.query.private_data,
        _ => return,
    };
    let Some((header, rest)) = IpCmHeader::parse(private_data) else { return };
    let mut again = [0; IpCmHeader::LEN];
    header.emit(&mut again);
    assert_eq!(IpCmHeader::parse(&again), Some((header, &[][..])));
    assert_eq!(rest.len() + IpCmHeader::LEN, private_data.len());
}

/// Lets a manager receive the MAD twice from its source, and answers the events.
fn manage(bytes: &[u8]) {
    let mut manager = Manager::new(&Settings::new(Guid::from_u64(2), 0, 0));
    let mut gid = [0; 16];
    if let Ok(Mad { message: Message::Req(req), .. }) = Mad::parse(bytes) {
        gid = req.offer.primary.local_gid.to_bytes();
        let _ = manager.listen(req.offer.service_id);
    }
    let _ = manager.listen(ServiceId::default());
    let (from, mut now) = (Address::Gid(Gid::from_bytes(gid)), Time::default());
    for _ in 0..2 {
        let output = manager.receive(now, from, bytes);
        trace(&output);
        check(&output);
        match output.event {
            Some(Event::Requested { id, .. }) => {
                let answer = Answer { qpn: Qpn::masked(7), ..Answer::default() };
                check_sent(&manager.accept(now, id, &answer).expect("the first connection"));
            }
            Some(Event::Queried { id, .. }) => {
                check_sent(&manager.answer(id, &Default::default()).expect("it was asked"));
            }
            other => assert_eq!(other, None, "this end asked for nothing"),
        }
    }
    assert!(manager.len() <= 1);
    // A connection without an answer ends.
    while let Some(deadline) = manager.deadline() {
        now = deadline;
        check(&manager.expire(now).expect("it is time"));
    }
    assert!(manager.is_empty());
    let counters = manager.counters();
    assert_eq!(counters.received, 2);
    let rejected = manager.reject(now, Default::default(), &Rejection::default());
    assert!(rejected.is_err());
}

fn check(output: &Output<'_>) {
    output.transmit.iter().for_each(check_sent);
}

/// Checks that a peer can read a MAD, unless it refuses to read or write an attribute.
fn check_sent(transmit: &Transmit) {
    const GET_RESP: u8 = 0x81;
    assert!(transmit.mad[3] == GET_RESP || Mad::parse(&transmit.mad).is_ok(), "{transmit:?}");
}
