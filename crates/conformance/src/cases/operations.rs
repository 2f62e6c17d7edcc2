//! What a request moves, and where to.

use test_support::rig::connect::pair;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE};

use crate::case::cases;
use crate::device::Device;

cases![write_puts_bytes_into_the_peers_memory];

fn write_puts_bytes_into_the_peers_memory(device: &Device) {
    let (a, b) = pair(device);
    let from = a.pd.register_filled((0..64).collect(), LOCAL_WRITE);
    let to = b.pd.register_filled(vec![0xee; 64], ALL_ACCESS);
    a.qp.post(&Wr::write(1, &[from.sge(8, 16)], &to, 32));
    a.send_cq.expect_success(1);
    let mut wanted = vec![0xee; 64];
    wanted[32..48].copy_from_slice(&from.bytes()[8..24]);
    assert_eq!(to.bytes(), wanted);
}
