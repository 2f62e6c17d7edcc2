//! The flags of requests of the send queue, and methods that several kinds of requests share.

use rdma_sys::ibv_send_flags;

pub(crate) const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
pub(crate) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub(crate) const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
pub(crate) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// Defines the methods of all requests of the send queue.
macro_rules! flags {
    ($($request:ident)+) => {$(
        impl $request<'_, '_> {
            /// Sets whether a successful request creates a completion. Default: `true`. A failed or flushed request
            /// always creates one. An unsignaled request counts as completed, and its slot becomes free, only when a
            /// later request of the same queue completes. Therefore every queue needs a signaled request now and then.
            #[doc(alias = "IBV_SEND_SIGNALED")]
            #[inline]
            #[must_use]
            pub const fn signaled(mut self, signaled: bool) -> Self {
                self.flags = if signaled { self.flags | SIGNALED } else { self.flags & !SIGNALED };
                self
            }

            /// Returns true if a successful request creates a completion; see [`signaled`](Self::signaled).
            #[inline]
            #[must_use]
            pub const fn is_signaled(&self) -> bool {
                self.flags & SIGNALED != 0
            }

            /// Sets a fence: the request waits until the RDMA reads and atomics before it in the
            /// queue have completed.
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

/// Defines the methods of requests whose elements have domains.
macro_rules! domains {
    ($($request:ident)+) => {$(
        impl<'wr, 'data> $request<'wr, 'data> {
            /// Sets the protection domain of each element of the request, in order. The post then refuses the request
            /// if one of them is not the queue pair's domain. `from_list` calls this. Has no effect on inline data, or
            /// if the number of domains is not that of the elements.
            #[inline]
            #[must_use]
            pub const fn with_domains(mut self, domains: &'wr [&'data ProtectionDomain]) -> Self {
                self.domains = domains;
                self
            }
        }
    )+};
}

/// Defines the methods of requests that carry data.
macro_rules! data {
    ($($request:ident)+) => {$(
        impl $request<'_, '_> {
            /// Adds immediate data, in host byte order at both ends. With it, even a write consumes one of the peer's
            /// receives.
            #[inline]
            #[must_use]
            pub const fn with_immediate(mut self, immediate: u32) -> Self {
                self.immediate = Some(immediate);
                self
            }

            /// Makes the peer's completion solicited: it wakes the peer even if the peer waits only for solicited
            /// completions. On a write, this requires immediate data.
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
