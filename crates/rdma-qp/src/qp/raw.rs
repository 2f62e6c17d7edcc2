//! Queue pairs that were created and connected elsewhere.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use rdma_mem::Ownership;
use rdma_sys::{ibv_qp, ibv_qp_cap};
use rdma_types::QpType;

use crate::cq::claim::claim;
use crate::error::Error;
use crate::post::operations::Operations;
use crate::post::stand_in::Called;
use crate::qp::attributes::QueuePairAttributes;
use crate::qp::builder::QueuePairBuilder;
use crate::qp::capabilities::QueuePairCapabilities;
use crate::qp::create;
use crate::qp::queue_pair::QueuePair;

impl QueuePair {
    /// Wraps a queue pair that was created elsewhere and is already connected, or activated for datagrams.
    ///
    /// `parents` contains the queue pair's protection domain, both completion queues, and the shared receive queue if
    /// it has one. For datagrams (UD), `mtu` limits the length of a message, and the address options of `parents`, such
    /// as `gid_index` and `service_level`, apply to [`address_vector`](Self::address_vector). Type, QPN, sizes, port
    /// and Q_Key are read from the queue pair, and other options are ignored. The queue pair posts through
    /// `ibv_post_send`.
    ///
    /// # Errors
    /// Same errors as [`build`](QueuePairBuilder::build), and the provider's error of `ibv_query_qp`.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. `parents` contains the owners of exactly the objects that the
    /// queue pair was created with. It contains a shared receive queue if, and only if, the queue pair has one.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::Ownership;
    /// use rdma_qp::{CompletionQueue, QueuePair, prelude::*};
    /// # use rdma_qp::QueuePairType;
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let pd = context.allocate_pd()?;
    /// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    /// # let (one, other) = (prepare()?, prepare()?);
    /// # let other = other.endpoint();
    /// # let made = one.handshake(other)?;
    /// # let library_connects = || made.as_raw();
    /// let raw = NonNull::new(library_connects()).unwrap();
    /// let parents = pd.create_qp().send_cq(&cq).recv_cq(&cq);
    /// // SAFETY: the queue pair was created with these objects and is connected; the library destroys it later.
    /// let qp = unsafe { QueuePair::from_raw(raw, parents, Ownership::Borrowed) }?;
    /// assert_eq!(qp.peer(), None, "the library knows");
    /// assert_eq!(qp.query()?.state, rdma_qp::QpState::RTS);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    pub unsafe fn from_raw(
        raw: NonNull<ibv_qp>,
        parents: QueuePairBuilder<'_>,
        ownership: Ownership,
    ) -> Result<Self, Error> {
        let mut parents = parents;
        // SAFETY: SAFETY.md F1: the queue pair is live, and its type does not change.
        parents.qp_type = QpType::from_raw(unsafe { (*raw.as_ptr()).qp_type }.0);
        let queues = create::check_parents(&parents)?;
        let device = parents.pd.context().query_device();
        let operations = Operations::of(parents.pd.context(), device.as_ref().ok());
        let object = |cap: &ibv_qp_cap, claims, ownership| {
            let called = (raw, Called::itself(raw));
            // SAFETY: SAFETY.md F2, F6, F9: by this function's contract. Requests are posted to the queue pair itself.
            unsafe {
                create::object(&parents, queues, claims, called, (cap, operations), ownership)
            }
        };
        // The queue pair is only borrowed until nothing else can fail, so that an error does not destroy it.
        let lent = object(&ibv_qp_cap::default(), [None, None], Ownership::Borrowed);
        let (attributes, init) = lent.query(QueuePairAttributes::mask(parents.qp_type))?;
        drop(lent);
        let sizes = QueuePairCapabilities::from_raw(&init.cap);
        let claims = claim(queues, &sizes, parents.srq, false)?;
        if parents.qp_type != QpType::UD {
            return Ok(Self::connected_elsewhere(object(&init.cap, claims, ownership)));
        }
        let own = parents.clone().port(attributes.port_num).qkey(attributes.qkey);
        let mut end = create::own_end(&own, &device?)?;
        let object = object(&init.cap, claims, ownership);
        end.endpoint.qpn = object.qpn;
        Ok(Self::of_datagrams(object, end))
    }
}
