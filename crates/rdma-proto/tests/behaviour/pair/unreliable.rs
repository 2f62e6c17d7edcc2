//! Unreliable connections and datagrams.

use rdma_proto::wire::{Bth, Headers, Opcode, Operation, PadCount, Service};
use rdma_proto::{
    Burst, Connection, Datagrams, Destination, Kind, MessageEnd, MessageStart, Remote,
    UnreliableRequester, UnreliableResponder, Wqe,
};
use rdma_types::{Mtu, Psn, Qpn, WcStatus};

use crate::pair::counters::counted;
use crate::pair::ends::{Memory, Posted, Queue, RKEY, Received, VA};
use crate::pair::network::bytes;

/// The packets that a requester sends, one by one.
struct Sent {
    packets: Vec<(Headers, Vec<u8>)>,
    queue: Queue,
}

fn connection() -> Connection {
    Connection::new(Qpn::masked(0x12), Mtu::MTU256)
}

fn sent(requests: &[(MessageStart, MessageEnd)], room: usize) -> Sent {
    let posted = |(n, &(start, end)): (usize, &(MessageStart, MessageEnd))| Posted {
        request: Wqe::Remote { start, end, fence: false },
        local: bytes(n, end.length),
        reachable: Ok(()),
    };
    let posted = requests.iter().enumerate().map(posted).collect();
    let mut queue = Queue { posted, ..Queue::default() };
    let mut requester = UnreliableRequester::new(connection(), Psn::MAX);
    let (mut packets, mut room) = (Vec::new(), vec![0; room]);
    while let Some(burst) = requester.poll_transmit(&mut queue, &mut room) {
        let payload = &room[..burst.length as usize];
        packets.extend(burst.packets(payload).map(|(headers, bytes)| (headers, bytes.to_vec())));
    }
    assert!(requester.idle());
    Sent { packets, queue }
}

fn send(length: u32) -> (MessageStart, MessageEnd) {
    (MessageStart::send(), MessageEnd { length, ..MessageEnd::default() })
}

fn write(at: u64, length: u32, immediate: Option<u32>) -> (MessageStart, MessageEnd) {
    let remote = Remote { va: VA + at, rkey: RKEY };
    let end = MessageEnd { length, immediate, ..MessageEnd::default() };
    (MessageStart::one_sided(Kind::Write, remote, length), end)
}

/// Delivers the packets with these indices, to an end with this many receives of 600 bytes.
fn received(sent: &Sent, indices: &[usize], receives: usize) -> (Memory, UnreliableResponder) {
    let mut memory = Memory::new();
    memory.receives.extend(vec![600; receives]);
    let mut responder = UnreliableResponder::new(connection(), Psn::MAX);
    for &index in indices {
        let (headers, payload) = &sent.packets[index];
        responder.receive(&Burst::single(*headers, payload.len()), payload, &mut memory);
    }
    (memory, responder)
}

fn lengths(memory: &Memory) -> Vec<u32> {
    memory.received.iter().map(|received| received.end.length).collect()
}

/// A request completes when it is sent, and no packet requests an acknowledgement. IBTA chapter 9, unreliable
/// connections.
#[test]
fn a_request_completes_when_it_is_sent() {
    for room in [256, 1 << 16] {
        let sent = sent(&[send(600), write(8, 513, Some(7)), send(0)], room);
        assert_eq!(sent.queue.completed, [WcStatus::SUCCESS; 3]);
        let packets = sent.packets.iter().map(|(headers, _)| headers.bth);
        assert!(packets.clone().all(|bth| !bth.ack_request));
        let operations: Vec<_> = packets.map(|bth| bth.opcode.to_string()).collect();
        let expected = [
            "UC SEND First",
            "UC SEND Middle",
            "UC SEND Last",
            "UC RDMA WRITE First",
            "UC RDMA WRITE Middle",
            "UC RDMA WRITE Last with Immediate",
            "UC SEND Only",
        ];
        assert_eq!(operations, expected);
        let (memory, _) = received(&sent, &[0, 1, 2, 3, 4, 5, 6], 3);
        assert_eq!(lengths(&memory), [600, 513, 0]);
        assert_eq!(memory.received[0].bytes, bytes(0, 600));
        assert_eq!(memory.bytes[8..521], bytes(1, 513));
    }
}

/// The first packet of a message may have any PSN, and a gap drops the rest of a message. IBTA chapter 9, unreliable
/// connections.
#[test]
fn a_gap_drops_the_rest_of_a_message() {
    let sent = sent(&[send(600), send(600), send(8)], 256);
    for missing in [[1, 2], [0, 2]] {
        let left: Vec<_> = (0..7).filter(|index| !missing.contains(index)).collect();
        let (memory, responder) = received(&sent, &left, 2);
        assert_eq!(lengths(&memory), [600, 8], "{missing:?}");
        assert_eq!(memory.received[0].bytes, bytes(1, 600));
        assert_eq!(responder.counters().out_of_seq_request, u64::from(missing[0] == 0));
    }
    let (memory, _) = received(&sent, &[0, 2, 1, 2], 2);
    assert_eq!((memory.received.len(), memory.abandoned), (0, 1));
    let (memory, _) = received(&sent, &[5, 6, 0, 1, 2], 2);
    assert_eq!(lengths(&memory), [8, 600]);
}

/// A request that cannot be executed is dropped too, without an answer. IBTA chapter 9, unreliable connections.
#[test]
fn a_request_that_cannot_be_executed_is_dropped() {
    let requests = [send(600), write(1 << 16, 300, None), write(0, 8, Some(1)), send(8)];
    let sent = sent(&requests, 256);
    let all: Vec<_> = (0..sent.packets.len()).collect();
    let (memory, responder) = received(&sent, &all, 0);
    assert_eq!((memory.received.len(), memory.failed), (0, None));
    let expected = [
        ("rcvd_pkts", 7),
        ("out_of_seq_request", 3), // The rest of the first two messages.
        ("out_of_buffer", 3),
        ("resp_remote_access_errors", 1),
    ];
    assert_eq!(counted(responder.counters()), expected);
    assert_eq!(memory.bytes[..8], [0; 8], "its receive comes before its last payload");
    let (memory, _) = received(&sent, &all, 3);
    assert_eq!(lengths(&memory), [600, 8, 8]);
}

/// A READ would need a response. IBTA chapter 9, unreliable connections.
#[test]
fn reads_are_refused() {
    let remote = Remote { va: VA, rkey: RKEY };
    let read = (
        MessageStart::one_sided(Kind::Read, remote, 8),
        MessageEnd { length: 8, ..MessageEnd::default() },
    );
    let sent = sent(&[send(8), read, send(8)], 256);
    assert_eq!(sent.packets.len(), 1);
    assert_eq!(sent.queue.completed, [WcStatus::SUCCESS, WcStatus::LOC_QP_OP_ERR]);
}

const QKEY: u32 = 0x1111_1111;

/// A datagram is one packet, and its Q_Key must be right. IBTA chapter 9, unreliable datagrams.
#[test]
fn datagrams_need_the_right_q_key_and_a_large_enough_receive() {
    let mut sender = Datagrams::new(Qpn::masked(0x13), Mtu::MTU256, Psn::MAX);
    let mut receiver = Datagrams::new(Qpn::masked(0x14), Mtu::MTU256, Psn::MAX);
    let mut memory = Memory::new();
    memory.receives.extend([96, 96, 39]);
    let to = Destination { qpn: Qpn::masked(0x14), qkey: QKEY, p_key: Bth::DEFAULT_P_KEY };
    let end =
        MessageEnd { length: 21, immediate: Some(5), solicited: true, ..MessageEnd::default() };
    let burst = sender.send(&to, &end).unwrap();
    assert_eq!(burst.header.bth.opcode.to_string(), "UD SEND Only with Immediate");
    assert_eq!(burst.header.bth.pad_count, PadCount::of(21));
    assert_eq!(burst.header.deth.unwrap().source, Qpn::masked(0x13));
    receiver.receive(QKEY, &[0; 40], &burst, &bytes(0, 21), &mut memory);
    assert_eq!(memory.received, [Received { bytes: bytes(0, 21), end }]);

    assert_eq!(sender.send(&to, &MessageEnd { length: 257, ..end }), None, "one packet");
    assert_eq!(sender.send(&to, &end).unwrap().header.bth.psn.get(), 0);
    receiver.receive(QKEY + 1, &[0; 40], &burst, &bytes(0, 21), &mut memory);
    receiver.receive(QKEY, &[0; 40], &burst, &[0; 257], &mut memory);
    let connected = Opcode::new(Service::Uc, Operation::SendOnly).unwrap();
    let mut header = burst.header;
    header.bth.opcode = connected;
    receiver.receive(QKEY, &[0; 40], &Burst { header, ..burst }, &[0; 21], &mut memory);
    receiver.receive(QKEY, &[0; 40], &burst, &bytes(0, 57), &mut memory);
    let expected = [
        ("rcvd_pkts", 5),
        ("out_of_buffer", 1), // Its receive is too small.
        ("resp_invalid_request_errors", 1),
        ("qkey_viol_cntr", 1),
        ("wrong_opcode", 1),
    ];
    assert_eq!((memory.received.len(), counted(receiver.counters())), (1, expected.to_vec()));
}
