//! Revocation of the access that a memory window grants, on this device.

use rdma_sys::ibv_wc_status as Status;

use crate::device::rig::connect::Side;
use crate::device::rig::on_each_held_device;
use crate::device::rig::post::Wr;
use crate::device::rig::window::{AT_A, AT_B, BYTES, Grant, REMOTE, TYPE_1, TYPE_2};

#[test]
fn a_half_done_write_does_not_continue_after_its_window_is_revoked() {
    on_each_held_device("invalidate-half", |device| {
        for way in 0..4 {
            let grant = Grant::new(device.name());
            let kind = if way == 3 { TYPE_1 } else { TYPE_2 };
            let (mw, key) = grant.window(kind, REMOTE);
            grant.a.qp.post(&grant.write(key, 16, 32));
            assert!(device.release_half(grant.a.qp.qpn()));
            let release = |side: &Side| assert_eq!(device.release(side.qp.qpn(), 1), 1);
            let mut mw = Some(mw);
            match way {
                0 => {
                    grant.b.qp.post(&Wr::local_invalidate(5, key));
                    release(&grant.b);
                    grant.b.send_cq.expect_success(5);
                }
                1 => drop(mw.take()),
                2 => grant.b.qp.to_reset(),
                _ => {
                    let nothing = grant.at_b.part(0, 0, 0);
                    grant.b.qp.post_bind(5, mw.as_ref().unwrap(), nothing);
                    release(&grant.b);
                    grant.b.send_cq.expect_success(5);
                }
            }
            let mut half = vec![AT_B; BYTES];
            half[16..32].fill(AT_A);
            assert_eq!(grant.at_b.bytes(), half);
            device.release_all();
            let status = grant.a.send_cq.next().status;
            assert_ne!(status, Status::IBV_WC_SUCCESS, "way {way}");
            assert_eq!(grant.at_b.bytes(), half, "way {way}");
        }
    });
}
