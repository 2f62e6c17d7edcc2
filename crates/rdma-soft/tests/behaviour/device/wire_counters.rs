//! Counters of devices that send messages as packets: at any time, for running connections, and for dropped packets.

use rdma_soft::{Builder, Counters, SoftDevice};
use rdma_sys::{ibv_qp_type, ibv_wc_status as Status};

use crate::device::counters::{counted, watch_while_connections_come_and_go};
use crate::device::rig::connect::{
    Endpoint, Knobs, Side, attributes, connect, connect_sides, connect_unreliably,
    endpoint_with_gid, to_init,
};
use crate::device::rig::datagram::changed;
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Size, until};

/// The devices of a pair: that of the sender, and that of the receiver.
fn devices(name: &str) -> [SoftDevice; 2] {
    ["a", "b"].map(|end| Builder::new(format!("{name}-{end}")).force_wire().install().unwrap())
}

fn sides(devices: &[SoftDevice; 2], sizes: [Size; 2]) -> [Side; 2] {
    let [a, b] = devices;
    [(a, sizes[0]), (b, sizes[1])].map(|(device, size)| Side::new(device.name(), &size, 64))
}

fn of_type(qp_type: ibv_qp_type) -> Size {
    Size { qp_type, ..Size::default() }
}

/// Gives up soon.
const IMPATIENT: fn() -> Knobs = || Knobs { timeout: 6, retries: 1, ..Knobs::default() };

#[test]
fn running_connections_are_counted() {
    let devices = devices("wcount-live");
    let [a, b] = sides(&devices, [Size::default(); 2]);
    let knobs = Knobs { min_rnr_timer: 10, rnr_retries: 7, ..Knobs::default() };
    connect_sides(&a, &b, &knobs);
    a.qp.post(&Wr::send(1, &[]));
    until("both have counted it", || {
        let [at_a, at_b] = devices.map(|device| device.counters());
        at_a.rcvd_rnr_err > 1 && at_b.send_rnr_err > 1
    });
    b.qp.post_receive(2, &[]);
    a.send_cq.expect_success(1);
    // Each was counted once: the end adds nothing.
    let before = devices.map(|device| device.counters());
    drop((a, b));
    for (device, before) in devices.iter().zip(before) {
        let after = device.counters();
        assert_eq!(
            (after.rcvd_rnr_err, after.send_rnr_err),
            (before.rcvd_rnr_err, before.send_rnr_err)
        );
    }
}

/// Connects A to B as the scene does, and sends a message that is lost. Waits until a device has counted it while both
/// ends exist: A is done when its wait ends, and its packets may arrive later.
fn lost(
    name: &str,
    sizes: [Size; 2],
    scene: impl Fn(&Side, &Side),
    counter: impl Fn([Counters; 2]) -> u64,
) {
    let devices = devices(name);
    let [a, b] = sides(&devices, sizes);
    scene(&a, &b);
    a.qp.post(&Wr::send(1, &[]));
    let reliable = sizes[0].qp_type == ibv_qp_type::IBV_QPT_RC;
    let status = if reliable { Status::IBV_WC_RETRY_EXC_ERR } else { Status::IBV_WC_SUCCESS };
    a.send_cq.expect(1, status);
    until("it is counted", || counter(devices.map(|device| device.counters())) > 0);
    assert!(b.receive_cq.is_empty());
}

#[test]
fn each_reason_has_its_counter() {
    let rc = [Size::default(); 2];
    let other_type = [rc[0], of_type(ibv_qp_type::IBV_QPT_UC)];
    let wrong_type = |a: &Side, b: &Side| {
        connect(&a.qp, &a.endpoint(), &b.endpoint(), &IMPATIENT());
        connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &IMPATIENT());
    };
    lost("wcount-type", other_type, wrong_type, |[_, b]| b.wrong_service);
    let not_ready = |a: &Side, b: &Side| {
        connect(&a.qp, &a.endpoint(), &b.endpoint(), &IMPATIENT());
        to_init(&b.qp, &attributes(&b.endpoint(), &a.endpoint(), &IMPATIENT()));
    };
    lost("wcount-init", rc, not_ready, |[_, b]| b.wrong_state);
    // B's peer is A, at another of its addresses.
    let from_elsewhere = |a: &Side, b: &Side| {
        connect(&a.qp, &a.endpoint(), &b.endpoint(), &IMPATIENT());
        let [at_a, at_b] = [a, b].map(|side| endpoint_with_gid(&side.context, &side.qp, 0));
        connect(&b.qp, &at_b, &at_a, &IMPATIENT());
    };
    lost("wcount-gid", rc, from_elsewhere, |[_, b]| b.wrong_source);
    let to_nobody = |a: &Side, b: &Side| {
        let at_b = b.endpoint();
        let nowhere = Endpoint { gid: changed(&at_b.gid), ..at_b };
        connect(&a.qp, &a.endpoint(), &nowhere, &IMPATIENT());
    };
    lost("wcount-nobody", rc, to_nobody, |[a, _]| a.no_route);
}

/// An unreliable connection without a receive loses a message, and counts it.
#[test]
fn lost_messages_are_counted() {
    let unreliable = |a: &Side, b: &Side| {
        connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &Knobs::default());
        connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &Knobs::default());
    };
    lost("wcount-uc", [of_type(ibv_qp_type::IBV_QPT_UC); 2], unreliable, |[_, b]| b.out_of_buffer);
}

#[test]
fn a_refused_request_is_counted_by_the_responder() {
    let devices = devices("wcount-key");
    let [a, b] = sides(&devices, [Size::default(); 2]);
    // Even on the slowest machine nothing is sent again, which the peer would count, too.
    connect_sides(&a, &b, &Knobs { timeout: 24, ..Knobs::default() });
    let [source, sink] = [&a, &b].map(|side| side.pd.register(8, ALL_ACCESS));
    let wrong = Wr::write(1, &[source.sge(0, 8)], &sink, 0).remote(1, 2);
    a.qp.post(&wrong);
    a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(counted(devices[1].counters()), [("resp_remote_access_errors", 1)]);
}

#[test]
fn no_counter_goes_back_while_connections_come_and_go() {
    const ROUNDS: u64 = 40;
    let device = Builder::new("wcount-race").force_wire().install().unwrap();
    // A busy machine needs more time.
    let patient = Knobs { timeout: 18, ..Knobs::default() };
    watch_while_connections_come_and_go(&device, ROUNDS, &patient);
    let counters = device.counters();
    assert_eq!((counters.rdma_sends, counters.rdma_recvs), (2 * ROUNDS, 2 * ROUNDS));
}
