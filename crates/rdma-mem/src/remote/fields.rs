//! Elements and fields of arrays and structs in a peer's memory.

/// Returns the region that starts at an element of a peer's array.
///
/// `remote_array_field!(region, T, index)` returns `Option<RemoteMemoryRegion>`, for an array of
/// `T` at the start of the [`RemoteMemoryRegion`](crate::RemoteMemoryRegion). The result extends to
/// the end of the region, like that of [`sub_region`](crate::RemoteMemoryRegion::sub_region). It is
/// `None` if the element is not entirely within the region, or the address overflows.
///
/// Both sides must use the same layout: use `#[repr(C)]` types, and integers in the peer's byte
/// order. The peer is responsible for the alignment of the address. For a region with the element's
/// length, use [`RemoteMemoryRegion::array`](crate::RemoteMemoryRegion::array).
///
/// # Examples
/// ```
/// use rdma_mem::{RemoteMemoryRegion, remote_array_field};
///
/// let region = RemoteMemoryRegion::new(0x1000, 20, 7);
/// let second = remote_array_field!(region, u64, 1).unwrap();
/// assert_eq!((second.address(), second.length()), (0x1008, 12));
/// assert_eq!(remote_array_field!(region, u64, 2), None); // bytes 16 to 24 of 20
/// ```
#[macro_export]
macro_rules! remote_array_field {
    ($region:expr, $T:ty, $index:expr $(,)?) => {
        (&$region).__element($index, ::core::mem::size_of::<$T>(), 0, ::core::mem::size_of::<$T>())
    };
}

/// Like [`remote_array_field!`](crate::remote_array_field), but returns a `RemoteMemoryRegion` in
/// all cases. Past the end, its length is 0, as with
/// [`sub_region_unchecked`](crate::RemoteMemoryRegion::sub_region_unchecked). Nothing overflows.
///
/// # Examples
/// ```
/// use rdma_mem::{RemoteMemoryRegion, remote_array_field_unchecked};
///
/// let region = RemoteMemoryRegion::new(0x1000, 20, 7);
/// assert_eq!(remote_array_field_unchecked!(region, u64, 2).length(), 4);
/// assert_eq!(remote_array_field_unchecked!(region, u64, usize::MAX).length(), 0);
/// ```
#[macro_export]
macro_rules! remote_array_field_unchecked {
    ($region:expr, $T:ty, $index:expr $(,)?) => {
        (&$region).__element_unchecked($index, ::core::mem::size_of::<$T>(), 0)
    };
}

/// Returns the region that starts at a field of a peer's struct.
///
/// `remote_struct_field!(region, Struct::field)` returns `Option<RemoteMemoryRegion>`, for a struct
/// at the start of the [`RemoteMemoryRegion`](crate::RemoteMemoryRegion). It follows the rules of
/// [`remote_array_field!`](crate::remote_array_field). The path to the type may have generic
/// arguments, and the field may be nested: `wire::Entry<u32>::header.key`, `(u64, u32)::1`.
///
/// # Examples
/// ```
/// use rdma_mem::{RemoteMemoryRegion, remote_struct_field};
///
/// #[repr(C)]
/// struct Head {
///     sequence: u64,
///     name: [u8; 16],
/// }
///
/// let region = RemoteMemoryRegion::new(0x1000, 64, 7);
/// let name = remote_struct_field!(region, Head::name).unwrap();
/// assert_eq!((name.address(), name.length()), (0x1008, 56));
/// let short = region.slice(0..20).unwrap();
/// assert!(remote_struct_field!(short, Head::sequence).is_some());
/// assert_eq!(remote_struct_field!(short, Head::name), None); // bytes 8 to 24 of 20
/// ```
#[macro_export]
macro_rules! remote_struct_field {
    ($region:expr, $($path:tt)+) => {
        $crate::__remote_field!([checked $region] [] $($path)+)
    };
}

/// Like [`remote_struct_field!`](crate::remote_struct_field), but returns a `RemoteMemoryRegion` in
/// all cases. Past the end, its length is 0.
///
/// # Examples
/// ```
/// use rdma_mem::{RemoteMemoryRegion, remote_struct_field_unchecked};
///
/// let region = RemoteMemoryRegion::new(0x1000, 12, 7);
/// assert_eq!(remote_struct_field_unchecked!(region, (u64, u64)::1).length(), 4);
/// ```
#[macro_export]
macro_rules! remote_struct_field_unchecked {
    ($region:expr, $($path:tt)+) => {
        $crate::__remote_field!([unchecked $region] [] $($path)+)
    };
}

/// Returns the region that starts at a field of one struct in a peer's array.
///
/// `remote_struct_array_field!(region, Struct, index, field)` returns `Option<RemoteMemoryRegion>`.
/// It follows the rules of [`remote_struct_field!`](crate::remote_struct_field). The field has to
/// be within the region, but later fields of its struct need not be.
///
/// # Examples
/// ```
/// use rdma_mem::{RemoteMemoryRegion, remote_struct_array_field};
///
/// #[repr(C)]
/// struct RingEntry {
///     owner: u64,
///     state: u64,
/// }
///
/// let region = RemoteMemoryRegion::new(0x1000, 4 * 16, 7);
/// let state = remote_struct_array_field!(region, RingEntry, 3, state).unwrap();
/// assert_eq!((state.address(), state.length()), (0x1038, 8));
/// assert_eq!(remote_struct_array_field!(region, RingEntry, 4, owner), None);
/// ```
#[macro_export]
macro_rules! remote_struct_array_field {
    ($region:expr, $S:ty, $index:expr, $($field:tt).+ $(,)?) => {
        (&$region).__element(
            $index,
            ::core::mem::size_of::<$S>(),
            ::core::mem::offset_of!($S, $($field).+),
            $crate::__size_of_field(|whole: $S| whole.$($field).+),
        )
    };
}

/// Like [`remote_struct_array_field!`](crate::remote_struct_array_field), but returns a
/// `RemoteMemoryRegion` in all cases. Past the end, its length is 0.
///
/// # Examples
/// ```
/// use rdma_mem::{RemoteMemoryRegion, remote_struct_array_field_unchecked};
///
/// let region = RemoteMemoryRegion::new(0x1000, 20, 7);
/// let field = remote_struct_array_field_unchecked!(region, (u64, u64), 1, 0);
/// assert_eq!((field.address(), field.length()), (0x1010, 4));
/// ```
#[macro_export]
macro_rules! remote_struct_array_field_unchecked {
    ($region:expr, $S:ty, $index:expr, $($field:tt).+ $(,)?) => {
        (&$region).__element_unchecked(
            $index,
            ::core::mem::size_of::<$S>(),
            ::core::mem::offset_of!($S, $($field).+),
        )
    };
}

/// Returns exactly one field of a peer's struct, as an `Option<RemoteRef<F>>`.
///
/// This is the typed form of [`remote_struct_field!`](crate::remote_struct_field). The field must
/// be plain old data (`bytemuck::Pod`).
///
/// # Examples
/// ```
/// use rdma_mem::{RemoteMemoryRegion, RemoteRef, remote_ref};
///
/// let region = RemoteMemoryRegion::new(0x1000, 64, 7);
/// let field: RemoteRef<u32> = remote_ref!(region, (u64, u32)::1).unwrap();
/// assert_eq!(field.region().length(), 4);
/// ```
#[macro_export]
macro_rules! remote_ref {
    ($region:expr, $($path:tt)+) => {
        $crate::__remote_field!([typed $region] [] $($path)+)
    };
}

/// Splits the path token by token. The tokens before the last `::` form the type; they cannot be
/// matched as a `ty`, which must not be followed by `::`.
#[doc(hidden)]
#[macro_export]
macro_rules! __remote_field {
    ([checked $region:expr] [$($S:tt)+] :: $($field:tt).+ $(,)?) => {
        (&$region).__element(
            0,
            0,
            ::core::mem::offset_of!($($S)+, $($field).+),
            $crate::__size_of_field(|whole: $($S)+| whole.$($field).+),
        )
    };
    ([unchecked $region:expr] [$($S:tt)+] :: $($field:tt).+ $(,)?) => {
        (&$region).__element_unchecked(
            0,
            0,
            ::core::mem::offset_of!($($S)+, $($field).+),
        )
    };
    ([typed $region:expr] [$($S:tt)+] :: $($field:tt).+ $(,)?) => {
        $crate::RemoteRef::__field(
            &$region,
            ::core::mem::offset_of!($($S)+, $($field).+),
            |whole: $($S)+| whole.$($field).+,
        )
    };
    ($how:tt [$($S:tt)*] $next:tt $($rest:tt)+) => {
        $crate::__remote_field!($how [$($S)* $next] $($rest)+)
    };
    ($how:tt [$($S:tt)*] $last:tt) => {
        ::core::compile_error!("expected `Struct::field`, `path::Struct<T>::field.of.field` or `(A, B)::0`")
    };
}

/// Returns the size of a field, inferred from the return type of `get`, which is never called.
#[doc(hidden)]
#[inline]
#[must_use]
pub const fn __size_of_field<S, F>(_get: fn(S) -> F) -> usize {
    size_of::<F>()
}
