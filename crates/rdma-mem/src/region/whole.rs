//! Regions, arrays and buffers as slices of all their bytes.

use bytemuck::Pod;

use crate::element::slice::{SliceMut, SliceRef};
use crate::region::array::OwnedArray;
use crate::region::local::LocalRegion;
use crate::region::pool::buffer::Buffer;

/// Implements the conversions of a reference to the owner into a slice of all its bytes.
macro_rules! whole {
    ($owner:ty $(, $parameter:ident $(: $bound:ident)?)?) => {
        impl<'r $(, $parameter $(: $bound)?)?> From<&'r $owner> for SliceRef<'r> {
            #[inline]
            fn from(owner: &'r $owner) -> Self {
                owner.as_slice()
            }
        }

        impl<'r $(, $parameter $(: $bound)?)?> From<&'r mut $owner> for SliceMut<'r> {
            #[inline]
            fn from(owner: &'r mut $owner) -> Self {
                owner.as_slice_mut()
            }
        }
    };
}

whole!(LocalRegion<M>, M);
whole!(OwnedArray<T>, T: Pod);
whole!(Buffer);
