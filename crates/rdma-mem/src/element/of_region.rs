//! Methods of [`MemoryRegion`] that create elements for parts of the caller's memory.

use crate::element::{GatherElement, ScatterElement, ScatterGatherElementError};
use crate::region::unowned::MemoryRegion;

impl MemoryRegion {
    /// Creates the element for `data`, like [`GatherElement::new`].
    ///
    /// # Panics
    /// Panics, in every build, if `data` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn gather_element<'a>(&'a self, data: &'a [u8]) -> GatherElement<'a> {
        GatherElement::new(self, data)
    }

    /// Creates the element for `data`, like [`GatherElement::new_checked`].
    ///
    /// # Errors
    /// Returns an error if `data` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    pub fn gather_element_checked<'a>(
        &'a self,
        data: &'a [u8],
    ) -> Result<GatherElement<'a>, ScatterGatherElementError> {
        GatherElement::new_checked(self, data)
    }

    /// Creates the element for `data` without checking its bounds, like
    /// [`GatherElement::new_unchecked`].
    #[inline]
    #[must_use]
    pub fn gather_element_unchecked<'a>(&'a self, data: &'a [u8]) -> GatherElement<'a> {
        GatherElement::new_unchecked(self, data)
    }

    /// Creates the element for `data`, like [`ScatterElement::new`].
    ///
    /// # Panics
    /// Panics, in every build, if `data` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn scatter_element<'a>(&'a self, data: &'a mut [u8]) -> ScatterElement<'a> {
        ScatterElement::new(self, data)
    }

    /// Creates the element for `data`, like [`ScatterElement::new_checked`].
    ///
    /// # Errors
    /// Returns an error if `data` is not within the region or is longer than 4 GiB - 1.
    #[inline]
    pub fn scatter_element_checked<'a>(
        &'a self,
        data: &'a mut [u8],
    ) -> Result<ScatterElement<'a>, ScatterGatherElementError> {
        ScatterElement::new_checked(self, data)
    }

    /// Creates the element for `data` without checking its bounds, like
    /// [`ScatterElement::new_unchecked`].
    #[inline]
    #[must_use]
    pub fn scatter_element_unchecked<'a>(&'a self, data: &'a mut [u8]) -> ScatterElement<'a> {
        ScatterElement::new_unchecked(self, data)
    }
}
