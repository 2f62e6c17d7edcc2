//! Sends, of messages and of datagrams.

use rdma_mem::{GatherElement, GatherList, InlineElement, ProtectionDomain};
use rdma_sys::{ibv_send_wr__bindgen_ty_2__bindgen_ty_3, ibv_wr_opcode};
use rdma_types::Qpn;

use crate::ah::handle::AddressHandle;
use crate::wr::elements::{Data, Elements};
use crate::wr::flags::{FENCE, SIGNALED, SOLICITED, data, domains, flags};
use crate::wr::queued::QueuedRequest;

/// Sends a message, which arrives in the peer's next receive.
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

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'wr> {
    pub(crate) handle: &'wr AddressHandle,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: u32,
}

domains!(SendWorkRequest);

flags!(SendWorkRequest);

data!(SendWorkRequest);

impl<'wr, 'data> SendWorkRequest<'wr, 'data> {
    /// Sends the bytes of these elements as one message.
    #[inline]
    #[must_use]
    pub const fn new(elements: &'wr [GatherElement<'data>]) -> Self {
        Self::of(Data::Keyed(elements))
    }

    /// Sends these bytes, which the processor copies during the post. Their memory can therefore be reused at once, and
    /// need not be registered. Their total length is limited to the queue pair's `max_inline_data`.
    ///
    /// Other kinds of elements cannot be sent inline, because their addresses are device addresses; see
    /// [`InlineElement`].
    ///
    /// See `man ibv_post_send` and `man ibv_wr_post`.
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
    /// let mut buffer = pd.allocate_region(16)?;
    /// let mut list = ScatterList::from([buffer.as_slice_mut()]);
    /// // SAFETY: the region is not used elsewhere until the completion below.
    /// unsafe { other.post_receive(ReceiveWorkRequest::from_list(&mut list), 1) }.unwrap();
    ///
    /// let mut text = *b"a few bytes";
    /// let request = [InlineElement::new(&text)];
    /// // SAFETY: the request has only inline data.
    /// unsafe { one.post_send(SendWorkRequest::inline(&request).with_immediate(7), 2) }.unwrap();
    /// text.fill(0);
    /// # let (mut slots, mut left) = ([PollSlot::default()], 2);
    /// # while left > 0 {
    /// #     left -= cq.poll(&mut slots)?.map(|done| done.result().unwrap()).count();
    /// # }
    /// assert_eq!(&buffer[..11], b"a few bytes");
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

    /// Like [`new`](Self::new), but from registered slices. The post checks their protection domain.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(list: &'wr GatherList<'data, N>) -> Self {
        Self { domains: list.domains(), ..Self::new(list.elements()) }
    }

    /// Sends an empty message with immediate data.
    #[inline]
    #[must_use]
    pub const fn only_immediate(immediate: u32) -> Self {
        Self { immediate: Some(immediate), ..Self::new(&[]) }
    }

    /// Sends the message as a datagram through `handle`, to the queue pair with this QPN and Q_Key. Every send on a UD
    /// queue pair needs a destination, and no other queue pair allows one. The message must not be longer than the MTU.
    ///
    /// The handle must belong to the queue pair's protection domain, and live until the request has completed. If the
    /// high bit of `qkey` is set, the device sends the Q_Key of the sending queue pair instead: IBTA vol 1, section
    /// 10.2.5; `man ibv_post_send`.
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

    /// Converts the request into one for [`post_batch`](crate::QueuePair::post_batch), with this WR ID.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let opcode = match self.immediate {
            None => ibv_wr_opcode::IBV_WR_SEND,
            Some(_) => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        };
        let elements = Elements::of(self.data, self.domains);
        let request = QueuedRequest::new(wr_id, opcode, self.flags, elements);
        let mut request = request.immediate(self.immediate);
        if let Some(Destination { handle, qpn, qkey }) = self.destination {
            let (ah, remote_qpn) = (handle.as_raw(), qpn.get());
            request.wr.wr.ud =
                ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey: qkey };
            request.bounds = request.bounds.with_destination();
        }
        request
    }
}
