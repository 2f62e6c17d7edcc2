//! The maximum sizes and counts of objects.

use rdma_sys::{Errno, ibv_qp_state as State, ibv_qp_type};
use test_support::rig::connect::{Knobs, Side, connect, endpoint, pair, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::transition::{SERVICES, alone};
use test_support::rig::{ALL_ACCESS, Context, Cq, LOCAL_WRITE, Pd, Qp, Size, usual_inline};

use crate::case::cases;
use crate::device::Device;

cases![
    a_queue_pair_gets_at_least_the_sizes_that_it_asked_for,
    a_query_gives_the_sizes_that_creation_gave,
    a_queue_pair_completes_where_it_was_told,
    a_queue_pair_works_at_the_sizes_that_it_got,
    queue_pairs_above_the_devices_work_requests_are_refused,
    queue_pairs_above_the_devices_elements_are_refused,
    queue_pairs_with_as_many_elements_as_the_device_has_work,
    queue_pairs_above_the_devices_inline_data_are_refused,
    queue_pairs_of_unknown_types_are_refused,
    a_queue_has_at_least_the_room_that_was_asked_for,
    queues_above_the_devices_room_are_refused,
    a_queue_with_all_the_room_of_the_device_works,
    queues_of_no_completions_are_refused,
    queues_of_vectors_that_the_device_lacks_are_refused,
    each_completion_vector_can_be_used,
    many_completion_queues_are_there_at_once,
    ;
    destructive:
    domains_above_the_devices_limit_are_refused_until_one_is_gone,
    queues_above_the_devices_number_are_refused_until_one_is_gone,
];

/// Creates a queue pair in this domain, and connects it to `peer`. Its sends and its receives
/// complete in `cq`.
fn connected(context: &Context, pd: &Pd, cq: &Cq, peer: &Side) -> Qp {
    let qp = pd.qp(cq, cq, &Size::default());
    let (here, there) = (endpoint(context, &qp), peer.endpoint());
    connect(&qp, &here, &there, &Knobs::default());
    connect(&peer.qp, &there, &here, &Knobs::default());
    qp
}

fn sizes(attr: &rdma_sys::ibv_qp_cap) -> [u32; 5] {
    [attr.max_send_wr, attr.max_recv_wr, attr.max_send_sge, attr.max_recv_sge, attr.max_inline_data]
}

/// Creates a queue pair with these sizes. Returns it with the sizes that the device reported.
fn of_sizes(device: &Device, size: &Size) -> (Side, [u32; 5]) {
    let mut side = alone(device, size.qp_type);
    side.qp.destroy();
    let mut init = Pd::qp_init(&side.send_cq, &side.receive_cq, size);
    side.qp = side.pd.try_qp_of(&mut init).unwrap();
    (side, sizes(&init.cap))
}

fn odd() -> Size {
    let (qp_type, inline) = (ibv_qp_type::IBV_QPT_RC, usual_inline().min(21));
    Size { qp_type, send_wr: 5, receive_wr: 7, sge: 3, inline, signal_all: false }
}

fn a_queue_pair_gets_at_least_the_sizes_that_it_asked_for(device: &Device) {
    for qp_type in device.types(&SERVICES) {
        let (_side, got) = of_sizes(device, &Size { qp_type, ..odd() });
        assert!(
            got.iter().zip([5, 7, 3, 3, usual_inline().min(21)]).all(|(&got, asked)| got >= asked),
            "{got:?}"
        );
    }
}

fn a_query_gives_the_sizes_that_creation_gave(device: &Device) {
    let (side, mut got) = of_sizes(device, &odd());
    if device.differs("created-sizes-are-those-asked-for") {
        assert_eq!(got[0], odd().send_wr);
        got[0] = 7;
    }
    assert_eq!(sizes(&side.qp.query().cap), got);
    assert_eq!(sizes(&side.qp.query_init().cap), got);
}

fn a_queue_pair_completes_where_it_was_told(device: &Device) {
    let (a, b) = pair(device);
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect_success(2);
    b.receive_cq.expect_success(1);
    assert!(a.receive_cq.is_empty() && b.send_cq.is_empty());
}

fn a_queue_pair_works_at_the_sizes_that_it_got(device: &Device) {
    let (a, b) = pair_with(device, &odd(), &Knobs::default());
    let got = sizes(&a.qp.query().cap);
    let elements = got[2].min(got[3]) as usize;
    let from = a.pd.register_filled((0..=255).collect(), 0);
    let to = b.pd.register(256, LOCAL_WRITE);
    let pieces = |memory: &test_support::rig::Mr| -> Vec<_> {
        (0..elements).map(|n| memory.sge(7 * n, 7)).collect()
    };
    let count = u64::from(got[0].min(got[1]));
    for n in 0..count {
        b.qp.post_receive(n, &pieces(&to));
        a.qp.post(&Wr::send(n, &pieces(&from)));
    }
    for n in 0..count {
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
    assert_eq!(to.bytes()[..7 * elements], from.bytes()[..7 * elements]);
    let inline = Wr::send(1, &[from.sge(0, got[4].min(256) as usize)]).inline();
    b.qp.post_receive(1, &[to.sge(0, 256)]);
    a.qp.post(&inline);
    a.send_cq.expect_success(1);
}

/// Checks that creation with these sizes is refused, and only because of the sizes.
#[track_caller]
fn expect_too_large(device: &Device, size: &Size) {
    let side = alone(device, ibv_qp_type::IBV_QPT_RC);
    let refused = side.pd.try_qp(&side.send_cq, &side.receive_cq, size).err();
    assert_eq!(refused, Some(Errno::EINVAL));
    // The existing objects are unchanged.
    side.bring(State::IBV_QPS_RTS);
}

fn queue_pairs_above_the_devices_work_requests_are_refused(device: &Device) {
    let most = device.attributes().max_qp_wr.cast_unsigned();
    let small = Size { send_wr: 1, receive_wr: 1, sge: 1, inline: 0, ..Size::default() };
    for wrs in [most + 1, u32::MAX] {
        expect_too_large(device, &Size { send_wr: wrs, ..small });
        expect_too_large(device, &Size { receive_wr: wrs, ..small });
    }
}

fn queue_pairs_above_the_devices_elements_are_refused(device: &Device) {
    let most = device.attributes().max_sge.cast_unsigned();
    for sge in [most + 1, u32::MAX] {
        expect_too_large(device, &Size { sge, inline: 0, ..Size::default() });
    }
}

fn queue_pairs_with_as_many_elements_as_the_device_has_work(device: &Device) {
    let sge = device.attributes().max_sge.cast_unsigned();
    let (a, b) = pair_with(device, &Size { sge, inline: 0, ..Size::default() }, &Knobs::default());
    let from = a.pd.register_filled((0..=255).collect(), 0);
    let to = b.pd.register(256, ALL_ACCESS);
    let pieces: Vec<_> = (0..sge as usize).map(|n| from.sge(n % 256, 1)).collect();
    a.qp.post(&Wr::write(1, &pieces[..pieces.len().min(256)], &to, 0));
    a.send_cq.expect_success(1);
    let count = pieces.len().min(256);
    assert_eq!(to.bytes()[..count], from.bytes()[..count]);
}

fn queue_pairs_above_the_devices_inline_data_are_refused(device: &Device) {
    expect_too_large(device, &Size { inline: u32::MAX, ..Size::default() });
}

fn queue_pairs_of_unknown_types_are_refused(device: &Device) {
    let side = alone(device, ibv_qp_type::IBV_QPT_RC);
    for qp_type in [ibv_qp_type(0), ibv_qp_type(99), ibv_qp_type(u32::MAX)] {
        let size = Size { qp_type, ..Size::default() };
        let refused = side.pd.try_qp(&side.send_cq, &side.receive_cq, &size).err();
        let refused = refused.expect("refused");
        assert!([Errno::EINVAL, Errno::EOPNOTSUPP].contains(&refused), "{refused}");
    }
}

fn a_queue_has_at_least_the_room_that_was_asked_for(device: &Device) {
    let context = device.open();
    let most = context.query_device().max_cqe;
    for room in [1, 2, 3, 100, 1000] {
        if room <= most {
            assert!(context.cq(room).entries() >= room, "{room}");
        }
    }
}

fn queues_above_the_devices_room_are_refused(device: &Device) {
    let context = device.open();
    let most = context.query_device().max_cqe;
    device.needs(most < i32::MAX, "the device has no limit below the largest request");
    for room in [most + 1, i32::MAX] {
        assert_eq!(context.try_cq(room, 0).err(), Some(Errno::EINVAL), "{room}");
    }
}

fn queues_of_no_completions_are_refused(device: &Device) {
    let context = device.open();
    for room in [0, -1, i32::MIN] {
        assert_eq!(context.try_cq(room, 0).err(), Some(Errno::EINVAL), "{room}");
    }
}

fn queues_of_vectors_that_the_device_lacks_are_refused(device: &Device) {
    let context = device.open();
    for vector in [-1, context.completion_vectors(), i32::MAX] {
        assert_eq!(context.try_cq(8, vector).err(), Some(Errno::EINVAL), "{vector}");
    }
}

fn each_completion_vector_can_be_used(device: &Device) {
    let context = device.open();
    let queues: Vec<_> =
        (0..context.completion_vectors()).map(|n| context.try_cq(8, n).unwrap()).collect();
    let pd = context.pd();
    for cq in &queues {
        let peer = alone(device, ibv_qp_type::IBV_QPT_RC);
        let qp = connected(&context, &pd, cq, &peer);
        peer.qp.post_receive(1, &[]);
        qp.post(&Wr::send(2, &[]));
        cq.expect_success(2);
    }
}

fn many_completion_queues_are_there_at_once(device: &Device) {
    let context = device.open();
    let pd = context.pd();
    let queues: Vec<_> = (0..100).map(|_| context.cq(4)).collect();
    let peer = alone(device, ibv_qp_type::IBV_QPT_RC);
    let qp = connected(&context, &pd, &queues[57], &peer);
    peer.qp.post_receive(1, &[]);
    qp.post(&Wr::send(2, &[]));
    queues[57].expect_success(2);
    assert!(queues.iter().all(Cq::is_empty));
    drop(qp);
}

/// Creates as many objects as the device's limit allows. Checks that the next one is refused until
/// one is destroyed.
fn fill<T>(most: i32, create: impl Fn() -> Result<T, Errno>) {
    let mut all: Vec<_> =
        (0..most).map(|n| create().unwrap_or_else(|errno| panic!("{n}: {errno}"))).collect();
    assert_eq!(create().err(), Some(Errno::ENOMEM));
    all.pop();
    all.push(create().unwrap());
}

/// The maximum number of objects that a case creates.
const MANY: i32 = 1 << 17;

fn domains_above_the_devices_limit_are_refused_until_one_is_gone(device: &Device) {
    let context = device.open();
    let most = context.query_device().max_pd;
    device.needs(most <= MANY, "the device has more protection domains than a case can make");
    fill(most, || context.try_pd());
}

fn queues_above_the_devices_number_are_refused_until_one_is_gone(device: &Device) {
    let context = device.open();
    let most = context.query_device().max_cq;
    device.needs(most <= MANY, "the device has more completion queues than a case can make");
    fill(most, || context.try_cq(1, 0));
}

fn a_queue_with_all_the_room_of_the_device_works(device: &Device) {
    let context = device.open();
    let most = context.query_device().max_cqe;
    device.needs(most <= 1 << 20, "the device has more room than a case should take");
    let (cq, pd) = (context.cq(most), context.pd());
    assert!(cq.entries() >= most);
    let peer = alone(device, ibv_qp_type::IBV_QPT_RC);
    let qp = connected(&context, &pd, &cq, &peer);
    peer.qp.post_receive(1, &[]);
    qp.post(&Wr::send(2, &[]));
    cq.expect_success(2);
}
