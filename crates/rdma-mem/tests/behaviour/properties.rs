//! Arithmetic of regions and elements, compared with a model that cannot overflow.

use std::ptr;
use std::sync::LazyLock;

use proptest::prelude::*;
use rdma_mem::{
    Context, RemoteMemoryRegion, ScatterGatherElementError, open_device, remote_array_field,
    remote_array_field_unchecked, remote_struct_array_field, remote_struct_field,
};

static SOFT0: LazyLock<Context> = LazyLock::new(|| {
    rdma_soft::install();
    open_device("soft0").unwrap()
});

#[repr(C)]
#[allow(dead_code)] // only its offsets are used
struct RingEntry {
    owner: u64,
    state: u32,
    flags: [u16; 2],
}

/// Small numbers, those around powers of two, and any.
fn number() -> impl Strategy<Value = usize> {
    let near = (0..64_u32, -2..=2_isize)
        .prop_map(|(shift, by)| (1_usize << shift).wrapping_add_signed(by));
    prop_oneof![0..64_usize, near, any::<usize>(), Just(usize::MAX)]
}

fn region() -> impl Strategy<Value = RemoteMemoryRegion> {
    (number(), number()).prop_map(|(a, length)| RemoteMemoryRegion::new(a as u64, length, 7))
}

/// Returns the rest from `offset` on, if it has `needed` bytes, and its addresses do not overflow.
fn model(region: &RemoteMemoryRegion, offset: u128, needed: usize) -> Option<(u128, u128)> {
    let (length, address) = (region.length() as u128, u128::from(region.address()) + offset);
    let left = length.checked_sub(offset)?;
    let fits = left >= needed as u128 && address + needed as u128 <= u128::from(u64::MAX);
    fits.then_some((address, left))
}

fn place(region: Option<RemoteMemoryRegion>) -> Option<(u128, u128)> {
    region.map(|region| (region.address().into(), region.length() as u128))
}

proptest! {
    #[test]
    fn the_rest_of_a_region_is_as_in_the_model(region in region(), offset in number()) {
        prop_assert_eq!(place(region.sub_region(offset)), model(&region, offset as u128, 0));
    }

    #[test]
    fn a_slice_lies_within_its_region(region in region(), start in number(), end in number()) {
        let length = end.wrapping_sub(start);
        let expected = if end < start { None } else { model(&region, start as u128, length) };
        let expected = expected.map(|(address, _)| (address, length as u128));
        prop_assert_eq!(place(region.slice(start..end)), expected);
    }

    #[test]
    fn unchecked_regions_stop_at_the_last_address(region in region(), index in number()) {
        let offset = (index as u128 * 8).min(usize::MAX as u128);
        let address = (u128::from(region.address()) + offset).min(u64::MAX.into());
        let length = (region.length() as u128).saturating_sub(offset);
        let found = remote_array_field_unchecked!(region, u64, index);
        prop_assert_eq!(place(Some(found)), Some((address, length)));
    }

    #[test]
    fn elements_and_fields_fit_or_are_none(region in region(), index in number()) {
        let at = |stride: u128, offset: u128| index as u128 * stride + offset;
        prop_assert_eq!(place(remote_array_field!(region, u16, index)), model(&region, at(2, 0), 2));
        let found = remote_array_field!(region, [u8; 37], index);
        prop_assert_eq!(place(found), model(&region, at(37, 0), 37));
        let found = remote_struct_array_field!(region, RingEntry, index, flags);
        prop_assert_eq!(place(found), model(&region, at(16, 12), 4));
        prop_assert_eq!(place(remote_struct_field!(region, RingEntry::state)), model(&region, 8, 4));
    }

    #[test]
    fn typed_memory_is_a_slice_of_just_that_length(region in region(), offset in number()) {
        let expected = model(&region, offset as u128, 8).map(|(address, _)| (address, 8));
        prop_assert_eq!(place(region.typed::<u64>(offset).map(Into::into)), expected);
        let found = region.array::<u32>(offset, 5);
        let expected = model(&region, offset as u128, 20).map(|(address, _)| (address, 20));
        prop_assert_eq!(place(found.map(Into::into)), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// H9: an element is made of a slice of the region, or not at all.
    #[test]
    fn an_element_lies_within_its_region(
        (from, to) in (0..=256_usize, 0..=256_usize),
        slices in prop::collection::vec((0..=256_usize, 0..=256_usize), 1..20),
        (address, length) in (number(), number()),
    ) {
        prop_assume!(from < to);
        let mut memory = [0; 256];
        let pd = SOFT0.allocate_pd().unwrap();
        let region = pd.register_local_mr_slice(&memory[from..to]).unwrap();
        let start = memory.as_ptr().addr();
        for (a, b) in slices {
            let (a, b) = (a.min(b), a.max(b));
            let inside = from <= a && b <= to;
            let found = region.gather_element_checked(&memory[a..b]).map(|sge| *sge.as_raw());
            prop_assert_eq!(found.is_ok(), inside);
            let outside = ScatterGatherElementError::SliceNotWithinBounds;
            match found {
                Ok(sge) => {
                    prop_assert_eq!(sge.addr, (start + a) as u64);
                    prop_assert_eq!((sge.length as usize, sge.lkey), (b - a, region.lkey().get()));
                }
                Err(error) => prop_assert_eq!(error, outside),
            }
            prop_assert_eq!(region.scatter_element_checked(&mut memory[a..b]).is_ok(), inside);
        }
        let (low, high) = ((start + from) as u128, (start + to) as u128);
        let inside = low <= address as u128 && address as u128 + length as u128 <= high;
        prop_assert_eq!(region.encloses(ptr::without_provenance(address), length), inside);
    }

    /// If a region is split in any way, the parts are its bytes in order, and their elements have
    /// the same addresses.
    #[test]
    fn registered_slices_tile_their_region(cuts in prop::collection::vec(0..=100_usize, 0..8)) {
        let pd = SOFT0.allocate_pd().unwrap();
        let mut memory = [0; 300];
        let start = memory.as_ptr().addr() as u64;
        let mut region = pd.register_borrowed(&mut memory).unwrap();
        let (lkey, mut at) = (region.lkey().get(), start);
        let mut rest = region.as_slice_mut();
        for cut in cuts {
            let middle = rest.len() * cut / 100;
            let (mut piece, after) = rest.split_at(middle);
            let sge = *piece.scatter_element().as_raw();
            prop_assert_eq!((sge.addr, sge.length as usize, sge.lkey), (at, middle, lkey));
            prop_assert_eq!(piece.as_ptr().addr() as u64, at);
            at += middle as u64;
            rest = after;
        }
        prop_assert_eq!(rest.gather_element().as_raw().addr, at);
        prop_assert_eq!(at + rest.len() as u64, start + 300);
    }

    /// Chunks are those of the bytes, and the slices of an array have equal lengths.
    #[test]
    fn chunks_and_arrays_tile_their_slice(length in 1..=100_usize, size in 1..=120_usize) {
        let pd = SOFT0.allocate_pd().unwrap();
        let mut region = pd.allocate_region(100).unwrap();
        region.iter_mut().zip(0..).for_each(|(byte, at)| *byte = at);
        let bytes = region[..length].to_vec();
        let chunks = region.get_mut(0, length).unwrap().into_chunks(size);
        prop_assert_eq!(chunks.len(), bytes.chunks(size).len());
        let chunks: Vec<_> = chunks.collect();
        for (piece, bytes) in chunks.iter().zip(bytes.chunks(size)) {
            prop_assert_eq!(&piece[..], bytes);
            prop_assert_eq!(piece.as_ptr().addr() as u64, piece.gather_element().as_raw().addr);
        }
        prop_assert_eq!(chunks.iter().map(|piece| piece.len()).sum::<usize>(), length);
        match region.get_mut(0, length).unwrap().into_array::<7>() {
            Ok(pieces) => {
                prop_assert!(pieces.iter().all(|piece| piece.len() * 7 == length));
                prop_assert_eq!(pieces.map(|piece| piece.to_vec()).concat(), bytes);
            }
            Err(whole) => {
                prop_assert!(length % 7 != 0);
                prop_assert_eq!(&whole[..], &bytes[..]);
            }
        }
        prop_assert!(region.as_slice_mut().into_array::<0>().is_err());
    }

    #[test]
    fn remote_regions_come_back_from_their_bytes(region in region(), key in any::<u32>()) {
        let region = RemoteMemoryRegion::new(region.address(), region.length(), key);
        prop_assert_eq!(RemoteMemoryRegion::from_bytes(region.to_bytes()), region);
    }

    #[test]
    fn any_bytes_are_a_remote_region(bytes in any::<[u8; RemoteMemoryRegion::BYTES]>()) {
        prop_assert_eq!(RemoteMemoryRegion::from_bytes(bytes).to_bytes(), bytes);
    }

    #[test]
    fn ranges_of_shared_regions_lie_within_them(start in number(), end in number()) {
        let pd = SOFT0.allocate_pd().unwrap();
        let region = pd.allocate_shared_region(50, rdma_mem::AccessFlags::new()).unwrap();
        let inside = start <= end && end <= 50;
        prop_assert_eq!(region.element(start..end).is_ok(), inside);
        prop_assert_eq!(region.atomic_u64(start).is_ok(), start <= 42 && start % 8 == 0);
        prop_assert_eq!(region.read(start, &mut [0; 3]).is_ok(), start <= 47);
        let mut owned = pd.allocate_region(50).unwrap();
        let base = owned.as_ptr().addr() as u64;
        // The second number is a length here.
        let fits = start as u128 + end as u128 <= 50;
        let found = owned.get_ref(start, end).map(|slice| *slice.gather_element().as_raw());
        prop_assert_eq!(found.is_some(), fits);
        if let Some(sge) = found {
            prop_assert_eq!((sge.addr - base, u64::from(sge.length)), (start as u64, end as u64));
            prop_assert_eq!(sge.lkey, owned.lkey().get());
        }
        prop_assert_eq!(owned.get_mut(start, end).is_some(), fits);
    }
}
