//! Posting by function calls (`ibv_wr_*`), beyond the contract: the errors of mistakes, calls out of order, and
//! unsupported features.

use rdma_soft::Builder;
use rdma_sys::{
    Errno, ibv_qp_create_send_ops_flags as Op, ibv_qp_init_attr_ex, ibv_qp_type, ibv_send_flags,
};

use crate::device::rig::batch::Scene;
use crate::device::rig::extended::{OPERATIONS, init};
use crate::device::rig::post::Wr;
use crate::device::rig::{Context, Size, on_each_device, on_each_held_device};

const EINVAL: i32 = Errno::EINVAL.raw();
const ENOMEM: i32 = Errno::ENOMEM.raw();
const EOPNOTSUPP: i32 = Errno::EOPNOTSUPP.raw();

/// The batch fails with this error, and nothing of it is posted.
#[track_caller]
fn expect_refusal(scene: &Scene, errno: i32, what: &str) {
    assert_eq!(scene.a.qp.complete(), errno, "{what}");
    assert!(scene.a.send_cq.is_empty() && scene.b.receive_cq.is_empty(), "{what}");
    scene.at_b.assert_filled(0);
    scene.a.qp.assert_ready();
}

#[test]
fn a_mistake_is_reported_at_the_end_and_nothing_is_posted() {
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
            ("an operation that was not requested at creation", EOPNOTSUPP, &|| {
                qp.build(&Wr::send(3, &[]))
            }),
            ("more requests than the queue has", ENOMEM, &|| {
                (0..8).for_each(|_| qp.build(&write));
            }),
            ("undefined flags", EINVAL, &|| {
                qp.build(&write.clone().flags(ibv_send_flags(1 << 30)));
            }),
        ];
        for (what, errno, make) in mistakes {
            qp.start();
            qp.begin(&scene.write(1, 0));
            make();
            qp.build(&scene.write(9, 8));
            expect_refusal(&scene, errno, what);
        }
        qp.start();
        qp.set(&[sge]);
        expect_refusal(&scene, EINVAL, "data without a request");
        qp.start();
        qp.build(&Wr::send(3, &[]));
        qp.set(&[sge; 3]);
        expect_refusal(&scene, EOPNOTSUPP, "the first of two mistakes");
        assert_eq!(qp.try_call(&[scene.write(1, 0)]), 0, "the next batch succeeds");
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn inline_data_of_a_read_is_refused() {
    rdma_soft::install();
    let scene = Scene::new("soft0");
    scene.a.qp.start();
    scene.a.qp.build(&scene.write(1, 0));
    scene.a.qp.begin(&Wr::read(2, &[], &scene.at_b, 0));
    scene.a.qp.set_inline(&[&[1; 8]]);
    expect_refusal(&scene, EINVAL, "the write before it is not posted either");
}

#[test]
fn the_inline_flag_alone_makes_nothing_inline() {
    rdma_soft::install();
    // Programs that also fill lists leave the flag set; the setter of the data decides.
    let scene = Scene::new("soft0");
    scene.at_b.fill(9);
    scene.a.qp.start();
    scene.a.qp.build(&Wr::read(3, &[scene.at_a.sge(0, 8)], &scene.at_b, 8).inline());
    assert_eq!(scene.a.qp.complete(), 0);
    scene.a.send_cq.expect_success(3);
    assert_eq!(scene.at_a.bytes()[..8], [9; 8]);
}

#[test]
fn a_batch_after_a_waiting_request_does_not_retry_it() {
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
fn starting_twice_is_reported_at_the_end() {
    on_each_device("wr-nested", |device| {
        let scene = Scene::new(device);
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(1, 0));
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(2, 8));
        expect_refusal(&scene, EINVAL, "the end of both");
        expect_refusal(&scene, EINVAL, "no batch is open");
        assert_eq!(scene.a.qp.try_call(&[scene.write(3, 16)]), 0);
        scene.a.send_cq.expect_success(3);
    });
}

#[test]
fn calls_out_of_order_do_nothing() {
    rdma_soft::install();
    let scene = Scene::new("soft0");
    scene.a.qp.build(&scene.write(1, 0));
    expect_refusal(&scene, EINVAL, "no batch was started");
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
fn unrequested_operations_have_no_function() {
    let context = crate::device::rig::open_default("soft0");
    let (cq, pd) = (context.cq(4), context.pd());
    let base = init(&pd, &cq, &cq, &Size::default(), OPERATIONS);
    let no_operations = ibv_qp_init_attr_ex { comp_mask: 1 | 4, ..base };
    assert!(context.try_qp_ex(&no_operations).unwrap().as_ex().is_null());
    assert!(
        !context
            .try_qp_ex(&ibv_qp_init_attr_ex { send_ops_flags: 0, ..base })
            .unwrap()
            .as_ex()
            .is_null()
    );
}

#[test]
fn unsupported_attributes_are_refused() {
    let context = crate::device::rig::open_default("soft0");
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
    assert_eq!(try_qp(flags(65)), None, "flags without their mask bit are ignored");
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
