//! Queue pairs: their parts, creation, error state and destruction.

pub(crate) mod capacity;
pub(crate) mod membership;
pub(crate) mod modify;
pub(crate) mod qpn;
mod roles;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod table;
pub(crate) mod transition;

use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use rdma_types::{AsyncEventKind, QpAttributes, QpState, Qpn, WcStatus};

use crate::address::Path;
use crate::counters::SendCounts;
use crate::device::{Delivery, Device};
use crate::engine::Refusal;
use crate::engine::completion::work_completion::Side;
use crate::engine::completion::{CompletionQueue, Reclaimed};
use crate::engine::events::report::Reporter;
use crate::engine::queue_pair::capacity::Init;
use crate::engine::queue_pair::modify::{Attributes, check_values};
use crate::engine::queue_pair::service::Service;
use crate::engine::queue_pair::settings::{Found, Settings};
use crate::engine::receive_queue::shared::SharedReceiveQueue;
use crate::engine::receive_queue::{ReceiveQueue, ReceiveSlots, index};
use crate::engine::requester::drive::{restart_timeout, resume};
use crate::engine::requester::side::{Peer, SendSide};
use crate::engine::responder::side::Responder;
use crate::engine::station::{Owner, Station};
use crate::engine::turn::Turn;
use crate::engine::wire::grant::wait_for_visits;
use crate::engine::wire::{Outlet, Route};
use crate::engine::{requester, responder};
use crate::fabric::run_queue::Entry;
use crate::link::memory::Inbox;
use crate::memory::grace_period;
use crate::memory::protection::ProtectionDomain;
use crate::memory::sge::Sge;
use crate::schedule::Schedule;
use crate::sync::{ControlGuard, Line, Lock, Ordering, locked, locked_to_wait};

#[derive(Debug)]
pub(crate) struct QueuePair {
    station: Station,
    pub(crate) device: &'static Device,
    pub(crate) attributes: Mutex<Attributes>,
    /// Locked by the thread that waits for visits.
    visits: Mutex<()>,
    pub(crate) send: Line<Lock<SendSide<Self>>>,
    pub(crate) responder: Line<Lock<Responder>>,
}

impl Deref for QueuePair {
    type Target = Station;
    #[inline(always)]
    fn deref(&self) -> &Station {
        &self.station
    }
}

impl QueuePair {
    /// Creates a queue pair in RESET, attaches it to its completion queues and shared receive queue, and publishes its
    /// number.
    pub(crate) fn create(
        device: &'static Device,
        pd: &Arc<ProtectionDomain>,
        send_cq: &Arc<CompletionQueue>,
        receive_cq: &Arc<CompletionQueue>,
        shared: Option<&Arc<SharedReceiveQueue>>,
        init: Init,
        reporter: Reporter,
    ) -> Result<Arc<Self>, Refusal> {
        grace_period::prepare();
        let Init { service, capacity, signal_all } = init;
        let receive_sge = shared.map_or(capacity.receive_sge, |shared| shared.max_sge);
        // These allocations come first, because they can fail.
        let mut send = SendSide::new(&device.fabric.ids, &init)?;
        let responder = Responder::new(receive_sge)?;
        let receives = ReceiveSlots::new(capacity.receive_wr, capacity.receive_sge)?;
        let qpn = device.reserve_qpn()?;
        send.requester.origin.qpn = qpn;
        let reclaimed = Arc::new(Reclaimed::new(shared));
        let receive_pd = shared.map_or(pd, |shared| &shared.pd);
        let id = device.fabric.ids.unique();
        let faults = device.faults_of_queue_pair().map(Box::new);
        let queue_pair = Arc::new_cyclic(|weak: &Weak<Self>| {
            let station = Station {
                id,
                qpn,
                service,
                adapter: device,
                pd: Arc::clone(pd),
                pd_number: pd.number,
                immediate: device.schedule == Schedule::Immediate,
                uses_packets: AtomicBool::new(false),
                send_cq: Arc::clone(send_cq),
                receive_cq: Arc::clone(receive_cq),
                capacity,
                signal_all,
                send_seat: send_cq.attach(&reclaimed),
                receive_seat: receive_cq.attach(&reclaimed),
                reclaimed: Arc::clone(&reclaimed),
                entry: Entry::new(device.fabric, weak.clone()),
                reporter,
                counts: Line(SendCounts::default()),
                receive: Line(Lock::new(ReceiveQueue::new())),
                receives,
                shared: shared.map(Arc::clone),
                receive_pd_number: receive_pd.number,
                faults,
                owner: weak.clone(),
            };
            Self {
                station,
                device,
                attributes: Mutex::new(Attributes::default()),
                visits: Mutex::default(),
                send: Line(Lock::new(send)),
                responder: Line(Lock::new(responder)),
            }
        });
        let weak = Arc::downgrade(&queue_pair);
        send_cq.add_user(id, weak.clone());
        receive_cq.add_user(id, weak.clone());
        if let Some(shared) = shared {
            shared.attach();
        }
        device.publish_queue_pair(qpn, weak.clone());
        device.tally.add_queue_pair(id, weak);
        Ok(queue_pair)
    }

    /// Destroys the queue pair. When this returns, no peer and no device thread accesses the queue pair, its memory or
    /// its completions. All held or queued work is cancelled.
    pub(crate) fn destroy(self: Arc<Self>) {
        self.device.retire_queue_pair(self.qpn);
        self.purge_inboxes();
        // Meanwhile, another thread may have left packets for other queue pairs to this one.
        self.device.fabric.run_queue.run();
        self.answer_now();
        self.reset(&mut locked(&self.attributes));
        self.finish_visits();
        if let Some(deferred) = &self.device.deferred {
            deferred.remove(&self);
        }
        self.device.tally.remove_queue_pair(self.id, &*self);
        if let Some(shared) = &self.shared {
            shared.detach();
        }
        for (cq, seat) in [(&self.send_cq, self.send_seat), (&self.receive_cq, self.receive_seat)] {
            cq.remove_user(self.id);
            cq.detach(seat);
        }
        self.reporter.withdraw();
    }

    /// Waits until the peer's process no longer uses grants that were revoked. The caller holds no lock.
    pub(crate) fn finish_visits(&self) {
        if !self.device.maps {
            return;
        }
        // Another thread may have taken the visits that concern this call, and be waiting for them.
        let _others = locked_to_wait(&self.visits);
        let visited = std::mem::take(&mut self.responder.lock().visited);
        wait_for_visits(&self.device.fabric.clock, visited);
    }

    /// Makes the requester at the far end of a former connection forget this queue pair, so that the requester does not
    /// keep it alive. The caller holds no lock except that of the attributes.
    fn detach_requester(&self, connection: Option<(Path, u32)>) {
        let Some((path, number)) = connection else { return };
        let Some(requester) = self.device.at_far_end(&path, number) else { return };
        let peer = &mut requester.send.lock().requester.peer;
        if let Peer::Direct(found) = peer
            && std::ptr::eq(&raw const **found, self)
        {
            *peer = Peer::Unresolved;
        }
    }

    /// Drops packets that have arrived for this queue pair, once no thread is executing any of them.
    fn purge_inboxes(&self) {
        self.inboxes().for_each(|inbox| inbox.purge(self.qpn));
    }

    /// Returns the inboxes at which packets for this queue pair arrive.
    fn inboxes(&self) -> impl Iterator<Item = &Arc<Inbox<Device>>> {
        let is_datagram = self.service == Service::UnreliableDatagram;
        let of_groups = is_datagram.then_some(Qpn::MULTICAST.get());
        let numbers = std::iter::once(self.qpn).chain(of_groups);
        numbers.filter_map(|number| self.device.inbox_if_any(number))
    }

    /// Returns how many packets, or runs of packets, have arrived at the inbox of the queue pair with this number.
    fn arrived_for(&self, number: u32) -> u64 {
        self.device.inbox_if_any(number).map_or(0, |inbox| inbox.arrived())
    }

    /// Drops all requests and completions, and forgets the connection.
    pub(crate) fn reset(&self, attributes: &mut Attributes) {
        let incarnation = attributes.incarnation.wrapping_add(1);
        *attributes = Attributes { incarnation, ..Attributes::default() };
        {
            let mut send = self.send.lock();
            (send.state, send.incarnation) = (QpState::RESET, incarnation);
            send.clear();
            // Purged before the counter is set, so that polling an old completion cannot move the counter back.
            self.send_cq.purge(self.send_seat);
            self.reclaimed.of(Side::Send).store(send.posted, Ordering::Release);
            send.reclaimed = send.posted;
        }
        // From here on, no request of this queue pair binds a window. A peer that has found one of these windows is
        // done with it once the lock below is acquired.
        self.pd.unbind_windows_of(self.id);
        let mut responder = self.responder.lock();
        let connection = responder.connection();
        (responder.state, responder.incarnation) = (QpState::RESET, incarnation);
        responder.clear();
        let mut receive = self.receive.lock();
        receive.state = QpState::RESET;
        self.dismiss_waiter(&mut receive);
        if self.shared.is_none() {
            // Skips dropped requests, and requests that were flushed without entering the queue.
            responder.next_receive = receive.next;
        }
        self.receive_cq.purge(self.receive_seat);
        self.reclaimed.release(Side::Receive, index(responder.next_receive));
        drop((receive, responder));
        self.detach_requester(connection);
    }

    /// Moves each part of the queue pair to error. The caller holds the attributes' lock.
    pub(crate) fn flush(&self) {
        {
            let mut send = self.send.lock();
            send.state = QpState::ERR;
            send.flush(self);
        }
        let mut responder = self.responder.lock();
        if responder.state != QpState::ERR {
            // A responder that is already in error may have failed on its own. It still sends its pending answers and
            // the refusal, so it keeps them.
            responder.drop_unanswered();
        }
        responder.revoke();
        responder.state = QpState::ERR;
        (responder.verified, responder.begun) = (0, 0);
        responder.publish(self);
        let mut receive = self.receive.lock();
        let entered = receive.state != QpState::ERR;
        receive.state = QpState::ERR;
        self.dismiss_waiter(&mut receive);
        let Responder { current, next_receive, sges, .. } = &mut *responder;
        let mut next = current.take().or_else(|| self.receives.take(next_receive, sges));
        while let Some(request) = next {
            self.push_receive(self.failed_receive(&request, WcStatus::WR_FLUSH_ERR));
            next = self.receives.take(next_receive, sges);
        }
        if entered && self.shared.is_some() {
            // The completion queue now contains a completion for each request that this queue pair took from the shared
            // queue. It takes no others.
            self.reporter.report(AsyncEventKind::QP_LAST_WQE_REACHED);
        }
    }

    /// Posts one receive request. If a requester waits for one, it resumes before this returns, within the call's turn.
    #[inline]
    pub(crate) fn post_receive(
        &self,
        wr_id: u64,
        sges: &[Sge],
        turn: &mut Turn,
    ) -> Result<(), Refusal> {
        if sges.len() > self.capacity.receive_sge as usize {
            return Err(Refusal::Invalid);
        }
        let waiter = {
            let mut queue = self.receive.lock();
            if queue.state == QpState::RESET {
                return Err(Refusal::Invalid);
            }
            let reclaimed = self.reclaimed.of(Side::Receive).load(Ordering::Acquire);
            if queue.posted().wrapping_sub(reclaimed) >= self.capacity.receive_wr {
                let shared = self.shared.is_some();
                return Err(if shared { Refusal::Invalid } else { Refusal::NoRoom });
            }
            if queue.state == QpState::ERR {
                let receive = queue.bypass(wr_id);
                let flushed = self.failed_receive(&receive, WcStatus::WR_FLUSH_ERR);
                self.push_receive(flushed);
                None
            } else {
                queue.push(&self.receives, wr_id, sges);
                queue.waiter.take()
            }
        };
        match waiter.and_then(|waiter| waiter.upgrade()) {
            Some(requester) => {
                requester.receiver_is_ready(turn);
            }
            None => self.device.fabric.run_queue.run(),
        }
        Ok(())
    }

    /// Implements `ibv_modify_qp`.
    pub(crate) fn modify(
        self: &Arc<Self>,
        new: &Settings,
        mask: QpAttributes,
    ) -> Result<(), Refusal> {
        // Everything that happened before the change is handled first. Messages sent before a queue pair is ready do
        // not belong to it. Requests executed before a queue pair moves to error have succeeded, even if the program
        // moves it to error because the peer's process has ended.
        if mask.intersects(QpAttributes::STATE)
            && matches!(new.state, QpState::RTR | QpState::RTS | QpState::ERR)
            && let Some(link) = self.device.fabric.polled.get()
        {
            link.catch_up();
            Arc::clone(self).complete_executed();
        }
        self.answer_now();
        let to = self.modify_locked(new, mask);
        self.finish_visits();
        self.watch_peer_process();
        // Runs even if the change was refused, because the call above may have found that the queue pair has failed.
        self.device.fabric.run_queue.run();
        let to = to?;
        if mask.intersects(QpAttributes::TIMEOUT) {
            restart_timeout(self);
        }
        if to == QpState::RTS {
            resume(self);
        }
        Ok(())
    }

    /// Requests a turn whenever the process at the far end of the connection has executed requests, and when that
    /// process ends.
    fn watch_peer_process(self: &Arc<Self>) {
        let carrier = self.send.lock().wire.as_mut().and_then(|wire| wire.claim_word(self));
        if let Some(carrier) = carrier {
            carrier.add_user(self.driven());
        }
    }

    /// Modifies the queue pair under its locks, and returns the new state.
    fn modify_locked(&self, new: &Settings, mask: QpAttributes) -> Result<QpState, Refusal> {
        let has = |attribute| mask.intersects(attribute);
        let mut attributes = self.attributes();
        let from = attributes.settings.state;
        let to = if has(QpAttributes::STATE) { new.state } else { from };
        transition::check(self.service, from, to, mask)?;
        if has(QpAttributes::CUR_STATE) && new.current_state != from {
            return Err(Refusal::Invalid);
        }
        check_values(new, self.device.limits.max_qp_rd_atom, self.device.mtu, has)?;
        let path = match has(QpAttributes::AV) {
            true => Some(self.device.path(&new.address)?),
            false => None,
        };
        let peer_qpn =
            if has(QpAttributes::DEST_QPN) { new.peer_qpn } else { attributes.settings.peer_qpn };
        // Keeps the outlet alive until the route below holds it.
        let _outlet = path.map(|path| self.reach(&path, peer_qpn)).transpose()?;
        match to {
            QpState::RESET => self.reset(&mut attributes),
            QpState::ERR => {
                attributes.settings.state = to;
                self.flush();
                // From here on, the caller may reuse its memory, even memory that pending answers to earlier requests
                // would have read.
                self.responder.lock().drop_unanswered();
            }
            _ => {
                attributes.settings.record(new, mask);
                let before = self.apply(new, from, to, path, has);
                if path.is_some() {
                    self.detach_requester(before);
                }
            }
        }
        Ok(to)
    }

    /// Connects this process to the process of the peer queue pair, if the two differ. Lookups under the locks then
    /// find the connection.
    fn reach(&self, path: &Path, number: u32) -> Result<Outlet, Refusal> {
        if self.service == Service::UnreliableDatagram {
            return Ok(Outlet::Nowhere);
        }
        self.device.reach(path, number)
    }

    /// Locks the attributes, and updates the state stored there. The stored state can be out of date, because a failed
    /// request adds its completion before it locks the attributes.
    fn attributes(&self) -> ControlGuard<'_, Attributes> {
        let mut attributes = locked(&self.attributes);
        let send = self.send.lock().state;
        let failed = send == QpState::ERR || self.responder.lock().state == QpState::ERR;
        if failed && attributes.settings.state != QpState::ERR {
            attributes.settings.state = QpState::ERR;
            self.flush();
        } else if send == QpState::SQE {
            attributes.settings.state = send;
        }
        attributes
    }

    /// Sets the given attributes, and returns the previous connection. A side (send or receive) that has failed since
    /// the transition was checked stays in error. The thread that caused the failure moves the rest of the queue pair
    /// to error.
    fn apply(
        &self,
        new: &Settings,
        from: QpState,
        to: QpState,
        path: Option<Path>,
        has: impl Fn(QpAttributes) -> bool,
    ) -> Option<(Path, u32)> {
        let unless_failed = |present| match present {
            QpState::ERR => present,
            QpState::SQE if from != present => present,
            _ => to,
        };
        let mut guard = self.send.lock();
        let send = &mut *guard;
        send.state = unless_failed(send.state);
        if to != QpState::SQD {
            send.notify_drained = false;
        } else if has(QpAttributes::EN_SQD_ASYNC_NOTIFY) {
            send.notify_drained = new.notify_drained != 0;
            send.report_drained(self);
        }
        send.requester.set(new, path, &has);
        self.set_wire_of_requester(send, (from, to), path.is_some());
        let mut responder = self.responder.lock();
        responder.state = unless_failed(responder.state);
        if (from, to) == (QpState::INIT, QpState::RTR) {
            responder.first_letter = self.arrived_for(self.qpn);
            responder.first_letter_of_group = self.arrived_for(Qpn::MULTICAST.get());
        }
        let before = responder.connection();
        responder.set(new, path, &has);
        self.set_wire_of_responder(&mut responder, to, send.requester.mtu_log2, path.is_some());
        let mut receive = self.receive.lock();
        receive.state = to;
        if path.is_some() {
            // The waiter may belong to the previous peer.
            self.dismiss_waiter(&mut receive);
        }
        before
    }

    /// Returns the route of messages to the far end of a connection.
    fn route(&self, path: Option<Path>, number: u32) -> Option<Route> {
        let path = path.filter(|_| self.service != Service::UnreliableDatagram)?;
        match self.device.delivery(&path, number) {
            Delivery::Direct(_) => None,
            Delivery::Wire(outlet) => Some(Route { path, outlet }),
        }
    }

    /// Sets up or updates the requester's packet state. A connection that started with packets uses packets until it is
    /// reset.
    fn set_wire_of_requester(
        &self,
        send: &mut SendSide<Self>,
        (from, to): (QpState, QpState),
        moved: bool,
    ) {
        if let Some(wire) = &mut send.wire {
            if moved && let Some(path) = send.requester.origin.path {
                let route = self.route(Some(path), send.requester.peer_qpn);
                wire.go(route.unwrap_or(Route { path, outlet: Outlet::Nowhere }));
            }
            if to == QpState::RTS || to == QpState::SQD {
                wire.set(self, &send.requester);
            }
            if to == QpState::SQD {
                // A turn sends packets by the new route, and records that the drain waits for the peer.
                self.entry.queue();
            }
        } else if from == QpState::RTR && to == QpState::RTS {
            let route = self.route(send.requester.origin.path, send.requester.peer_qpn);
            let wire = |route| requester::wire::Wire::new(self, &send.requester, route);
            send.wire = route.map(|route| Box::new(wire(route)));
            self.uses_packets.store(send.wire.is_some(), Ordering::Relaxed);
        }
    }

    fn set_wire_of_responder(
        &self,
        responder: &mut Responder,
        to: QpState,
        mtu_log2: u32,
        moved: bool,
    ) {
        // Grants depend on the attributes.
        responder.revoke();
        if let Some(wire) = &mut responder.wire {
            if moved && let Some(path) = responder.path {
                let route = self.route(Some(path), responder.peer_qpn);
                wire.route = route.unwrap_or(Route { path, outlet: Outlet::Nowhere });
            }
            wire.set(responder.min_rnr_timer);
        } else if to == QpState::RTR
            && let Some(route) = self.route(responder.path, responder.peer_qpn)
        {
            let wire = responder::wire::Wire::new(self.service, responder, mtu_log2, route);
            responder.wire = Some(Box::new(wire));
        }
    }

    /// Implements `ibv_query_qp`. Like other providers, returns all attributes, whatever the mask requests.
    pub(crate) fn query(&self) -> Found {
        // The peer may have received an acknowledgement of a message whose completion another thread is still adding.
        // This waits for that thread, so that a program that queries the queue pair and then polls finds the
        // completion.
        self.inboxes().for_each(|inbox| inbox.finish_executing());
        let mut settings = self.attributes().settings;
        // `attributes` may have found that the queue pair has failed.
        self.device.fabric.run_queue.run();
        settings.current_state = settings.state;
        let draining = {
            let send = self.send.lock();
            let psn = send.wire.as_ref().map_or(send.requester.psn, |wire| wire.psn());
            settings.sq_psn = psn.get();
            send.state == QpState::SQD && send.may_run()
        };
        let responder = self.responder.lock();
        let psn = responder.wire.as_ref().map_or(responder.psn, |wire| wire.psn());
        settings.rq_psn = psn.get();
        drop(responder);
        Found { settings, draining }
    }
}
