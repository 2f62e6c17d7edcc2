//! Compare-and-swap and fetch-and-add.

use rdma_sys::{ibv_qp_state, ibv_wc_opcode, ibv_wc_status as Status, ibv_wr_opcode as Opcode};

use crate::rig::connect::{Knobs, pair, pair_with};
use crate::rig::memory::{Mr, deregister, key_of};
use crate::rig::post::Wr;
use crate::rig::{LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_WRITE, Size, on_each_device};

/// Rights of queue pair and region for atomics alone.
const ATOMIC: u32 = LOCAL_WRITE | REMOTE_ATOMIC;

fn knobs() -> Knobs {
    Knobs { access: ATOMIC, ..Knobs::default() }
}

fn compare_and_swap(wr_id: u64, result: &Mr, word: &Mr, compare: u64, swap: u64) -> Wr {
    let sges = [result.sge(0, 8)];
    Wr::new(wr_id, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP, &sges).atomic(word, 0, compare, swap)
}

fn fetch_and_add(wr_id: u64, result: &Mr, word: &Mr, add: u64) -> Wr {
    let sges = [result.sge(0, 8)];
    Wr::new(wr_id, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &sges).atomic(word, 0, add, 0)
}

fn number(memory: Vec<u8>) -> u64 {
    u64::from_ne_bytes(memory[..8].try_into().unwrap())
}

#[test]
fn a_swap_happens_only_if_the_comparison_holds_and_brings_what_was_there() {
    on_each_device("atomic-swap", |device| {
        let (a, b) = pair_with(device, &Size::default(), &knobs());
        let results = [a.pd.register(8, LOCAL_WRITE), a.pd.register(8, LOCAL_WRITE)];
        let word = b.pd.register_filled(5_u64.to_ne_bytes().to_vec(), ATOMIC);
        a.qp.post(&compare_and_swap(1, &results[0], &word, 5, 6));
        a.qp.post(&compare_and_swap(2, &results[1], &word, 5, 7));
        for n in [1, 2] {
            let wc = a.send_cq.expect_success(n);
            assert_eq!((wc.opcode, wc.byte_len), (ibv_wc_opcode::IBV_WC_COMP_SWAP, 8));
        }
        let [first, second] = results;
        assert_eq!((number(first.deregister()), number(second.deregister())), (5, 6));
        assert_eq!(number(word.deregister()), 6);
    });
}

#[test]
fn an_addition_wraps_and_brings_what_was_there() {
    on_each_device("atomic-add", |device| {
        let (a, b) = pair_with(device, &Size::default(), &knobs());
        let result = a.pd.register(8, LOCAL_WRITE);
        let word = b.pd.register_filled(u64::MAX.to_ne_bytes().to_vec(), ATOMIC);
        a.qp.post(&fetch_and_add(1, &result, &word, 3));
        let wc = a.send_cq.expect_success(1);
        assert_eq!((wc.opcode, wc.byte_len), (ibv_wc_opcode::IBV_WC_FETCH_ADD, 8));
        assert_eq!(number(result.deregister()), u64::MAX);
        assert_eq!(number(word.deregister()), 2);
    });
}

#[test]
fn additions_of_many_queue_pairs_are_all_there() {
    const ROUNDS: u64 = 200;
    on_each_device("atomic-many", |device| {
        let (a, b) = pair_with(device, &Size::default(), &knobs());
        let (c, d) = pair_with(device, &Size::default(), &knobs());
        let word = b.pd.register(8, ATOMIC);
        // Once more in the other receiver's domain.
        let alias = d.pd.try_register(word.start(), 8, ATOMIC).unwrap();
        std::thread::scope(|threads| {
            for (side, key) in [(&a, word.key()), (&c, key_of(alias))] {
                let word = &word;
                threads.spawn(move || {
                    let result = side.pd.register(8, LOCAL_WRITE);
                    let add = Wr::new(1, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[result.sge(0, 8)])
                        .atomic_at(word.address(), key, 1, 0);
                    for _ in 0..ROUNDS {
                        side.qp.post(&add);
                        side.send_cq.expect_success(1);
                    }
                });
            }
        });
        deregister(alias);
        assert_eq!(number(word.deregister()), 2 * ROUNDS);
    });
}

#[test]
fn what_an_atomic_may_not_touch_is_refused_and_stays() {
    on_each_device("atomic-refused", |device| {
        let refused = |access: u32, region: u32, offset: usize, length: usize, status| {
            let knobs = Knobs { access, ..Knobs::default() };
            let (a, b) = pair_with(device, &Size::default(), &knobs);
            let result = a.pd.register(16, LOCAL_WRITE);
            let word = b.pd.register_filled(vec![7; 16], region);
            let sges = [result.sge(0, length)];
            let wr = Wr::new(1, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &sges);
            a.qp.post(&wr.atomic(&word, offset, 1, 0));
            a.send_cq.expect(1, status);
            assert_eq!(a.qp.state(), ibv_qp_state::IBV_QPS_ERR);
            assert_eq!(word.deregister(), [7; 16]);
        };
        let writable = LOCAL_WRITE | REMOTE_WRITE;
        refused(ATOMIC, writable, 0, 8, Status::IBV_WC_REM_ACCESS_ERR);
        refused(writable, ATOMIC, 0, 8, Status::IBV_WC_REM_INV_REQ_ERR);
        refused(ATOMIC, ATOMIC, 4, 8, Status::IBV_WC_REM_INV_REQ_ERR);
        refused(ATOMIC, ATOMIC, 16, 8, Status::IBV_WC_REM_ACCESS_ERR);
        refused(ATOMIC, ATOMIC, 0, 4, Status::IBV_WC_LOC_LEN_ERR);
        refused(ATOMIC, ATOMIC, 0, 16, Status::IBV_WC_LOC_LEN_ERR);
    });
}

#[test]
fn an_atomic_takes_a_resource_and_is_never_inline() {
    on_each_device("atomic-post", |device| {
        let (a, b) = pair(device);
        let (result, word) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, ATOMIC));
        let wr = fetch_and_add(1, &result, &word, 1);
        assert_eq!(a.qp.try_post(&wr.inline()), rdma_sys::Errno::EINVAL.raw());
        let (c, _d) =
            pair_with(device, &Size::default(), &Knobs { rd_atomic: 0, ..Knobs::default() });
        let wr = fetch_and_add(1, &result, &word, 1);
        assert_eq!(c.qp.try_post(&wr), rdma_sys::Errno::EINVAL.raw());
    });
}
