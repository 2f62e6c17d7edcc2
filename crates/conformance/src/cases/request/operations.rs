//! The bytes that a request moves, their destination, and their order.

use rdma_sys::{ibv_mtu, ibv_sge, ibv_wc_opcode as Done};
use test_support::rig::connect::{Knobs, Side, pair, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, REMOTE_READ, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    write_puts_bytes_into_the_peers_memory,
    read_fetches_bytes_from_the_peers_memory,
    send_fills_the_oldest_receive_request,
    write_moves_exactly_its_bytes_whatever_their_number,
    read_moves_exactly_its_bytes_whatever_their_number,
    send_moves_exactly_its_bytes_whatever_their_number,
    write_with_immediate_moves_exactly_its_bytes_whatever_their_number,
    messages_cross_with_every_path_mtu,
    addresses_need_no_alignment,
    write_gathers_as_many_elements_as_the_queue_pair_has,
    send_gathers_and_receive_scatters_as_many_elements_as_the_queue_pairs_have,
    read_scatters_to_as_many_elements_as_the_queue_pair_has,
    elements_may_name_the_same_bytes_again,
    elements_may_be_of_different_regions,
    data_stays_at_its_source,
    write_tells_its_target_nothing,
    read_tells_its_target_nothing,
    write_with_immediate_comes_after_the_bytes_of_the_writes_before_it,
    more_reads_than_resources_wait_for_each_other,
];

/// Returns `length` bytes whose values depend on their positions.
fn pattern(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

const MTU: usize = 1024;
/// Lengths of zero, one, about one packet, several packets, and many packets.
const LENGTHS: [usize; 9] =
    [0, 1, MTU - 1, MTU, MTU + 1, 3 * MTU - 1, 3 * MTU, 7 * MTU + 13, 1 << 20];
/// The number of bytes on each side of the data, which must not change.
const MARGIN: usize = 16;

fn write_puts_bytes_into_the_peers_memory(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(pattern(100), 0);
    let sink = b.pd.register(100, ALL_ACCESS);
    a.qp.post(&Wr::write(1, &[source.sge(0, 60), source.sge(60, 40)], &sink, 0));
    a.send_cq.expect_success(1);
    assert_eq!(sink.bytes(), pattern(100));
}

fn read_fetches_bytes_from_the_peers_memory(device: &Device) {
    let (a, b) = pair(device);
    let sink = a.pd.register(100, LOCAL_WRITE);
    let source = b.pd.register_filled(pattern(100), REMOTE_READ);
    a.qp.post(&Wr::read(9, &[sink.sge(50, 50), sink.sge(0, 25)], &source, 25));
    assert_eq!(a.send_cq.expect_success(9).byte_len, 75);
    let wanted = [&pattern(100)[75..], &[0; 25], &pattern(100)[25..75]].concat();
    assert_eq!(sink.bytes(), wanted);
}

fn send_fills_the_oldest_receive_request(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(b"hello, world".to_vec(), 0);
    let sink = b.pd.register(64, LOCAL_WRITE);
    b.qp.post_receive(1, &[sink.sge(0, 3), sink.sge(8, 24)]);
    b.qp.post_receive(2, &[sink.sge(32, 32)]);
    a.qp.post(&Wr::send(3, &[source.sge(0, 12)]));
    a.qp.post(&Wr::send(4, &[source.sge(7, 5)]));
    assert_eq!(b.receive_cq.expect_success(1).byte_len, 12);
    assert_eq!(b.receive_cq.expect_success(2).byte_len, 5);
    let sink = sink.bytes();
    assert_eq!(
        (&sink[..3], &sink[8..17], &sink[32..37]),
        (&b"hel"[..], &b"lo, world"[..], &b"world"[..])
    );
}

/// Checks, for each length, exactly which bytes `go` moves from the source to the sink. Both
/// regions have a margin before and after these bytes.
fn exactly_its_bytes(device: &Device, reads: bool, go: impl Fn(&Side, &Side, &Mr, &Mr, usize)) {
    let (a, b) = pair(device);
    for length in LENGTHS {
        let (from, to) = if reads { (&b, &a) } else { (&a, &b) };
        let whole = length + 2 * MARGIN;
        let source = from.pd.register_filled(pattern(whole), LOCAL_WRITE | REMOTE_READ);
        let sink = to.pd.register_filled(vec![0xee; whole], ALL_ACCESS);
        go(&a, &b, &source, &sink, length);
        let moved = &pattern(whole)[MARGIN..MARGIN + length];
        let wanted = [&[0xee; MARGIN], moved, &[0xee; MARGIN]].concat();
        assert!(sink.bytes() == wanted, "{length} bytes");
        assert!(source.bytes() == pattern(whole), "{length} bytes");
    }
}

fn write_moves_exactly_its_bytes_whatever_their_number(device: &Device) {
    exactly_its_bytes(device, false, |a, _, source, sink, length| {
        a.qp.post(&Wr::write(1, &[source.sge(MARGIN, length)], sink, MARGIN));
        a.send_cq.expect_success(1);
    });
}

fn read_moves_exactly_its_bytes_whatever_their_number(device: &Device) {
    exactly_its_bytes(device, true, |a, _, source, sink, length| {
        a.qp.post(&Wr::read(1, &[sink.sge(MARGIN, length)], source, MARGIN));
        assert_eq!(a.send_cq.expect_success(1).byte_len as usize, length);
    });
}

fn send_moves_exactly_its_bytes_whatever_their_number(device: &Device) {
    exactly_its_bytes(device, false, |a, b, source, sink, length| {
        b.qp.post_receive(2, &[sink.sge(MARGIN, length + MARGIN)]);
        a.qp.post(&Wr::send(1, &[source.sge(MARGIN, length)]));
        a.send_cq.expect_success(1);
        assert_eq!(b.receive_cq.expect_success(2).byte_len as usize, length);
    });
}

fn write_with_immediate_moves_exactly_its_bytes_whatever_their_number(device: &Device) {
    exactly_its_bytes(device, false, |a, b, source, sink, length| {
        b.qp.post_receive(2, &[]);
        let write = Wr::write(1, &[source.sge(MARGIN, length)], sink, MARGIN);
        a.qp.post(&write.with_imm(7));
        a.send_cq.expect_success(1);
        assert_eq!(b.receive_cq.expect_success(2).byte_len as usize, length);
    });
}

fn messages_cross_with_every_path_mtu(device: &Device) {
    let largest = device.open().query_port().active_mtu.0;
    for mtu in 1..=largest {
        let knobs = Knobs { mtu: ibv_mtu(mtu), ..Knobs::default() };
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let packet = 128 << mtu;
        for length in [packet - 1, packet, packet + 1, 3 * packet + 5] {
            let source = a.pd.register_filled(pattern(length), LOCAL_WRITE);
            let sink = b.pd.register(length, ALL_ACCESS);
            a.qp.post(&Wr::write(1, &[source.sge(0, length)], &sink, 0));
            a.send_cq.expect_success(1);
            assert!(sink.bytes() == pattern(length), "MTU {packet}, {length} bytes");
            source.fill(0);
            a.qp.post(&Wr::read(2, &[source.sge(0, length)], &sink, 0));
            a.send_cq.expect_success(2);
            assert!(source.bytes() == pattern(length), "MTU {packet}, {length} bytes");
        }
    }
}

fn addresses_need_no_alignment(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(pattern(64), 0);
    let sink = b.pd.register(64, ALL_ACCESS);
    for (from, to, length) in [(1, 0, 8), (0, 1, 8), (3, 5, 7), (7, 2, 13), (1, 1, 1)] {
        sink.fill(0);
        a.qp.post(&Wr::write(1, &[source.sge(from, length)], &sink, to));
        a.send_cq.expect_success(1);
        let wanted =
            [&vec![0; to], &pattern(64)[from..from + length], &vec![0; 64 - to - length]].concat();
        assert_eq!(sink.bytes(), wanted);
    }
}

/// Returns a pair whose requests can have as many elements as the device supports, up to 32. Also
/// returns that number.
fn with_many_elements(device: &Device) -> (Side, Side, usize) {
    let most = device.attributes().max_sge.min(32).cast_unsigned();
    // Requests with many elements take much space, so the queues are short and have no inline data.
    let size = Size { sge: most, send_wr: 8, receive_wr: 8, inline: 0, ..Size::default() };
    let (a, b) = pair_with(device, &size, &Knobs::default());
    (a, b, most as usize)
}

const PIECE: usize = 5;

/// Returns every second piece of a region that consists of `2 * count` pieces, in reverse order.
fn pieces(mr: &Mr, count: usize) -> Vec<ibv_sge> {
    (0..count).rev().map(|n| mr.sge(2 * n * PIECE, PIECE)).collect()
}

/// Returns the bytes of the [`pieces`], concatenated.
fn bytes_of_pieces(bytes: &[u8], count: usize) -> Vec<u8> {
    (0..count).rev().flat_map(|n| bytes[2 * n * PIECE..][..PIECE].to_vec()).collect()
}

fn write_gathers_as_many_elements_as_the_queue_pair_has(device: &Device) {
    let (a, b, count) = with_many_elements(device);
    let source = a.pd.register_filled(pattern(2 * count * PIECE), 0);
    let sink = b.pd.register(count * PIECE, ALL_ACCESS);
    a.qp.post(&Wr::write(1, &pieces(&source, count), &sink, 0));
    a.send_cq.expect_success(1);
    assert_eq!(sink.bytes(), bytes_of_pieces(&source.bytes(), count));
}

fn send_gathers_and_receive_scatters_as_many_elements_as_the_queue_pairs_have(device: &Device) {
    let (a, b, count) = with_many_elements(device);
    let source = a.pd.register_filled(pattern(2 * count * PIECE), 0);
    let sink = b.pd.register(2 * count * PIECE, LOCAL_WRITE);
    b.qp.post_receive(2, &pieces(&sink, count));
    a.qp.post(&Wr::send(1, &pieces(&source, count)));
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
    let whole = bytes_of_pieces(&source.bytes(), count);
    assert_eq!(bytes_of_pieces(&sink.bytes(), count), whole);
    // The bytes between the pieces have not changed.
    let between = sink.bytes().chunks(2 * PIECE).all(|chunk| chunk[PIECE..] == [0; PIECE]);
    assert!(between);
}

fn read_scatters_to_as_many_elements_as_the_queue_pair_has(device: &Device) {
    let (a, b, count) = with_many_elements(device);
    let source = b.pd.register_filled(pattern(count * PIECE), REMOTE_READ);
    let sink = a.pd.register(2 * count * PIECE, LOCAL_WRITE);
    a.qp.post(&Wr::read(1, &pieces(&sink, count), &source, 0));
    a.send_cq.expect_success(1);
    assert_eq!(bytes_of_pieces(&sink.bytes(), count), source.bytes());
    let between = sink.bytes().chunks(2 * PIECE).all(|chunk| chunk[PIECE..] == [0; PIECE]);
    assert!(between);
}

fn elements_may_name_the_same_bytes_again(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(pattern(8), 0);
    let sink = b.pd.register(12, ALL_ACCESS);
    a.qp.post(&Wr::write(1, &[source.sge(2, 4), source.sge(2, 4), source.sge(0, 4)], &sink, 0));
    a.send_cq.expect_success(1);
    assert_eq!(sink.bytes(), [2, 3, 4, 5, 2, 3, 4, 5, 0, 1, 2, 3]);
}

fn elements_may_be_of_different_regions(device: &Device) {
    let (a, b) = pair(device);
    let sources = [1, 2, 3, 4].map(|byte| a.pd.register_filled(vec![byte; 300], 0));
    let sinks = [0, 0, 0].map(|byte| b.pd.register_filled(vec![byte; 400], LOCAL_WRITE));
    b.qp.post_receive(2, &sinks.each_ref().map(|sink| sink.sge(0, 400)));
    a.qp.post(&Wr::send(1, &sources.each_ref().map(|source| source.sge(0, 300))));
    b.receive_cq.expect_success(2);
    let got: Vec<u8> = sinks.iter().flat_map(Mr::bytes).collect();
    assert!(got == [[1; 300], [2; 300], [3; 300], [4; 300]].concat());
}

fn data_stays_at_its_source(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(pattern(64), 0);
    let sink = b.pd.register(64, ALL_ACCESS);
    b.qp.post_receive(1, &[sink.sge(0, 64)]);
    a.qp.post(&Wr::write(1, &[source.sge(0, 64)], &sink, 0));
    a.qp.post(&Wr::send(2, &[source.sge(0, 64)]));
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    assert_eq!(source.bytes(), pattern(64));
}

/// Checks that a request consumes no receive and causes no completion at the peer. The next SEND
/// must consume the oldest receive, whose completion must be the first.
fn silent_at_its_target(device: &Device, request: impl Fn(&Mr, &Mr) -> Wr) {
    let (a, b) = pair(device);
    let (here, there) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, ALL_ACCESS));
    b.qp.post_receive(1, &[]);
    a.qp.post(&request(&here, &there));
    a.send_cq.expect_success(5);
    a.qp.post(&Wr::send(6, &[]));
    a.send_cq.expect_success(6);
    assert_eq!(b.receive_cq.expect_success(1).opcode, Done::IBV_WC_RECV);
    assert!(b.receive_cq.is_empty() && b.send_cq.is_empty());
}

fn write_tells_its_target_nothing(device: &Device) {
    silent_at_its_target(device, |here, there| Wr::write(5, &[here.sge(0, 8)], there, 0));
}

fn read_tells_its_target_nothing(device: &Device) {
    silent_at_its_target(device, |here, there| Wr::read(5, &[here.sge(0, 8)], there, 0));
}

fn write_with_immediate_comes_after_the_bytes_of_the_writes_before_it(device: &Device) {
    let (a, b) = pair(device);
    let (here, there) = (a.pd.register(5000, LOCAL_WRITE), b.pd.register(5000, ALL_ACCESS));
    for round in 1..20 {
        here.fill(round);
        b.qp.post_receive(1, &[]);
        let write = |from| Wr::write(2, &[here.sge(from, 2500)], &there, from);
        a.qp.try_post_list(&[write(0).unsignaled(), write(2500).with_imm(0)]).unwrap();
        b.receive_cq.expect_success(1);
        there.assert_filled(round);
        a.send_cq.expect_success(2);
    }
}

fn more_reads_than_resources_wait_for_each_other(device: &Device) {
    for rd_atomic in [1, 4] {
        let knobs = Knobs { rd_atomic, ..Knobs::default() };
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let here = a.pd.register(40, LOCAL_WRITE);
        let there = b.pd.register_filled(pattern(40), ALL_ACCESS);
        for n in 0..40 {
            a.qp.post(&Wr::read(n as u64, &[here.sge(n, 1)], &there, n));
        }
        for n in 0..40 {
            a.send_cq.expect_success(n);
        }
        assert_eq!(here.bytes(), pattern(40));
    }
}
