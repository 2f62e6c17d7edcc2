//! Prefetching the pages of memory that is not pinned.
#![allow(unsafe_code)]

use std::borrow::Cow;

use rdma_sys::{
    Errno, IBV_ADVISE_MR_FLAG_FLUSH, ib_uverbs_advise_mr_advice, ibv_advise_mr, ibv_sge,
};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::GatherElement;
use crate::error::Error;
use crate::error::verb::VerbError;

/// The access that [`ProtectionDomain::prefetch`] prepares for.
#[doc(alias = "ibv_advise_mr_advice")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefetch {
    /// The device will read the memory: pages are faulted in, possibly read-only.
    Read,
    /// The device will write the memory: pages are faulted in and made writable.
    Write,
    /// The device will read the memory: only pages that are already present are mapped; none are
    /// faulted in.
    ReadPresent,
}

impl ProtectionDomain {
    /// Advises the device to map the pages of these elements now, rather than when the first
    /// request uses them. Their regions must be registered with
    /// [`with_on_demand`](crate::AccessFlags::with_on_demand). With `wait`, this returns after the
    /// pages are mapped. See `man ibv_advise_mr`.
    ///
    /// The contents of the memory do not change. A request may use the memory whether this call
    /// succeeds or fails.
    ///
    /// # Errors
    /// Returns the provider's error and a hint. `EOPNOTSUPP` means that the device accepts no
    /// advice; this includes software devices and SoftRoCE. `EINVAL` means that the memory is
    /// pinned. `EFAULT` means that an element is outside its region, or that its memory is not
    /// mapped or (for [`Prefetch::Write`]) not writable. [`Error::Forked`] in a forked child.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::{Errno, Error, Prefetch};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let region = pd.allocate_region(1 << 20)?;
    /// match pd.prefetch(&[region.as_slice().gather_element()], Prefetch::Read, true) {
    ///     Ok(()) => println!("the first read waits for no page"),
    ///     Err(Error::Verb(error)) if error.errno == Errno::EOPNOTSUPP => println!("{error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(
        &self,
        elements: &[GatherElement<'_>],
        purpose: Prefetch,
        wait: bool,
    ) -> Result<(), Error> {
        self.check_process()?;
        type Advice = ib_uverbs_advise_mr_advice;
        let advice = match purpose {
            Prefetch::Read => Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            Prefetch::Write => Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            Prefetch::ReadPresent => Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
        };
        let fail = |errno| VerbError::new("ibv_advise_mr", errno).with_hint(self.hint(errno));
        let mut list: Vec<ibv_sge> = elements.iter().map(|element| *element.as_raw()).collect();
        let count = u32::try_from(list.len()).map_err(|_| fail(Errno::EINVAL))?;
        let flags = if wait { IBV_ADVISE_MR_FLAG_FLUSH } else { 0 };
        // SAFETY: SAFETY.md F1: the domain is live, and `list` has `count` elements and no other
        // reference to it.
        let returned =
            unsafe { ibv_advise_mr(self.as_raw(), advice, flags, list.as_mut_ptr(), count) };
        Ok(Errno::check(returned).map_err(fail)?)
    }

    fn hint(&self, errno: Errno) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(match errno {
            Errno::EOPNOTSUPP | Errno::ENOSYS => {
                let name = self.context().device().name();
                return Some(Cow::Owned(format!(
                    "`{name}` does not support memory advice: the first request that uses a page \
                     loads it"
                )));
            }
            Errno::EINVAL => "only memory that was registered `with_on_demand` can be prefetched",
            Errno::EFAULT => {
                "an element is not within its region, its memory is not mapped, or its memory is \
                 read-only but would be written"
            }
            Errno::EPERM | Errno::ENOENT => "the region of an element belongs to another domain",
            _ => return None,
        }))
    }
}
