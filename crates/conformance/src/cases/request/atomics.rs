//! Compare-and-swap and fetch-and-add.

use rdma_sys::{Errno, ibv_atomic_cap, ibv_wc_status as Status, ibv_wr_opcode as Opcode};
use test_support::rig::connect::{Knobs, Side, pair_with};
use test_support::rig::memory::{Mr, deregister, rkey_of};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    swap_happens_only_if_the_comparison_holds,
    swap_compares_all_64_bits,
    atomic_brings_what_was_there_before,
    atomic_counts_its_eight_bytes,
    addition_wraps,
    addition_of_nothing_reads,
    addition_of_a_negative_number_subtracts,
    atomic_changes_its_eight_bytes_alone,
    additions_of_many_queue_pairs_are_all_there,
    swaps_of_many_queue_pairs_have_one_winner_each,
    additions_of_one_queue_pair_are_executed_in_order_and_once,
    atomic_sees_the_write_before_it,
    read_sees_the_atomic_before_it,
    fenced_send_carries_what_the_atomic_brought,
    region_without_remote_atomic_refuses_atomics,
    queue_pair_without_remote_atomic_refuses_atomics,
    misaligned_atomic_changes_nothing,
    atomic_out_of_bounds_is_refused,
    atomic_with_a_wrong_rkey_is_refused,
    atomic_with_too_little_room_for_its_result_changes_nothing,
    result_goes_nowhere_without_local_write,
    right_to_atomics_gives_none_to_write_or_read,
    more_atomics_than_resources_wait_for_each_other,
];

/// The only rights that the queue pair and the region need for atomics.
const ATOMIC: u32 = LOCAL_WRITE | REMOTE_ATOMIC;

/// Returns a connected pair whose sides grant each other all rights.
fn sides(device: &Device) -> (Side, Side) {
    sides_with(device, ALL_ACCESS)
}

fn sides_with(device: &Device, access: u32) -> (Side, Side) {
    let has = device.attributes().atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE;
    device.needs(has, "the device has no atomics");
    pair_with(device, &Size::default(), &Knobs { access, ..Knobs::default() })
}

fn compare_and_swap(wr_id: u64, result: &Mr, word: &Mr, compare: u64, swap: u64) -> Wr {
    Wr::compare_and_swap(wr_id, &[result.sge(0, 8)], word, 0, [compare, swap])
}

fn fetch_and_add(wr_id: u64, result: &Mr, word: &Mr, add: u64) -> Wr {
    Wr::fetch_add(wr_id, &[result.sge(0, 8)], word, 0, add)
}

/// Returns a region's first eight bytes as a number.
fn number(mr: &Mr) -> u64 {
    u64::from_ne_bytes(mr.bytes()[..8].try_into().unwrap())
}

fn word(side: &Side, number: u64) -> Mr {
    side.pd.register_filled(number.to_ne_bytes().to_vec(), ALL_ACCESS)
}

/// Executes one atomic. Returns its result and the value of the word afterwards.
fn outcome(device: &Device, before: u64, request: impl Fn(&Mr, &Mr) -> Wr) -> (u64, u64) {
    let (a, b) = sides(device);
    let (result, word) = (a.pd.register(8, LOCAL_WRITE), word(&b, before));
    a.qp.post(&request(&result, &word));
    a.send_cq.expect_success(1);
    (number(&result), number(&word))
}

fn swap_happens_only_if_the_comparison_holds(device: &Device) {
    let swap = |compare| outcome(device, 5, |to, word| compare_and_swap(1, to, word, compare, 9)).1;
    assert_eq!((swap(5), swap(6)), (9, 5));
}

fn swap_compares_all_64_bits(device: &Device) {
    const NUMBER: u64 = 0x0123_4567_89ab_cdef;
    for bit in [0, 8, 31, 32, 63] {
        let near = NUMBER ^ (1 << bit);
        let left = outcome(device, NUMBER, |to, word| compare_and_swap(1, to, word, near, 1)).1;
        assert_eq!(left, NUMBER, "bit {bit}");
    }
    assert_eq!(outcome(device, NUMBER, |to, word| compare_and_swap(1, to, word, NUMBER, 1)).1, 1);
}

fn atomic_brings_what_was_there_before(device: &Device) {
    const NUMBER: u64 = 0x0123_4567_89ab_cdef;
    let requests: [fn(&Mr, &Mr) -> Wr; 3] = [
        |to, word| compare_and_swap(1, to, word, NUMBER, 1),
        |to, word| compare_and_swap(1, to, word, 1, 2),
        |to, word| fetch_and_add(1, to, word, 0x1_0000_0001),
    ];
    for request in requests {
        assert_eq!(outcome(device, NUMBER, request).0, NUMBER);
    }
}

fn atomic_counts_its_eight_bytes(device: &Device) {
    let (a, b) = sides(device);
    let (result, word) = (a.pd.register(8, LOCAL_WRITE), word(&b, 5));
    let requests = [
        compare_and_swap(1, &result, &word, 5, 6),
        compare_and_swap(1, &result, &word, 5, 6),
        fetch_and_add(1, &result, &word, 1),
    ];
    for request in requests {
        a.qp.post(&request);
        assert_eq!(a.send_cq.expect_success(1).byte_len, 8);
    }
}

fn addition_wraps(device: &Device) {
    assert_eq!(outcome(device, u64::MAX, |to, word| fetch_and_add(1, to, word, 3)), (u64::MAX, 2));
}

fn addition_of_nothing_reads(device: &Device) {
    assert_eq!(outcome(device, 77, |to, word| fetch_and_add(1, to, word, 0)), (77, 77));
}

fn addition_of_a_negative_number_subtracts(device: &Device) {
    let minus = (-5_i64).cast_unsigned();
    assert_eq!(outcome(device, 77, |to, word| fetch_and_add(1, to, word, minus)), (77, 72));
}

fn atomic_changes_its_eight_bytes_alone(device: &Device) {
    let (a, b) = sides(device);
    let result = a.pd.register_filled(vec![1; 24], LOCAL_WRITE);
    let words = b.pd.register_filled(vec![0xff; 24], ALL_ACCESS);
    // The addition overflows the word, and the carry is dropped.
    a.qp.post(&Wr::fetch_add(1, &[result.sge(8, 8)], &words, 8, 1));
    a.send_cq.expect_success(1);
    assert_eq!(result.bytes(), [[1; 8], [0xff; 8], [1; 8]].concat());
    assert_eq!(words.bytes(), [[0xff; 8], [0; 8], [0xff; 8]].concat());
}

/// Runs `own` on two connections at once, each in its own thread. Both peers have registered the
/// same word. Returns the word's final value.
fn compete(device: &Device, own: impl Fn(&Side, u64, u32) + Sync) -> u64 {
    let ((a, b), (c, d)) = (sides(device), sides(device));
    let word = word(&b, 0);
    let alias = d.pd.try_register(word.start(), 8, ATOMIC).unwrap();
    std::thread::scope(|threads| {
        for (side, key) in [(&a, word.rkey()), (&c, rkey_of(alias))] {
            let (own, address) = (&own, word.address());
            threads.spawn(move || own(side, address, key));
        }
    });
    deregister(alias);
    number(&word)
}

fn additions_of_many_queue_pairs_are_all_there(device: &Device) {
    const ROUNDS: u64 = 100;
    let sum = compete(device, |side, address, key| {
        let result = side.pd.register(8, LOCAL_WRITE);
        let add = Wr::new(1, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[result.sge(0, 8)])
            .atomic_at(address, key, 1, 0);
        for _ in 0..ROUNDS {
            side.qp.post(&add);
            side.send_cq.expect_success(1);
        }
    });
    assert_eq!(sum, 2 * ROUNDS);
}

fn swaps_of_many_queue_pairs_have_one_winner_each(device: &Device) {
    const WINS: u64 = 50;
    let sum = compete(device, |side, address, key| {
        let result = side.pd.register(8, LOCAL_WRITE);
        let (mut seen, mut wins) = (0, 0);
        while wins < WINS {
            let swap = Wr::new(1, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP, &[result.sge(0, 8)]);
            side.qp.post(&swap.atomic_at(address, key, seen, seen + 1));
            side.send_cq.expect_success(1);
            let was = number(&result);
            if was == seen {
                (seen, wins) = (seen + 1, wins + 1);
            } else {
                seen = was;
            }
        }
    });
    assert_eq!(sum, 2 * WINS);
}

fn additions_of_one_queue_pair_are_executed_in_order_and_once(device: &Device) {
    let (a, b) = sides(device);
    let (results, word) = (a.pd.register(8 * 60, LOCAL_WRITE), word(&b, 0));
    for n in 0..60 {
        a.qp.post(&Wr::fetch_add(n as u64, &[results.sge(8 * n, 8)], &word, 0, 1));
    }
    for n in 0..60 {
        a.send_cq.expect_success(n);
    }
    let wanted: Vec<u8> = (0..60_u64).flat_map(u64::to_ne_bytes).collect();
    assert_eq!(results.bytes(), wanted);
    assert_eq!(number(&word), 60);
}

fn atomic_sees_the_write_before_it(device: &Device) {
    let (a, b) = sides(device);
    let source = a.pd.register_filled(40_u64.to_ne_bytes().to_vec(), 0);
    let (result, word) = (a.pd.register(8, LOCAL_WRITE), word(&b, 0));
    let write = Wr::write(1, &[source.sge(0, 8)], &word, 0);
    a.qp.try_post_list(&[write, fetch_and_add(2, &result, &word, 2)]).unwrap();
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    assert_eq!((number(&result), number(&word)), (40, 42));
}

fn read_sees_the_atomic_before_it(device: &Device) {
    let (a, b) = sides(device);
    let (result, back) = (a.pd.register(8, LOCAL_WRITE), a.pd.register(8, LOCAL_WRITE));
    let word = word(&b, 40);
    let read = Wr::read(2, &[back.sge(0, 8)], &word, 0);
    a.qp.try_post_list(&[fetch_and_add(1, &result, &word, 2), read]).unwrap();
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    assert_eq!(number(&back), 42);
}

fn fenced_send_carries_what_the_atomic_brought(device: &Device) {
    let (a, b) = sides(device);
    let (result, sink) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, LOCAL_WRITE));
    let word = word(&b, 41);
    b.qp.post_receive(3, &[sink.sge(0, 8)]);
    let send = Wr::send(2, &[result.sge(0, 8)]).fenced();
    a.qp.try_post_list(&[fetch_and_add(1, &result, &word, 2), send]).unwrap();
    b.receive_cq.expect_success(3);
    assert_eq!(number(&sink), 41);
}

/// Posts the request that `spoil` returns. Checks that it fails, and changes neither the words nor
/// the result. Returns its status.
fn refused(sides: (Side, Side), region: u32, spoil: impl Fn(&Mr, &Mr) -> Wr) -> Status {
    let (a, b) = sides;
    let result = a.pd.register_filled(vec![3; 16], LOCAL_WRITE);
    let words = b.pd.register_filled(vec![7; 16], region);
    a.qp.post(&spoil(&result, &words));
    let wc = a.send_cq.next();
    assert_eq!(wc.wr_id, 1);
    assert_ne!(wc.status, Status::IBV_WC_SUCCESS);
    a.qp.wait_for_error();
    words.assert_filled(7);
    result.assert_filled(3);
    wc.status
}

fn add_at(offset: usize) -> impl Fn(&Mr, &Mr) -> Wr {
    move |result, words| Wr::fetch_add(1, &[result.sge(0, 8)], words, offset, 1)
}

fn region_without_remote_atomic_refuses_atomics(device: &Device) {
    for access in [ALL_ACCESS & !REMOTE_ATOMIC, LOCAL_WRITE] {
        let status = refused(sides(device), access, add_at(0));
        assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

fn queue_pair_without_remote_atomic_refuses_atomics(device: &Device) {
    let status = refused(sides_with(device, ALL_ACCESS & !REMOTE_ATOMIC), ALL_ACCESS, add_at(0));
    assert_eq!(status, Status::IBV_WC_REM_INV_REQ_ERR);
}

/// The address is misaligned in the request or in the peer's memory. Memory can be misaligned only
/// if the device registers it under an IOVA of another alignment. The device may refuse the request
/// when it is posted, or let it fail.
fn misaligned_atomic_changes_nothing(device: &Device) {
    for (offset, shift) in [(1, 0), (2, 0), (4, 0), (7, 0), (0, 4), (4, 4)] {
        let (a, b) = sides(device);
        let result = a.pd.register_filled(vec![3; 16], LOCAL_WRITE);
        let mut words = vec![7; 16];
        let first = words.as_ptr().addr() as u64 + shift;
        let region = match b.pd.try_register_at(&mut words, first, ALL_ACCESS) {
            Err(Errno::EINVAL) if shift != 0 => continue,
            region => region.unwrap(),
        };
        let wr = Wr::new(1, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[result.sge(0, 8)]);
        if a.qp.try_post(&wr.atomic_at(first + offset, rkey_of(region), 1, 0)) == 0 {
            assert_eq!(a.send_cq.next().status, Status::IBV_WC_REM_INV_REQ_ERR);
        }
        deregister(region);
        assert_eq!(words, [7; 16]);
        result.assert_filled(3);
    }
}

fn atomic_out_of_bounds_is_refused(device: &Device) {
    let status = refused(sides(device), ALL_ACCESS, add_at(16));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
}

fn atomic_with_a_wrong_rkey_is_refused(device: &Device) {
    for flip in [1, 0x100] {
        let status = refused(sides(device), ALL_ACCESS, |result, words| {
            let wr = Wr::new(1, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP, &[result.sge(0, 8)]);
            wr.atomic_at(words.address(), words.rkey() ^ flip, 7, 8)
        });
        assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

/// The device may refuse the request when it is posted, or let it fail.
fn atomic_with_too_little_room_for_its_result_changes_nothing(device: &Device) {
    for length in [1, 4, 7] {
        let (a, b) = sides(device);
        let result = a.pd.register_filled(vec![3; 16], LOCAL_WRITE);
        let words = b.pd.register_filled(vec![7; 16], ALL_ACCESS);
        if a.qp.try_post(&Wr::fetch_add(1, &[result.sge(0, length)], &words, 0, 1)) == 0 {
            assert_eq!(a.send_cq.next().status, Status::IBV_WC_LOC_LEN_ERR);
        }
        words.assert_filled(7);
        result.assert_filled(3);
    }
}

fn result_goes_nowhere_without_local_write(device: &Device) {
    let (a, b) = sides(device);
    let (result, word) = (a.pd.register(8, 0), word(&b, 5));
    a.qp.post(&fetch_and_add(1, &result, &word, 1));
    a.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
    assert_eq!(number(&result), 0);
}

fn right_to_atomics_gives_none_to_write_or_read(device: &Device) {
    let writes = |result: &Mr, words: &Mr| Wr::write(1, &[result.sge(0, 8)], words, 0);
    let reads = |result: &Mr, words: &Mr| Wr::read(1, &[result.sge(0, 8)], words, 0);
    for region in [ATOMIC, ATOMIC | REMOTE_READ] {
        let status = refused(sides(device), region, writes);
        assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    }
    for region in [ATOMIC, ATOMIC | REMOTE_WRITE] {
        let status = refused(sides(device), region, reads);
        assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

fn more_atomics_than_resources_wait_for_each_other(device: &Device) {
    let has = device.attributes().atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE;
    device.needs(has, "the device has no atomics");
    let knobs = Knobs { rd_atomic: 1, ..Knobs::default() };
    let (a, b) = pair_with(device, &Size::default(), &knobs);
    let (result, word) = (a.pd.register(8, LOCAL_WRITE), word(&b, 0));
    for n in 0..20 {
        a.qp.post(&fetch_and_add(2 * n, &result, &word, 1));
        a.qp.post(&Wr::read(2 * n + 1, &[result.sge(0, 8)], &word, 0));
    }
    for n in 0..40 {
        a.send_cq.expect_success(n);
    }
    assert_eq!((number(&result), number(&word)), (20, 20));
}
