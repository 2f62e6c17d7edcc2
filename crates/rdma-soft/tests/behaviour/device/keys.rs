//! Keys: the choices of this device.

use rdma_soft::{Builder, Limits};
use rdma_sys::{Errno, ibv_wc_status as Status};

use crate::device::rig::connect::Knobs;
use crate::device::rig::scene::{AT_B, BYTES, Scene};
use crate::device::rig::{ALL_ACCESS, Context, Mr, Size, on_each_device};

#[test]
fn keys_of_another_device_are_invalid() {
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
fn queue_pair_without_space_for_reads_posts_none() {
    on_each_device("no-initiator-depth", |device| {
        let knobs = Knobs { rd_atomic: 0, ..Knobs::default() };
        let scene = Scene::with(device, &Size::default(), &knobs);
        assert_eq!(scene.a.qp.try_post(&scene.requests()[2]), Errno::EINVAL.raw());
        scene.a.qp.post(&scene.requests()[0]);
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn reused_slot_has_another_key() {
    // One device: the keys depend on neither schedule nor link.
    Builder::new("reused-slot").install().unwrap();
    let scene = Scene::new("reused-slot");
    let old = scene.b.pd.register_filled(vec![AT_B; BYTES], ALL_ACCESS);
    let wr = scene.requests()[0].clone().remote(old.address(), old.key());
    let old_key = old.key();
    let mut again = scene.b.pd.register_filled(old.deregister(), ALL_ACCESS);
    let mut between = 0;
    while again.key() >> 8 != old_key >> 8 {
        again = scene.b.pd.register_filled(again.deregister(), ALL_ACCESS);
        between += 1;
    }
    assert!(between >= 16_384, "a slot was reused too early, after {between} others");
    assert_ne!(again.key(), old_key);
    scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
    again.assert_filled(AT_B);
}

#[test]
fn device_of_few_regions_can_always_use_all_of_them() {
    for count in [1, 2, 100] {
        let name = format!("few-regions-{count}");
        Builder::new(&name).limits(Limits::default().max_mr(count).max_mw(0)).install().unwrap();
        let context = Context::open(&name);
        let pd = context.pd();
        let mut keys = std::collections::HashSet::new();
        let mut regions: Vec<Mr> = (0..count).map(|_| pd.register(1, 0)).collect();
        for n in 0..10 * count as usize {
            let mut one_more = [0];
            let refused = pd.try_register(one_more.as_mut_ptr(), 1, 0).err();
            assert_eq!(refused, Some(Errno::ENOMEM));
            keys.insert(regions.swap_remove(n % count as usize).key());
            regions.push(pd.register(1, 0));
        }
        assert_eq!(keys.len(), 10 * count as usize, "each has another key");
    }
}

#[test]
fn read_with_a_bad_element_fills_no_other() {
    on_each_device("bad-element", |device| {
        let scene = Scene::new(device);
        let mut wr = scene.requests()[2].clone();
        wr.sges = vec![scene.at_a.sge(0, 8), scene.at_a.sge(BYTES - 7, 8)];
        scene.expect_local_refusal(&wr, Status::IBV_WC_LOC_PROT_ERR);
    });
}
