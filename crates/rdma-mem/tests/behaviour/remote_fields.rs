//! The macros for elements and fields of a peer's memory, and typed remote memory.
#![allow(dead_code)] // only the offsets of some fields are used

use bytemuck::{Pod, Zeroable};
use rdma_mem::{
    RemoteMemoryRegion, RemoteRef, RemoteSlice, remote_array_field, remote_array_field_unchecked,
    remote_ref, remote_struct_array_field, remote_struct_array_field_unchecked,
    remote_struct_field, remote_struct_field_unchecked,
};

mod wire {
    #[repr(C)]
    pub(crate) struct Entry<T> {
        pub(crate) header: Header,
        pub(crate) value: T,
    }

    #[repr(C)]
    pub(crate) struct Header {
        pub(crate) key: u64,
        pub(crate) pair: (u16, u16),
        pub(crate) nothing: [u8; 0],
    }

    #[repr(C, packed)]
    pub(crate) struct Packed {
        pub(crate) tag: u8,
        pub(crate) number: u64,
    }
}

use wire::{Entry, Header, Packed};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RingEntry {
    owner: u64,
    state: u32,
    flags: [u16; 2],
}

trait Layout {
    type Record;
}

impl Layout for u8 {
    type Record = RingEntry;
}

fn region(address: u64, length: usize) -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(address, length, 7)
}

/// Address and length.
fn place(region: Option<RemoteMemoryRegion>) -> Option<(u64, usize)> {
    region.map(|region| (region.address(), region.length()))
}

#[test]
fn an_element_must_fit_wholly_and_the_region_goes_on_to_its_end() {
    let memory = region(100, 24);
    assert_eq!(place(remote_array_field!(memory, u64, 0)), Some((100, 24)));
    assert_eq!(place(remote_array_field!(memory, u64, 2)), Some((116, 8)), "the exact end");
    assert_eq!(remote_array_field!(memory, u64, 3), None, "nothing is left");
    assert_eq!(remote_array_field!(region(100, 23), u64, 2), None, "one byte is missing");
    assert_eq!(place(remote_array_field!(memory, [u8; 24], 0)), Some((100, 24)));
    assert_eq!(remote_array_field!(memory, [u8; 25], 0), None);
    assert_eq!(remote_array_field!(memory, u64, 0).unwrap().rkey(), 7);
}

#[test]
fn an_empty_region_has_empty_fields_only() {
    let empty = region(100, 0);
    assert_eq!(remote_array_field!(empty, u8, 0), None);
    assert_eq!(place(remote_array_field!(empty, [u8; 0], 5)), Some((100, 0)));
    assert_eq!(remote_struct_field!(empty, RingEntry::owner), None);
    assert_eq!(remote_struct_array_field!(empty, RingEntry, 0, owner), None);
    let header = region(100, 12);
    assert_eq!(place(remote_struct_field!(header, Header::nothing)), Some((112, 0)));
    assert_eq!(remote_struct_field!(region(100, 11), Header::nothing), None);
}

#[test]
fn a_field_must_fit_wholly() {
    // H8: a region of 5 bytes does not contain a field of 1 KiB, even though one byte of it would
    // fit.
    #[repr(C)]
    struct Large {
        head: u32,
        body: [u8; 1024],
    }
    assert_eq!(remote_struct_field!(region(0, 5), Large::body), None);
    assert_eq!(remote_struct_field!(region(0, 1027), Large::body), None);
    assert_eq!(place(remote_struct_field!(region(0, 1028), Large::body)), Some((4, 1024)));

    let slots = region(0, 28); // one, and the first two fields of another
    assert_eq!(place(remote_struct_array_field!(slots, RingEntry, 1, state)), Some((24, 4)));
    assert_eq!(remote_struct_array_field!(slots, RingEntry, 1, flags), None);
    assert_eq!(remote_struct_array_field!(slots, RingEntry, 2, owner), None);
}

#[test]
fn every_overflow_is_none() {
    let memory = region(0, usize::MAX);
    assert_eq!(remote_array_field!(memory, u64, usize::MAX), None, "index times size");
    assert_eq!(remote_array_field!(memory, u64, usize::MAX / 8 + 1), None);
    assert_eq!(remote_struct_array_field!(memory, RingEntry, usize::MAX, state), None);
    let almost = usize::MAX / 16; // times 16 is usize::MAX - 15, and 8 more still are no overflow
    assert_eq!(remote_struct_array_field!(memory, RingEntry, almost, state).unwrap().length(), 7);
}

#[test]
fn addresses_never_wrap() {
    let last = region(u64::MAX - 15, usize::MAX);
    assert_eq!(place(remote_array_field!(last, u64, 0)), Some((u64::MAX - 15, usize::MAX)));
    assert_eq!(remote_array_field!(last, u64, 1), None, "it would end past the last address");
    assert_eq!(remote_array_field!(last, u64, 2), None, "it would begin there");
    assert_eq!(remote_struct_field!(last, (u64, u64)::1), None);
    assert!(remote_struct_field!(region(u64::MAX, 16), RingEntry::owner).is_none());
    assert!(remote_struct_array_field!(region(u64::MAX, 16), RingEntry, 0, owner).is_none());
    for index in [1, usize::MAX] {
        let past = remote_array_field_unchecked!(last, u128, index);
        assert_eq!(past.address(), u64::MAX);
    }
}

#[test]
fn unchecked_forms_are_empty_past_the_end_and_overflow_nothing() {
    let memory = region(100, 20);
    assert_eq!(remote_array_field_unchecked!(memory, u64, 2), region(116, 4));
    assert_eq!(remote_array_field_unchecked!(memory, u64, 3), region(124, 0));
    assert_eq!(remote_array_field_unchecked!(memory, u64, usize::MAX), region(u64::MAX, 0));
    assert_eq!(remote_struct_field_unchecked!(memory, RingEntry::state), region(108, 12));
    assert_eq!(remote_struct_field_unchecked!(region(100, 3), RingEntry::state), region(108, 0));
    assert_eq!(
        remote_struct_field_unchecked!(memory, wire::Entry<u32>::header.pair.1).length(),
        remote_struct_field!(memory, wire::Entry<u32>::header.pair.1).unwrap().length(),
    );
    let field = remote_struct_array_field_unchecked!(memory, RingEntry, usize::MAX, flags);
    assert_eq!(field, region(u64::MAX, 0));
    assert_eq!(remote_struct_array_field_unchecked!(memory, RingEntry, 1, owner), region(116, 4));
}

#[test]
fn any_path_to_a_type_and_any_field_of_a_field() {
    let memory = region(0, 256);
    let at = |found: Option<RemoteMemoryRegion>| found.unwrap().address();
    assert_eq!(at(remote_struct_field!(memory, wire::Entry<u64>::value)), 16);
    assert_eq!(
        at(remote_struct_field!(memory, crate::remote_fields::wire::Entry<Vec<Vec<u8>>>::value)),
        16
    );
    assert_eq!(at(remote_struct_field!(memory, self::Entry::<[u8; 3]>::header.key)), 0);
    assert_eq!(at(remote_struct_field!(memory, <u8 as Layout>::Record::flags)), 12);
    assert_eq!(at(remote_struct_field!(memory, Packed::number)), 1);
    assert_eq!(at(remote_struct_field!(memory, Entry<Packed>::value.number)), 17);
    let pair = core::mem::offset_of!(Header, pair.1) as u64;
    assert_eq!(at(remote_struct_field!(memory, Header::pair.1)), pair);
    assert_eq!(at(remote_struct_array_field!(memory, Entry<u64>, 2, header.pair.1)), 48 + pair);
    let inner = core::mem::offset_of!(((u8, u32), (u8, u64)), 1.1) as u64;
    assert_eq!(at(remote_struct_field!(memory, ((u8, u32), (u8, u64))::1.1)), inner);
    assert_eq!(at(remote_struct_array_field!(memory, ((u8, u32), (u8, u64)), 0, 1.1)), inner);
}

/// The type is generic here, and its owned fields are never created.
fn value_of<T>(memory: &RemoteMemoryRegion, index: usize) -> Option<RemoteMemoryRegion> {
    let first = remote_struct_field!(memory, Entry<T>::value)?;
    let nth = remote_struct_array_field!(memory, Entry<T>, index, value)?;
    assert!(first.address() <= nth.address());
    Some(nth)
}

#[test]
fn generic_types_and_fields_that_own_something() {
    let memory = region(0, 48);
    assert_eq!(place(value_of::<u64>(&memory, 1)), Some((40, 8)));
    assert_eq!(value_of::<u64>(&memory, 2), None);
    assert_eq!(value_of::<String>(&memory, 1), None);
}

#[test]
fn nothing_of_the_caller_gets_in_the_way() {
    #![allow(non_camel_case_types, unused_macros)]
    struct usize;
    struct Option;
    mod core {}
    macro_rules! offset_of {
        ($($any:tt)*) => {
            compile_error!("not this one")
        };
    }
    let whole = 1;
    let mut asked = 0;
    let mut memory = || {
        asked += 1;
        region(0, 64)
    };
    assert!(remote_struct_field!(memory(), RingEntry::state).is_some());
    assert!(remote_struct_array_field!(&memory(), RingEntry, whole, state).is_some());
    assert!(remote_array_field!(Box::new(memory()), u64, whole).is_some());
    assert_eq!(asked, 3, "each evaluated the region once");
}

#[test]
fn typed_memory_is_as_long_as_its_type() {
    let memory = region(100, 64);
    let slot: RemoteRef<RingEntry> = memory.typed(48).unwrap();
    assert_eq!((slot.address(), slot.region()), (148, region(148, 16)));
    assert_eq!(memory.typed::<RingEntry>(49), None);
    assert_eq!(memory.typed::<RingEntry>(usize::MAX), None);
    assert_eq!(region(u64::MAX, 16).typed::<RingEntry>(0), None);
    let flags = remote_ref!(memory, RingEntry::flags).unwrap();
    let flags: RemoteRef<[u16; 2]> = flags;
    assert_eq!(RemoteMemoryRegion::from(flags), region(112, 4));
    assert_eq!(remote_ref!(region(100, 15), RingEntry::flags), None);
    assert_eq!(remote_ref!(slot.region(), RingEntry::flags).unwrap().address(), 160);
}

#[test]
fn typed_slices_keep_to_their_length() {
    let memory = region(100, 70);
    let slots: RemoteSlice<RingEntry> = memory.array(4, 4).unwrap();
    assert_eq!((slots.len(), slots.region()), (4, region(104, 64)));
    assert!(memory.array::<RingEntry>(4, 5).is_none() && memory.array::<RingEntry>(7, 4).is_none());
    assert!(memory.array::<RingEntry>(0, usize::MAX).is_none());
    assert!(memory.array::<RingEntry>(usize::MAX, 1).is_none());
    assert_eq!(slots.get(3).unwrap().region(), region(152, 16));
    assert_eq!((slots.get(4), slots.get(usize::MAX)), (None, None));
    assert_eq!(slots.slice(1..3).unwrap().region(), region(120, 32));
    assert!(slots.slice(4..4).unwrap().is_empty());
    assert_eq!((slots.slice(3..5), slots.slice(5..5)), (None, None));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = slots.slice(3..1);
    assert_eq!(reversed, None);
    assert_ne!(memory.array::<()>(0, 1), memory.array::<()>(0, 2));
    let text = format!("{:?}", memory.typed::<u32>(0).unwrap());
    assert!(text.starts_with("RemoteRef<u32>(RemoteMemoryRegion"), "{text}");
}
