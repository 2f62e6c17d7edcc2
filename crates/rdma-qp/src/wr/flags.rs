//! The flags of requests of the send queue, and methods that several kinds of requests share.

use rdma_sys::ibv_send_flags;

pub(crate) const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
pub(crate) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub(crate) const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
pub(crate) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// What requests of the send queue have in common.
macro_rules! flags {
    ($($request:ident)+) => {$(
        impl $request<'_, '_> {
            /// Sets whether success makes a completion. Default: `true`; failure and flush always make one. The
            /// completion of a later request of the same queue reports an unsignaled request as done, and only that
            /// frees its slot. So every queue needs a signaled request now and then.
            #[doc(alias = "IBV_SEND_SIGNALED")]
            #[inline]
            #[must_use]
            pub const fn signaled(mut self, signaled: bool) -> Self {
                self.flags = if signaled { self.flags | SIGNALED } else { self.flags & !SIGNALED };
                self
            }

            /// Returns true if success makes a completion; see [`signaled`](Self::signaled).
            #[inline]
            #[must_use]
            pub const fn is_signaled(&self) -> bool {
                self.flags & SIGNALED != 0
            }

            /// A fence: the request waits until the RDMA reads and atomics before it in the queue
            /// are done.
            #[doc(alias = "IBV_SEND_FENCE")]
            #[inline]
            #[must_use]
            pub const fn fence(mut self) -> Self {
                self.flags |= FENCE;
                self
            }
        }
    )+};
}

/// What requests whose elements have domains have in common.
macro_rules! domains {
    ($($request:ident)+) => {$(
        impl<'wr, 'data> $request<'wr, 'data> {
            /// Says of which domains its elements are, in order, so that it is refused when it is posted if
            /// one is of another than the queue pair. `from_list` does this. Inline data is of none.
            #[inline]
            #[must_use]
            pub const fn with_domains(mut self, domains: &'wr [&'data ProtectionDomain]) -> Self {
                self.domains = domains;
                self
            }
        }
    )+};
}

/// What requests that carry data have in common.
macro_rules! data {
    ($($request:ident)+) => {$(
        impl $request<'_, '_> {
            /// Sends immediate data along, in host order at both ends. A receive of the peer takes
            /// it.
            #[inline]
            #[must_use]
            pub const fn with_immediate(mut self, immediate: u32) -> Self {
                self.immediate = Some(immediate);
                self
            }

            /// The peer's completion wakes the peer even if it waits for solicited ones only. Of
            /// writes, for those with immediate data.
            #[doc(alias = "IBV_SEND_SOLICITED")]
            #[inline]
            #[must_use]
            pub const fn solicited(mut self) -> Self {
                self.flags |= SOLICITED;
                self
            }
        }
    )+};
}

pub(super) use {data, domains, flags};
