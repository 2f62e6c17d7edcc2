//! The serialised form of remote regions, which other programs read.

#![cfg(feature = "serde")]

use rdma_mem::{RemoteMemoryRegion, remote_array_field};

/// The whole region, an element, an empty one and the largest.
fn regions() -> [RemoteMemoryRegion; 4] {
    let region = RemoteMemoryRegion::new(0x1000, 300, 0x42);
    [
        region,
        remote_array_field!(region, u64, 3).unwrap(),
        region.sub_region(300).unwrap(),
        RemoteMemoryRegion::new(u64::MAX, usize::MAX, u32::MAX),
    ]
}

#[test]
fn a_remote_region_is_three_numbers() {
    let region = RemoteMemoryRegion::new(0x1000, 300, 0x42);
    let bytes = postcard::to_allocvec(&region).unwrap();
    // Varints: 0x1000, 300, 0x42.
    assert_eq!(bytes, [0x80, 0x20, 0xac, 0x02, 0x42]);
    let text = serde_json::to_string(&region).unwrap();
    assert_eq!(text, r#"{"addr":4096,"length":300,"rkey":66}"#);
}

#[test]
fn remote_regions_come_back_as_they_were() {
    for region in regions() {
        let bytes = postcard::to_allocvec(&region).unwrap();
        assert_eq!(postcard::from_bytes::<RemoteMemoryRegion>(&bytes).unwrap(), region);
        let text = serde_json::to_string(&region).unwrap();
        assert_eq!(serde_json::from_str::<RemoteMemoryRegion>(&text).unwrap(), region);
    }
}

#[test]
fn invalid_remote_regions_are_refused() {
    for text in [r#"{"addr":-1,"length":1,"rkey":1}"#, r#"{"addr":1,"rkey":1}"#, "[]", "7"] {
        assert!(serde_json::from_str::<RemoteMemoryRegion>(text).is_err(), "{text}");
    }
    let wide_key = r#"{"addr":1,"length":1,"rkey":4294967296}"#;
    assert!(serde_json::from_str::<RemoteMemoryRegion>(wide_key).is_err());
}
