//! Datagrams: their senders, and the routes to their receivers.

pub(crate) mod groups;

use rdma_sys::{ibv_wc, ibv_wc_flags};
use rdma_types::{Lid, QpType, Qpn};

use crate::ah::global_route_header::GlobalRouteHeader;
use crate::ah::handle::AddressHandle;
use crate::ah::vector::AddressVector;
use crate::cq::completion::WorkCompletion;
use crate::endpoint::QueuePairEndpoint;
use crate::endpoint::connect::{ConnectAttributes, Own};
use crate::error::Error;
use crate::qp::own_end::{Datagrams, OwnEnd};
use crate::qp::queue_pair::QueuePair;

/// The sender of a datagram, from [`QueuePair::datagram`].
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramSource {
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's LID; [`Lid::NONE`] on Ethernet.
    pub lid: Lid,
    /// The service level of the packet. RoCE packets have none. Instead, some adapters and the software device report
    /// the packet type: 8 for a UDP header, plus 1 for IPv6 or 2 for IPv4. Address handles accept that value unchanged.
    pub service_level: u8,
    /// Whether the first 40 bytes of the receive contain the packet's header
    /// ([`GlobalRouteHeader`](crate::GlobalRouteHeader)). Otherwise, the device has not written them.
    pub has_header: bool,
}

impl QueuePair {
    /// Returns the sender of the datagram that completed this receive. `None` if the completion belongs to another
    /// queue pair, failed, or is not for a receive. Also `None` for connected queue pairs, which have only one peer.
    ///
    /// The message begins after the 40 bytes of the [`GlobalRouteHeader`](crate::GlobalRouteHeader), which
    /// [`scattered_bytes`](crate::WorkSuccess::scattered_bytes) includes. See `man ibv_poll_cq`.
    #[must_use]
    pub fn datagram(&self, completion: &WorkCompletion) -> Option<DatagramSource> {
        let of_this = self.qp_type() == QpType::UD && completion.qpn() == self.qpn();
        if !of_this || !completion.result().is_ok_and(|success| success.is_receive()) {
            return None;
        }
        let wc = completion.raw();
        Some(DatagramSource {
            qpn: Qpn::masked(wc.src_qp),
            lid: Lid::new(wc.slid),
            service_level: wc.sl,
            has_header: wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0,
        })
    }

    /// Returns the route from this port to the endpoint's port. It has this queue pair's service level, traffic class,
    /// hop limit and flow label.
    ///
    /// The GIDs are chosen by the rule of [`handshake`](crate::PreparedQueuePair::handshake), so that both ends choose
    /// the same two GIDs.
    ///
    /// # Errors
    /// [`Error::NotDatagrams`] for connected queue pairs. [`Error::Handshake`], which names the mismatching field, if
    /// the endpoints do not match.
    pub fn address_vector(&self, peer: &QueuePairEndpoint) -> Result<AddressVector, Error> {
        let OwnEnd { endpoint, table, port, settings } = &self.datagrams()?.end;
        let own = Own { endpoint, table, fixed_mtu: None, recv_psn: None };
        let (lid, route, _) = ConnectAttributes::path_to(&own, peer).map_err(Box::new)?;
        Ok(settings.vector(*port, (lid, route)))
    }

    /// Creates a handle to the endpoint's port. Pass it to [`SendWorkRequest::to`](crate::SendWorkRequest::to),
    /// together with the endpoint's QPN and Q_Key. The handle reaches all queue pairs of that port.
    ///
    /// # Errors
    /// Same errors as [`address_vector`](Self::address_vector), and the provider's error.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{
    ///     CompletionQueue, GlobalRouteHeader, PollSlot, QueuePairType, ReceiveWorkRequest,
    ///     SendWorkRequest, prelude::*,
    /// };
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let pd = context.allocate_pd()?;
    /// let prepare = || pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq).build();
    /// let (a, b) = (prepare()?, prepare()?);
    /// let peer = b.endpoint(); // of another process: `QueuePairEndpoint::from_bytes`
    /// let (a, b) = (a.activate()?, b.activate()?);
    /// let mut buffer = pd.allocate_region(GlobalRouteHeader::BYTES + 64)?;
    ///
    /// let to_b = a.address_handle(&peer)?;
    /// let mut all = buffer.get_mut(0, buffer.len()).unwrap();
    /// let mut elements = [all.scatter_element()];
    /// // SAFETY: the region, and the handle, are not used elsewhere until both requests have completed.
    /// unsafe { b.post_receive(ReceiveWorkRequest::new(&mut elements), 1) }?;
    /// let hello = SendWorkRequest::only_immediate(7).to(&to_b, peer.qpn(), peer.qkey());
    /// // SAFETY: as above.
    /// unsafe { a.post_send(hello, 2) }?;
    ///
    /// let (mut slots, mut left) = ([PollSlot::default(); 4], 2);
    /// while left > 0 {
    ///     for completion in cq.poll(&mut slots)? {
    ///         let success = completion.result()?;
    ///         if let Some(source) = b.datagram(&completion) {
    ///             assert_eq!((source.qpn, success.immediate_data()), (a.qpn(), Some(7)));
    ///         }
    ///         left -= 1;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, peer: &QueuePairEndpoint) -> Result<AddressHandle, Error> {
        AddressHandle::create(self.pd(), &self.address_vector(peer)?)
    }

    /// Returns the handle to this queue pair's own port. It lives as long as the queue pair.
    pub(crate) fn own_handle(&self) -> Result<&AddressHandle, Error> {
        let Datagrams { end, own } = self.datagrams()?;
        if let Some(handle) = own.get() {
            return Ok(handle);
        }
        let handle = self.address_handle(&end.endpoint)?;
        Ok(own.get_or_init(|| handle))
    }
}

impl AddressHandle {
    /// Creates a handle to the sender of a datagram, using the reverse of the datagram's route. `qp` is the queue pair
    /// that received the datagram, and `header` the bytes before the message. If the datagram has no header, those
    /// bytes are ignored.
    ///
    /// Use this handle to reply to [`DatagramSource::qpn`](crate::DatagramSource::qpn). The packet does not contain the
    /// sender's Q_Key, so both ends must know it, or the message must contain it. See `man ibv_create_ah_from_wc`.
    ///
    /// # Errors
    /// [`Error::NotDatagrams`] for a connected queue pair. [`Error::NoDatagram`] if the completion is not for a
    /// datagram that this queue pair received. Otherwise the provider's error, for example because the header names no
    /// GID of the port.
    ///
    /// # Examples
    /// ```no_run
    /// # use rdma_qp::{
    /// #     AddressHandle, DatagramSource, GlobalRouteHeader, QueuePair, SendWorkRequest, WorkCompletion,
    /// # };
    /// # fn example(qp: &QueuePair, completion: &WorkCompletion, buffer: &[u8]) -> Option<()> {
    /// let (header, message) = GlobalRouteHeader::split(buffer)?;
    /// let sender: DatagramSource = qp.datagram(completion)?;
    /// let back = AddressHandle::from_completion(qp, completion, &header).ok()?;
    /// let answer = SendWorkRequest::only_immediate(1).to(&back, sender.qpn, qp.qkey()?);
    /// # Some(())
    /// # }
    /// ```
    #[doc(alias = "ibv_init_ah_from_wc")]
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn from_completion(
        qp: &QueuePair,
        completion: &WorkCompletion,
        header: &GlobalRouteHeader,
    ) -> Result<Self, Error> {
        let port = qp.datagrams()?.end.port;
        let source = qp.datagram(completion).ok_or(Error::NoDatagram { qpn: qp.qpn() })?;
        let wc = ibv_wc {
            src_qp: source.qpn.get(),
            slid: source.lid.get(),
            sl: source.service_level,
            dlid_path_bits: completion.raw().dlid_path_bits,
            wc_flags: if source.has_header { ibv_wc_flags::IBV_WC_GRH.0 } else { 0 },
            ..Default::default()
        };
        Self::to_sender(qp.pd(), port, wc, header)
    }
}
