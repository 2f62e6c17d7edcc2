//! The lifetimes of objects: the order of destruction, how destroying an object affects others, and
//! what owns an object.

use std::ptr;

use rdma_sys::{Errno, ibv_device_cap_flags, ibv_qp_state as State, ibv_qp_type};
use test_support::rig::connect::{Knobs, Side, connect, endpoint, expect_traffic, pair};
use test_support::rig::datagram::vector;
use test_support::rig::post::Wr;
use test_support::rig::transition::{SERVICES, alone};
use test_support::rig::window::TYPE_1;
use test_support::rig::{ALL_ACCESS, Context, Pd, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    a_domain_with_a_region_stays,
    a_domain_with_a_queue_pair_stays,
    a_domain_with_a_shared_receive_queue_stays,
    a_domain_with_an_address_handle_stays,
    a_domain_with_a_window_stays,
    a_queue_that_serves_sends_stays,
    a_queue_that_serves_receives_stays,
    a_refused_destruction_changes_nothing,
    a_failed_queue_pair_still_holds_its_objects,
    a_queue_with_completions_can_be_destroyed,
    objects_of_one_kind_are_told_apart,
    numbers_of_queue_pairs_can_be_sent,
    contexts_of_one_device_are_independent,
    many_contexts_are_open_at_once,
    a_closed_context_leaves_the_others,
    a_new_queue_pair_is_in_reset,
    objects_point_to_what_they_were_made_from,
    objects_have_the_pointer_of_the_program,
    many_threads_create_and_destroy_at_once,
    many_threads_open_and_close_at_once,
    a_queue_pair_is_what_it_was_created_as,
];

const BUSY: i32 = Errno::EBUSY.raw();

fn context_and_domain(device: &Device) -> (Context, Pd) {
    let context = device.open();
    let pd = context.pd();
    (context, pd)
}

fn a_domain_with_a_region_stays(device: &Device) {
    let (_context, pd) = context_and_domain(device);
    let region = pd.register(8, 0);
    assert_eq!(pd.try_dealloc(), BUSY);
    region.deregister();
}

fn a_domain_with_a_queue_pair_stays(device: &Device) {
    for service in device.types(&SERVICES) {
        assert_eq!(alone(device, service).pd.try_dealloc(), BUSY, "{service:?}");
    }
}

fn a_domain_with_a_shared_receive_queue_stays(device: &Device) {
    device.needs(device.attributes().max_srq > 0, "the device has no shared receive queues");
    let (_context, pd) = context_and_domain(device);
    let (srq, _) = pd.try_srq(4, 1).unwrap();
    assert_eq!(pd.try_dealloc(), BUSY);
    drop(srq);
}

fn a_domain_with_an_address_handle_stays(device: &Device) {
    device.needs_type(ibv_qp_type::IBV_QPT_UD);
    let side = alone(device, ibv_qp_type::IBV_QPT_UD);
    let end = side.endpoint();
    let (_context, pd) = context_and_domain(device);
    let ah = pd.ah(vector(&end, &end, end.ethernet));
    assert_eq!(pd.try_dealloc(), BUSY);
    ah.destroy();
}

fn a_queue_that_serves_sends_stays(device: &Device) {
    for service in device.types(&SERVICES) {
        assert_eq!(alone(device, service).send_cq.try_destroy(), BUSY, "{service:?}");
    }
}

fn a_queue_that_serves_receives_stays(device: &Device) {
    for service in device.types(&SERVICES) {
        assert_eq!(alone(device, service).receive_cq.try_destroy(), BUSY, "{service:?}");
    }
}

fn a_refused_destruction_changes_nothing(device: &Device) {
    let (a, b) = pair(device);
    for side in [&a, &b] {
        assert_eq!(side.pd.try_dealloc(), BUSY);
        assert_eq!(side.send_cq.try_destroy(), BUSY);
        assert_eq!(side.receive_cq.try_destroy(), BUSY);
    }
    expect_traffic(&a, &b);
}

fn a_failed_queue_pair_still_holds_its_objects(device: &Device) {
    let (a, _b) = pair(device);
    a.qp.to_error();
    let busy = (a.pd.try_dealloc(), a.send_cq.try_destroy(), a.receive_cq.try_destroy());
    assert_eq!(busy, (BUSY, BUSY, BUSY));
}

fn a_queue_with_completions_can_be_destroyed(device: &Device) {
    let (a, b) = pair(device);
    for n in 0..4 {
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(n, &[]));
    }
    a.send_cq.expect_success(0);
    drop((a, b));
}

fn objects_of_one_kind_are_told_apart(device: &Device) {
    let (_context, pd) = context_and_domain(device);
    let regions: Vec<_> = (0..32).map(|_| pd.register(8, ALL_ACCESS)).collect();
    let mut keys: Vec<_> = regions.iter().map(|region| region.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), regions.len());
}

fn numbers_of_queue_pairs_can_be_sent(device: &Device) {
    for service in device.types(&SERVICES) {
        // 24 bits, except 0 and 1, which are reserved for management datagrams.
        assert!((2..1 << 24).contains(&alone(device, service).qp.number()));
    }
}

fn contexts_of_one_device_are_independent(device: &Device) {
    let (one, other) = (pair(device), pair(device));
    one.0.qp.to_error();
    drop(one);
    expect_traffic(&other.0, &other.1);
}

fn many_contexts_are_open_at_once(device: &Device) {
    let sides: Vec<_> = (0..32).map(|_| alone(device, ibv_qp_type::IBV_QPT_RC)).collect();
    for pair in sides.chunks(2) {
        test_support::rig::connect::connect_sides(&pair[0], &pair[1], &Knobs::default());
    }
    for pair in sides.chunks(2) {
        expect_traffic(&pair[0], &pair[1]);
    }
}

fn a_closed_context_leaves_the_others(device: &Device) {
    let (a, b) = pair(device);
    for _ in 0..4 {
        let (context, pd) = context_and_domain(device);
        drop(pd);
        drop(context);
        expect_traffic(&a, &b);
    }
}

fn a_new_queue_pair_is_in_reset(device: &Device) {
    for service in device.types(&SERVICES) {
        assert_eq!(alone(device, service).qp.state(), State::IBV_QPS_RESET);
    }
}

fn a_queue_pair_is_what_it_was_created_as(device: &Device) {
    for service in device.types(&SERVICES) {
        for signal_all in [false, true] {
            let size = Size { qp_type: service, signal_all, ..Size::default() };
            let side = Side::new(device, &size, 8);
            let init = side.qp.query_init();
            assert_eq!((init.qp_type, side.qp.service()), (service, service));
            assert_eq!(init.sq_sig_all, i32::from(signal_all), "{service:?}");
            assert!(ptr::eq(init.send_cq, side.send_cq.0));
            assert!(ptr::eq(init.recv_cq, side.receive_cq.0));
            assert!(init.srq.is_null());
        }
    }
}

fn objects_point_to_what_they_were_made_from(device: &Device) {
    let side = alone(device, ibv_qp_type::IBV_QPT_RC);
    let (context, pd) = (side.context.0, side.pd.0);
    let region = side.pd.register(8, 0);
    assert_eq!(side.pd.context(), context);
    assert_eq!((side.send_cq.context(), side.receive_cq.context()), (context, context));
    assert_eq!(region.parents(), (context, pd));
    assert_eq!(side.qp.parents(), (context, pd, side.send_cq.0, side.receive_cq.0));
}

fn objects_have_the_pointer_of_the_program(device: &Device) {
    let context = device.open();
    let (channel, pd) = (context.channel(), context.pd());
    let cq = context.cq_tagged(&channel, 8, 4711);
    let mut init = Pd::qp_init(&cq, &cq, &Size::default());
    init.qp_context = ptr::without_provenance_mut(815);
    let qp = pd.try_qp_of(&mut init).unwrap();
    assert_eq!((cq.tag(), qp.tag()), (4711, 815));
    assert_eq!(qp.query_init().qp_context.addr(), 815);
}

fn many_threads_create_and_destroy_at_once(device: &Device) {
    let (context, pd) = context_and_domain(device);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10 {
                    let (cq, memory) = (context.cq(8), pd.register(8, ALL_ACCESS));
                    let qp = pd.qp(&cq, &cq, &Size::default());
                    let end = endpoint(&context, &qp);
                    connect(&qp, &end, &end, &Knobs::default());
                    qp.post_receive(1, &[]);
                    qp.post(&Wr::write(2, &[memory.sge(0, 8)], &memory, 0));
                    cq.expect_success(2);
                }
            });
        }
    });
}

fn many_threads_open_and_close_at_once(device: &Device) {
    let name: &str = device;
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(move || {
                for _ in 0..4 {
                    let (a, b) = pair(name);
                    expect_traffic(&a, &b);
                }
            });
        }
    });
}

fn a_domain_with_a_window_stays(device: &Device) {
    let windows = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0;
    let has = device.attributes().device_cap_flags & windows != 0;
    device.needs(has, "the device has no memory windows of type 1");
    let (_context, pd) = context_and_domain(device);
    let window = pd.mw(TYPE_1);
    assert_eq!(pd.try_dealloc(), BUSY);
    drop(window);
}
