//! Requests that cannot be executed.

use rdma_proto::wire::{Bth, Headers, ImmDt, Opcode, Operation, PadCount, Reth};
use rdma_proto::{Burst, MessageEnd, Nak};
use rdma_types::{Qpn, WcStatus};

use crate::pair::ends::{RKEY, VA};
use crate::pair::network::Fate::Lost;
use crate::pair::network::Way::{Request, Response};
use crate::pair::network::{Pair, settings};

/// IBTA section 9.7.5.2.4: the whole range is checked with the first packet. Later packets are dropped.
#[test]
fn a_range_outside_the_memory_is_refused() {
    let mut pair = Pair::new();
    pair.write(crate::pair::ends::BYTES as u64 - 300, 301);
    pair.write(0, 8);
    let expected = [
        "-> RDMA WRITE First 0 -",
        "-> RDMA WRITE Last 1",
        "-> RDMA WRITE Only 2",
        "<- NAK RemoteAccess 0",
        "   0 failed: REM_ACCESS_ERR",
    ];
    assert_eq!(pair.run(), expected);
    assert_eq!((pair.memory.failed, pair.memory.written), (Some(Nak::RemoteAccess), 0));
    assert!(pair.responder.failed() && pair.requester.stopped());
}

/// It acknowledges the requests before it, and waits for the response of a READ. IBTA chapter 9, acknowledgements.
#[test]
fn a_refusal_waits_for_an_earlier_response() {
    let mut pair = Pair::new();
    pair.write(0, 8);
    pair.read(0, 600);
    pair.read(crate::pair::ends::BYTES as u64, 1);
    let expected = [
        "-> RDMA WRITE Only 0",
        "-> RDMA READ Request 1",
        "-> RDMA READ Request 4",
        "<- ACK 0",
        "<- RDMA READ Response First 1",
        "<- RDMA READ Response Middle 2",
        "<- RDMA READ Response Last 3",
        "<- NAK RemoteAccess 4",
        "   0 done",
        "   1 done",
        "   2 failed: REM_ACCESS_ERR",
    ];
    assert_eq!(pair.run(), expected);
}

/// The memory is deregistered during a response. IBTA section 9.7.5.2.4.
#[test]
fn a_read_of_deregistered_memory_is_refused() {
    let mut pair = Pair::new().fates([(Response, 1, Lost)]);
    pair.read(0, 600);
    pair.run_for(std::time::Duration::from_micros(2));
    pair.memory.granted = false;
    let trace = pair.run();
    assert_eq!(trace.last().unwrap(), "   0 failed: REM_ACCESS_ERR", "{trace:?}");
}

/// IBTA section 9.7.5.2.2: longer than its receive.
#[test]
fn a_send_longer_than_its_receive_is_refused() {
    let mut pair = Pair::new();
    pair.memory.receives.push_back(299);
    pair.send(300);
    let trace = pair.run();
    assert_eq!(trace[2..], ["<- NAK InvalidRequest 1", "   0 failed: REM_INV_REQ_ERR"]);
}

/// IBTA section 9.7.4.1: more READs in flight than the responder has resources for.
#[test]
fn a_read_without_a_resource_is_refused() {
    let (requester, mut responder) = settings();
    responder.max_dest_rd_atomic = 1;
    let mut pair = Pair::with(&requester, &responder);
    pair.read(0, 8);
    pair.read(0, 8);
    pair.run_for(std::time::Duration::ZERO);
    pair.hand_over();
    let expected = [
        "<- RDMA READ Response Only 0",
        "<- NAK InvalidRequest 1",
        "   0 done",
        "   1 failed: REM_INV_REQ_ERR",
    ];
    assert_eq!(pair.run(), expected);
}

/// A lost refusal is not repeated: the responder is in error, and silent. IBTA section 9.7.5.2.
#[test]
fn a_lost_refusal_is_not_repeated() {
    let mut pair = Pair::new().fates([(Response, 0, Lost)]);
    pair.add(1, 1);
    assert_eq!(pair.run().last().unwrap(), "   0 failed: RETRY_EXC_ERR");
    assert_eq!(pair.memory.failed, Some(Nak::InvalidRequest));
}

/// The n-th packet, with this operation and this many bytes of payload.
fn packet(operation: Operation, n: u32, payload: usize, length: Option<u32>) -> (Burst, Vec<u8>) {
    let psn = settings().1.psn.wrapping_add(n);
    let bth = Bth {
        pad_count: PadCount::of(payload),
        ..Bth::new(Opcode::reliable(operation), Qpn::masked(0x12), psn)
    };
    let mut headers = Headers::new(bth);
    headers.reth = length.map(|length| Reth { va: VA, rkey: RKEY, length });
    if operation == Operation::RdmaWriteLastWithImmediate {
        headers.imm = Some(ImmDt { immediate: 1 });
    }
    (Burst::single(headers, payload), vec![1; payload])
}

/// IBTA section 9.7.4.1 (opcodes), C9-92 and C9-94 (lengths): the last packet of each line is refused after the others.
#[test]
fn packets_out_of_sequence_or_of_wrong_length_are_refused() {
    use Operation as Op;
    let first = |n| packet(Op::SendFirst, n, 256, None);
    let write = |n, length| packet(Op::RdmaWriteFirst, n, 256, Some(length));
    let lines = [
        vec![packet(Op::SendMiddle, 0, 256, None)],
        vec![packet(Op::SendLast, 0, 1, None)],
        vec![packet(Op::RdmaWriteMiddle, 0, 256, None)],
        vec![first(0), first(1)],
        vec![first(0), packet(Op::SendOnly, 1, 1, None)],
        vec![first(0), packet(Op::RdmaWriteLast, 1, 1, None)],
        vec![first(0), packet(Op::RdmaReadRequest, 1, 0, Some(1))],
        vec![write(0, 300), packet(Op::SendLast, 1, 44, None)],
        vec![packet(Op::SendFirst, 0, 255, None)],
        vec![packet(Op::SendFirst, 0, 257, None)],
        vec![packet(Op::SendOnly, 0, 257, None)],
        vec![first(0), packet(Op::SendMiddle, 1, 252, None)],
        vec![first(0), packet(Op::SendLast, 1, 0, None)],
        vec![first(0), packet(Op::SendLast, 1, 257, None)],
        vec![write(0, 256)],
        vec![write(0, 255)],
        vec![write(0, u32::MAX)],
        vec![write(0, 512), packet(Op::RdmaWriteMiddle, 1, 256, None)],
        vec![write(0, 300), packet(Op::RdmaWriteLast, 1, 43, None)],
        vec![write(0, 300), packet(Op::RdmaWriteLastWithImmediate, 1, 45, None)],
        vec![packet(Op::RdmaWriteOnly, 0, 8, Some(9))],
        vec![packet(Op::RdmaReadRequest, 0, 4, Some(4))],
        vec![packet(Op::RdmaReadRequest, 0, 0, Some(1 << 31 | 1))],
    ];
    for (at, packets) in lines.iter().enumerate() {
        let mut pair = Pair::new();
        pair.memory.receives.push_back(2000);
        let (last, before) = packets.split_last().unwrap();
        for (burst, payload) in before {
            pair.deliver(Request, burst, payload);
        }
        assert_eq!(pair.run(), [""; 0], "line {at}: nothing is wrong before");
        pair.deliver(Request, &last.0, &last.1);
        let nak = format!("<- NAK InvalidRequest {}", before.len());
        assert_eq!(pair.run(), [nak], "line {at}");
        assert_eq!(pair.memory.failed, Some(Nak::InvalidRequest), "line {at}");
        pair.deliver(Request, &first(before.len() as u32).0, &[0; 256]);
        assert_eq!(pair.run(), [""; 0], "line {at}: silent afterwards");
    }
}

/// IBTA section 9.9.2: a response that does not match the request fails it.
#[test]
fn a_response_that_does_not_match_fails_the_request() {
    use Operation as Op;
    let cases = [
        (Op::RdmaReadResponseFirst, 256, true),
        (Op::RdmaReadResponseOnly, 9, true),
        (Op::RdmaReadResponseOnly, 7, true),
        (Op::RdmaReadResponseMiddle, 8, true),
        (Op::AtomicAcknowledge, 0, true),
        (Op::RdmaReadResponseOnly, 8, false),
        (Op::AtomicAcknowledge, 0, false),
    ];
    for (operation, payload, of_read) in cases {
        let mut pair = Pair::new();
        if of_read {
            pair.read(0, 8)
        } else {
            pair.write(0, 8)
        };
        pair.run_for(std::time::Duration::ZERO);
        let (burst, payload) = packet(operation, 0, payload, None);
        pair.deliver(Response, &burst, &payload);
        assert_eq!(pair.queue.completed, [WcStatus::BAD_RESP_ERR], "{operation} {of_read}");
    }
}

/// A message of more than 2 GiB is refused locally. IBTA section 9.7.5.2.2.
#[test]
fn a_message_of_more_than_2_gib_fails() {
    let mut pair = Pair::new();
    pair.read(0, 8);
    let end = MessageEnd { length: 1 << 31 | 1, ..MessageEnd::default() };
    let Some(posted) = pair.queue.posted.first_mut() else { panic!() };
    let rdma_proto::Wqe::Remote { start, .. } = posted.request else { panic!() };
    posted.request = rdma_proto::Wqe::Remote { start, end, fence: false };
    assert_eq!(pair.run(), ["   0 failed: LOC_LEN_ERR"]);
}
