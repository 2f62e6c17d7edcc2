//! Work requests that bind or invalidate memory windows.
//!
//! A request without elements borrows no data, so it fits into a batch with any lifetime of data.

use std::marker::PhantomData;
use std::ops::Range;

use rdma_mem::{
    AccessFlags, BindError, BindableRegion, GatherElement, MemoryWindow, PreparedBind,
    RemoteMemoryRegion, Rkey, WindowType,
};
use rdma_sys::{
    ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_4, ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    ibv_wr_opcode,
};

use crate::post::bounds::Bounds;
use crate::wr::elements::Elements;
use crate::wr::flags::{FENCE, SIGNALED};
use crate::wr::queued::QueuedRequest;
use crate::wr::send::SendWorkRequest;

/// Binds a window of type 2: gives the peer of the queue pair that executes the request access to a part of the
/// window's region.
///
/// Use it in a batch with the send that transfers the key to the peer. For a single bind, [`QueuePair::bind`] is
/// shorter, and also accepts windows of type 1. The window counts as bound once this request is created. If the request
/// is not posted, or the post fails, report that to the window with [`never_bound`](MemoryWindow::never_bound).
///
/// IBTA vol 1, section 10.6.7.2; `man ibv_post_send`.
///
/// [`QueuePair::bind`]: crate::QueuePair::bind
///
/// # Examples
/// Binds a window and sends its key, with one doorbell.
/// ```
/// use rdma_mem::{AccessFlags, MemoryWindow, WindowType};
/// use rdma_qp::{BindWindow, SendWorkRequest};
/// # use rdma_qp::{CompletionQueue, PollSlot, prelude::*};
/// # rdma_soft::install();
/// # let context = rdma_mem::open_device("soft0")?;
/// # let cq = CompletionQueue::create(&context, 64)?;
/// # let pd = context.allocate_pd()?;
/// # let access = AccessFlags::new().with_remote_write();
/// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access).build();
/// # let (one, other) = (prepare()?, prepare()?);
/// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
/// # let (qp, _other) = (one.handshake(other_end)?, other.handshake(one_end)?);
///
/// let region = pd.allocate_bindable_region(4096)?;
/// let mut window = MemoryWindow::allocate(region, WindowType::Two).map_err(|(_, error)| error)?;
/// let write = AccessFlags::new().with_remote_write();
/// let bind = BindWindow::new(&mut window, 0..1024, write).unwrap().signaled(false);
/// let tell = SendWorkRequest::only_immediate(bind.remote().rkey().get());
/// // SAFETY: the region belongs to the window, and the requests have no elements.
/// unsafe { qp.post_batch(&mut [bind.with_id(1), tell.with_id(2)]) }.unwrap();
/// assert!(window.is_bound());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[doc(alias = "IBV_WR_BIND_MW")]
#[derive(Debug)]
#[must_use = "the window counts as bound"]
pub struct BindWindow<'w> {
    prepared: PreparedBind,
    remote: RemoteMemoryRegion,
    flags: u32,
    window: PhantomData<&'w mut ()>,
}

/// Invalidates a window of type 2 that was bound through the same queue pair. Once the request has completed
/// successfully, the peer no longer has access through the window.
///
/// Keys of regions, of windows of type 1, and of windows bound by other queue pairs cannot be invalidated. IBTA vol 1,
/// section 10.6.7.3; `man ibv_post_send`.
///
/// # Examples
/// ```no_run
/// # use rdma_mem::{MemoryWindow, OwnedRegion};
/// # use rdma_qp::{LocalInvalidate, QueuePair};
/// # fn example(qp: &QueuePair, window: &mut MemoryWindow<OwnedRegion>) -> Option<()> {
/// let request = LocalInvalidate::new(window.rkey()?);
/// // SAFETY: a request without memory.
/// unsafe { qp.post(request, 7) }.ok()?;
/// // … once request 7 has completed successfully:
/// // SAFETY: see above.
/// unsafe { window.unbound() };
/// println!("the peer left {:?}", &window.region()?[..8]);
/// # Some(())
/// # }
/// ```
#[doc(alias = "IBV_WR_LOCAL_INV")]
#[derive(Clone, Copy, Debug)]
pub struct LocalInvalidate {
    rkey: Rkey,
    flags: u32,
}

/// Sends a message that invalidates one of the peer's windows (type 2) before the peer's receive completes. Use it when
/// this end no longer needs the peer's memory.
///
/// The peer's receive reports [the key](crate::WorkSuccess::invalidated_rkey). The window must have been bound by the
/// peer's queue pair of this connection. With any other key, the message is still delivered, but then the connection
/// ends at the peer. IBTA vol 1, section 9.4.1; `man ibv_post_send`.
///
/// # Examples
/// ```no_run
/// # use rdma_mem::{OwnedRegion, RemoteMemoryRegion};
/// # use rdma_qp::{QueuePair, SendWithInvalidate};
/// # fn example(qp: &QueuePair, region: &OwnedRegion, lent: RemoteMemoryRegion) -> Option<()> {
/// let done = [region.get_ref(0, 16)?.gather_element()];
/// // SAFETY: the region is not changed until request 3 has completed.
/// unsafe { qp.post(SendWithInvalidate::new(&done, lent.rkey()), 3) }.ok()?;
/// # Some(())
/// # }
/// ```
#[doc(alias = "IBV_WR_SEND_WITH_INV")]
#[derive(Clone, Copy, Debug)]
pub struct SendWithInvalidate<'wr, 'data> {
    send: SendWorkRequest<'wr, 'data>,
    rkey: Rkey,
}

/// Defines the methods that requests without elements share.
macro_rules! flags {
    ($($request:ty),+) => {$(
        impl $request {
            /// Sets whether a successful request creates a completion, like [`SendWorkRequest::signaled`].
            #[doc(alias = "IBV_SEND_SIGNALED")]
            pub const fn signaled(mut self, signaled: bool) -> Self {
                self.flags = if signaled { self.flags | SIGNALED } else { self.flags & !SIGNALED };
                self
            }

            /// Sets a fence: the request waits until the RDMA reads and atomics before it in the
            /// queue have completed.
            #[doc(alias = "IBV_SEND_FENCE")]
            pub const fn fence(mut self) -> Self {
                self.flags |= FENCE;
                self
            }
        }
    )+};
}

flags!(BindWindow<'_>, LocalInvalidate);

impl<'w> BindWindow<'w> {
    /// Binds `range` of the window's region (in bytes from the region's beginning) with these access rights. The rights
    /// can be remote read, write and atomic. Add [`ZERO_BASED`](AccessFlags::ZERO_BASED) if the peer's addresses are to
    /// start at 0.
    ///
    /// # Errors
    /// Returns an error for a mistake that can be detected here. In that case, nothing has changed. Posting then checks
    /// only the type and the domain of the queue pair.
    pub fn new<R: BindableRegion>(
        window: &'w mut MemoryWindow<R>,
        range: Range<usize>,
        access: AccessFlags,
    ) -> Result<Self, BindError> {
        if window.kind() != WindowType::Two {
            return Err(BindError::Kind { kind: 1 });
        }
        let prepared = window.prepare_bind(range, access)?;
        let remote = window.remote().ok_or(BindError::NotBound)?;
        Ok(Self { prepared, remote, flags: SIGNALED, window: PhantomData })
    }

    /// Returns the memory that the peer can access: address, length and key.
    #[must_use]
    pub const fn remote(&self) -> RemoteMemoryRegion {
        self.remote
    }

    /// Converts the request into one for [`post_batch`](crate::QueuePair::post_batch), with this WR ID.
    #[must_use]
    pub fn with_id<'data>(self, wr_id: u64) -> QueuedRequest<'w, 'data> {
        let PreparedBind { mw, rkey, info, .. } = self.prepared;
        let opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
        let mut request =
            QueuedRequest::new(wr_id, opcode, self.flags, Elements::gathered(&[], &[]));
        let bind_mw =
            ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey: rkey.get(), bind_info: info };
        request.wr.bind.write(ibv_send_wr__bindgen_ty_4 { bind_mw });
        request.bounds = Bounds::DOUBTFUL;
        request
    }
}

impl LocalInvalidate {
    /// Invalidates the window with this key.
    #[must_use]
    pub fn new(rkey: impl Into<Rkey>) -> Self {
        Self { rkey: rkey.into(), flags: SIGNALED }
    }

    /// Converts the request into one for [`post_batch`](crate::QueuePair::post_batch), with this WR ID.
    #[must_use]
    pub fn with_id<'wr, 'data>(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
        let mut request =
            QueuedRequest::new(wr_id, opcode, self.flags, Elements::gathered(&[], &[]));
        let invalidate_rkey = self.rkey.get();
        request.wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { invalidate_rkey };
        request
    }
}

impl<'wr, 'data> SendWithInvalidate<'wr, 'data> {
    /// Sends the bytes of these elements, and invalidates the window with this key.
    #[must_use]
    pub fn new(elements: &'wr [GatherElement<'data>], rkey: impl Into<Rkey>) -> Self {
        Self::from_send(SendWorkRequest::new(elements), rkey)
    }

    /// Creates the request from a send, with its elements and flags. The key takes the place of immediate data.
    #[must_use]
    pub fn from_send(send: SendWorkRequest<'wr, 'data>, rkey: impl Into<Rkey>) -> Self {
        Self { send, rkey: rkey.into() }
    }

    /// Converts the request into one for [`post_batch`](crate::QueuePair::post_batch), with this WR ID.
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let mut request = self.send.with_id(wr_id);
        request.wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
        let invalidate_rkey = self.rkey.get();
        request.wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { invalidate_rkey };
        request
    }
}
