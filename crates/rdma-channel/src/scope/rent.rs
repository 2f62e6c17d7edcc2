//! Memory that can be rented to a device and is returned afterwards.

use rdma_mem::{GatherList, ScatterList, SharedElement, SliceMut, SliceRef};

/// Registered memory that a request can read: a registered slice, a range of a shared region, or an array of either. A
/// [`Prefix`] of a slice is also possible.
///
/// This trait is sealed. An implementor contains only raw parts, not a reference to the bytes, so it can be moved while
/// the device uses the bytes. A range of a shared region can be rented to several requests at a time. Because no
/// request has exclusive access to the range, it is unspecified which bytes arrive or remain.
// The message is on this trait because rustc uses the message of the trait named in a bound, but only if that trait has
// no blanket implementation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not registered memory that can be rented",
    label = "a registered slice is needed here, by value",
    note = "a region or buffer gives registered slices: `as_slice`, `as_slice_mut`, `get_ref`, `get_mut`",
    note = "`chunks_mut`, indexing and `&mut region` give plain bytes: take `into_chunks`, `into_array`, `split_at`",
    note = "a few bytes of plain memory are sent by `send_inline` and written by `write_inline`"
)]
pub trait Rent: sealed::Readable {}

/// Registered memory that a request can write; otherwise like [`Rent`]. The memory is either exclusive or shared with
/// peers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not registered memory that a device can write",
    label = "an exclusive registered slice is needed here, by value",
    note = "a region or buffer gives exclusive registered slices: `as_slice_mut`, `get_mut`",
    note = "`chunks_mut`, indexing and `&mut region` give plain bytes: take `into_chunks`, `into_array`, `split_at`"
)]
pub trait RentMut: Rent + sealed::Writable {}

impl Rent for SliceRef<'_> {}
impl Rent for SliceMut<'_> {}
impl Rent for SharedElement<'_> {}
impl Rent for Prefix<'_> {}
impl<const N: usize> Rent for [SliceRef<'_>; N] {}
impl<const N: usize> Rent for [SliceMut<'_>; N] {}
impl<const N: usize> Rent for [SharedElement<'_>; N] {}

impl RentMut for SliceMut<'_> {}
impl RentMut for SharedElement<'_> {}
impl<const N: usize> RentMut for [SliceMut<'_>; N] {}
impl<const N: usize> RentMut for [SharedElement<'_>; N] {}

#[allow(unnameable_types)] // this seals the traits
pub(crate) mod sealed {
    use rdma_mem::{GatherElement, GatherList, ProtectionDomain, ScatterElement, ScatterList};

    pub trait Readable {
        type Gathered<'a>: Gathered<'a>
        where
            Self: 'a;

        fn gather(&self) -> Self::Gathered<'_>;
    }

    pub trait Writable: Readable {
        type Scattered<'a>: Scattered<'a>
        where
            Self: 'a;

        fn scatter(&mut self) -> Self::Scattered<'_>;
    }

    /// Elements, with their protection domains.
    pub trait Gathered<'a> {
        fn parts(&self) -> (&[GatherElement<'a>], &[&'a ProtectionDomain]);
    }

    /// Like [`Gathered`], for memory that the device writes.
    pub trait Scattered<'a> {
        fn parts(&mut self) -> (&mut [ScatterElement<'a>], &[&'a ProtectionDomain]);
    }

    impl<'a, const N: usize> Gathered<'a> for GatherList<'a, N> {
        #[inline(always)]
        fn parts(&self) -> (&[GatherElement<'a>], &[&'a ProtectionDomain]) {
            (self.elements(), self.domains())
        }
    }

    impl<'a, const N: usize> Scattered<'a> for ScatterList<'a, N> {
        #[inline(always)]
        fn parts(&mut self) -> (&mut [ScatterElement<'a>], &[&'a ProtectionDomain]) {
            self.parts()
        }
    }
}

/// Implements the traits for a type, and for arrays of it. An array is sent or received as one message.
macro_rules! rented {
    ($($type:ident: |$read:ident| $shared:expr $(, |$write:ident| $exclusive:expr)?;)+) => {$(
        impl sealed::Readable for $type<'_> {
            type Gathered<'a> = GatherList<'a, 1> where Self: 'a;

            #[inline(always)]
            fn gather(&self) -> GatherList<'_, 1> {
                let $read = self;
                GatherList::from([$shared])
            }
        }

        impl<const N: usize> sealed::Readable for [$type<'_>; N] {
            type Gathered<'a> = GatherList<'a, N> where Self: 'a;

            #[inline(always)]
            fn gather(&self) -> GatherList<'_, N> {
                GatherList::from(self.each_ref().map(|$read| $shared))
            }
        }

        $(impl sealed::Writable for $type<'_> {
            type Scattered<'a> = ScatterList<'a, 1> where Self: 'a;

            #[inline(always)]
            fn scatter(&mut self) -> ScatterList<'_, 1> {
                let $write = self;
                ScatterList::from([$exclusive])
            }
        }

        impl<const N: usize> sealed::Writable for [$type<'_>; N] {
            type Scattered<'a> = ScatterList<'a, N> where Self: 'a;

            #[inline(always)]
            fn scatter(&mut self) -> ScatterList<'_, N> {
                ScatterList::from(self.each_mut().map(|$write| $exclusive))
            }
        })?
    )+};
}

rented! {
    SliceRef: |slice| *slice;
    SliceMut: |slice| slice.as_shared(), |slice| slice.reborrow();
    SharedElement: |element| *element, |element| *element;
}

/// The first bytes of an exclusive registered slice. Use it to send a part of a buffer.
///
/// ```
/// use std::time::Duration;
/// use rdma_channel::{Prefix, TransportError, prelude::*};
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let channel = pd.create_channel().build()?;
/// # let endpoint = channel.endpoint();
/// # let mut channel = channel.handshake(endpoint)?; // to itself
/// let mut buffer = pd.allocate_region(4096)?;
/// channel
///     .scope(|s| {
/// #       s.post_receive(rdma_qp::ReceiveWorkRequest::only_immediate())?;
///         let mut buffer = buffer.as_slice_mut();
///         let filled = b"".len();
///         let sent = s.send_from(Prefix::new(buffer, filled).expect("it fits"))?;
///         buffer = sent.wait(Duration::from_secs(1)).expect("sent").buf.into_whole();
///         assert_eq!(buffer.len(), 4096);
///         Ok::<_, TransportError>(())
///     })
///     .unwrap();
/// # Ok::<(), TransportError>(())
/// ```
#[derive(Debug)]
pub struct Prefix<'r> {
    whole: SliceMut<'r>,
    length: usize,
}

impl<'r> Prefix<'r> {
    /// Selects the first `length` bytes of `whole`.
    ///
    /// # Errors
    /// Returns the slice if it is shorter than `length`.
    #[inline]
    pub fn new(whole: SliceMut<'r>, length: usize) -> Result<Self, SliceMut<'r>> {
        if length <= whole.len() { Ok(Self { whole, length }) } else { Err(whole) }
    }

    /// Returns the whole slice.
    #[inline]
    #[must_use]
    pub fn into_whole(self) -> SliceMut<'r> {
        self.whole
    }
}

impl sealed::Readable for Prefix<'_> {
    type Gathered<'a>
        = GatherList<'a, 1>
    where
        Self: 'a;

    #[inline(always)]
    fn gather(&self) -> GatherList<'_, 1> {
        GatherList::from([self.whole.as_shared().split_at(self.length).0])
    }
}
