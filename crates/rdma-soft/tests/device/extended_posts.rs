//! Posting by function calls (`ibv_wr_*`): the same requests as those of a list, all or none.

use std::sync::atomic::{AtomicBool, Ordering};

use rdma_soft::Builder;
use rdma_sys::{
    Errno, ibv_qp_create_send_ops_flags as Op, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
    ibv_send_flags, ibv_wc_opcode as Opcode, ibv_wc_status as Status, ibv_wr_opcode,
};

use crate::rig::connect::{Knobs, Side, connect_sides};
use crate::rig::extended::{OPERATIONS, init};
use crate::rig::post::Wr;
use crate::rig::window::{BINDABLE, TYPE_2, invalidated};
use crate::rig::{
    ALL_ACCESS, Context, LOCAL_WRITE, Mr, REMOTE_ATOMIC, REMOTE_WRITE, Size, imm_of,
    on_each_device, on_each_held_device, until,
};

const EINVAL: i32 = Errno::EINVAL.raw();
const ENOMEM: i32 = Errno::ENOMEM.raw();
const EOPNOTSUPP: i32 = Errno::EOPNOTSUPP.raw();

/// Two connected queue pairs, with memory; A posts by function calls.
struct Scene {
    at_a: Mr,
    at_b: Mr,
    a: Side,
    b: Side,
}

impl Scene {
    fn new(device: &str) -> Self {
        Self::with(device, &Size::default(), OPERATIONS)
    }

    fn with(device: &str, size: &Size, operations: u64) -> Self {
        let (a, b) = (Side::extended(device, size, operations), Side::new(device, size, 256));
        let access = ALL_ACCESS | REMOTE_ATOMIC;
        connect_sides(&a, &b, &Knobs { access, ..Knobs::default() });
        let at_a = a.pd.register_filled((0..64).collect(), LOCAL_WRITE);
        let at_b = b.pd.register_filled(vec![0; 64], access);
        Self { at_a, at_b, a, b }
    }

    fn write(&self, wr_id: u64, place: usize) -> Wr {
        Wr::write(wr_id, &[self.at_a.sge(place, 8)], &self.at_b, place)
    }

    #[track_caller]
    fn expect_successes(&self, wr_ids: std::ops::Range<u64>) {
        for wr_id in wr_ids {
            self.a.send_cq.expect_success(wr_id);
        }
    }

    /// What is posted fails with this, and nothing of it, nor anything else, happens.
    #[track_caller]
    fn expect_refusal(&self, errno: i32, what: &str) {
        assert_eq!(self.a.qp.complete(), errno, "{what}");
        assert!(self.a.send_cq.is_empty() && self.b.receive_cq.is_empty(), "{what}");
        self.at_b.assert_filled(0);
        self.a.qp.assert_ready();
    }
}

#[test]
fn every_kind_of_request_does_what_it_does_in_a_list() {
    on_each_device("wr-kinds", |device| {
        let mut rounds = Vec::new();
        for calls in [false, true] {
            let scene = Scene::new(device);
            let (a, b) = (&scene.a, &scene.b);
            let local = [scene.at_a.sge(0, 10), scene.at_a.sge(32, 6)];
            let word = [scene.at_a.sge(56, 8)];
            let swap = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            let add = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            let requests = [
                Wr::send(1, &local),
                Wr::send(2, &local[..1]).with_imm(7),
                Wr::write(3, &local, &scene.at_b, 0),
                Wr::write(4, &[], &scene.at_b, 0).with_imm(8),
                Wr::read(5, &local[1..], &scene.at_b, 0),
                Wr::new(6, swap, &word).atomic(&scene.at_b, 48, 0, 5),
                Wr::new(7, add, &word).atomic(&scene.at_b, 48, 2, 0),
                Wr::send(8, &[]).flags(ibv_send_flags::IBV_SEND_SOLICITED).fenced(),
            ];
            let mut seen = Vec::new();
            for wr in &requests {
                if matches!(wr.wr.wr_id, 1 | 2 | 4 | 8) {
                    b.qp.post_receive(wr.wr.wr_id, &[scene.at_b.sge(20, 20)]);
                }
                let posted = match calls {
                    true => a.qp.try_call(std::slice::from_ref(wr)),
                    false => a.qp.try_post(wr),
                };
                assert_eq!(posted, 0);
                let wc = a.send_cq.expect_success(wr.wr.wr_id);
                let received = matches!(wr.wr.wr_id, 1 | 2 | 4 | 8)
                    .then(|| b.receive_cq.expect_success(wr.wr.wr_id))
                    .map(|wc| (wc.opcode, wc.byte_len, wc.wc_flags, imm_of(&wc)));
                seen.push((wc.opcode, wc.byte_len, received));
            }
            rounds.push((seen, scene.at_a.deregister(), scene.at_b.deregister()));
        }
        assert_eq!(rounds[0], rounds[1]);
        assert_eq!(rounds[1].2[48..56], 7_u64.to_ne_bytes(), "swapped and added to");
    });
}

#[test]
fn windows_are_bound_and_keys_invalidated_by_calls() {
    on_each_device("wr-windows", |device| {
        let (grantor, user) = (
            Side::extended(device, &Size::default(), OPERATIONS),
            Side::extended(device, &Size::default(), OPERATIONS),
        );
        connect_sides(&grantor, &user, &Knobs::default());
        let shown = grantor.pd.register(64, BINDABLE);
        let local = user.pd.register_filled(vec![7; 64], LOCAL_WRITE);
        let mw = grantor.pd.mw(TYPE_2);
        let write =
            |key| Wr::write(2, &[local.sge(0, 8)], &shown, 16).remote(shown.address() + 16, key);
        let (first, second) = (mw.key_with(1), mw.key_with(2));
        let bind = |key| Wr::bind(1, &mw, key, shown.part(16, 8, REMOTE_WRITE));
        let invalidate = Wr::local_invalidate(3, first);
        assert_eq!(grantor.qp.try_call(&[bind(first)]), 0);
        assert_eq!(grantor.send_cq.expect_success(1).opcode, Opcode::IBV_WC_BIND_MW);
        assert_eq!(user.qp.try_call(&[write(first)]), 0);
        user.send_cq.expect_success(2);
        assert_eq!(grantor.qp.try_call(&[invalidate, bind(second)]), 0);
        assert_eq!(grantor.send_cq.expect_success(3).opcode, Opcode::IBV_WC_LOCAL_INV);
        grantor.send_cq.expect_success(1);
        grantor.qp.post_receive(5, &[]);
        let give_back = Wr::send_with_invalidate(4, &[], second);
        assert_eq!(user.qp.try_call(&[write(second), give_back, write(second)]), 0);
        user.send_cq.expect_success(2);
        user.send_cq.expect_success(4);
        assert_eq!(invalidated(&grantor.receive_cq.expect_success(5)), Some(second));
        user.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
        drop(mw);
        assert_eq!(shown.deregister()[16..24], [7; 8]);
    });
}

#[test]
fn a_batch_is_executed_when_it_is_complete_and_in_order() {
    on_each_device("wr-batch", |device| {
        let scene = Scene::new(device);
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(1, 0));
        scene.a.qp.build(&scene.write(2, 8).unsignaled());
        scene.a.qp.build(&scene.write(3, 16));
        assert!(scene.a.send_cq.is_empty());
        scene.at_b.assert_filled(0);
        assert_eq!(scene.a.qp.complete(), 0);
        scene.a.send_cq.expect_success(1);
        scene.a.send_cq.expect_success(3);
        assert!(scene.a.send_cq.is_empty());
        assert_eq!(scene.at_b.bytes()[..24], (0..24).collect::<Vec<u8>>());
        assert_eq!(scene.at_b.bytes()[24..], [0; 40]);
    });
}

#[test]
fn an_empty_batch_posts_nothing() {
    let scene = Scene::new("soft0");
    scene.a.qp.start();
    scene.expect_refusal(0, "nothing to refuse");
}

#[test]
fn an_aborted_batch_is_forgotten() {
    on_each_device("wr-abort", |device| {
        let scene = Scene::new(device);
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(1, 0));
        scene.a.qp.set(&[]);
        scene.a.qp.abort();
        scene.a.qp.start();
        scene.expect_refusal(0, "neither the request nor its mistake");
    });
}

#[test]
fn a_mistake_is_told_at_the_end_and_nothing_is_posted() {
    on_each_device("wr-mistakes", |device| {
        let size = Size { send_wr: 8, sge: 2, inline: 16, ..Size::default() };
        let all_but_send = OPERATIONS & !u64::from(Op::IBV_QP_EX_WITH_SEND.0);
        let scene = Scene::with(device, &size, all_but_send);
        let (qp, sge) = (&scene.a.qp, scene.at_a.sge(0, 4));
        let write = Wr::write(2, &[], &scene.at_b, 0);
        let mistakes: [(&str, i32, &dyn Fn()); 11] = [
            ("three elements of two", EINVAL, &|| qp.set(&[sge; 3])),
            ("data twice", EINVAL, &|| (0..2).for_each(|_| qp.set(&[sge]))),
            ("no data, then data", EINVAL, &|| [&[][..], &[sge]].iter().for_each(|l| qp.set(l))),
            ("17 bytes of 16", EINVAL, &|| qp.set_inline(&[&[1; 17]])),
            ("17 bytes in pieces", EINVAL, &|| qp.set_inline(&[&[1; 16], &[1]])),
            ("inline data twice", EINVAL, &|| (0..2).for_each(|_| qp.set_inline(&[&[1]]))),
            ("inline data and elements", EINVAL, &|| {
                qp.set_inline(&[&[1]]);
                qp.set(&[sge]);
            }),
            ("an address on a connection", EINVAL, &|| qp.set_address(std::ptr::null_mut(), 1, 1)),
            ("an operation that was not asked for", EOPNOTSUPP, &|| qp.build(&Wr::send(3, &[]))),
            ("more requests than the queue has", ENOMEM, &|| {
                (0..8).for_each(|_| qp.build(&write));
            }),
            ("flags that nobody knows", EINVAL, &|| {
                qp.build(&write.clone().flags(ibv_send_flags(1 << 30)));
            }),
        ];
        for (what, errno, make) in mistakes {
            qp.start();
            qp.begin(&scene.write(1, 0));
            make();
            qp.build(&scene.write(9, 8));
            scene.expect_refusal(errno, what);
        }
        qp.start();
        qp.set(&[sge]);
        scene.expect_refusal(EINVAL, "data without a request");
        qp.start();
        qp.build(&Wr::send(3, &[]));
        qp.set(&[sge; 3]);
        scene.expect_refusal(EOPNOTSUPP, "the first of two mistakes");
        assert_eq!(qp.try_call(&[scene.write(1, 0)]), 0, "and then it works");
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn inline_data_of_a_read_is_refused() {
    let scene = Scene::new("soft0");
    scene.a.qp.start();
    scene.a.qp.build(&scene.write(1, 0));
    scene.a.qp.begin(&Wr::read(2, &[], &scene.at_b, 0));
    scene.a.qp.set_inline(&[&[1; 8]]);
    scene.expect_refusal(EINVAL, "the write before it is not posted either");
}

#[test]
fn a_batch_that_does_not_fit_into_the_queue_is_not_posted() {
    on_each_device("wr-full", |device| {
        let scene = Scene::with(device, &Size { send_wr: 4, ..Size::default() }, OPERATIONS);
        let qp = &scene.a.qp;
        let three = [1, 2, 3].map(|n| Wr::write(n, &[], &scene.at_b, 0));
        assert_eq!(qp.try_call(&three), 0);
        qp.start();
        qp.build(&scene.write(4, 0));
        qp.build(&scene.write(5, 8));
        assert_eq!(qp.complete(), ENOMEM);
        scene.expect_successes(1..4);
        assert!(scene.a.send_cq.is_empty());
        scene.at_b.assert_filled(0);
        let four = [1, 2, 3, 4].map(|n| Wr::write(n, &[], &scene.at_b, 0));
        assert_eq!(qp.try_call(&four), 0);
        scene.expect_successes(1..5);
    });
}

#[test]
fn inline_data_is_copied_at_the_call() {
    on_each_device("wr-inline", |device| {
        let scene = Scene::new(device);
        let mut bytes = vec![1_u8; 10];
        scene.a.qp.start();
        scene.a.qp.begin(&Wr::write(1, &[], &scene.at_b, 0));
        scene.a.qp.set_inline(&[&bytes]);
        bytes.fill(2);
        scene.a.qp.begin(&Wr::write(2, &[], &scene.at_b, 10));
        scene.a.qp.set_inline(&[&bytes[..3], &[], &[9], &bytes[..2]]);
        bytes.fill(3);
        // Programs that also fill lists leave the flag set; what counts is how the data is given.
        scene.a.qp.build(&Wr::read(3, &[scene.at_a.sge(0, 8)], &scene.at_b, 8).inline());
        assert_eq!(scene.a.qp.complete(), 0);
        drop(bytes);
        scene.expect_successes(1..4);
        let expected = [&[1; 10][..], &[2, 2, 2, 9, 2, 2]].concat();
        assert_eq!(scene.at_b.bytes()[..16], expected);
        assert_eq!(scene.at_a.bytes()[..8], expected[8..]);
    });
}

#[test]
fn a_queue_pair_in_error_flushes_a_batch_and_an_unready_one_refuses_it() {
    on_each_device("wr-states", |device| {
        let scene = Scene::new(device);
        scene.a.qp.to_error();
        assert_eq!(scene.a.qp.try_call(&[scene.write(1, 0), scene.write(2, 8).unsignaled()]), 0);
        scene.a.send_cq.expect_flushed([1, 2]);
        scene.a.qp.to_reset();
        assert_eq!(scene.a.qp.try_call(&[scene.write(3, 0)]), EINVAL);
        assert!(scene.a.send_cq.is_empty());
        scene.at_b.assert_filled(0);
    });
}

#[test]
fn a_request_that_fails_flushes_those_behind_it() {
    on_each_device("wr-failure", |device| {
        let scene = Scene::new(device);
        let bad = scene.write(2, 8).remote(scene.at_b.address(), scene.at_b.key() ^ 0x100);
        assert_eq!(scene.a.qp.try_call(&[scene.write(1, 0), bad, scene.write(3, 16)]), 0);
        scene.a.send_cq.expect_success(1);
        scene.a.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
        scene.a.send_cq.expect_flushed([3]);
        assert_eq!(scene.a.qp.state(), ibv_qp_state::IBV_QPS_ERR);
    });
}

#[test]
fn a_batch_waits_for_its_receiver_and_what_is_posted_then_waits_behind_it() {
    on_each_device("wr-not-ready", |device| {
        let scene = Scene::new(device);
        assert_eq!(scene.a.qp.try_call(&[Wr::send(1, &[]), Wr::send(2, &[])]), 0);
        assert_eq!(scene.a.qp.try_call(&[scene.write(3, 0)]), 0);
        scene.a.qp.post(&scene.write(4, 8));
        assert!(scene.a.send_cq.is_empty());
        (1..3).for_each(|n| scene.b.qp.post_receive(n, &[]));
        scene.expect_successes(1..5);
    });
}

#[test]
fn a_batch_behind_a_waiting_request_does_not_try_it_again() {
    let device = Builder::new("wr-behind").install().unwrap();
    let scene = Scene::new("wr-behind");
    assert_eq!(scene.a.qp.try_call(&[Wr::send(1, &[])]), 0);
    assert_eq!(scene.a.qp.try_call(&[scene.write(2, 0)]), 0);
    assert_eq!(device.counters().rcvd_rnr_err, 1);
}

#[test]
fn a_held_batch_is_in_flight_and_ends_with_its_queue_pair() {
    on_each_held_device("wr-held", |device| {
        let mut scene = Scene::new(device.name());
        assert_eq!(scene.a.qp.try_call(&[scene.write(1, 0), scene.write(2, 8)]), 0);
        assert_eq!(device.in_flight(scene.a.qp.qpn()), 2);
        device.release(scene.a.qp.qpn(), 1);
        scene.a.send_cq.expect_success(1);
        scene.a.qp.destroy();
        assert!(scene.a.send_cq.is_empty());
        assert_eq!(scene.at_b.bytes()[8..], [0; 56]);
    });
}

#[test]
fn a_list_may_be_posted_while_a_batch_is_built() {
    on_each_device("wr-between", |device| {
        let scene = Scene::new(device);
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(1, 0));
        scene.a.qp.post(&scene.write(2, 8));
        assert_eq!(scene.a.qp.complete(), 0);
        scene.a.send_cq.expect_success(2);
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn starting_twice_is_a_mistake_that_the_end_tells() {
    on_each_device("wr-nested", |device| {
        let scene = Scene::new(device);
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(1, 0));
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(2, 8));
        scene.expect_refusal(EINVAL, "the end of both");
        scene.expect_refusal(EINVAL, "there is nothing more to end");
        assert_eq!(scene.a.qp.try_call(&[scene.write(3, 16)]), 0);
        scene.a.send_cq.expect_success(3);
    });
}

#[test]
fn calls_out_of_turn_do_nothing() {
    let scene = Scene::new("soft0");
    scene.a.qp.build(&scene.write(1, 0));
    scene.expect_refusal(EINVAL, "there was no start");
    scene.a.qp.abort();
    scene.a.qp.start();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            scene.a.qp.build(&scene.write(2, 8));
            assert_eq!(scene.a.qp.complete(), EINVAL, "another thread's");
            scene.a.qp.abort();
        });
    });
    scene.a.qp.build(&scene.write(3, 16));
    assert_eq!(scene.a.qp.complete(), 0);
    scene.a.send_cq.expect_success(3);
    assert!(scene.a.send_cq.is_empty());
}

#[test]
fn another_thread_waits_for_the_end_of_a_batch() {
    let scene = Scene::new("soft0");
    let (trying, posted) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(1, 0));
        scope.spawn(|| {
            trying.store(true, Ordering::SeqCst);
            assert_eq!(scene.a.qp.try_call(&[scene.write(2, 8)]), 0);
            posted.store(true, Ordering::SeqCst);
        });
        until("the other thread", || trying.load(Ordering::SeqCst));
        for _ in 0..1000 {
            std::thread::yield_now();
            assert!(!posted.load(Ordering::SeqCst), "two threads in one batch");
        }
        assert_eq!(scene.a.qp.complete(), 0);
    });
    scene.a.send_cq.expect_success(1);
    scene.a.send_cq.expect_success(2);
}

#[test]
fn batches_of_several_threads_do_not_mix() {
    on_each_device("wr-threads", |device| {
        let size = Size { send_wr: 256, ..Size::default() };
        let scene = Scene::with(device, &size, OPERATIONS);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let scene = &scene;
                scope.spawn(move || {
                    for batch in 0..16 {
                        let first = 1000 * thread + 10 * batch;
                        let wrs = [0, 1, 2].map(|n| Wr::write(first + n, &[], &scene.at_b, 0));
                        assert_eq!(scene.a.qp.try_call(&wrs), 0);
                    }
                });
            }
        });
        for _ in 0..64 {
            let first = scene.a.send_cq.next().wr_id;
            assert_eq!(first % 10, 0);
            scene.a.send_cq.expect_success(first + 1);
            scene.a.send_cq.expect_success(first + 2);
        }
    });
}

#[test]
fn what_was_not_asked_for_is_not_there() {
    let context = crate::rig::open_default("soft0");
    let (cq, pd) = (context.cq(4), context.pd());
    let classic = pd.qp(&cq, &cq, &Size::default());
    assert!(classic.as_ex().is_null());
    let base = init(&pd, &cq, &cq, &Size::default(), OPERATIONS);
    let only_a_domain = ibv_qp_init_attr_ex { comp_mask: 1, ..base };
    assert!(context.try_qp_ex(&only_a_domain).unwrap().as_ex().is_null());
    let no_operations = ibv_qp_init_attr_ex { comp_mask: 1 | 4, ..base };
    assert!(context.try_qp_ex(&no_operations).unwrap().as_ex().is_null());
    assert!(!context.try_qp_ex(&base).unwrap().as_ex().is_null());
    assert!(
        !context
            .try_qp_ex(&ibv_qp_init_attr_ex { send_ops_flags: 0, ..base })
            .unwrap()
            .as_ex()
            .is_null()
    );
}

#[test]
fn attributes_that_the_device_does_not_have_are_refused() {
    let context = crate::rig::open_default("soft0");
    let (cq, pd) = (context.cq(4), context.pd());
    let base = init(&pd, &cq, &cq, &Size::default(), OPERATIONS);
    let try_qp = |attr: ibv_qp_init_attr_ex| context.try_qp_ex(&attr).err();
    let (unsupported, invalid) = (Some(Errno::EOPNOTSUPP), Some(Errno::EINVAL));
    for bit in [2, 8, 16, 32, 128, 1 << 31] {
        assert_eq!(
            try_qp(ibv_qp_init_attr_ex { comp_mask: 65 | bit, ..base }),
            unsupported,
            "{bit}"
        );
    }
    let flags = |comp_mask| ibv_qp_init_attr_ex { comp_mask, create_flags: 2, ..base };
    assert_eq!(try_qp(flags(65 | 4)), unsupported);
    assert_eq!(try_qp(flags(65)), None, "flags that do not count");
    for operation in [1 << 10, 1 << 11, 1 << 12, 1 << 63] {
        let send_ops_flags = OPERATIONS | operation;
        assert_eq!(
            try_qp(ibv_qp_init_attr_ex { send_ops_flags, ..base }),
            unsupported,
            "{operation}"
        );
    }
    assert_eq!(try_qp(ibv_qp_init_attr_ex { comp_mask: 64, ..base }), invalid, "no domain");
    let raw = ibv_qp_init_attr_ex { qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET, ..base };
    assert_eq!(try_qp(raw), unsupported);
    let too_large = Size { send_wr: u32::MAX, ..Size::default() };
    assert_eq!(try_qp(init(&pd, &cq, &cq, &too_large, OPERATIONS)), invalid);
}

#[test]
fn a_device_without_atomics_does_not_offer_them() {
    Builder::new("wr-plain").without_atomics().install().unwrap();
    let context = Context::open("wr-plain");
    let (cq, pd) = (context.cq(4), context.pd());
    let atomics = [Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD];
    let try_qp = |operations| context.try_qp_ex(&init(&pd, &cq, &cq, &Size::default(), operations));
    for atomic in atomics {
        assert_eq!(try_qp(atomic.0.into()).err(), Some(Errno::EOPNOTSUPP));
    }
    let others = OPERATIONS & !atomics.iter().fold(0, |all, op| all | u64::from(op.0));
    assert!(try_qp(others).is_ok());
}
