//! Memory that can be rented to a device, and comes back.

use rdma_mem::{
    GatherElement, GatherList, ProtectionDomain, ScatterElement, ScatterList, SharedElement,
    SliceMut, SliceRef,
};

/// Registered memory that a request can read: a registered slice, a range of a shared region, or an array of
/// one of these.
///
/// Sealed. Such a value has raw parts within and no reference to the bytes, so that it can be moved while the
/// device uses them.
pub trait Rent: sealed::Readable {}

/// Registered memory that a request can write: as [`Rent`], of what is exclusive or shared with peers.
pub trait RentMut: Rent + sealed::Writable {}

impl<B: sealed::Readable> Rent for B {}
impl<B: sealed::Writable> RentMut for B {}

#[allow(unnameable_types)] // that is how it is sealed
pub(crate) mod sealed {
    use super::{GatherElement, ProtectionDomain, ScatterElement};

    pub trait Readable {
        fn gather<R>(
            &self,
            use_elements: impl FnOnce(&[GatherElement<'_>], &[&ProtectionDomain]) -> R,
        ) -> R;
    }

    pub trait Writable: Readable {
        fn scatter<R>(
            &mut self,
            use_elements: impl for<'d> FnOnce(&mut [ScatterElement<'d>], &[&'d ProtectionDomain]) -> R,
        ) -> R;
    }
}

macro_rules! readable {
    ($($type:ident, |$slice:ident| $shared:expr;)+) => {$(
        impl sealed::Readable for $type<'_> {
            #[inline(always)]
            fn gather<R>(
                &self,
                use_elements: impl FnOnce(&[GatherElement<'_>], &[&ProtectionDomain]) -> R,
            ) -> R {
                let $slice = self;
                let list = GatherList::from([$shared]);
                use_elements(list.elements(), list.domains())
            }
        }

        impl<const N: usize> sealed::Readable for [$type<'_>; N] {
            #[inline(always)]
            fn gather<R>(
                &self,
                use_elements: impl FnOnce(&[GatherElement<'_>], &[&ProtectionDomain]) -> R,
            ) -> R {
                let list = GatherList::from(self.each_ref().map(|$slice| $shared));
                use_elements(list.elements(), list.domains())
            }
        }
    )+};
}

macro_rules! writable {
    ($($type:ident, |$slice:ident| $exclusive:expr;)+) => {$(
        impl sealed::Writable for $type<'_> {
            #[inline(always)]
            fn scatter<R>(
                &mut self,
                use_elements: impl for<'d> FnOnce(&mut [ScatterElement<'d>], &[&'d ProtectionDomain]) -> R,
            ) -> R {
                let $slice = self;
                let mut list = ScatterList::from([$exclusive]);
                let (elements, domains) = list.parts();
                use_elements(elements, domains)
            }
        }

        impl<const N: usize> sealed::Writable for [$type<'_>; N] {
            #[inline(always)]
            fn scatter<R>(
                &mut self,
                use_elements: impl for<'d> FnOnce(&mut [ScatterElement<'d>], &[&'d ProtectionDomain]) -> R,
            ) -> R {
                let mut list = ScatterList::from(self.each_mut().map(|$slice| $exclusive));
                let (elements, domains) = list.parts();
                use_elements(elements, domains)
            }
        }
    )+};
}

readable! {
    SliceRef, |slice| *slice;
    SliceMut, |slice| slice.as_shared();
    SharedElement, |element| *element;
}

writable! {
    SliceMut, |slice| slice.reborrow();
    SharedElement, |element| *element;
}
