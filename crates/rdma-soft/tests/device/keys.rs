//! Keys, bounds, protection domains and rights: checked when a request is executed, on both sides, and
//! nothing is copied when one of them is wrong.

use rdma_soft::Builder;
use rdma_sys::{Errno, ibv_sge, ibv_wc_status as Status};

use crate::rig::connect::Knobs;
use crate::rig::post::Wr;
use crate::rig::scene::{AT_A, AT_B, BYTES, Scene};
use crate::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, REMOTE_READ, REMOTE_WRITE, Size, on_each_device};

/// WRITE, WRITE with immediate and READ, spoilt, are refused by B.
fn remote_refusals(name: &str, status: Status, spoil: impl Fn(&Scene, Wr) -> Wr) {
    on_each_device(name, |device| {
        for n in 0..3 {
            let scene = Scene::new(device);
            let wr = spoil(&scene, scene.requests()[n].clone());
            scene.expect_remote_refusal(&wr, status);
        }
    });
}

/// WRITE, WRITE with immediate, READ and SEND with another local element are refused by A.
fn local_refusals(name: &str, element: impl Fn(&Scene) -> ibv_sge) {
    on_each_device(name, |device| {
        for n in 0..4 {
            let scene = Scene::new(device);
            let mut wr = scene.requests()[n].clone();
            wr.sges[0] = element(&scene);
            scene.expect_local_refusal(&wr, Status::IBV_WC_LOC_PROT_ERR);
        }
    });
}

#[test]
fn wrong_rkey_is_refused() {
    let flips: [(&str, u32); 3] =
        [("wrong-rkey-1", 1), ("wrong-rkey-2", 0x100), ("wrong-rkey-3", 0x8000_0000)];
    for (name, flip) in flips {
        remote_refusals(name, Status::IBV_WC_REM_ACCESS_ERR, |scene, wr| {
            wr.remote(scene.at_b.address(), scene.at_b.key() ^ flip)
        });
    }
}

#[test]
fn wrong_lkey_is_refused() {
    let flips: [(&str, u32); 3] =
        [("wrong-lkey-1", 1), ("wrong-lkey-2", 0x100), ("wrong-lkey-3", 0x8000_0000)];
    for (name, flip) in flips {
        local_refusals(name, |scene| {
            let sge = scene.at_a.sge(8, 32);
            ibv_sge { lkey: sge.lkey ^ flip, ..sge }
        });
    }
}

#[test]
fn keys_of_another_device_mean_nothing() {
    on_each_device("other-device-key", |device| {
        let other = format!("{device}-other");
        Builder::new(&other).install().unwrap();
        let elsewhere = Scene::new(&other);
        let scene = Scene::new(device);
        let wr = scene.requests()[0].clone().remote(elsewhere.at_b.address(), elsewhere.at_b.key());
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        elsewhere.assert_untouched();
    });
}

#[test]
fn remote_range_past_the_end_is_refused() {
    // One byte too far, and wholly behind.
    for (name, offset) in [("remote-end-1", BYTES - 31), ("remote-end-2", BYTES)] {
        remote_refusals(name, Status::IBV_WC_REM_ACCESS_ERR, |scene, wr| {
            wr.remote(scene.at_b.address() + offset as u64, scene.at_b.key())
        });
    }
}

#[test]
fn remote_range_before_the_start_is_refused() {
    remote_refusals("remote-start", Status::IBV_WC_REM_ACCESS_ERR, |scene, wr| {
        wr.remote(scene.at_b.address() - 1, scene.at_b.key())
    });
}

#[test]
fn remote_range_that_wraps_is_refused() {
    // 32 bytes from here end at the 17th byte of the address space.
    remote_refusals("remote-wrap", Status::IBV_WC_REM_ACCESS_ERR, |scene, wr| {
        wr.remote(u64::MAX - 15, scene.at_b.key())
    });
}

#[test]
fn range_that_wraps_back_into_a_region_is_refused() {
    on_each_device("remote-wrap-bottom", |device| {
        for n in 0..3 {
            let scene = Scene::new(device);
            let mr = scene.b.pd.register_at(vec![AT_B; BYTES], 0, ALL_ACCESS);
            // It would end at the region's 17th byte.
            let wr = scene.requests()[n].clone().remote(u64::MAX - 15, mr.key());
            scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
            mr.assert_filled(AT_B);
        }
    });
}

#[test]
fn range_that_wraps_out_of_a_region_at_the_top_is_refused() {
    on_each_device("remote-wrap-top", |device| {
        let scene = Scene::new(device);
        let top = u64::MAX - BYTES as u64;
        let mr = scene.b.pd.register_at(vec![AT_B; BYTES], top, ALL_ACCESS);
        let all = [scene.at_a.sge(0, BYTES)];
        scene.a.qp.post(&Wr::read(1, &all, &scene.at_b, 0).remote(top, mr.key()));
        scene.a.send_cq.expect_success(1);
        scene.at_a.assert_filled(AT_B);
        scene.at_a.fill(AT_A);
        let behind = Wr::write(2, &all, &scene.at_b, 0).remote(u64::MAX - 8, mr.key());
        scene.expect_remote_refusal(&behind, Status::IBV_WC_REM_ACCESS_ERR);
        mr.assert_filled(AT_B);
    });
}

#[test]
fn local_element_out_of_bounds_is_refused() {
    local_refusals("local-end", |scene| scene.at_a.sge(BYTES - 31, 32));
    local_refusals("local-start", |scene| {
        let sge = scene.at_a.sge(0, 32);
        ibv_sge { addr: sge.addr - 1, ..sge }
    });
    local_refusals("local-wrap", |scene| ibv_sge { addr: u64::MAX - 15, ..scene.at_a.sge(0, 32) });
}

#[test]
fn one_bad_element_among_good_ones_is_refused() {
    on_each_device("bad-element", |device| {
        for n in 0..4 {
            let scene = Scene::new(device);
            let mut wr = scene.requests()[n].clone();
            wr.sges = vec![scene.at_a.sge(0, 8), scene.at_a.sge(BYTES - 7, 8)];
            scene.expect_local_refusal(&wr, Status::IBV_WC_LOC_PROT_ERR);
        }
    });
}

#[test]
fn remote_key_of_another_protection_domain_is_refused() {
    on_each_device("remote-pd", |device| {
        for n in 0..3 {
            let scene = Scene::new(device);
            let other = scene.b.context.pd();
            let mr = other.register_filled(vec![AT_B; BYTES], ALL_ACCESS);
            let wr = scene.requests()[n].clone().remote(mr.address(), mr.key());
            scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
            mr.assert_filled(AT_B);
        }
    });
}

#[test]
fn local_key_of_another_protection_domain_is_refused() {
    on_each_device("local-pd", |device| {
        for n in 0..4 {
            let scene = Scene::new(device);
            let other = scene.a.context.pd();
            let mr = other.register_filled(vec![AT_A; BYTES], ALL_ACCESS);
            let mut wr = scene.requests()[n].clone();
            wr.sges[0] = mr.sge(0, 32);
            scene.expect_local_refusal(&wr, Status::IBV_WC_LOC_PROT_ERR);
            mr.assert_filled(AT_A);
        }
    });
}

/// A request to a region with other rights.
fn refused_by_region(device: &str, n: usize, access: u32) {
    let scene = Scene::new(device);
    let mr = scene.b.pd.register_filled(vec![AT_B; BYTES], access);
    let wr = scene.requests()[n].clone().remote(mr.address(), mr.key());
    scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
    mr.assert_filled(AT_B);
}

#[test]
fn region_without_remote_write_refuses_writes() {
    on_each_device("region-no-write", |device| {
        refused_by_region(device, 0, LOCAL_WRITE | REMOTE_READ);
        refused_by_region(device, 1, LOCAL_WRITE);
    });
}

#[test]
fn region_without_remote_read_refuses_reads() {
    on_each_device("region-no-read", |device| {
        refused_by_region(device, 2, LOCAL_WRITE | REMOTE_WRITE);
    });
}

#[test]
fn read_into_a_region_without_local_write_is_refused() {
    on_each_device("region-no-local-write", |device| {
        let scene = Scene::new(device);
        let mr = scene.a.pd.register_filled(vec![AT_A; BYTES], REMOTE_READ);
        let wr = Wr::read(1, &[mr.sge(0, 32)], &scene.at_b, 0);
        scene.expect_local_refusal(&wr, Status::IBV_WC_LOC_PROT_ERR);
        mr.assert_filled(AT_A);
    });
}

/// A request to a queue pair with other rights, whose region has all.
fn refused_by_queue_pair(device: &str, n: usize, knobs: Knobs) {
    let scene = Scene::with(device, &Size::default(), &knobs);
    let wr = scene.requests()[n].clone();
    scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn queue_pair_without_remote_write_refuses_writes() {
    on_each_device("qp-no-write", |device| {
        let access = LOCAL_WRITE | REMOTE_READ;
        refused_by_queue_pair(device, 0, Knobs { access, ..Knobs::default() });
        refused_by_queue_pair(device, 1, Knobs { access, ..Knobs::default() });
    });
}

#[test]
fn queue_pair_without_remote_read_refuses_reads() {
    on_each_device("qp-no-read", |device| {
        let access = LOCAL_WRITE | REMOTE_WRITE;
        refused_by_queue_pair(device, 2, Knobs { access, ..Knobs::default() });
    });
}

#[test]
fn queue_pair_without_room_for_reads_posts_none() {
    on_each_device("no-initiator-depth", |device| {
        let knobs = Knobs { rd_atomic: 0, ..Knobs::default() };
        let scene = Scene::with(device, &Size::default(), &knobs);
        assert_eq!(scene.a.qp.try_post(&scene.requests()[2]), Errno::EINVAL.raw());
        scene.a.qp.post(&scene.requests()[0]);
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn no_bytes_need_no_key() {
    on_each_device("zero-length", |device| {
        let scene = Scene::new(device);
        let nothing = ibv_sge { addr: 3, length: 0, lkey: 0xbad };
        for (wr_id, sges) in [(1, &[][..]), (2, &[nothing]), (3, &[nothing, nothing])] {
            let nowhere = |wr: Wr| wr.remote(u64::MAX, 0xbad);
            scene.a.qp.post(&nowhere(Wr::write(wr_id, sges, &scene.at_b, 0)));
            scene.a.qp.post(&nowhere(Wr::read(wr_id + 10, sges, &scene.at_b, 0)));
            scene.a.send_cq.expect_success(wr_id);
            assert_eq!(scene.a.send_cq.expect_success(wr_id + 10).byte_len, 0);
        }
        scene.b.qp.post_receive(50, &[nothing]);
        scene.a.qp.post(&Wr::send(20, &[]));
        scene.a.qp.post(&Wr::send(21, &[nothing]));
        scene.a.send_cq.expect_success(20);
        scene.a.send_cq.expect_success(21);
        assert_eq!(scene.b.receive_cq.next().byte_len, 0);
        assert_eq!(scene.b.receive_cq.expect_success(50).byte_len, 0);
        scene.assert_untouched();
    });
}

#[test]
fn deregistered_rkey_is_refused() {
    on_each_device("dead-rkey", |device| {
        for n in 0..3 {
            let mut scene = Scene::new(device);
            let wr = scene.requests()[n].clone();
            let memory = replace(&mut scene, |scene| &mut scene.at_b, AT_B).deregister();
            scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
            assert_eq!(memory, [AT_B; BYTES]);
        }
    });
}

#[test]
fn deregistered_lkey_is_refused() {
    on_each_device("dead-lkey", |device| {
        for n in 0..4 {
            let mut scene = Scene::new(device);
            let wr = scene.requests()[n].clone();
            let memory = replace(&mut scene, |scene| &mut scene.at_a, AT_A).deregister();
            scene.expect_local_refusal(&wr, Status::IBV_WC_LOC_PROT_ERR);
            assert_eq!(memory, [AT_A; BYTES]);
        }
    });
}

/// Puts a fresh registration into a scene, and gives the one that was there.
fn replace(scene: &mut Scene, place: impl Fn(&mut Scene) -> &mut Mr, byte: u8) -> Mr {
    let side = if byte == AT_A { &scene.a } else { &scene.b };
    let fresh = side.pd.register_filled(vec![byte; BYTES], ALL_ACCESS);
    std::mem::replace(place(scene), fresh)
}

#[test]
fn old_key_of_a_slot_in_use_again_is_refused() {
    on_each_device("reused-slot", |device| {
        for n in 0..3 {
            let mut scene = Scene::new(device);
            let wr = scene.requests()[n].clone();
            let old = replace(&mut scene, |scene| &mut scene.at_b, AT_B);
            let old_key = old.key();
            // The same memory again, with the same rights: only the key tells them apart.
            let again = scene.b.pd.register_filled(old.deregister(), ALL_ACCESS);
            assert_eq!(again.key() >> 8, old_key >> 8, "the slot is in use again");
            assert_ne!(again.key(), old_key);
            scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
            again.assert_filled(AT_B);
        }
    });
}
