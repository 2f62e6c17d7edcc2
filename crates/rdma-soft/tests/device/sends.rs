//! Sends and receives, and what goes wrong between them; immediate data; what a request may look like.

use rdma_sys::{
    Errno, ibv_send_flags, ibv_sge, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as Status,
    ibv_wr_opcode,
};

use crate::rig::connect::{Side, pair};
use crate::rig::map::Mapping;
use crate::rig::memory::{deregister, key_of};
use crate::rig::post::Wr;
use crate::rig::scene::{AT_A, AT_B, BYTES, RECEIVE_B, Scene};
use crate::rig::{
    ALL_ACCESS, LOCAL_WRITE, Mr, REMOTE_READ, Size, imm_of, on_each_device, on_each_held_device,
};

#[test]
fn receive_too_small_is_an_error_on_both_sides() {
    on_each_device("receive-too-small", |device| {
        let (a, b) = pair(device);
        let source = a.pd.register_filled(vec![1; 12], 0);
        let sink = b.pd.register(32, LOCAL_WRITE);
        b.qp.post_receive(1, &[sink.sge(0, 3), sink.sge(8, 8)]);
        b.qp.post_receive(2, &[sink.sge(0, 32)]);
        a.qp.post(&Wr::send(3, &[source.sge(0, 12)]));
        a.send_cq.expect(3, Status::IBV_WC_REM_INV_REQ_ERR);
        b.receive_cq.expect(1, Status::IBV_WC_LOC_LEN_ERR);
        b.receive_cq.expect_flushed([2]);
        a.qp.wait_for_error();
        b.qp.wait_for_error();
        sink.assert_filled(0);
    });
}

/// A SEND of 12 bytes that meets an element which the receiver may not use.
fn bad_receive(device: &str, element: impl Fn(&Side) -> (Option<Mr>, ibv_sge)) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(vec![1; 12], 0);
    let (mr, sge) = element(&b);
    b.qp.post_receive(1, &[sge]);
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::send(3, &[source.sge(0, 12)]));
    a.send_cq.expect(3, Status::IBV_WC_REM_OP_ERR);
    b.receive_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
    b.receive_cq.expect_flushed([2]);
    a.qp.wait_for_error();
    b.qp.wait_for_error();
    if let Some(mr) = mr {
        mr.assert_filled(0);
    }
}

#[test]
fn receive_with_a_bad_key_is_an_error_on_both_sides() {
    on_each_device("receive-bad-key", |device| {
        bad_receive(device, |b| {
            let mr = b.pd.register(64, ALL_ACCESS);
            let sge = mr.sge(0, 64);
            mr.deregister();
            (None, sge)
        });
        bad_receive(device, |b| {
            let mr = b.pd.register(64, ALL_ACCESS);
            let sge = ibv_sge { lkey: mr.key() ^ 1, ..mr.sge(0, 64) };
            (Some(mr), sge)
        });
    });
}

#[test]
fn receive_out_of_bounds_or_without_local_write_is_an_error_on_both_sides() {
    on_each_device("receive-bad-range", |device| {
        bad_receive(device, |b| {
            let mr = b.pd.register(64, ALL_ACCESS);
            let sge = mr.sge(1, 64);
            (Some(mr), sge)
        });
        bad_receive(device, |b| {
            let mr = b.pd.register(64, REMOTE_READ);
            let sge = mr.sge(0, 64);
            (Some(mr), sge)
        });
    });
}

#[test]
fn receive_into_another_protection_domain_is_an_error_on_both_sides() {
    on_each_device("receive-other-pd", |device| {
        let other = Scene::new(device);
        bad_receive(device, |_| (None, other.at_b.sge(0, 64)));
        other.assert_untouched();
    });
}

#[test]
fn receive_that_is_larger_than_the_message_stays_untouched_behind_it() {
    on_each_device("receive-larger", |device| {
        let scene = Scene::new(device);
        scene.a.qp.post(&Wr::send(1, &[scene.at_a.sge(0, 10)]));
        scene.a.send_cq.expect_success(1);
        assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).byte_len, 10);
        let bytes = scene.at_b.bytes();
        assert_eq!((&bytes[..10], &bytes[10..]), (&[AT_A; 10][..], &[AT_B; BYTES - 10][..]));
    });
}

#[test]
fn write_with_immediate_takes_a_receive_and_leaves_its_memory_alone() {
    on_each_device("write-imm", |device| {
        let scene = Scene::new(device);
        let sink = scene.b.pd.register(32, ALL_ACCESS);
        let write = Wr::write(1, &[scene.at_a.sge(0, 20)], &sink, 0);
        scene.a.qp.post(&write.with_imm(0xfeed_f00d_u32.to_be()));
        let sent = scene.a.send_cq.expect_success(1);
        assert_eq!(sent.opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
        let wc = scene.b.receive_cq.expect_success(RECEIVE_B);
        assert_eq!((wc.opcode, wc.byte_len), (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 20));
        assert_eq!(wc.wc_flags, ibv_wc_flags::IBV_WC_WITH_IMM.0);
        assert_eq!(imm_of(&wc).to_be_bytes(), 0xfeed_f00d_u32.to_be().to_be_bytes());
        assert_eq!(wc.qp_num, scene.b.qp.number());
        assert_eq!(sink.bytes()[..20], [AT_A; 20]);
        scene.at_b.assert_filled(AT_B);
    });
}

#[test]
fn empty_write_with_immediate_needs_a_receive_without_elements_only() {
    on_each_device("write-imm-empty", |device| {
        let (a, b) = pair(device);
        b.qp.post_receive(1, &[]);
        let mut write = Wr::new(2, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[]);
        write = write.with_imm(77);
        a.qp.post(&write);
        a.send_cq.expect_success(2);
        let wc = b.receive_cq.expect_success(1);
        assert_eq!((wc.byte_len, imm_of(&wc)), (0, 77));
    });
}

#[test]
fn message_above_two_gib_is_refused_where_it_is_posted() {
    on_each_device("too-long", |device| {
        let scene = Scene::with(device, &Size { sge: 32, ..Size::default() }, &Default::default());
        // The same bytes 32 times: 2^31 and 32 bytes in all.
        let length = (1 << 26) + 1;
        let memory = Mapping::readable(length);
        let mr = scene.a.pd.try_register(memory.start(), length, 0).unwrap();
        let length = u32::try_from(length).unwrap();
        let sge = ibv_sge { addr: memory.start().addr() as u64, length, lkey: key_of(mr) };
        scene.expect_local_refusal(&Wr::send(1, &[sge; 32]), Status::IBV_WC_LOC_LEN_ERR);
        deregister(mr);
    });
}

#[test]
fn inline_data_may_be_reused_after_the_post() {
    on_each_held_device("inline-reuse", |device| {
        let scene = Scene::new(device.name());
        let mut first = *b"posted inline, ";
        let mut second = *b"in two elements";
        let unregistered = |bytes: &mut [u8]| ibv_sge {
            addr: bytes.as_mut_ptr().expose_provenance() as u64,
            length: u32::try_from(bytes.len()).unwrap(),
            lkey: 0,
        };
        let sges = [unregistered(&mut first), unregistered(&mut second)];
        scene.a.qp.post(&Wr::send(1, &sges).inline());
        scene.a.qp.post(&Wr::write(2, &sges[..1], &scene.at_b, 40).inline());
        first.fill(b'x');
        second.fill(b'x');
        assert_eq!(std::hint::black_box((first, second)).0, [b'x'; 15]);
        assert_eq!(device.in_flight(scene.a.qp.qpn()), 2);
        assert_eq!(device.release_all(), 2);
        scene.a.send_cq.expect_success(1);
        scene.a.send_cq.expect_success(2);
        assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).byte_len, 30);
        let bytes = scene.at_b.bytes();
        assert_eq!(bytes[..30], *b"posted inline, in two elements");
        assert_eq!(bytes[40..55], *b"posted inline, ");
    });
}

#[test]
fn inline_data_needs_no_key() {
    on_each_device("inline-no-key", |device| {
        let scene = Scene::new(device);
        let mut bytes = *b"no key at all";
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        let sge = ibv_sge { addr, length: 13, lkey: 0xbad };
        scene.a.qp.post(&Wr::write(1, &[sge], &scene.at_b, 0).inline());
        bytes.fill(0);
        assert_eq!(std::hint::black_box(bytes), [0; 13]);
        scene.a.send_cq.expect_success(1);
        assert_eq!(scene.at_b.bytes()[..13], *b"no key at all");
    });
}

#[test]
fn inline_data_that_is_too_long_is_refused_at_the_post() {
    on_each_device("inline-too-long", |device| {
        let size = Size { inline: 16, ..Size::default() };
        let scene = Scene::with(device, &size, &Default::default());
        let sges = [scene.at_a.sge(0, 10), scene.at_a.sge(10, 7)];
        assert_eq!(scene.a.qp.try_post(&Wr::send(1, &sges).inline()), Errno::EINVAL.raw());
        scene.a.qp.post(&Wr::send(2, &[scene.at_a.sge(0, 16)]).inline());
        scene.a.send_cq.expect_success(2);
        assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).byte_len, 16);
    });
}

/// A request that the post itself refuses, with nothing done and the queue pair as it was.
fn refused_at_the_post(name: &str, spoil: impl Fn(&Scene) -> Wr) {
    on_each_device(name, |device| {
        let scene = Scene::new(device);
        assert_eq!(scene.a.qp.try_post(&spoil(&scene)), Errno::EINVAL.raw());
        assert!(scene.a.send_cq.is_empty() && scene.b.receive_cq.is_empty());
        scene.assert_untouched();
        scene.a.qp.post(&scene.requests()[0]);
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn inline_read_is_refused_at_the_post() {
    refused_at_the_post("inline-read", |scene| scene.requests()[2].clone().inline());
}

#[test]
fn unknown_opcode_is_refused_at_the_post() {
    for (name, opcode) in
        [("opcode-unknown", ibv_wr_opcode(999)), ("opcode-tso", ibv_wr_opcode::IBV_WR_TSO)]
    {
        refused_at_the_post(name, |scene| Wr::new(1, opcode, &[scene.at_a.sge(0, 8)]));
    }
}

#[test]
fn unknown_send_flag_is_refused_at_the_post() {
    refused_at_the_post("send-flag", |scene| {
        scene.requests()[0].clone().flags(ibv_send_flags(1 << 20))
    });
}

#[test]
fn too_many_elements_are_refused_at_the_post() {
    refused_at_the_post("too-many-sges", |scene| Wr::send(1, &[scene.at_a.sge(0, 1); 5]));
    on_each_device("too-many-receive-sges", |device| {
        let scene = Scene::new(device);
        let elements = [scene.at_b.sge(0, 1); 5];
        assert_eq!(scene.b.qp.try_post_receive(7, &elements), Errno::EINVAL.raw());
        scene.b.qp.post_receive(8, &elements[..4]);
        let (send, again) = (Wr::send(1, &[]), Wr::send(2, &[scene.at_a.sge(0, 4)]));
        scene.a.qp.try_post_list(&[send, again]).unwrap();
        scene.b.receive_cq.expect_success(RECEIVE_B);
        scene.b.receive_cq.expect_success(8);
    });
}

#[test]
fn list_stops_at_the_request_that_is_refused() {
    on_each_device("bad-wr", |device| {
        let scene = Scene::new(device);
        let [write, _, read, _] = scene.requests();
        let bad = Wr::new(2, ibv_wr_opcode(999), &[]);
        let refused = scene.a.qp.try_post_list(&[write, read, bad, Wr::send(3, &[])]);
        assert_eq!(refused, Err((2, Errno::EINVAL.raw())));
        assert_eq!(scene.a.send_cq.next().opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
        assert_eq!(scene.a.send_cq.next().opcode, ibv_wc_opcode::IBV_WC_RDMA_READ);
        scene.a.qp.post(&Wr::send(4, &[]));
        scene.a.send_cq.expect_success(4);
        scene.b.receive_cq.expect_success(RECEIVE_B);
        assert!(scene.b.receive_cq.is_empty());
    });
}

#[test]
fn list_of_receives_stops_at_the_request_that_is_refused() {
    on_each_device("bad-receive-wr", |device| {
        let scene = Scene::new(device);
        let (one, five) = ([scene.at_b.sge(0, 1)], [scene.at_b.sge(0, 1); 5]);
        let list: [(u64, &[ibv_sge]); 4] = [(1, &one), (2, &one), (3, &five), (4, &one)];
        let refused = scene.b.qp.try_post_receive_list(&list);
        assert_eq!(refused, Err((2, Errno::EINVAL.raw())));
        scene.b.qp.to_error();
        scene.b.receive_cq.expect_flushed([RECEIVE_B, 1, 2]);
        assert!(scene.b.receive_cq.is_empty());
    });
}

#[test]
fn fenced_request_sees_what_the_read_before_it_fetched() {
    on_each_device("fence", |device| {
        let scene = Scene::new(device);
        let sink = scene.b.pd.register(32, ALL_ACCESS);
        let local = [scene.at_a.sge(0, 32)];
        let read = Wr::read(1, &local, &scene.at_b, 0);
        let write = Wr::write(2, &local, &sink, 0).fenced();
        scene.a.qp.try_post_list(&[read, write]).unwrap();
        scene.a.send_cq.expect_success(1);
        scene.a.send_cq.expect_success(2);
        sink.assert_filled(AT_B);
    });
}
