//! Remote regions as other programs see them.

#![cfg(feature = "serde")]

use rdma_mem::RemoteMemoryRegion;

#[test]
fn a_remote_region_is_three_numbers() {
    let region = RemoteMemoryRegion::new(0x1000, 300, 0x42);
    let bytes = postcard::to_allocvec(&region).unwrap();
    // Varints: 0x1000, 300, 0x42.
    assert_eq!(bytes, [0x80, 0x20, 0xac, 0x02, 0x42]);
    assert_eq!(postcard::from_bytes::<RemoteMemoryRegion>(&bytes).unwrap(), region);
}
