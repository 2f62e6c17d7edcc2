//! Extended completion queues, beyond the contract: junk in invalid fields, calls out of order, and unsupported
//! features.

use rdma_sys::{Errno, ibv_cq_init_attr_ex, ibv_wc_opcode as Opcode, ibv_wc_status as Status};

use crate::device::rig::connect::{Knobs, Side, connect, connect_sides, endpoint};
use crate::device::rig::extended::{JUNK, Read, STANDARD, TIMESTAMP, WALLCLOCK};
use crate::device::rig::post::Wr;
use crate::device::rig::{Size, on_each_device, on_each_held_device, soft, until};

const ENOENT: i32 = Errno::ENOENT.raw();
const EINVAL: i32 = Errno::EINVAL.raw();
const EOVERFLOW: i32 = Errno::EOVERFLOW.raw();

fn pair(device: &str, fields: u64) -> (Side, Side) {
    pair_with_room(device, 64, fields)
}

fn pair_with_room(device: &str, capacity: u32, fields: u64) -> (Side, Side) {
    let (a, b) =
        (Side::with_fields(device, capacity, fields), Side::with_fields(device, 64, fields));
    connect_sides(&a, &b, &Knobs::default());
    (a, b)
}

/// Sends that many empty messages, and waits until all are executed.
fn exchange(a: &Side, b: &Side, wr_ids: std::ops::Range<u64>) {
    for wr_id in wr_ids {
        b.qp.post_receive(wr_id, &[]);
        a.qp.post(&Wr::send(wr_id, &[]));
    }
    until("all executed", || soft(a.context.name()).in_flight(a.qp.qpn()) == 0);
}

#[test]
fn a_field_that_was_not_requested_is_junk() {
    on_each_device("ex-not-asked", |device| {
        let (a, b) = pair(device, 0);
        exchange(&a, &b, 0..1);
        let cq = &b.receive_cq;
        assert_eq!(cq.start(), 0);
        let read = cq.read();
        let always = Read { opcode: Opcode::IBV_WC_RECV, vendor_err: 0, wc_flags: 0, ..JUNK };
        assert_eq!((cq.at(), read), ((0, Status::IBV_WC_SUCCESS), always));
        cq.end();
    });
}

#[test]
fn undefined_fields_of_a_failed_completion_are_junk() {
    on_each_device("ex-failed", |device| {
        let (a, _b) = pair(device, STANDARD);
        a.qp.to_error();
        a.qp.post(&Wr::send(6, &[]));
        a.send_cq.start_at_next();
        assert_eq!(a.send_cq.at(), (6, Status::IBV_WC_WR_FLUSH_ERR));
        let read = a.send_cq.read();
        assert_eq!((read.opcode, read.byte_len), (JUNK.opcode, JUNK.byte_len));
        a.send_cq.end();
    });
}

#[test]
fn starting_again_before_the_end_is_refused_and_changes_nothing() {
    on_each_device("ex-nested", |device| {
        let (a, b) = pair(device, STANDARD);
        exchange(&a, &b, 0..2);
        assert_eq!(a.send_cq.start(), 0);
        assert_eq!(a.send_cq.start(), Errno::EDEADLK.raw());
        assert_eq!(a.send_cq.at(), (0, Status::IBV_WC_SUCCESS));
        assert_eq!(a.send_cq.advance(), 0);
        assert_eq!(a.send_cq.at(), (1, Status::IBV_WC_SUCCESS));
        a.send_cq.end();
        assert_eq!(a.send_cq.start(), ENOENT);
    });
}

#[test]
fn calls_out_of_order_return_junk() {
    rdma_soft::install();
    let (a, b) = pair("soft0", STANDARD | TIMESTAMP);
    exchange(&a, &b, 0..2);
    let cq = &a.send_cq;
    assert_eq!((cq.advance(), cq.read()), (EINVAL, JUNK));
    cq.end();
    assert_eq!(cq.start(), 0);
    cq.end();
    assert_eq!((cq.advance(), cq.read()), (EINVAL, JUNK));
    assert_eq!(cq.start_with(1), EINVAL, "that bit is undefined");
    assert_eq!(cq.start(), 0, "the refused start began no batch");
    assert_eq!(cq.at().0, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!((cq.advance(), cq.read()), (EINVAL, JUNK), "another thread's batch");
            cq.end();
        });
    });
    assert_eq!(cq.read().qp_num, a.qp.number());
    cq.end();
}

#[test]
fn both_ways_of_polling_share_one_queue() {
    on_each_device("ex-mixed", |device| {
        let (a, b) = pair(device, STANDARD);
        exchange(&a, &b, 0..5);
        a.send_cq.expect_success(0);
        assert_eq!(a.send_cq.start(), 0);
        assert_eq!(a.send_cq.at().0, 1);
        a.send_cq.expect_success(2);
        assert_eq!((a.send_cq.advance(), a.send_cq.at().0), (0, 3));
        a.send_cq.end();
        a.send_cq.expect_success(4);
        assert!(a.send_cq.is_empty());
    });
}

#[test]
fn a_polled_completion_frees_its_slot() {
    on_each_device("ex-slots", |device| {
        let (a, b) = pair(device, STANDARD);
        let room = u64::from(Size::default().send_wr);
        exchange(&a, &b, 0..room);
        assert_eq!(a.qp.try_post(&Wr::send(99, &[])), Errno::ENOMEM.raw());
        assert_eq!((a.send_cq.start(), b.receive_cq.start()), (0, 0));
        b.qp.post_receive(98, &[]);
        a.qp.post(&Wr::send(98, &[]));
        a.send_cq.end();
        b.receive_cq.end();
    });
}

#[test]
fn overflow_is_an_error_of_the_poll_after_the_kept_completions() {
    on_each_device("ex-overflow", |device| {
        let (a, b) = pair_with_room(device, 2, STANDARD);
        for wr_id in 0..4 {
            b.qp.post_receive(wr_id, &[]);
            a.qp.post(&Wr::send(wr_id, &[]));
        }
        a.qp.wait_for_error();
        assert_eq!(a.send_cq.start(), 0);
        assert_eq!((a.send_cq.advance(), a.send_cq.at().0), (0, 1));
        assert_eq!(a.send_cq.advance(), EOVERFLOW);
        a.send_cq.end();
        assert_eq!((a.send_cq.start(), a.send_cq.start()), (EOVERFLOW, EOVERFLOW));
    });
}

#[test]
fn each_kind_of_timestamp_can_be_requested_alone() {
    rdma_soft::install();
    for (fields, counted, wallclock) in [(TIMESTAMP, true, false), (WALLCLOCK, false, true)] {
        let (a, b) = pair("soft0", fields);
        exchange(&a, &b, 0..1);
        assert_eq!(a.send_cq.start(), 0);
        let read = a.send_cq.read();
        assert_eq!(
            (read.timestamp != JUNK.timestamp, read.wallclock != JUNK.wallclock),
            (counted, wallclock)
        );
        a.send_cq.end();
    }
}

#[test]
fn a_held_request_is_stamped_when_it_is_released() {
    on_each_held_device("ex-held", |device| {
        let (a, b) = pair(device.name(), TIMESTAMP);
        b.qp.post_receive(1, &[]);
        a.qp.post(&Wr::send(1, &[]));
        assert_eq!((a.send_cq.start(), device.in_flight(a.qp.qpn())), (ENOENT, 1));
        let before = a.context.clock();
        device.release(a.qp.qpn(), 1);
        assert_eq!(a.send_cq.start(), 0);
        assert!(a.send_cq.read().timestamp >= before);
        a.send_cq.end();
    });
}

#[test]
fn a_timestamp_stays_with_its_completion_when_another_queue_pair_is_destroyed() {
    rdma_soft::install();
    let (a, b) = pair("soft0", TIMESTAMP);
    let mut second = a.pd.qp(&a.send_cq, &a.receive_cq, &Size::default());
    let at_second = endpoint(&a.context, &second);
    connect(&second, &at_second, &at_second, &Knobs::default());
    second.post_receive(1, &[]);
    second.post(&Wr::send(1, &[]));
    let before = a.context.clock();
    exchange(&a, &b, 7..8);
    second.destroy();
    assert_eq!((a.send_cq.start(), a.send_cq.at().0), (0, 7));
    assert!(a.send_cq.read().timestamp >= before);
    assert_eq!(a.send_cq.advance(), ENOENT);
    a.send_cq.end();
}

#[test]
fn unsupported_features_are_refused_at_creation() {
    let context = crate::device::rig::open_default("soft0");
    let base = ibv_cq_init_attr_ex { cqe: 4, wc_flags: STANDARD, ..Default::default() };
    let try_cq = |attr| context.try_cq_ex(&attr).err();
    let unsupported = Some(Errno::EOPNOTSUPP);
    for fields in [1 << 8, 1 << 9, 1 << 10, 1 << 12, 1 << 63] {
        let attr = ibv_cq_init_attr_ex { wc_flags: STANDARD | fields, ..base };
        assert_eq!(try_cq(attr), unsupported, "{fields:#x}");
    }
    for comp_mask in [2, 4] {
        assert_eq!(try_cq(ibv_cq_init_attr_ex { comp_mask, ..base }), unsupported);
    }
    let with_flags = |flags| ibv_cq_init_attr_ex { comp_mask: 1, flags, ..base };
    assert_eq!(try_cq(with_flags(2)), unsupported, "overruns cannot be ignored");
    assert_eq!(try_cq(with_flags(4)), unsupported);
    assert_eq!(try_cq(with_flags(1)), None, "a single-threaded queue");
    assert_eq!(
        try_cq(ibv_cq_init_attr_ex { flags: 2, ..base }),
        None,
        "flags without their mask bit are ignored"
    );
    let invalid = Some(Errno::EINVAL);
    for cqe in [0, 1 << 31, u32::MAX] {
        assert_eq!(try_cq(ibv_cq_init_attr_ex { cqe, ..base }), invalid, "{cqe}");
    }
    assert_eq!(try_cq(ibv_cq_init_attr_ex { comp_vector: 1, ..base }), invalid);
}

#[test]
fn the_clock_is_returned_only_if_requested() {
    let context = crate::device::rig::open_default("soft0");
    let attr = context.query_device_ex();
    assert_eq!((attr.hca_core_clock, attr.completion_timestamp_mask), (1_000_000, u64::MAX));
    let (first, second) = (context.clock(), context.clock());
    assert!(0 < first && first <= second);
    let (done, nothing) = context.query_rt_values(0);
    assert_eq!((done, nothing.comp_mask, nothing.raw_clock.tv_nsec), (0, 0, 0));
    assert_eq!(context.query_rt_values(2).0, EINVAL);
}
