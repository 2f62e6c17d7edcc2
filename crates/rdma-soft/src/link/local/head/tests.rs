use std::sync::OnceLock;

use proptest::prelude::*;
use rdma_proto::wire::Operation;

use super::*;
use crate::device::gid_place::GidPlace;
use crate::device::subnet::Subnet;
use crate::engine::wire::letter::BURST_BYTES;
use crate::engine::wire::single::Single;
use crate::fabric::random::Seed;
use crate::limits::Limits;
use crate::link::Link;
use crate::schedule::Schedule;

/// Returns one device for each link layer.
fn devices() -> &'static [Device; 2] {
    static SUBNET: Subnet = Subnet::new();
    static DEVICES: OnceLock<[Device; 2]> = OnceLock::new();
    DEVICES.get_or_init(|| {
        [Link::Ethernet, Link::InfiniBand].map(|link| {
            let (limits, schedule) = (Limits::default(), Schedule::Immediate);
            let gids = GidPlace::usual(link);
            Device::new(&SUBNET, "d".into(), link, gids, limits, schedule, &Seed::new(1))
        })
    })
}

/// Generates headers and payload lengths. Half of the headers are random bytes. The others have plausible values in
/// their own fields, and the packet headers in them have a valid service and version.
fn heads() -> impl Strategy<Value = ([u8; HEAD], usize)> {
    let anything = prop::collection::vec(any::<u8>(), HEAD);
    let own = (0..32_u8, 0..5_u8, 0..5_u8, 0..5000_u16, 0..20_u16, 0..=BURST_BYTES);
    let fits = any::<[bool; 4]>();
    (anything, own, fits).prop_map(|(bytes, (flags, from, to, segment, segments, length), fits)| {
        let mut head: [u8; HEAD] = bytes.try_into().unwrap();
        if !fits[0] {
            return (head, length);
        }
        let segments = match (fits[1], segment) {
            (true, 1..) => u16::try_from(length.div_ceil(segment.into())).unwrap(),
            _ => segments,
        };
        head[..4].copy_from_slice(&[VERSION, flags, from, to]);
        head[4..6].copy_from_slice(&segment.to_le_bytes());
        head[6..8].copy_from_slice(&segments.to_le_bytes());
        let length = if fits[2] && flags & WITH_LAST == 0 { segment.into() } else { length };
        head[8..12].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
        for at in [FIRST, SECOND] {
            // Selects one of the services that the device has, and version 0.
            head[at] = [0, 0x20, 0x60][usize::from(head[at] % 3)] | head[at] >> 3 & 0x1f;
            head[at + 1] &= 0xf0;
        }
        if fits[3] {
            head[FIRST] = if flags & DATAGRAM == 0 { head[FIRST] & 0x3f } else { 0x64 };
            head[SECOND] = head[FIRST] & 0xe0 | head[SECOND] & 0x17;
        }
        (head, length)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No head makes `decode` panic. An accepted head is consistent, and the decoded burst is the same after it is
    /// encoded and decoded again.
    #[test]
    fn accepted_heads_are_consistent((head, length) in heads()) {
        for device in devices() {
            let Some((path, burst, datagram)) = decode(device, &head) else { continue };
            prop_assert_eq!(burst.length as usize, length);
            prop_assert_eq!(burst.last.is_some(), burst.segments > 1);
            prop_assert!(burst.segment <= 4096 && burst.segments > 0);
            let is_ud = burst.header.bth.opcode.service() == Service::Ud;
            prop_assert_eq!((datagram.is_some(), is_ud && burst.segments > 1), (is_ud, false));
            let payload = vec![0; BURST_BYTES].into_boxed_slice();
            let packets: Vec<_> = burst.packets(&payload[..length]).collect();
            prop_assert!(packets.iter().all(|(_, payload)| payload.len() <= 4096));
            prop_assert_eq!(packets.iter().map(|(_, payload)| payload.len()).sum::<usize>(), length);
            let mut letter = Letter::from_outside(path, burst, datagram, payload);
            letter.is_void = is_void(&head);
            letter.placed = placed(&head);
            prop_assert!(!letter.is_void || is_refusal(&burst.header) && length == 0);
            let again = encode(device, &letter).unwrap();
            prop_assert_eq!((is_void(&again), placed(&again)), (letter.is_void, letter.placed));
            let (path_again, burst_again, _) = decode(device, &again).unwrap();
            prop_assert!(path_again == path && burst_again.header == burst.header);
            prop_assert_eq!(burst_again.last, burst.last);
        }
    }
}

/// Makes sure that `decode` does not reject everything, because the test above would still pass.
#[test]
fn bursts_of_a_device_are_accepted() {
    let [device, _] = devices();
    let local = address_at(device, 0).unwrap();
    let path = Path { local, remote: local };
    let opcode = |operation| rdma_proto::wire::Opcode::new(Service::Rc, operation).unwrap();
    let number = |number| rdma_types::Qpn::new(number).unwrap();
    let bth = |operation| Bth::new(opcode(operation), number(5), rdma_types::Psn::masked(9));
    let last = Last::of(&Headers::new(bth(Operation::SendLast)));
    let header = Headers::new(bth(Operation::SendFirst));
    let burst = Burst { header, last: Some(last), segment: 1024, segments: 3, length: 2049 };
    let payload = vec![0; BURST_BYTES].into_boxed_slice();
    let letter = Letter::from_outside(path, burst, None, payload);
    let mut head = encode(device, &letter).unwrap();
    let (_, decoded, _) = decode(device, &head).unwrap();
    assert_eq!(decoded, burst);
    for length in [0_u32, 2048, 3073] {
        head[8..12].copy_from_slice(&length.to_le_bytes());
        assert!(decode(device, &head).is_none());
    }
}

/// No device sends any other packet with the flag of void refusals.
#[test]
fn a_void_refusal_is_an_rnr_nak_and_nothing_else() {
    let [device, _] = devices();
    let local = address_at(device, 0).unwrap();
    let path = Path { local, remote: local };
    let letter = |operation, syndrome| {
        let number = rdma_types::Qpn::new(5).unwrap();
        let bth = Bth::new(Opcode::reliable(operation), number, rdma_types::Psn::masked(9));
        let aeth = Some(Aeth { syndrome, msn: 0 });
        let headers = Headers { aeth, ..Headers::new(bth) };
        Letter::void(path, Burst::single(headers, 0), vec![0; 8].into_boxed_slice())
    };
    let refusal = Syndrome::RnrNak(rdma_types::MinRnrTimer::default());
    let head = encode(device, &letter(Operation::Acknowledge, refusal)).unwrap();
    assert!(is_void(&head) && decode(device, &head).is_some());
    for flag in [WITH_LAST, DATAGRAM, ROUTED, PLACED, 32] {
        let mut head = head;
        head[1] |= flag;
        assert!(decode(device, &head).is_none(), "{flag}");
    }
    for syndrome in [0x1f, 0x60, 0x40] {
        let head = encode(device, &letter(Operation::Acknowledge, Syndrome::from_code(syndrome)));
        assert!(decode(device, &head.unwrap()).is_none(), "{syndrome}");
    }
    let response = letter(Operation::RdmaReadResponseOnly, refusal);
    assert!(decode(device, &encode(device, &response).unwrap()).is_none());
}

/// No device declares placed bytes for any other packet, or more of them than fit in a message or before its address.
#[test]
fn bytes_are_placed_before_the_last_packet_of_a_write_with_immediate_alone() {
    let [device, _] = devices();
    let local = address_at(device, 0).unwrap();
    let path = Path { local, remote: local };
    let head = |operation, va, placed| {
        let number = rdma_types::Qpn::new(5).unwrap();
        let bth = Bth::new(Opcode::reliable(operation), number, rdma_types::Psn::masked(9));
        let reth = Reth { va, rkey: rdma_types::Rkey::new(7), length: 8 };
        let imm = (operation == Operation::RdmaWriteOnlyWithImmediate)
            .then_some(rdma_proto::wire::ImmDt { immediate: 3 });
        let header = Headers { reth: Some(reth), imm, ..Headers::new(bth) };
        let payload = vec![0; 8].into_boxed_slice();
        let mut letter = Letter::from_outside(path, Burst::single(header, 8), None, payload);
        letter.placed = placed;
        encode(device, &letter).unwrap()
    };
    let notice = Operation::RdmaWriteOnlyWithImmediate;
    for placed_bytes in [1, 0x1_0000, MAX_MESSAGE_BYTES - 8] {
        let head = head(notice, MAX_MESSAGE_BYTES.into(), placed_bytes);
        assert!(decode(device, &head).is_some());
        assert_eq!(placed(&head), placed_bytes);
    }
    let mut none = head(notice, 0x1000, 1);
    none[SECOND] = 0;
    for wrong in [
        none,
        head(Operation::RdmaWriteOnly, 0x1000, 1),
        head(notice, 0x1000, 0x1001),
        head(notice, u64::MAX, MAX_MESSAGE_BYTES - 7),
        head(notice, u64::MAX, u32::MAX),
    ] {
        assert!(decode(device, &wrong).is_none());
    }
}

/// Returns a header of a message of one packet, and the length after the gap.
fn single() -> (Single, SingleHead, usize) {
    let [device, _] = devices();
    let local = address_at(device, 1).unwrap();
    let single = Single {
        path: Path { local, remote: address_at(device, 0).unwrap() },
        to: rdma_types::Qpn::masked(5),
        psn: rdma_types::Psn::masked(0x00ff_fffe),
        word: WordKey::new(3, 4),
        immediate: Some(0x0102_0304),
        solicited: true,
        length: 40,
    };
    (single, encode_single(device, &single).unwrap(), AFTER_GAP + 40)
}

#[test]
fn a_message_of_one_packet_is_the_same_after_it_is_decoded() {
    let [device, _] = devices();
    let (all, ..) = single();
    let plain = Single { immediate: None, solicited: false, length: 0, ..all };
    for single in [all, plain] {
        let head = encode_single(device, &single).unwrap();
        let length = u32::from_le_bytes(*head.first_chunk().unwrap()) as usize;
        assert_eq!((length, is_single(&head)), (AFTER_GAP + usize::from(single.length), true));
        assert_eq!(decode_single(device, &head, length), Some(single));
        let burst = single.burst();
        assert_eq!((burst.length, burst.segments), (u32::from(single.length), 1));
        assert_eq!(burst.header.bth.psn, single.psn);
        assert_eq!(burst.header.imm.map(|imm| imm.immediate), single.immediate.map(u32::from_be));
    }
}

#[test]
fn a_message_of_one_packet_that_no_device_sends_is_rejected() {
    let [device, _] = devices();
    let (single, good, length) = single();
    assert_eq!(decode_single(device, &good, length), Some(single));
    assert_eq!(decode_single(device, &good, AFTER_GAP - 1), None, "shorter than its header");
    assert_eq!(decode_single(device, &good, AFTER_GAP + LONGEST + 1), None, "longer than a packet");
    // The flags, the reserved byte, both addresses, the upper bits of the QPN and of the PSN.
    for (at, value) in [(4, 8), (4, 2), (5, 1), (6, 9), (7, 9), (11, 1), (15, 1)] {
        let mut head = good;
        head[at] = value;
        assert_eq!(decode_single(device, &head, length), None, "byte {at} is {value}");
    }
    for (at, bytes) in [(8, [0xff, 0xff, 0xff, 0]), (16, [0; 4])] {
        let mut head = good;
        head[at..at + 4].copy_from_slice(&bytes);
        assert_eq!(decode_single(device, &head, length), None, "bytes from {at} are {bytes:?}");
    }
}
