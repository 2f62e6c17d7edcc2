//! Messages that the kernel's rdma_cm sent, byte for byte; see `vectors/README.md` for how they were captured.

use rdma_proto::Time;
use rdma_proto::cm::wire::{MAD_LEN, Mad, Message, Transport};
use rdma_proto::cm::{Address, CommId, Event, IpCmHeader, Manager, PortSpace, Settings};
use rdma_types::{Gid, Guid, Mtu, Psn, Qpn};

/// REQ, RTU and DREQ of an active end, and REP and DREP of a passive one.
static MADS: &[u8; 5 * MAD_LEN] = include_bytes!("../../vectors/cm.mads");

fn mads() -> [Mad<'static>; 5] {
    let (mads, _) = MADS.as_chunks::<MAD_LEN>();
    [0, 1, 2, 3, 4].map(|n| Mad::parse(&mads[n]).unwrap())
}

#[test]
fn captured_messages_are_written_as_they_were_read() {
    for (mad, bytes) in mads().iter().zip(MADS.as_chunks::<MAD_LEN>().0) {
        assert_eq!(mad.emit().as_ref(), Ok(bytes), "{mad:?}");
    }
}

#[test]
fn captured_messages_are_understood() {
    let messages = mads().map(|mad| mad.message);
    let [
        Message::Req(req),
        Message::Rtu(rtu),
        Message::Dreq(dreq),
        Message::Rep(rep),
        Message::Drep(drep),
    ] = messages
    else {
        panic!("{messages:?}");
    };
    let [kernel, other] = [1, 2].map(|n| Gid::from_ipv4([198, 18, 1, n].into()));
    let offer = req.offer;
    assert_eq!(offer.service_id.port().map(|(space, _)| space), Some(PortSpace::Tcp));
    assert_eq!((offer.primary.local_gid, offer.primary.remote_gid), (kernel, other));
    assert_eq!((offer.transport, offer.mtu()), (Transport::Rc, Some(Mtu::MTU4096)));
    assert_eq!((offer.responder_resources, offer.initiator_depth), (1, 1));
    assert_eq!((offer.max_cm_retries, offer.retry_count, offer.rnr_retry_count), (15, 7, 7));
    assert_eq!(offer.remote_response_timeout.code(), 20);
    let (header, _) = IpCmHeader::parse(offer.private_data).unwrap();
    assert_eq!(header.source().to_string(), "198.18.1.1");
    assert_eq!(header.destination().to_string(), "198.18.1.2");
    assert_eq!((rtu.local_id, dreq.local_id), (req.local_id, req.local_id));
    assert_eq!(dreq.remote_id, rtu.remote_id);
    assert_eq!((drep.local_id, drep.remote_id), (rep.local_id, rep.remote_id));
    assert_ne!((offer.psn, rep.answer.psn), (Psn::masked(0), Psn::masked(0)));
}

#[test]
fn a_captured_request_is_accepted() {
    let [Mad { message: Message::Req(req), .. }, ..] = mads() else { panic!("no REQ") };
    let mut manager = Manager::new(&Settings::new(Guid::from_u64(1), 0, 0));
    manager.listen(req.offer.service_id).unwrap();
    let from = Address::Gid(Gid::from_ipv4([198, 18, 1, 1].into()));
    let output = manager.receive(Time::default(), from, &MADS[..MAD_LEN]);
    let Some(Event::Requested { offer, id, .. }) = output.event else { panic!("{output:?}") };
    assert_ne!((offer.qpn, id), (Qpn::masked(0), CommId::NONE));
}
