//! Binding memory windows.
#![allow(unsafe_code)]

use std::ops::Range;

use rdma_mem::{
    AccessFlags, BindError, BindableRegion, Errno, MemoryWindow, PreparedBind, WindowType,
};
use rdma_sys::{ibv_bind_mw, ibv_mw_bind};

use crate::post::error::{PostError, Reason};
use crate::qp::queue_pair::QueuePair;
use crate::wr::flags::SIGNALED;
use crate::wr::window::BindWindow;

/// # Memory windows
///
/// Bind and unbind requests go to the send queue and are executed in order.
impl QueuePair {
    /// Binds a window of either type: grants these access rights to `range` of its region, in bytes from the region's
    /// beginning. A window of type 2 grants them to the peer of this queue pair. A window of type 1 grants them to
    /// every peer that has the key and is connected to a queue pair of the same domain.
    ///
    /// [`MemoryWindow::rkey`] returns the key at once. The peer can use the key after the request has completed, or
    /// after a later send of this queue pair has arrived.
    ///
    /// # Errors
    /// See [`PostError`]. [`Window`](crate::PostErrorKind::Window) if the window does not allow this bind. After an
    /// error the window is unchanged, unless the request may have been [posted](PostError::posted).
    ///
    /// # Safety
    /// While the window is bound, peers use the memory of the range as `access` allows. If the window's region is a
    /// [`MemoryRegion`](rdma_mem::MemoryRegion), the contract of [its
    /// registration](rdma_mem::ProtectionDomain::register_mr_with_access) must permit this.
    ///
    /// For other regions, the window ensures that this is safe, provided that the device confines peers to the range,
    /// as the verbs require. SoftRoCE of Linux 6.1 does not: it lets peers access the whole region, which for a
    /// [`Buffer`](rdma_mem::Buffer) is the region of its pool (`docs/rxe-differences.md`, `window-bounds`).
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::{AccessFlags, MemoryWindow, WindowType};
    /// use rdma_qp::LocalInvalidate;
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
    /// let buffer = rdma_mem::BufferPool::new(&pd).allocate(4096)?;
    /// let mut window = MemoryWindow::allocate(buffer, WindowType::Two).map_err(|(_, error)| error)?;
    /// let write = AccessFlags::new().with_remote_write();
    /// // SAFETY: only the window can access the buffer.
    /// unsafe { qp.bind(&mut window, 0..1024, write, 1) }?;
    /// assert!(window.region().is_none(), "lent");
    /// // … the peer writes to window.remote(), and reports that it has finished. Then:
    /// // SAFETY: a request without memory.
    /// unsafe { qp.post(LocalInvalidate::new(window.rkey().unwrap()), 2) }?;
    /// # let (mut slots, mut left) = ([PollSlot::default(); 2], 2);
    /// # while left > 0 {
    /// #     for done in cq.poll(&mut slots)? {
    /// #         done.result().unwrap();
    /// #         left -= 1;
    /// #     }
    /// # }
    /// // … once request 2 has completed successfully:
    /// // SAFETY: see above.
    /// unsafe { window.unbound() };
    /// assert_eq!(window.region().unwrap()[0], 0);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub unsafe fn bind<R: BindableRegion>(
        &self,
        window: &mut MemoryWindow<R>,
        range: Range<usize>,
        access: AccessFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        self.check_domain(window)?;
        let posted = match window.kind() {
            WindowType::Two => {
                let request = BindWindow::new(window, range, access)?;
                // SAFETY: SAFETY.md F1: the caller upholds the same contract. The request has no elements, and is
                // posted only here.
                unsafe { self.post(request, wr_id) }
            }
            _ => {
                let prepared = window.prepare_bind(range, access)?;
                // SAFETY: SAFETY.md F1: `prepared` comes from this window, which is borrowed exclusively and has its
                // region. The caller upholds the rest of the contract.
                unsafe { self.post_bind(prepared, wr_id) }
            }
        };
        match posted {
            Ok(()) => {
                if window.kind() == WindowType::One {
                    window.bind_posted();
                }
                Ok(())
            }
            Err(error) => {
                if error.posted() == 0 {
                    // SAFETY: SAFETY.md F25: a check or the post has refused the request.
                    unsafe { window.never_bound() };
                }
                Err(error)
            }
        }
    }

    /// Unbinds a window of type 1, through any queue pair of its domain. Once the request has completed successfully,
    /// no peer has access through the window. For windows of type 2, use a [local invalidation](crate::LocalInvalidate)
    /// instead.
    ///
    /// Queue pairs are not ordered with each other, so an unbind through another queue pair may be executed before the
    /// bind. Poll the completion of the bind first.
    ///
    /// # Errors
    /// See [`PostError`]. [`Window`](crate::PostErrorKind::Window) if the window is not bound, or is of type 2.
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) for a request without memory applies.
    #[doc(alias = "ibv_bind_mw")]
    pub unsafe fn unbind<R: BindableRegion>(
        &self,
        window: &mut MemoryWindow<R>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        self.check_domain(window)?;
        let prepared = window.prepare_unbind()?;
        // SAFETY: SAFETY.md F1: `prepared` comes from this window, which is borrowed exclusively and has its region.
        // The request does not give access to memory.
        unsafe { self.post_bind(prepared, wr_id) }
    }

    fn check_domain<R: BindableRegion>(&self, window: &MemoryWindow<R>) -> Result<(), BindError> {
        if window.pd().is_same(self.pd()) { Ok(()) } else { Err(BindError::WrongDomain) }
    }

    /// # Safety
    /// The contract of [`Self::bind`]: the window and its region are live, and the window is not used elsewhere.
    unsafe fn post_bind(&self, prepared: PreparedBind, wr_id: u64) -> Result<(), PostError> {
        let PreparedBind { mw, info, .. } = prepared;
        let mut request = ibv_mw_bind { wr_id, send_flags: SIGNALED, bind_info: info };
        // SAFETY: SAFETY.md F1: the queue pair is live, and by this function's contract so is the window.
        let returned = unsafe { ibv_bind_mw(self.as_raw(), mw, &raw mut request) };
        // This is a single request, so if it was refused, it was not posted (SAFETY.md F25).
        Errno::check(returned)
            .map_err(|errno| PostError::new(0, Reason::Verb { verb: "ibv_bind_mw", errno }))
    }
}
