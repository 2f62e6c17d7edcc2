//! Completions: their fields, their order, and the effects that precede them.

use rdma_sys::{ibv_atomic_cap, ibv_wc_opcode as Opcode, ibv_wc_status as Status, ibv_wr_opcode};
use test_support::rig::connect::{Knobs, pair};
use test_support::rig::post::Wr;
use test_support::rig::scene::{RECEIVE_B, Scene};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    each_completion_says_which_operation_it_was,
    atomic_completions_say_which_operation_it_was,
    receive_completions_say_how_the_message_came,
    completions_name_their_queue_pair,
    failed_completions_name_their_request_and_queue_pair,
    fetched_bytes_are_counted,
    poll_takes_the_oldest_and_no_more_than_asked_for,
    poll_of_an_empty_queue_finds_nothing,
    different_operations_complete_in_the_order_they_were_posted,
    receives_complete_in_the_order_they_were_posted,
    message_behind_a_write_shows_what_was_written,
    read_behind_a_write_fetches_what_was_written,
    write_behind_a_write_has_the_last_word,
    unsignaled_requests_are_done_when_a_later_one_completes,
    completion_of_a_write_means_that_the_bytes_are_there,
];

fn each_completion_says_which_operation_it_was(device: &Device) {
    let scene = Scene::new(device);
    let wanted = [
        Opcode::IBV_WC_RDMA_WRITE,
        Opcode::IBV_WC_RDMA_WRITE,
        Opcode::IBV_WC_RDMA_READ,
        Opcode::IBV_WC_SEND,
        Opcode::IBV_WC_SEND,
    ];
    let [write, write_with_imm, read, send] = scene.requests();
    let send_with_imm = send.clone().with_imm(3);
    for n in 0..2 {
        scene.b.qp.post_receive(n, &[scene.at_b.sge(0, 64)]);
    }
    for (wr, opcode) in [write, write_with_imm, read, send, send_with_imm].iter().zip(wanted) {
        scene.a.qp.post(wr);
        assert_eq!(scene.a.send_cq.expect_success(1).opcode, opcode, "{:?}", wr.wr.opcode);
    }
}

fn atomic_completions_say_which_operation_it_was(device: &Device) {
    let has = device.attributes().atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE;
    device.needs(has, "the device has no atomic operations");
    let (a, b) = pair(device);
    let (own, word) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, ALL_ACCESS));
    for (operation, opcode) in [
        (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, Opcode::IBV_WC_COMP_SWAP),
        (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, Opcode::IBV_WC_FETCH_ADD),
    ] {
        a.qp.post(&Wr::new(1, operation, &[own.sge(0, 8)]).atomic(&word, 0, 0, 1));
        assert_eq!(a.send_cq.expect_success(1).opcode, opcode);
    }
}

fn receive_completions_say_how_the_message_came(device: &Device) {
    let (a, b) = pair(device);
    let target = b.pd.register(8, ALL_ACCESS);
    let own = a.pd.register(8, 0);
    let (send, write) = (Wr::send(1, &[own.sge(0, 8)]), Wr::write(1, &[own.sge(0, 8)], &target, 0));
    for (wr, opcode) in [
        (send.clone(), Opcode::IBV_WC_RECV),
        (send.with_imm(1), Opcode::IBV_WC_RECV),
        (write.with_imm(1), Opcode::IBV_WC_RECV_RDMA_WITH_IMM),
    ] {
        b.qp.post_receive(2, &[target.sge(0, 8)]);
        a.qp.post(&wr);
        a.send_cq.expect_success(1);
        assert_eq!(b.receive_cq.expect_success(2).opcode, opcode, "{:?}", wr.wr.opcode);
    }
}

fn completions_name_their_queue_pair(device: &Device) {
    let scene = Scene::new(device);
    scene.a.qp.post(&Wr::send(1, &[]));
    assert_eq!(scene.a.send_cq.expect_success(1).qp_num, scene.a.qp.number());
    assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).qp_num, scene.b.qp.number());
}

fn failed_completions_name_their_request_and_queue_pair(device: &Device) {
    const REFUSED: u64 = 0xdead_beef_0000_0001;
    let knobs = Knobs { rnr_retries: 0, ..Knobs::default() };
    for n in 0..4 {
        let scene = Scene::with(device, &Size::default(), &knobs);
        let (own, whole) = (scene.at_a.sge(0, 8), scene.at_a.sge(0, 64));
        let write = Wr::write(REFUSED, &[own], &scene.at_b, 0);
        let requests = [
            // A wrong remote key, a wrong local key, a range that ends outside the remote region,
            // and a missing receive.
            vec![write.remote(scene.at_b.address(), scene.at_b.key() ^ 1)],
            vec![Wr::send(REFUSED, &[rdma_sys::ibv_sge { lkey: own.lkey ^ 1, ..own }])],
            vec![Wr::read(REFUSED, &[whole], &scene.at_b, 8)],
            vec![Wr::send(3, &[]).unsignaled(), Wr::send(REFUSED, &[])],
        ];
        assert_eq!(scene.a.qp.try_post_list(&requests[n]), Ok(()));
        scene.a.qp.post(&Wr::send(4, &[]));
        let (failed, behind) = (scene.a.send_cq.next(), scene.a.send_cq.next());
        assert_ne!(failed.status, Status::IBV_WC_SUCCESS);
        assert_eq!((failed.wr_id, failed.qp_num), (REFUSED, scene.a.qp.number()), "number {n}");
        assert_eq!(behind.status, Status::IBV_WC_WR_FLUSH_ERR);
        assert_eq!((behind.wr_id, behind.qp_num), (4, scene.a.qp.number()), "number {n}");
        let flushed = scene.a.receive_cq.next();
        assert_eq!(flushed.status, Status::IBV_WC_WR_FLUSH_ERR);
        assert_eq!(flushed.qp_num, scene.a.qp.number());
    }
}

fn fetched_bytes_are_counted(device: &Device) {
    let (a, b) = pair(device);
    let (own, there) = (a.pd.register(5000, LOCAL_WRITE), b.pd.register(5000, ALL_ACCESS));
    for length in [0, 1, 8, 1024, 1025, 5000] {
        let sges = [own.sge(0, length / 2), own.sge(length / 2, length - length / 2)];
        a.qp.post(&Wr::read(1, &sges, &there, 0));
        assert_eq!(a.send_cq.expect_success(1).byte_len as usize, length);
    }
}

fn poll_takes_the_oldest_and_no_more_than_asked_for(device: &Device) {
    let scene = Scene::new(device);
    for n in 0..10 {
        scene.a.qp.post(&Wr::write(n, &[scene.at_a.sge(0, 8)], &scene.at_b, 0));
    }
    let mut polled = Vec::new();
    test_support::rig::until("all completions", || {
        let found = scene.a.send_cq.try_poll::<3>().unwrap();
        assert!(found.len() <= 3);
        polled.extend(found.iter().map(|wc| wc.wr_id));
        polled.len() >= 10
    });
    assert_eq!(polled, (0..10).collect::<Vec<u64>>());
}

fn poll_of_an_empty_queue_finds_nothing(device: &Device) {
    let cq = device.open();
    let cq = cq.cq(4);
    for _ in 0..10 {
        assert_eq!(cq.try_poll::<1>().unwrap().len(), 0);
        assert_eq!(cq.try_poll::<16>().unwrap().len(), 0);
        assert_eq!(cq.try_poll::<0>().unwrap().len(), 0);
    }
}

fn different_operations_complete_in_the_order_they_were_posted(device: &Device) {
    let (a, b) = pair(device);
    let large = a.pd.register(20_000, ALL_ACCESS);
    let there = b.pd.register(20_000, ALL_ACCESS);
    for n in 0..8 {
        b.qp.post_receive(n, &[there.sge(0, 20_000)]);
    }
    // Long and short messages. The peer answers the reads with data, and the others with
    // acknowledgements.
    let (long, short) = ([large.sge(0, 20_000)], [large.sge(0, 1)]);
    for round in 0..4 {
        let id = |n: u64| 10 * round + n;
        let list = [
            Wr::read(id(0), &long, &there, 0),
            Wr::write(id(1), &short, &there, 0),
            Wr::read(id(2), &short, &there, 0),
            Wr::send(id(3), &long),
            Wr::write(id(4), &long, &there, 0),
            Wr::send(id(5), &[]),
        ];
        assert_eq!(a.qp.try_post_list(&list), Ok(()));
    }
    for round in 0..4 {
        for n in 0..6 {
            a.send_cq.expect_success(10 * round + n);
        }
    }
}

fn receives_complete_in_the_order_they_were_posted(device: &Device) {
    let (a, b) = pair(device);
    let target = b.pd.register(4096, ALL_ACCESS);
    let own = a.pd.register(4096, 0);
    for n in 0..20 {
        b.qp.post_receive(n, &[target.sge(0, 4096)]);
    }
    for n in 0..20 {
        let length = [0, 1, 4096][n % 3];
        let sges = [own.sge(0, length)];
        a.qp.post(&match n % 2 {
            0 => Wr::send(1, &sges),
            _ => Wr::write(1, &sges, &target, 0).with_imm(5),
        });
        a.send_cq.expect_success(1);
    }
    for n in 0..20 {
        let received = b.receive_cq.expect_success(n);
        assert_eq!(received.byte_len, [0, 1, 4096][n as usize % 3]);
    }
}

fn message_behind_a_write_shows_what_was_written(device: &Device) {
    let (a, b) = pair(device);
    let own = a.pd.register_filled((0..=255).cycle().take(10_000).collect(), 0);
    let target = b.pd.register(10_000, ALL_ACCESS);
    for round in 0..4 {
        target.fill(0);
        b.qp.post_receive(round, &[]);
        a.qp.post(&Wr::write(1, &[own.sge(0, 10_000)], &target, 0).unsignaled());
        a.qp.post(&Wr::send(round, &[]));
        b.receive_cq.expect_success(round);
        assert_eq!(target.bytes(), own.bytes());
        a.send_cq.expect_success(round);
    }
}

fn read_behind_a_write_fetches_what_was_written(device: &Device) {
    let (a, b) = pair(device);
    let target = b.pd.register(2000, ALL_ACCESS);
    let back = a.pd.register(2000, LOCAL_WRITE);
    for round in 1..=4 {
        let own = a.pd.register_filled(vec![round; 2000], 0);
        a.qp.post(&Wr::write(1, &[own.sge(0, 2000)], &target, 0).unsignaled());
        a.qp.post(&Wr::read(2, &[back.sge(0, 2000)], &target, 0));
        a.send_cq.expect_success(2);
        back.assert_filled(round);
    }
}

fn write_behind_a_write_has_the_last_word(device: &Device) {
    let (a, b) = pair(device);
    let target = b.pd.register(3000, ALL_ACCESS);
    let own: Vec<_> = (0..10).map(|n| a.pd.register_filled(vec![n; 3000], 0)).collect();
    for (memory, n) in own.iter().zip(0..) {
        a.qp.post(&Wr::write(n, &[memory.sge(0, 3000)], &target, 0));
    }
    for n in 0..10 {
        a.send_cq.expect_success(n);
    }
    target.assert_filled(9);
}

fn unsignaled_requests_are_done_when_a_later_one_completes(device: &Device) {
    let (a, b) = pair(device);
    let own = a.pd.register_filled((1..=20).collect(), LOCAL_WRITE);
    let (target, back) = (b.pd.register(20, ALL_ACCESS), a.pd.register(20, LOCAL_WRITE));
    for n in 0..20 {
        let place = n as usize;
        a.qp.post(&Wr::write(n, &[own.sge(place, 1)], &target, place).unsignaled());
        a.qp.post(&Wr::read(n, &[back.sge(place, 1)], &target, place).unsignaled());
    }
    a.qp.post(&Wr::write(99, &[], &target, 0));
    a.send_cq.expect_success(99);
    assert_eq!((target.bytes(), back.bytes()), (own.bytes(), own.bytes()));
}

fn completion_of_a_write_means_that_the_bytes_are_there(device: &Device) {
    let (a, b) = pair(device);
    let target = b.pd.register(5000, ALL_ACCESS);
    for n in 1..=10 {
        let own = a.pd.register_filled(vec![n; 5000], 0);
        a.qp.post(&Wr::write(1, &[own.sge(0, 5000)], &target, 0));
        a.send_cq.expect_success(1);
        target.assert_filled(n);
        // The bytes have been sent, so the program may change its copy.
        own.fill(0xff);
        target.assert_filled(n);
    }
}
