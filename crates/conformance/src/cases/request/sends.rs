//! Sends and receives, and how they fail; immediate and inline data; valid and invalid requests.

use rdma_sys::{ibv_sge, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as Status, ibv_wr_opcode};
use test_support::rig::connect::{Knobs, Side, pair, pair_with};
use test_support::rig::map::Mapping;
use test_support::rig::memory::{deregister, key_of};
use test_support::rig::post::Wr;
use test_support::rig::scene::{AT_A, AT_B, BYTES, RECEIVE_B, Scene};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, REMOTE_READ, Size, imm_of, usual_inline};

use crate::case::cases;
use crate::device::Device;

cases![
    receive_too_small_is_an_error_on_both_sides,
    receive_too_small_is_a_length_error_here_and_an_invalid_request_there,
    receive_with_a_bad_key_is_an_error_on_both_sides,
    receive_out_of_bounds_or_without_local_write_is_an_error_on_both_sides,
    receive_into_another_protection_domain_is_an_error_on_both_sides,
    receive_that_may_not_be_filled_is_a_protection_error,
    receive_that_is_larger_than_the_message_stays_untouched_behind_it,
    receive_of_exactly_the_messages_length_is_filled,
    empty_message_takes_a_receive,
    message_may_be_as_long_as_the_port_says_and_not_longer,
    messages_arrive_in_order_each_in_a_receive_of_its_own,
    message_is_scattered_as_it_was_gathered_or_not,
    immediate_data_arrives_bit_for_bit_in_network_order,
    message_without_immediate_data_says_so,
    write_with_immediate_takes_a_receive_and_leaves_its_memory_alone,
    empty_write_with_immediate_needs_a_receive_without_elements_only,
    inline_data_needs_no_key_and_may_be_reused_after_the_post,
    inline_data_is_gathered_from_its_elements,
    inline_data_of_every_length_up_to_the_limit_arrives,
    queue_pair_has_the_inline_data_that_it_was_made_for,
    inline_data_that_is_too_long_is_refused_at_the_post,
    inline_read_is_never_executed,
    opcode_that_the_service_does_not_have_is_never_executed,
    too_many_elements_are_refused_at_the_post,
    too_many_elements_of_a_receive_are_refused_at_the_post,
    list_stops_at_the_request_that_is_refused,
    list_of_receives_stops_at_the_request_that_is_refused,
    fenced_request_sees_what_the_read_before_it_fetched,
    elements_of_the_list_may_be_reused_after_the_post,
    fence_alone_changes_nothing,
];

/// Sends a message of 12 bytes that is too long for B's receive. Returns the statuses of both
/// sides.
fn too_long_for_its_receive(device: &Device) -> (Status, Status) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(vec![1; 12], 0);
    let sink = b.pd.register(32, LOCAL_WRITE);
    b.qp.post_receive(1, &[sink.sge(0, 3), sink.sge(8, 8)]);
    b.qp.post_receive(2, &[sink.sge(0, 32)]);
    a.qp.post(&Wr::send(3, &[source.sge(0, 12)]));
    let (sent, received) = (a.send_cq.next(), b.receive_cq.next());
    assert_eq!((sent.wr_id, received.wr_id), (3, 1));
    b.receive_cq.expect_flushed([2]);
    a.qp.wait_for_error();
    b.qp.wait_for_error();
    // No byte outside the elements was written.
    assert_eq!((&sink.bytes()[3..8], &sink.bytes()[16..]), (&[0; 5][..], &[0; 16][..]));
    (sent.status, received.status)
}

fn receive_too_small_is_an_error_on_both_sides(device: &Device) {
    let (sent, received) = too_long_for_its_receive(device);
    assert!(sent != Status::IBV_WC_SUCCESS && received != Status::IBV_WC_SUCCESS);
}

fn receive_too_small_is_a_length_error_here_and_an_invalid_request_there(device: &Device) {
    let wanted = device.expected(
        (Status::IBV_WC_REM_INV_REQ_ERR, Status::IBV_WC_LOC_LEN_ERR),
        "receive-too-small",
        (Status::IBV_WC_REM_OP_ERR, Status::IBV_WC_LOC_QP_OP_ERR),
    );
    assert_eq!(too_long_for_its_receive(device), wanted);
}

/// Sends 12 bytes to a receive with an element that the receiver must not use. Returns the
/// receiver's status.
fn bad_receive(device: &Device, element: impl Fn(&Side) -> (Option<Mr>, ibv_sge)) -> Status {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(vec![1; 12], 0);
    let (mr, sge) = element(&b);
    b.qp.post_receive(1, &[sge]);
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::send(3, &[source.sge(0, 12)]));
    a.send_cq.expect(3, Status::IBV_WC_REM_OP_ERR);
    let wc = b.receive_cq.next();
    assert_eq!(wc.wr_id, 1);
    assert_ne!(wc.status, Status::IBV_WC_SUCCESS);
    b.receive_cq.expect_flushed([2]);
    a.qp.wait_for_error();
    b.qp.wait_for_error();
    if let Some(mr) = mr {
        mr.assert_filled(0);
    }
    wc.status
}

fn receive_with_a_bad_key_is_an_error_on_both_sides(device: &Device) {
    bad_receive(device, |b| {
        let mr = b.pd.register(64, ALL_ACCESS);
        let sge = mr.sge(0, 64);
        mr.deregister();
        (None, sge)
    });
    bad_receive(device, wrong_key);
}

fn wrong_key(b: &Side) -> (Option<Mr>, ibv_sge) {
    let mr = b.pd.register(64, ALL_ACCESS);
    let sge = ibv_sge { lkey: mr.key() ^ 1, ..mr.sge(0, 64) };
    (Some(mr), sge)
}

fn receive_out_of_bounds_or_without_local_write_is_an_error_on_both_sides(device: &Device) {
    bad_receive(device, |b| {
        let mr = b.pd.register(64, ALL_ACCESS);
        // The element starts one byte before the region.
        let sge = mr.sge(0, 64);
        let sge = ibv_sge { addr: sge.addr - 1, ..sge };
        (Some(mr), sge)
    });
    bad_receive(device, |b| {
        let mr = b.pd.register(64, REMOTE_READ);
        let sge = mr.sge(0, 64);
        (Some(mr), sge)
    });
}

fn receive_into_another_protection_domain_is_an_error_on_both_sides(device: &Device) {
    let other = Scene::new(device);
    bad_receive(device, |_| (None, other.at_b.sge(0, 64)));
    other.assert_untouched();
}

fn receive_that_may_not_be_filled_is_a_protection_error(device: &Device) {
    let wanted = device.expected(
        Status::IBV_WC_LOC_PROT_ERR,
        "receive-with-a-bad-element",
        Status::IBV_WC_LOC_QP_OP_ERR,
    );
    assert_eq!(bad_receive(device, wrong_key), wanted);
}

fn receive_that_is_larger_than_the_message_stays_untouched_behind_it(device: &Device) {
    let scene = Scene::new(device);
    scene.a.qp.post(&Wr::send(1, &[scene.at_a.sge(0, 10)]));
    scene.a.send_cq.expect_success(1);
    assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).byte_len, 10);
    let bytes = scene.at_b.bytes();
    assert_eq!((&bytes[..10], &bytes[10..]), (&[AT_A; 10][..], &[AT_B; BYTES - 10][..]));
}

fn receive_of_exactly_the_messages_length_is_filled(device: &Device) {
    for length in [1, 12, 1024, 1025] {
        let (a, b) = pair(device);
        let source = a.pd.register_filled(vec![1; length], 0);
        let sink = b.pd.register(length, LOCAL_WRITE);
        b.qp.post_receive(1, &[sink.sge(0, length)]);
        a.qp.post(&Wr::send(2, &[source.sge(0, length)]));
        a.send_cq.expect_success(2);
        assert_eq!(b.receive_cq.expect_success(1).byte_len as usize, length);
        assert!(sink.bytes() == vec![1; length]);
    }
}

fn message_may_be_as_long_as_the_port_says_and_not_longer(device: &Device) {
    let elements = device.attributes().max_sge.min(32);
    let sge = u32::try_from(elements).unwrap();
    for beyond in [0, 1] {
        let (a, b) = pair_with(device, &Size { sge, ..Size::default() }, &Knobs::default());
        let length = a.context.query_port().max_msg_sz + beyond;
        // All elements refer to the same memory.
        let part = length.div_ceil(sge);
        let memory = Mapping::readable(part as usize);
        let region = a.pd.try_register(memory.start(), part as usize, 0).unwrap();
        let (addr, lkey) = (memory.start().addr() as u64, key_of(region));
        let mut sges = vec![ibv_sge { addr, length: part, lkey }; sge as usize];
        sges[0].length = length - part * (sge - 1);
        let sink = b.pd.register(8, LOCAL_WRITE);
        b.qp.post_receive(2, &[sink.sge(0, 8)]);
        a.qp.post(&Wr::send(1, &sges));
        let status = a.send_cq.next().status;
        if beyond == 0 || device.differs("messages-of-any-length") {
            // The message was sent, but is too long for the receive.
            assert_ne!(status, Status::IBV_WC_LOC_LEN_ERR);
            assert_eq!(b.receive_cq.next().wr_id, 2);
        } else {
            assert_eq!(status, Status::IBV_WC_LOC_LEN_ERR);
            b.qp.assert_ready();
            assert!(b.receive_cq.is_empty());
        }
        deregister(region);
    }
}

fn empty_message_takes_a_receive(device: &Device) {
    let (a, b) = pair(device);
    let sink = b.pd.register(8, LOCAL_WRITE);
    b.qp.post_receive(1, &[sink.sge(0, 8)]);
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::send(3, &[]));
    a.qp.post(&Wr::send(4, &[]));
    assert_eq!(b.receive_cq.expect_success(1).byte_len, 0);
    assert_eq!(b.receive_cq.expect_success(2).byte_len, 0);
    sink.assert_filled(0);
}

fn messages_arrive_in_order_each_in_a_receive_of_its_own(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled((0..60).collect(), 0);
    let sink = b.pd.register(60 * 8, LOCAL_WRITE);
    for n in 0..60 {
        b.qp.post_receive(n as u64, &[sink.sge(8 * n, 8)]);
    }
    for n in 0..60 {
        a.qp.post(&Wr::send(n as u64, &[source.sge(n.min(58), 1 + n % 2)]));
    }
    for n in 0..60 {
        a.send_cq.expect_success(n);
        assert_eq!(b.receive_cq.expect_success(n).byte_len, 1 + u32::try_from(n % 2).unwrap());
    }
}

fn message_is_scattered_as_it_was_gathered_or_not(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled((0..30).collect(), 0);
    let sink = b.pd.register(40, LOCAL_WRITE);
    b.qp.post_receive(1, &[sink.sge(30, 10), sink.sge(0, 1), sink.sge(10, 15)]);
    a.qp.post(&Wr::send(2, &[source.sge(20, 10), source.sge(0, 5), source.sge(10, 4)]));
    a.send_cq.expect_success(2);
    assert_eq!(b.receive_cq.expect_success(1).byte_len, 19);
    let mut wanted = vec![0; 40];
    wanted[30..].copy_from_slice(&source.bytes()[20..30]);
    wanted[10..14].copy_from_slice(&[1, 2, 3, 4]);
    wanted[14..18].copy_from_slice(&source.bytes()[10..14]);
    assert_eq!(sink.bytes(), wanted);
}

fn immediate_data_arrives_bit_for_bit_in_network_order(device: &Device) {
    let (a, b) = pair(device);
    for imm in [0, 1, 0x0102_0304, 0x8000_0000, u32::MAX] {
        let requests = [Wr::send(1, &[]), Wr::new(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[])];
        for request in requests {
            b.qp.post_receive(2, &[]);
            a.qp.post(&request.with_imm(u32::to_be(imm)));
            a.send_cq.expect_success(1);
            let wc = b.receive_cq.expect_success(2);
            assert_ne!(wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
            assert_eq!(u32::from_be(imm_of(&wc)), imm);
        }
    }
}

fn message_without_immediate_data_says_so(device: &Device) {
    let (a, b) = pair(device);
    b.qp.post_receive(1, &[]);
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::send(1, &[]).with_imm(5));
    a.qp.post(&Wr::send(2, &[]));
    let flag = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    assert_ne!(b.receive_cq.expect_success(1).wc_flags & flag, 0);
    assert_eq!(b.receive_cq.expect_success(2).wc_flags & flag, 0);
}

fn write_with_immediate_takes_a_receive_and_leaves_its_memory_alone(device: &Device) {
    let scene = Scene::new(device);
    let sink = scene.b.pd.register(32, ALL_ACCESS);
    scene.a.qp.post(&Wr::write(1, &[scene.at_a.sge(0, 20)], &sink, 0).with_imm(9));
    scene.a.send_cq.expect_success(1);
    assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).byte_len, 20);
    assert_eq!(sink.bytes(), [[AT_A; 20].as_slice(), &[0; 12]].concat());
    scene.at_b.assert_filled(AT_B);
}

fn empty_write_with_immediate_needs_a_receive_without_elements_only(device: &Device) {
    let (a, b) = pair(device);
    b.qp.post_receive(1, &[]);
    let mut write = Wr::new(2, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[]);
    write = write.with_imm(77);
    a.qp.post(&write);
    a.send_cq.expect_success(2);
    let wc = b.receive_cq.expect_success(1);
    assert_eq!((wc.byte_len, imm_of(&wc)), (0, 77));
}

/// Returns an element for memory that is not registered.
fn unregistered(bytes: &mut [u8]) -> ibv_sge {
    let addr = bytes.as_mut_ptr().expose_provenance() as u64;
    ibv_sge { addr, length: u32::try_from(bytes.len()).unwrap(), lkey: 0xbad }
}

fn inline_data_needs_no_key_and_may_be_reused_after_the_post(device: &Device) {
    device.needs_inline(13);
    let scene = Scene::new(device);
    let mut bytes = *b"no key at all";
    let addr = bytes.as_mut_ptr().expose_provenance() as u64;
    let sge = ibv_sge { addr, length: 13, lkey: 0xbad };
    scene.a.qp.post(&Wr::write(1, &[sge], &scene.at_b, 0).inline());
    bytes.fill(0);
    assert_eq!(std::hint::black_box(bytes), [0; 13]);
    scene.a.send_cq.expect_success(1);
    assert_eq!(scene.at_b.bytes()[..13], *b"no key at all");
}

fn inline_data_is_gathered_from_its_elements(device: &Device) {
    device.needs_inline(30);
    let scene = Scene::new(device);
    let (mut first, mut second) = (*b"posted inline, ", *b"in two elements");
    let sges = [unregistered(&mut first), unregistered(&mut second)];
    scene.a.qp.post(&Wr::send(1, &sges).inline());
    first.fill(b'x');
    second.fill(b'x');
    assert_eq!(std::hint::black_box((first, second)).0, [b'x'; 15]);
    scene.a.send_cq.expect_success(1);
    assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).byte_len, 30);
    assert_eq!(scene.at_b.bytes()[..30], *b"posted inline, in two elements");
}

fn inline_data_of_every_length_up_to_the_limit_arrives(device: &Device) {
    let (a, b) = pair(device);
    let sink = b.pd.register(65, ALL_ACCESS);
    let lengths = [0_u8, 1, 3, 4, 15, 16, 17, 31, 32, 63, 64];
    for length in lengths.into_iter().filter(|&length| u32::from(length) <= usual_inline()) {
        for opcode in 0..3 {
            let mut bytes = vec![length + 1; length.into()];
            let sges = [unregistered(&mut bytes)];
            sink.fill(0);
            b.qp.post_receive(2, &[sink.sge(0, 65)]);
            let wr = match opcode {
                0 => Wr::write(1, &sges, &sink, 0).with_imm(0),
                1 => Wr::send(1, &sges),
                _ => Wr::send(1, &sges).with_imm(0),
            };
            a.qp.post(&wr.inline());
            a.send_cq.expect_success(1);
            assert_eq!(b.receive_cq.expect_success(2).byte_len, u32::from(length));
            let wanted = [bytes.clone(), vec![0; 65 - bytes.len()]].concat();
            assert_eq!(sink.bytes(), wanted);
        }
    }
}

fn queue_pair_has_the_inline_data_that_it_was_made_for(device: &Device) {
    for inline in [0, 1, 64].into_iter().filter(|&inline| inline <= usual_inline()) {
        let size = Size { inline, ..Size::default() };
        let (a, b) = pair_with(device, &size, &Knobs::default());
        b.qp.post_receive(2, &[]);
        let sink = b.pd.register(64, ALL_ACCESS);
        let mut bytes = vec![5; inline as usize];
        a.qp.post(&Wr::write(1, &[unregistered(&mut bytes)], &sink, 0).inline());
        a.send_cq.expect_success(1);
        assert_eq!(sink.bytes()[..bytes.len()], bytes);
    }
}

fn inline_data_that_is_too_long_is_refused_at_the_post(device: &Device) {
    device.needs_inline(16);
    let scene = Scene::new(device);
    // The case uses the actual size, because some devices round up the requested one.
    let most = scene.a.qp.query().cap.max_inline_data as usize;
    let long = scene.a.pd.register(most + 1, 0);
    let sges = [long.sge(0, most), long.sge(most, 1)];
    assert_ne!(scene.a.qp.try_post(&Wr::send(1, &sges).inline()), 0);
    scene.a.qp.post(&Wr::write(2, &[scene.at_a.sge(0, 16)], &scene.at_b, 0).inline());
    scene.a.send_cq.expect_success(2);
    scene.a.qp.assert_ready();
}

/// Checks that posting a request fails, that nothing is executed, and that the queue pair is
/// unchanged.
fn refused_at_the_post(device: &Device, spoil: impl Fn(&Scene) -> Wr) {
    let scene = Scene::new(device);
    assert_ne!(scene.a.qp.try_post(&spoil(&scene)), 0);
    scene.assert_untouched();
    scene.a.qp.post(&scene.requests()[0]);
    // The first completion is that of the valid request.
    scene.a.send_cq.expect_success(1);
    assert!(scene.b.receive_cq.is_empty());
}

/// Checks that a request is never executed: either posting it fails, or it fails later.
fn never_executed(device: &Device, spoil: impl Fn(&Scene) -> Wr) {
    let scene = Scene::new(device);
    if scene.a.qp.try_post(&spoil(&scene)) == 0 {
        assert_ne!(scene.a.send_cq.next().status, Status::IBV_WC_SUCCESS);
        scene.a.qp.wait_for_error();
    }
    assert!(scene.b.receive_cq.is_empty());
    scene.assert_untouched();
}

fn inline_read_is_never_executed(device: &Device) {
    device.needs_inline(1);
    never_executed(device, |scene| scene.requests()[2].clone().inline());
}

fn opcode_that_the_service_does_not_have_is_never_executed(device: &Device) {
    never_executed(device, |scene| Wr::new(1, ibv_wr_opcode::IBV_WR_TSO, &[scene.at_a.sge(0, 8)]));
}

fn too_many_elements_are_refused_at_the_post(device: &Device) {
    refused_at_the_post(device, |scene| {
        let most = scene.a.qp.query().cap.max_send_sge as usize;
        Wr::send(7, &vec![scene.at_a.sge(0, 1); most + 1])
    });
}

fn too_many_elements_of_a_receive_are_refused_at_the_post(device: &Device) {
    let scene = Scene::new(device);
    let most = scene.b.qp.query().cap.max_recv_sge as usize;
    let elements = vec![scene.at_b.sge(0, 1); most + 1];
    assert_ne!(scene.b.qp.try_post_receive(7, &elements), 0);
    scene.b.qp.post_receive(8, &elements[..most]);
    scene.a.qp.try_post_list(&[Wr::send(1, &[]), Wr::send(2, &[scene.at_a.sge(0, 1)])]).unwrap();
    scene.b.receive_cq.expect_success(RECEIVE_B);
    scene.b.receive_cq.expect_success(8);
}

fn list_stops_at_the_request_that_is_refused(device: &Device) {
    let scene = Scene::new(device);
    let [write, _, read, _] = scene.requests();
    let most = scene.a.qp.query().cap.max_send_sge as usize;
    let bad = Wr::send(2, &vec![scene.at_a.sge(0, 1); most + 1]);
    let refused = scene.a.qp.try_post_list(&[write, read, bad, Wr::send(3, &[])]);
    assert_eq!(refused.map_err(|(posted, _)| posted), Err(2));
    assert_eq!(scene.a.send_cq.next().opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    assert_eq!(scene.a.send_cq.next().opcode, ibv_wc_opcode::IBV_WC_RDMA_READ);
    scene.a.qp.post(&Wr::send(4, &[]));
    scene.a.send_cq.expect_success(4);
    scene.b.receive_cq.expect_success(RECEIVE_B);
    assert!(scene.b.receive_cq.is_empty());
}

fn list_of_receives_stops_at_the_request_that_is_refused(device: &Device) {
    let scene = Scene::new(device);
    let most = scene.b.qp.query().cap.max_recv_sge as usize;
    let (one, many) = ([scene.at_b.sge(0, 1)], vec![scene.at_b.sge(0, 1); most + 1]);
    let list: [(u64, &[ibv_sge]); 4] = [(1, &one), (2, &one), (3, &many), (4, &one)];
    let refused = scene.b.qp.try_post_receive_list(&list);
    assert_eq!(refused.map_err(|(posted, _)| posted), Err(2));
    scene.b.qp.to_error();
    scene.b.receive_cq.expect_flushed([RECEIVE_B, 1, 2]);
    assert!(scene.b.receive_cq.is_empty());
}

fn fenced_request_sees_what_the_read_before_it_fetched(device: &Device) {
    let scene = Scene::new(device);
    let sink = scene.b.pd.register(32, ALL_ACCESS);
    let local = [scene.at_a.sge(0, 32)];
    let read = Wr::read(1, &local, &scene.at_b, 0);
    let write = Wr::write(2, &local, &sink, 0).fenced();
    scene.a.qp.try_post_list(&[read, write]).unwrap();
    scene.a.send_cq.expect_success(1);
    scene.a.send_cq.expect_success(2);
    sink.assert_filled(AT_B);
}

fn elements_of_the_list_may_be_reused_after_the_post(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled((0..64).collect(), 0);
    let sink = b.pd.register(64, ALL_ACCESS);
    b.qp.post_receive(1, &[sink.sge(32, 8)]);
    let mut wr = Wr::write(1, &[source.sge(0, 8)], &sink, 0);
    a.qp.post(&wr);
    // The same request is posted again, with a different element and a different target.
    wr.sges[0] = source.sge(8, 8);
    let wr = wr.remote(sink.address() + 8, sink.rkey());
    a.qp.post(&wr);
    a.qp.post(&Wr::send(2, &[source.sge(32, 8)]));
    for wr_id in [1, 1, 2] {
        a.send_cq.expect_success(wr_id);
    }
    b.receive_cq.expect_success(1);
    assert_eq!(sink.bytes()[..16], source.bytes()[..16]);
    assert_eq!(sink.bytes()[32..40], source.bytes()[32..40]);
}

fn fence_alone_changes_nothing(device: &Device) {
    let (a, b) = pair(device);
    let (here, there) =
        (a.pd.register_filled(vec![1; 8], LOCAL_WRITE), b.pd.register(8, ALL_ACCESS));
    b.qp.post_receive(1, &[]);
    let write = Wr::write(1, &[here.sge(0, 8)], &there, 0).fenced();
    let read = Wr::read(2, &[here.sge(0, 8)], &there, 0).fenced();
    a.qp.try_post_list(&[write, read, Wr::send(3, &[]).fenced()]).unwrap();
    for wr_id in 1..4 {
        a.send_cq.expect_success(wr_id);
    }
    b.receive_cq.expect_success(1);
    there.assert_filled(1);
}
