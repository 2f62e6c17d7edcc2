//! One operation for each of several peers.
#![allow(unsafe_code)]

use std::time::Duration;

use rdma_qp::{SendWorkRequest, WorkSuccess};

use super::work_request::PeerRequest;
use super::{
    MultiChannel, PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest,
    PeerWriteWorkRequest,
};
use crate::core::{Core, Room, closed};
use crate::ending::without_unwinding;
use crate::patience::Patience;
use crate::slot::index;
use crate::{CloseReason, Operation, OperationError, TransportError, WorkId};

impl Core {
    /// The requests, if there is a peer for each, which takes requests.
    ///
    /// All are taken from the iterator before the first is posted: so nothing is posted in vain, and no code of the
    /// caller's runs while the device has some.
    pub(super) fn gathered<'data, R: PeerRequest<'data>>(
        &self,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Vec<R>, TransportError> {
        let requests: Vec<R> = requests.into_iter().collect();
        for request in &requests {
            let lane = self.lane(request.peer())?;
            if lane.closed.get().is_some() {
                return Err(closed(lane));
            }
        }
        Ok(requests)
    }

    /// Posts all requests, and returns when the device uses the memory of none.
    fn block_each<'data, R: PeerRequest<'data>>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let requests = self.gathered(requests)?;
        without_unwinding(|| {
            let mut refused = None;
            let post = |request: R| {
                // SAFETY: SAFETY.md F22: the memory is borrowed by the call, which ends after the requests.
                match unsafe { request.made_signaled().post(self, Room::Now) } {
                    Ok(ticket) => Some(ticket.keep().0),
                    Err(error) => {
                        refused = Some(error);
                        None
                    }
                }
            };
            let ids: Vec<WorkId> = requests.into_iter().map_while(post).collect();
            let limit = match refused {
                Some(_) => timeout.min(self.limits.drain),
                None => timeout,
            };
            let refused = self.await_each(&ids, limit).err().or(refused);
            self.settle_each(&ids);
            let outcomes = self.outcomes(&ids, timeout);
            if self.live.get() > 0 {
                // Others of the connections that were closed.
                self.collect(0);
            }
            match refused {
                Some(error) => Err(error),
                None => outcomes,
            }
        })
    }

    /// Waits until all are done, or the time is over.
    fn await_each(&self, ids: &[WorkId], limit: Duration) -> Result<(), TransportError> {
        let mut patience = Patience::new(limit);
        for id in ids {
            while self.in_flight(id.0).is_some() {
                if self.progress()? == 0 && patience.is_over() {
                    return Ok(());
                }
                if patience.is_long() {
                    self.check_process()?;
                }
            }
        }
        Ok(())
    }

    /// Ends those that are not done, and the one that was refused and may be posted all the same.
    fn settle_each(&mut self, ids: &[WorkId]) {
        let doubtful = WorkId(self.doubtful.replace(0));
        let mut late = ids.iter().chain([&doubtful]).filter_map(|id| self.in_flight(id.0));
        if late.next().is_none() {
            return;
        }
        self.settle(|core| {
            if let Some(slot) = core.in_flight(doubtful.0) {
                let operation = slot.operation.get();
                core.close_lane_of(doubtful, CloseReason::Doubtful { operation });
            }
            for id in ids {
                if let Some(slot) = core.in_flight(id.0) {
                    let operation = slot.operation.get();
                    core.close_lane_of(*id, CloseReason::Timeout { operation });
                }
            }
        });
    }

    /// How they ended, in order; then their places are free.
    fn outcomes(
        &self,
        ids: &[WorkId],
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let (mut successes, mut errors) = (Vec::with_capacity(ids.len()), Vec::new());
        for &id in ids {
            let Some(slot) = self.table.get(index(id.0)) else { continue };
            let operation = slot.operation.get();
            let result = slot.told().ok_or(TransportError::Lost { operation });
            if let Ok(Ok(success)) = result {
                successes.push(success);
            } else {
                let error = match self.failure(slot, result) {
                    None => TransportError::Lost { operation },
                    Some(TransportError::Closed(CloseReason::Timeout { .. })) => {
                        TransportError::Timeout { operation, timeout }
                    }
                    Some(error) => error,
                };
                let peer = Some(slot.lane as usize);
                errors.push(OperationError { operation, id, peer, error });
            }
            self.release(slot);
        }
        if errors.is_empty() { Ok(successes) } else { Err(TransportError::Collective(errors)) }
    }
}

/// The blocking collectives of one kind of request.
macro_rules! collectives {
    ($($(#[$doc:meta])* $name:ident, $name_timeout:ident: $request:ident => $operation:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// See [`scatter_send`](Self::scatter_send) for the rest.
        ///
        /// # Errors
        /// As there.
        pub fn $name<'wr, 'data: 'wr>(
            &mut self,
            wrs: impl IntoIterator<Item = $request<'wr, 'data>>,
        ) -> Result<Vec<WorkSuccess>, TransportError> {
            self.$name_timeout(wrs, self.core.limits.of(Operation::$operation))
        }

        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "), with a limit of its own for all. [`Duration::MAX`] is none.")]
        ///
        /// # Errors
        /// As there.
        pub fn $name_timeout<'wr, 'data: 'wr>(
            &mut self,
            wrs: impl IntoIterator<Item = $request<'wr, 'data>>,
            timeout: Duration,
        ) -> Result<Vec<WorkSuccess>, TransportError> {
            self.core.block_each(wrs, timeout)
        }
    )+};
}

impl MultiChannel {
    /// Sends a message for each request, each to its peer, and waits until all are over. Returns how they ended, in
    /// the order of the requests.
    ///
    /// All requests are taken from the iterator before the first is posted. There can be several for one peer, as
    /// many as its queue holds. All are waited for, also if one fails, for no longer than one operation of the kind
    /// may take: then the connections are closed whose requests are not done, and the others stay as they are.
    ///
    /// It allocates the list of the requests and that of the results, and nothing for each.
    ///
    /// # Errors
    /// - [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] ([`closed`](Self::closed) tells which peer), before
    ///   anything is posted;
    /// - that of a post: the requests before it are waited for as when a scope ends, for no longer than the
    ///   [drain limit](crate::ChannelBuilder::drain_timeout), and their connections closed if that is not enough;
    /// - [`TransportError::Collective`] with each operation that failed, or was not done in time, and its peer.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{PeerSendWorkRequest, prelude::*};
    /// # use rdma_qp::ReceiveWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let prepared = pd.create_multi_channel().num_channels(2).build()?;
    /// # let peers = [pd.create_channel().build()?, pd.create_channel().build()?];
    /// # let ends = prepared.endpoints();
    /// # let mut channels = prepared.handshake(peers.each_ref().map(|peer| peer.endpoint()))?;
    /// # let threads = peers.into_iter().zip(ends).map(|(peer, end)| std::thread::spawn(move || {
    /// #     let mut peer = peer.handshake(end)?;
    /// #     let number = peer.receive(ReceiveWorkRequest::only_immediate())?.immediate_data();
    /// #     Ok::<_, rdma_channel::TransportError>(number)
    /// # }));
    /// # let threads: Vec<_> = threads.collect();
    ///
    /// let numbers = [17, 4];
    /// let requests = numbers.iter().enumerate();
    /// channels.scatter_send(
    ///     requests.map(|(peer, &number)| PeerSendWorkRequest::only_immediate(peer, number)),
    /// )?;
    /// # let received = threads.into_iter().map(|thread| thread.join().unwrap().unwrap().unwrap());
    /// # assert_eq!(received.collect::<Vec<_>>(), numbers);
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn scatter_send<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerSendWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.scatter_send_timeout(wrs, self.core.limits.send)
    }

    /// As [`scatter_send`](Self::scatter_send), with a limit of its own for all. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// As there.
    pub fn scatter_send_timeout<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerSendWorkRequest<'wr, 'data>>,
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.core.block_each(wrs, timeout)
    }

    collectives! {
        /// Writes for each request into memory of its peer.
        scatter_write, scatter_write_timeout: PeerWriteWorkRequest => Write;
        /// Takes one message for each request, each of its peer.
        gather_receive, gather_receive_timeout: PeerReceiveWorkRequest => Receive;
        /// Reads for each request memory of its peer.
        gather_read, gather_read_timeout: PeerReadWorkRequest => Read;
    }

    /// Sends one message to each of these peers.
    ///
    /// See [`scatter_send`](Self::scatter_send) for the rest.
    ///
    /// # Errors
    /// As there.
    pub fn multicast_send(
        &mut self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.multicast_send_timeout(peers, wr, self.core.limits.send)
    }

    /// As [`multicast_send`](Self::multicast_send), with a limit of its own for all. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// As there.
    pub fn multicast_send_timeout(
        &mut self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, '_>,
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let wrs = peers.into_iter().map(|peer| PeerSendWorkRequest::from_wr(peer, wr));
        self.core.block_each(wrs, timeout)
    }
}
