//! Work requests: what a queue pair is asked to do.

use rdma_mem::{
    GatherElement, GatherList, InlineElement, ProtectionDomain, RemoteMemoryRegion, ScatterElement,
    ScatterList,
};
use rdma_sys::ibv_send_flags;
use rdma_types::Qpn;

use crate::{AddressHandle, AtomicWorkRequest};

pub(crate) const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
pub(crate) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
pub(crate) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// Sends a message, which goes into the peer's next receive.
///
/// # Examples
/// ```
/// use rdma_qp::SendWorkRequest;
///
/// let only_a_number = SendWorkRequest::only_immediate(7).solicited();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendWorkRequest<'wr, 'data> {
    pub(crate) data: Data<'wr, 'data>,
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    pub(crate) immediate: Option<u32>,
    pub(crate) flags: u32,
    pub(crate) destination: Option<Destination<'wr>>,
}

/// What a request sends or writes. The flag that tells one from the other in C is made of this alone: an element
/// with a key is never read from as if its address were a pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'wr, 'data> {
    /// Registered memory, which the device reads until the request has completed.
    Keyed(&'wr [GatherElement<'data>]),
    /// Any memory, which the processor reads before the post returns: borrowed no longer than the request.
    Inline(&'wr [InlineElement<'wr>]),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'wr> {
    pub(crate) handle: &'wr AddressHandle,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: u32,
}

/// Room for one message of the peer; of a queue pair for datagrams, with 40 bytes more in front of it
/// ([`GlobalRouteHeader`](crate::GlobalRouteHeader)).
#[derive(Debug)]
pub struct ReceiveWorkRequest<'wr, 'data> {
    pub(crate) elements: &'wr mut [ScatterElement<'data>],
    pub(crate) domains: &'wr [&'data ProtectionDomain],
}

/// Writes into memory of the peer, which notices nothing, unless an immediate goes along.
#[derive(Clone, Copy, Debug)]
pub struct WriteWorkRequest<'wr, 'data> {
    pub(crate) data: Data<'wr, 'data>,
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    pub(crate) remote: RemoteMemoryRegion,
    pub(crate) immediate: Option<u32>,
    pub(crate) flags: u32,
}

/// Reads memory of the peer, which notices nothing.
#[derive(Debug)]
pub struct ReadWorkRequest<'wr, 'data> {
    pub(crate) elements: &'wr mut [ScatterElement<'data>],
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    pub(crate) remote: RemoteMemoryRegion,
    pub(crate) flags: u32,
}

/// What requests of the send queue have in common.
macro_rules! flags {
    ($($request:ident)+) => {$(
        impl $request<'_, '_> {
            /// Whether success makes a completion. It does unless this says `false`; failure and
            /// flush always do. Without one, the request is known to be done by the completion of a
            /// later request of the same queue, and only that makes room in the queue: so every
            /// queue needs a signaled request now and then.
            #[doc(alias = "IBV_SEND_SIGNALED")]
            #[inline]
            #[must_use]
            pub const fn signaled(mut self, signaled: bool) -> Self {
                self.flags = if signaled { self.flags | SIGNALED } else { self.flags & !SIGNALED };
                self
            }

            /// Whether success makes a completion, as [`signaled`](Self::signaled) said.
            #[inline]
            #[must_use]
            pub const fn is_signaled(&self) -> bool {
                self.flags & SIGNALED != 0
            }

            /// It waits until the RDMA reads and atomics before it in the queue are done.
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

domains!(SendWorkRequest ReceiveWorkRequest WriteWorkRequest ReadWorkRequest);

flags!(SendWorkRequest WriteWorkRequest ReadWorkRequest AtomicWorkRequest);

/// What requests that carry data have in common.
macro_rules! data {
    ($($request:ident)+) => {$(
        impl $request<'_, '_> {
            /// Sends a number along, in host order at both ends. A receive of the peer takes it.
            #[inline]
            #[must_use]
            pub const fn with_immediate(mut self, immediate: u32) -> Self {
                self.immediate = Some(immediate);
                self
            }

            /// The peer's completion wakes it even if it waits for solicited ones only. Of writes,
            /// for those with an immediate.
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

data!(SendWorkRequest WriteWorkRequest);

impl<'wr, 'data> SendWorkRequest<'wr, 'data> {
    /// Sends the bytes of these elements as one message.
    #[inline]
    #[must_use]
    pub const fn new(elements: &'wr [GatherElement<'data>]) -> Self {
        Self::of(Data::Keyed(elements))
    }

    /// Sends these bytes, which the processor copies when the request is posted: they can be used again at
    /// once, and need no registration. As much as the queue pair's `max_inline_data`.
    ///
    /// The other elements of a request cannot be sent like this: their addresses are those by which a device
    /// finds memory, see [`InlineElement`].
    ///
    /// `man ibv_post_send`, `man ibv_wr_post`.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::{InlineElement, ScatterList};
    /// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
    /// # use rdma_qp::{CompletionQueue, PollSlot, prelude::*};
    /// # rdma_soft::install();
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let cq = CompletionQueue::create(&context, 64)?;
    /// # let pd = context.allocate_pd()?;
    /// # let prepare = || pd.create_qp().max_inline_data(16).send_cq(&cq).recv_cq(&cq).build();
    /// # let (one, other) = (prepare()?, prepare()?);
    /// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
    /// # let (one, other) = (one.handshake(other_end)?, other.handshake(one_end)?);
    /// let mut room = pd.allocate_region(16)?;
    /// let mut list = ScatterList::from([room.as_slice_mut()]);
    /// // SAFETY: the region is left alone until the completion below.
    /// unsafe { other.post_receive(ReceiveWorkRequest::from_list(&mut list), 1) }.unwrap();
    ///
    /// let mut text = *b"a few bytes";
    /// let request = [InlineElement::new(&text)];
    /// // SAFETY: inline data is all that it has.
    /// unsafe { one.post_send(SendWorkRequest::inline(&request).with_immediate(7), 2) }.unwrap();
    /// text.fill(0);
    /// # let (mut slots, mut left) = ([PollSlot::default()], 2);
    /// # while left > 0 {
    /// #     left -= cq.poll(&mut slots)?.map(|done| done.result().unwrap()).count();
    /// # }
    /// assert_eq!(&room[..11], b"a few bytes");
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "IBV_SEND_INLINE")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline]
    #[must_use]
    pub const fn inline(elements: &'wr [InlineElement<'wr>]) -> Self {
        Self::of(Data::Inline(elements))
    }

    #[inline]
    const fn of(data: Data<'wr, 'data>) -> Self {
        Self { data, domains: &[], immediate: None, flags: SIGNALED, destination: None }
    }

    /// As [`new`](Self::new), with registered slices, whose domain is checked when it is posted.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(list: &'wr GatherList<'data, N>) -> Self {
        Self { domains: list.domains(), ..Self::new(list.elements()) }
    }

    /// Sends a message of no bytes, with a number.
    #[inline]
    #[must_use]
    pub const fn only_immediate(immediate: u32) -> Self {
        Self { immediate: Some(immediate), ..Self::new(&[]) }
    }

    /// Sends it, as a datagram, through that handle to the queue pair of that number, with its key. Only for
    /// UD queue pairs, which need it for each message; a message is no longer than the MTU.
    ///
    /// The handle is of the queue pair's domain, and lives until the request has completed. A key whose high
    /// bit is set means the own queue pair's key: IBTA vol 1, section 10.2.5; `man ibv_post_send`.
    ///
    /// See [`QueuePair::address_handle`](crate::QueuePair::address_handle) for an example.
    #[doc(alias = "remote_qpn")]
    #[doc(alias = "remote_qkey")]
    #[inline]
    #[must_use]
    pub const fn to(mut self, handle: &'wr AddressHandle, qpn: Qpn, qkey: u32) -> Self {
        self.destination = Some(Destination { handle, qpn, qkey });
        self
    }
}

impl<'wr, 'data> ReceiveWorkRequest<'wr, 'data> {
    /// Takes one message into these elements, in order. The message may be shorter than they are, not
    /// longer.
    #[inline]
    #[must_use]
    pub const fn new(elements: &'wr mut [ScatterElement<'data>]) -> Self {
        Self { elements, domains: &[] }
    }

    /// As [`new`](Self::new), with registered slices, whose domain is checked when it is posted.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(list: &'wr mut ScatterList<'data, N>) -> Self {
        let (elements, domains) = list.parts();
        Self { elements, domains }
    }

    /// Takes a message of no bytes, or the number that goes with an RDMA write.
    #[inline]
    #[must_use]
    pub const fn only_immediate() -> Self {
        Self { elements: &mut [], domains: &[] }
    }
}

impl<'wr, 'data> WriteWorkRequest<'wr, 'data> {
    /// Writes the bytes of these elements to the beginning of `remote`.
    #[inline]
    #[must_use]
    pub const fn new(elements: &'wr [GatherElement<'data>], remote: RemoteMemoryRegion) -> Self {
        Self::of(Data::Keyed(elements), remote)
    }

    /// Writes these bytes to the beginning of `remote`. The processor copies them when the request is posted, as
    /// of [`SendWorkRequest::inline`].
    #[doc(alias = "IBV_SEND_INLINE")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline]
    #[must_use]
    pub const fn inline(elements: &'wr [InlineElement<'wr>], remote: RemoteMemoryRegion) -> Self {
        Self::of(Data::Inline(elements), remote)
    }

    #[inline]
    const fn of(data: Data<'wr, 'data>, remote: RemoteMemoryRegion) -> Self {
        Self { data, domains: &[], remote, immediate: None, flags: SIGNALED }
    }

    /// As [`new`](Self::new), with registered slices, whose domain is checked when it is posted.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(
        list: &'wr GatherList<'data, N>,
        remote: RemoteMemoryRegion,
    ) -> Self {
        Self { domains: list.domains(), ..Self::new(list.elements(), remote) }
    }

    /// Writes no bytes, and sends a number, which a receive of the peer takes.
    #[inline]
    #[must_use]
    pub fn only_immediate(immediate: u32) -> Self {
        let nothing = Self::of(Data::Keyed(&[]), RemoteMemoryRegion::new(0, 0, 0));
        Self { immediate: Some(immediate), ..nothing }
    }
}

impl<'wr, 'data> ReadWorkRequest<'wr, 'data> {
    /// Reads as many bytes from the beginning of `remote` as these elements have.
    #[inline]
    #[must_use]
    pub const fn new(
        elements: &'wr mut [ScatterElement<'data>],
        remote: RemoteMemoryRegion,
    ) -> Self {
        Self { elements, domains: &[], remote, flags: SIGNALED }
    }

    /// As [`new`](Self::new), with registered slices, whose domain is checked when it is posted.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(
        list: &'wr mut ScatterList<'data, N>,
        remote: RemoteMemoryRegion,
    ) -> Self {
        let (elements, domains) = list.parts();
        Self { elements, domains, remote, flags: SIGNALED }
    }
}
