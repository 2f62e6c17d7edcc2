//! Lists of elements, each with its protection domain.

use crate::device::protection_domain::ProtectionDomain;
use crate::element::shared::SharedElement;
use crate::element::slice::{SliceMut, SliceRef};
use crate::element::{GatherElement, ScatterElement};

/// Elements that a request reads from, with their domains. Each element is a registered slice, or a
/// range of a shared region.
///
/// An element alone is the C struct, which does not name its domain. A list adds the domains, so a
/// queue pair can refuse an element from another domain when the request is posted. Without that
/// check, the request would be posted, and fail later in its completion.
///
/// # Examples
/// ```
/// use rdma_mem::GatherList;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let region = pd.allocate_region(64)?;
/// let (header, body) = region.as_slice().split_at(16);
/// let list = GatherList::from([header, body]);
/// assert_eq!(list.elements()[1].length(), 48);
/// assert!(list.domains()[1].is_same(&pd));
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "sg_list")]
#[derive(Clone, Copy, Debug)]
pub struct GatherList<'a, const N: usize> {
    elements: [GatherElement<'a>; N],
    domains: [&'a ProtectionDomain; N],
}

/// Elements that a request writes to, with their domains; see [`GatherList`]. Each element is a
/// registered slice, or a range of a shared region.
///
/// # Examples
/// ```
/// use rdma_mem::ScatterList;
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut region = pd.allocate_region(64)?;
/// let (header, body) = region.as_slice_mut().split_at(16);
/// let list = ScatterList::from([header, body]); // one message, its first 16 bytes separate
/// # drop(list);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "sg_list")]
#[derive(Debug)]
pub struct ScatterList<'a, const N: usize> {
    elements: [ScatterElement<'a>; N],
    domains: [&'a ProtectionDomain; N],
}

impl<'a, const N: usize> GatherList<'a, N> {
    /// Returns the elements, in order.
    #[inline]
    #[must_use]
    pub const fn elements(&self) -> &[GatherElement<'a>] {
        &self.elements
    }

    /// Returns the domain of each element.
    #[inline]
    #[must_use]
    pub const fn domains(&self) -> &[&'a ProtectionDomain] {
        &self.domains
    }
}

impl<'a, const N: usize> ScatterList<'a, N> {
    /// Returns the elements, in order, and the domain of each.
    #[inline]
    #[must_use]
    pub const fn parts(&mut self) -> (&mut [ScatterElement<'a>], &[&'a ProtectionDomain]) {
        (&mut self.elements, &self.domains)
    }
}

impl<'a, const N: usize> From<[SliceRef<'a>; N]> for GatherList<'a, N> {
    #[inline]
    fn from(slices: [SliceRef<'a>; N]) -> Self {
        let domains = slices.map(|slice| slice.pd());
        Self { elements: slices.map(|slice| slice.gather_element()), domains }
    }
}

impl<'a, const N: usize> From<[SliceMut<'a>; N]> for ScatterList<'a, N> {
    #[inline]
    fn from(slices: [SliceMut<'a>; N]) -> Self {
        let domains = slices.each_ref().map(SliceMut::pd);
        Self { elements: slices.map(SliceMut::into_scatter_element), domains }
    }
}

impl<'a, const N: usize> From<[SharedElement<'a>; N]> for GatherList<'a, N> {
    #[inline]
    fn from(elements: [SharedElement<'a>; N]) -> Self {
        let domains = elements.map(|element| element.pd());
        Self { elements: elements.map(GatherElement::from), domains }
    }
}

impl<'a, const N: usize> From<[SharedElement<'a>; N]> for ScatterList<'a, N> {
    #[inline]
    fn from(elements: [SharedElement<'a>; N]) -> Self {
        let domains = elements.map(|element| element.pd());
        Self { elements: elements.map(ScatterElement::from), domains }
    }
}
