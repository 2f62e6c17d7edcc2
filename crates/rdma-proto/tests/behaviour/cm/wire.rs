//! The bytes of each message, from the tables of chapter 12 of the specification.

use rdma_proto::cm::wire::{
    Answer, Drep, Dreq, MAD_LEN, Mad, MadError, Message, Mra, Offer, Path, Query, Reason, Rej,
    Rejection, Rep, Req, Resolution, Rtu, SidrRep, SidrReq, SidrStatus, Subject, Timeout, TooLong,
    Transport,
};
use rdma_proto::cm::{CommId, ServiceId};
use rdma_types::{Gid, Guid, Lid, Pkey, Psn, Qpn};

const LOCAL: CommId = CommId::new(0x0102_0304);
const REMOTE: CommId = CommId::new(0x0506_0708);
const IDS: (usize, &[u8]) = (24, &[1, 2, 3, 4, 5, 6, 7, 8]);

/// Checks that a message has these bytes at these offsets from the beginning of the MAD, and zeros elsewhere.
fn check(message: Message<'_>, attribute: u8, fields: &[(usize, &[u8])]) {
    let mut expected = [0; MAD_LEN];
    let header = [(0, &[1, 7, 2, 3][..]), (8, &[0, 0, 0, 0, 0, 0, 0x12, 0x34]), (17, &[attribute])];
    for (at, bytes) in header.into_iter().chain(fields.iter().copied()) {
        expected[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let mad = Mad { tid: 0x1234, message };
    assert_eq!(mad.emit(), Ok(expected), "{message:?}");
    let parsed = Mad::parse(&expected).unwrap();
    assert_eq!(parsed.emit(), Ok(expected), "{parsed:?}");
}

fn timeout(code: u8) -> Timeout {
    Timeout::from_code(code).unwrap()
}

/// A path whose fields have different values, and its bytes.
fn path(n: u8) -> (Path, [u8; 44]) {
    let path = Path {
        local_lid: Lid::new(0x1000 | u16::from(n)),
        remote_lid: Lid::new(0x2000 | u16::from(n)),
        local_gid: Gid::from_bytes([n; 16]),
        remote_gid: Gid::from_bytes([n + 1; 16]),
        flow_label: 0xabcde,
        packet_rate: 0x25,
        traffic_class: 0x61,
        hop_limit: 0x40,
        service_level: 0xb,
        subnet_local: true,
        ack_timeout: timeout(0x13),
    };
    let mut bytes = [0; 44];
    bytes[..4].copy_from_slice(&[0x10, n, 0x20, n]);
    bytes[4..20].fill(n);
    bytes[20..36].fill(n + 1);
    bytes[36..].copy_from_slice(&[0xab, 0xcd, 0xe0, 0x25, 0x61, 0x40, 0xb8, 0x98]);
    (path, bytes)
}

fn offer() -> Offer<'static> {
    Offer {
        service_id: ServiceId::new(0x0106_1d2f),
        qpn: Qpn::masked(0x11_2233),
        psn: Psn::masked(0x44_5566),
        responder_resources: 5,
        initiator_depth: 6,
        remote_response_timeout: timeout(0x14),
        local_response_timeout: timeout(0x15),
        max_cm_retries: 0xf,
        transport: Transport::Uc,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: true,
        p_key: Pkey::new(0x8001),
        mtu_code: 5,
        primary: path(0x31).0,
        alternate: path(0x51).0,
        private_data: b"private",
    }
}

#[test]
fn a_req_has_the_layout_of_table_106() {
    let req =
        Req { local_id: LOCAL, ca_guid: Guid::from_u64(0x1111_2222_3333_4444), offer: offer() };
    let (primary, alternate) = (path(0x31).1, path(0x51).1);
    let fields: [(usize, &[u8]); 13] = [
        (24, &[1, 2, 3, 4]),
        (36, &[1, 6, 0x1d, 0x2f]),
        (40, &[0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44]),
        (56, &[0x11, 0x22, 0x33, 5]),
        (63, &[6]),
        (67, &[0x14 << 3 | 1 << 1 | 1]),
        (68, &[0x44, 0x55, 0x66, 0x15 << 3 | 7]),
        (72, &[0x80, 1]),
        (74, &[5 << 4 | 6]),
        (75, &[0xf8]),
        (76, &primary),
        (120, &alternate),
        (164, b"private"),
    ];
    check(Message::Req(req), 0x10, &fields);
    assert_eq!(offer().mtu().unwrap().bytes(), 4096);
}

#[test]
fn an_mra_has_the_layout_of_table_107() {
    let (local_id, remote_id) = (LOCAL, REMOTE);
    let (subject, service_timeout) = (Subject::Rep, timeout(0x16));
    let mra = Mra { local_id, remote_id, subject, service_timeout, private_data: b"later" };
    check(Message::Mra(mra), 0x11, &[IDS, (32, &[1 << 6, 0x16 << 3]), (34, b"later")]);
}

#[test]
fn a_rej_has_the_layout_of_table_108() {
    let reason = Reason::CONSUMER_DEFINED;
    let rejection = Rejection { reason, info: b"info", private_data: b"no" };
    let rej = Rej { local_id: LOCAL, remote_id: REMOTE, subject: Subject::Other, rejection };
    let fields = [IDS, (32, &[2 << 6, 4 << 1, 0, 28]), (36, b"info"), (108, b"no")];
    check(Message::Rej(rej), 0x12, &fields);
}

#[test]
fn a_rep_has_the_layout_of_table_110() {
    let answer = Answer {
        qpn: Qpn::masked(0x11_2233),
        psn: Psn::masked(0x44_5566),
        responder_resources: 5,
        initiator_depth: 6,
        target_ack_delay: timeout(0x17),
        flow_control: true,
        rnr_retry_count: 5,
        srq: true,
        private_data: b"yes",
    };
    let ca_guid = Guid::from_u64(0x1111_2222_3333_4444);
    let rep = Rep { local_id: LOCAL, remote_id: REMOTE, ca_guid, failover: 1, answer };
    let fields: [(usize, &[u8]); 7] = [
        IDS,
        (36, &[0x11, 0x22, 0x33]),
        (44, &[0x44, 0x55, 0x66]),
        (48, &[5, 6, 0x17 << 3 | 1 << 1 | 1, 5 << 5 | 1 << 4]),
        (52, &[0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44]),
        (60, b"yes"),
        (255, &[0]),
    ];
    check(Message::Rep(rep), 0x13, &fields);
}

#[test]
fn rtu_dreq_and_drep_have_the_layouts_of_tables_111_to_113() {
    let (local_id, remote_id, private_data) = (LOCAL, REMOTE, &b"data"[..]);
    let rtu = Rtu { local_id, remote_id, private_data };
    check(Message::Rtu(rtu), 0x14, &[IDS, (32, b"data")]);
    let dreq = Dreq { local_id, remote_id, remote_qpn: Qpn::masked(0x11_2233), private_data };
    check(Message::Dreq(dreq), 0x15, &[IDS, (32, &[0x11, 0x22, 0x33]), (36, b"data")]);
    let drep = Drep { local_id, remote_id, private_data };
    check(Message::Drep(drep), 0x16, &[IDS, (32, b"data")]);
}

#[test]
fn sidr_messages_have_the_layouts_of_tables_119_and_120() {
    let (request_id, service_id) = (LOCAL, ServiceId::new(0x0111_1d2f));
    let query = Query { p_key: Pkey::new(0x8001), service_id, private_data: b"where" };
    let service: (usize, &[u8]) = (36, &[1, 0x11, 0x1d, 0x2f]);
    let fields = [(24, &[1, 2, 3, 4, 0x80, 1][..]), service, (40, b"where")];
    check(Message::SidrReq(SidrReq { request_id, query }), 0x17, &fields);

    let status = SidrStatus::REDIRECT;
    let (qpn, qkey) = (Qpn::masked(0x11_2233), 0x8765_4321);
    let resolution = Resolution { status, qpn, qkey, info: b"info", private_data: b"here" };
    let fields: [(usize, &[u8]); 6] = [
        (24, &[1, 2, 3, 4, 4, 4]),
        (32, &[0x11, 0x22, 0x33]),
        (40, &[1, 0x11, 0x1d, 0x2f]),
        (44, &[0x87, 0x65, 0x43, 0x21]),
        (48, b"info"),
        (120, b"here"),
    ];
    check(Message::SidrRep(SidrRep { request_id, service_id, resolution }), 0x18, &fields);
}

#[test]
fn private_data_that_does_not_fit_is_refused() {
    let bytes = [7; 225];
    let (local_id, remote_id) = (LOCAL, REMOTE);
    let messages = |n: usize| {
        let private_data = &bytes[..n];
        let rejection = Rejection { private_data, ..Rejection::default() };
        let resolution = Resolution { private_data, ..Resolution::default() };
        let query = Query { private_data, ..Query::default() };
        let (subject, service_timeout) = (Subject::Req, Timeout::default());
        let offer = Offer { private_data, ..offer() };
        let answer = Answer { private_data, ..Answer::default() };
        let ca_guid = Guid::default();
        [
            (92, Message::Req(Req { local_id, ca_guid, offer })),
            (
                222,
                Message::Mra(Mra { local_id, remote_id, subject, service_timeout, private_data }),
            ),
            (148, Message::Rej(Rej { local_id, remote_id, subject, rejection })),
            (196, Message::Rep(Rep { local_id, remote_id, ca_guid, failover: 0, answer })),
            (224, Message::Rtu(Rtu { local_id, remote_id, private_data })),
            (
                220,
                Message::Dreq(Dreq {
                    local_id,
                    remote_id,
                    remote_qpn: Qpn::default(),
                    private_data,
                }),
            ),
            (224, Message::Drep(Drep { local_id, remote_id, private_data })),
            (216, Message::SidrReq(SidrReq { request_id: local_id, query })),
            (
                136,
                Message::SidrRep(SidrRep {
                    request_id: local_id,
                    service_id: ServiceId::default(),
                    resolution,
                }),
            ),
        ]
    };
    for (n, (most, _)) in messages(0).into_iter().enumerate() {
        let (_, full) = messages(most)[n];
        let mad = Mad { tid: 0, message: full }.emit().unwrap();
        assert_eq!(mad[MAD_LEN - most..], bytes[..most], "{full:?}");
        let (_, message) = messages(most + 1)[n];
        let Err(TooLong { len, most: reported, .. }) = Mad { tid: 0, message }.emit() else {
            panic!("{message:?}")
        };
        assert_eq!((len, reported), (most + 1, most), "{message:?}");
    }
}

#[test]
fn additional_information_longer_than_its_field_is_truncated() {
    let rej = Rej {
        local_id: LOCAL,
        remote_id: REMOTE,
        subject: Subject::Req,
        rejection: Rejection::default(),
    };
    let mut mad = Mad { tid: 0, message: Message::Rej(rej) }.emit().unwrap();
    mad[33] = 0xff;
    let Ok(Mad { message: Message::Rej(parsed), .. }) = Mad::parse(&mad) else { panic!() };
    assert_eq!(parsed.rejection.info.len(), 72);
}

#[test]
fn other_mads_are_refused_by_name() {
    let rtu = Rtu { local_id: LOCAL, remote_id: REMOTE, private_data: &[] };
    let mad = Mad { tid: 0, message: Message::Rtu(rtu) }.emit().unwrap();
    let changed = |at: usize, value| {
        let mut other = mad;
        other[at] = value;
        Mad::parse(&other).map(|_| ()).unwrap_err()
    };
    assert_eq!(changed(0, 2), MadError::BaseVersion(2));
    assert_eq!(changed(1, 4), MadError::Class(4));
    assert_eq!(changed(2, 1), MadError::ClassVersion(1));
    assert_eq!(changed(3, 1), MadError::Method(1));
    // LAP and APR.
    for attribute in [0x0f, 0x19, 0x1a, 0xff] {
        assert_eq!(changed(17, attribute), MadError::Attribute(attribute.into()));
    }
    for len in 0..MAD_LEN {
        assert_eq!(Mad::parse(&mad[..len]), Err(MadError::Length(len)));
    }
    assert_eq!(Mad::parse(&[&mad[..], &[0]].concat()), Err(MadError::Length(257)));
}
