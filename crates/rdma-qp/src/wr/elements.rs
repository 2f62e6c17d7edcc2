//! The elements of a request as C structs.

use std::ffi::c_int;

use rdma_mem::{GatherElement, InlineElement, ProtectionDomain, ScatterElement};
use rdma_sys::ibv_sge;

use crate::wr::flags::INLINE;

/// The data that a request sends or writes. The variant alone determines C's inline flag, so the address of an element
/// with a key is never used as a pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'wr, 'data> {
    /// Registered memory, which the device reads until the request has completed.
    Keyed(&'wr [GatherElement<'data>]),
    /// Any memory. The processor reads it before the post returns, so its borrow need not outlast the call.
    Inline(&'wr [InlineElement<'wr>]),
}

/// The elements of a request as C structs, with their known properties.
pub(crate) struct Elements<'wr, 'data> {
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) bytes: u64,
    /// The domain of each element. Empty if the domains are not known, and for inline data.
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    /// The inline flag, or 0.
    pub(super) inline: u32,
}

impl<'wr, 'data> Elements<'wr, 'data> {
    #[inline]
    pub(super) fn of(data: Data<'wr, 'data>, domains: &'wr [&'data ProtectionDomain]) -> Self {
        match data {
            Data::Keyed(elements) => Self::gathered(elements, domains),
            Data::Inline(elements) => Self::inline(elements),
        }
    }

    #[inline]
    fn inline(elements: &'wr [InlineElement<'wr>]) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        let sg_list = elements.as_ptr().cast_mut().cast();
        Self { sg_list, num_sge: count(elements.len()), bytes, domains: &[], inline: INLINE }
    }

    #[inline]
    pub(crate) fn gathered(
        elements: &'wr [GatherElement<'data>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        // The C declaration has no `const` here, but providers do not write to the elements.
        let (sg_list, count) = (elements.as_ptr().cast_mut().cast(), elements.len());
        Self::with_keys(sg_list, count, bytes, domains)
    }

    #[inline]
    pub(crate) fn scattered(
        elements: &'wr mut [ScatterElement<'data>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        Self::with_keys(elements.as_mut_ptr().cast(), elements.len(), bytes, domains)
    }

    #[inline(always)]
    fn with_keys(
        sg_list: *mut ibv_sge,
        elements: usize,
        bytes: u64,
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let domains = if domains.len() == elements { domains } else { &[] };
        Self { sg_list, num_sge: count(elements), bytes, domains, inline: 0 }
    }
}

/// Converts a length to C's type. If it overflows, it is above the limit of every device, so the device refuses it.
#[inline]
fn count(elements: usize) -> c_int {
    c_int::try_from(elements).unwrap_or(c_int::MAX)
}
