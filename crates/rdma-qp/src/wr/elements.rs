//! The elements of a request, in the form of C.

use std::ffi::c_int;

use rdma_mem::{GatherElement, InlineElement, ProtectionDomain, ScatterElement};
use rdma_sys::ibv_sge;

use crate::wr::flags::INLINE;

/// The data that a request sends or writes. The variant alone determines the inline flag of C. The address of an
/// element with a key is therefore never read as a pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'wr, 'data> {
    /// Registered memory, which the device reads until the request has completed.
    Keyed(&'wr [GatherElement<'data>]),
    /// Any memory, which the processor reads before the post returns; its borrow is no longer than that of the request.
    Inline(&'wr [InlineElement<'wr>]),
}

/// The elements of a request in the form of C, with their known properties.
pub(crate) struct Elements<'wr, 'data> {
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) bytes: u64,
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    /// The flag of inline data, or 0.
    pub(super) inline: u32,
}

impl<'wr, 'data> Elements<'wr, 'data> {
    #[inline]
    pub(super) fn of(data: Data<'wr, 'data>, domains: &'wr [&'data ProtectionDomain]) -> Self {
        match data {
            Data::Keyed(elements) => Self::gathered(elements, domains),
            Data::Inline(elements) => Self::inline(elements, domains),
        }
    }

    #[inline]
    fn inline(
        elements: &'wr [InlineElement<'wr>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        let sg_list = elements.as_ptr().cast_mut().cast();
        Self { sg_list, num_sge: count(elements.len()), bytes, domains, inline: INLINE }
    }

    #[inline]
    pub(crate) fn gathered(
        elements: &'wr [GatherElement<'data>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        // C has no `const` here, but does not write.
        let sg_list = elements.as_ptr().cast_mut().cast();
        Self { sg_list, num_sge: count(elements.len()), bytes, domains, inline: 0 }
    }

    #[inline]
    pub(crate) fn scattered(
        elements: &'wr mut [ScatterElement<'data>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        let sg_list = elements.as_mut_ptr().cast();
        Self { sg_list, num_sge: count(elements.len()), bytes, domains, inline: 0 }
    }
}

/// Returns the length in the form of C. A length that overflows it is above the limit of any
/// device, which refuses it.
#[inline]
fn count(elements: usize) -> c_int {
    c_int::try_from(elements).unwrap_or(c_int::MAX)
}
