//! Connections to other hosts, whose messages are MADs.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_mem::Gid;
use rdma_proto::Time;
use rdma_proto::cm::wire::{Reason, Rejection};
use rdma_proto::cm::{
    Address, CommId, Counters, Error as Refusal, Event, Manager, ServiceId, Settings,
};

use super::gateway::Gateway;
use super::path::{Request, gid_of};
use super::peer::{NO_SERVICE, Peer};
use super::{Engine, NEXT, State};

impl Engine {
    /// Returns true if the device reaches other hosts.
    pub(crate) const fn reaches_others(&self) -> bool {
        self.member.is_some()
    }

    /// Returns the local address from which MADs to an address are sent, if the device reaches it.
    pub(crate) fn source_to(&self, ip: IpAddr) -> Option<Gid> {
        self.member.as_ref()?.source_to(gid_of(ip))
    }

    /// Returns the counters of the messages from and to other hosts.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        // A thread of the parent may have held the lock.
        if self.check_process().is_err() {
            return sum;
        }
        for gateway in self.locked().gateways.values() {
            sum += gateway.manage(|manager| *manager.counters());
        }
        sum
    }

    /// Returns the gateway at a local address.
    fn gateway(&self, state: &mut State, local: Gid) -> Option<Arc<Gateway>> {
        let member = self.member.as_ref()?;
        let State { gateways, listeners, .. } = state;
        let gateway = gateways.entry(local).or_insert_with(|| {
            let guid = self.context().device().guid();
            let mut manager = Manager::new(&Settings::new(guid, member.slot(), self.secret()));
            for listening in listeners.values() {
                let _ = manager.listen(listening.service());
            }
            Gateway::new(local, member, manager)
        });
        Some(Arc::clone(gateway))
    }

    /// Accepts requests of other hosts for a service.
    pub(super) fn listen_outside(&self, state: &State, service: ServiceId) {
        if let Some(member) = &self.member {
            member.listen(service);
            for gateway in state.gateways.values() {
                let _ = gateway.manage(|manager| manager.listen(service));
            }
        }
    }

    pub(super) fn stop_listening_outside(state: &State, service: ServiceId) {
        for gateway in state.gateways.values() {
            gateway.manage(|manager| manager.stop_listening(service));
        }
    }

    /// Sends a REQ to another host.
    pub(super) fn connect_outside(
        &self,
        state: &mut State,
        (token, local): (u64, Gid),
        request: Request,
    ) -> Result<(), Refusal> {
        let Some(gateway) = self.gateway(state, local) else {
            return Err(Refusal::Unknown(CommId::NONE));
        };
        let (id, peer) = Peer::connect_outside(token, self.now(), &gateway, request)?;
        state.tokens.insert((local, id), token);
        state.peers.insert(token, peer);
        Ok(())
    }

    /// Processes the MADs that have arrived for this channel.
    pub(super) fn receive_mads(&self, state: &mut State, now: Time) {
        let Some(member) = &self.member else { return };
        for mad in member.receive() {
            let [from, local] = [mad.source, mad.destination].map(Gid::from_bytes);
            let Some(gateway) = self.gateway(state, local) else { return };
            let output =
                gateway.manage(|manager| manager.receive(now, Address::Gid(from), &mad.mad));
            if let Some(transmit) = &output.transmit {
                gateway.send(transmit);
            }
            if let Some(event) = &output.event {
                self.handle_event(state, &gateway, event);
            }
        }
    }

    /// Handles the expired timers of connections to other hosts.
    pub(super) fn expire_outside(&self, state: &mut State, now: Time) {
        let gateways: Vec<_> = state.gateways.values().map(Arc::clone).collect();
        for gateway in gateways {
            while let Some(output) = gateway.expire(now) {
                if let Some(event) = &output.event {
                    self.handle_event(state, &gateway, event);
                }
            }
        }
    }

    fn handle_event(&self, state: &mut State, gateway: &Arc<Gateway>, event: &Event<'_>) {
        let id = match event {
            Event::Requested { id, offer, .. } => {
                return self.request(state, gateway, (*id, offer.service_id), event);
            }
            Event::Queried { id, query, .. } => {
                return self.request(state, gateway, (*id, query.service_id), event);
            }
            Event::Replied { id, .. }
            | Event::Established { id, .. }
            | Event::Ended { id, .. }
            | Event::Released { id, .. }
            | Event::Resolved { id, .. } => *id,
            _ => return,
        };
        // The program may have dropped the connection, which the manager still ends.
        let Some(&token) = state.tokens.get(&(gateway.local(), id)) else { return };
        let happening = state.peers.get_mut(&token).and_then(|peer| peer.handle(&self.port, event));
        self.add_events(state, token, happening.and_then(Result::ok).into_iter().collect());
    }

    /// Adds the connection of a REQ or SIDR_REQ.
    fn request(
        &self,
        state: &mut State,
        gateway: &Arc<Gateway>,
        (id, service): (CommId, ServiceId),
        event: &Event<'_>,
    ) {
        let listeners = &mut state.listeners;
        let found = listeners.iter_mut().find(|(_, listening)| listening.service() == service);
        let refused = match found {
            None => Reason::INVALID_SERVICE_ID,
            Some((&listener, listening)) => {
                let token = NEXT.fetch_add(1, Ordering::Relaxed);
                let bound = listening.bound();
                let mut peer = Peer::requested_outside(token, gateway, listener, bound);
                match peer.handle(&self.port, event) {
                    Some(Ok(happening)) => {
                        listening.add_requested(token);
                        state.tokens.insert((gateway.local(), id), token);
                        state.peers.insert(token, peer);
                        return self.add_events(state, token, vec![happening]);
                    }
                    Some(Err(reason)) => reason,
                    None => Reason::UNSUPPORTED,
                }
            }
        };
        let now = self.now();
        let refused = gateway.manage(|manager| match event {
            Event::Queried { .. } => manager.answer(id, &NO_SERVICE),
            _ => manager.reject(now, id, &Rejection::new(refused)),
        });
        if let Ok(refusal) = refused {
            gateway.send(&refusal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use rdma_proto::cm::PortSpace;
    use rdma_proto::cm::wire::{Reason, Timeout};
    use rdma_types::{Psn, Qpn};

    use super::*;
    use crate::channel::EventChannel;
    use crate::engine::hub::tests::host;
    use crate::options::BindOptions;
    use crate::unmanaged::{self, Event, Id, Parameters};

    /// Opens a channel of a new device, and returns it with the device's address.
    fn channel(number: u32) -> (EventChannel, SocketAddr) {
        let (context, ip) = host(number);
        (EventChannel::open(&context).unwrap(), (ip, 0).into())
    }

    fn request(from: &EventChannel, to: SocketAddr) -> Id {
        let route = unmanaged::route(from, to).unwrap();
        let own = Parameters::new(Qpn::masked(7), Psn::masked(8));
        unmanaged::connect(from, PortSpace::Tcp, &route, &own, b"").unwrap()
    }

    /// Makes the managers of a channel forget all connections.
    fn restart(channel: &EventChannel, settings: &Settings) {
        let state = channel.engine().locked();
        let gateways = state.gateways.values();
        gateways.for_each(|it| it.manage(|manager| *manager = Manager::new(settings)));
    }

    /// Returns the next event of a channel. The other one processes messages meanwhile.
    fn next(of: &EventChannel, other: &EventChannel) -> Event {
        for _ in 0..60_000 {
            assert!(other.next_of(|_| false, Some(Duration::ZERO)).unwrap().is_none());
            if let Some(event) = of.next(Some(Duration::from_millis(1))).unwrap() {
                return unmanaged::event(event).1;
            }
        }
        panic!("no event")
    }

    #[test]
    fn an_ended_connection_does_not_touch_a_later_one_with_its_communication_id() {
        let ((near, own), (far, mut to)) = (channel(1), channel(2));
        let port = unmanaged::bind(&far, PortSpace::Tcp, to, BindOptions::new()).unwrap();
        to.set_port(port.number());
        let _listener = unmanaged::listen(&far, &port).unwrap();
        // With a listener, the channel has a manager.
        let port = unmanaged::bind(&near, PortSpace::Tcp, own, BindOptions::new()).unwrap();
        let _other = unmanaged::listen(&near, &port).unwrap();
        let settings = Settings::new(near.context().device().guid(), 5, 5);
        // Without this, an ID is the same again after 2^20 others.
        let restart = || restart(&near, &settings);
        restart();
        let ended = request(&near, to);
        let requested = |event| match event {
            Event::Requested { id, .. } => id,
            other => panic!("{other:?}"),
        };
        requested(next(&far, &near)).reject(Reason::CONSUMER_DEFINED, b"").unwrap();
        assert!(matches!(next(&near, &far), Event::Ended(_)));

        restart();
        let later = request(&near, to);
        let server = requested(next(&far, &near));
        assert!(ended.reject(Reason::CONSUMER_DEFINED, b"").is_err());
        drop(ended);
        server.accept(&Parameters::new(Qpn::masked(9), Psn::masked(8)), b"").unwrap();
        assert!(matches!(next(&near, &far), Event::Replied { .. }));
        later.establish().unwrap();
        assert!(matches!(next(&far, &near), Event::Established { .. }));
    }

    #[test]
    fn a_waiting_thread_gets_the_event_of_a_timer_that_another_thread_handles() {
        let ((near, _), (_far, mut to)) = (channel(3), channel(4));
        to.set_port(7471);
        drop(request(&near, to));
        let guid = near.context().device().guid();
        let mut settings = Settings::new(guid, 5, 5);
        settings.longest_timeout = Timeout::from_code(5).unwrap();
        restart(&near, &settings);
        for round in 0..1000 {
            let _id = request(&near, to);
            let is_done = AtomicBool::new(false);
            let event = thread::scope(|threads| {
                threads.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        assert!(near.next_of(|_| false, Some(Duration::ZERO)).unwrap().is_none());
                    }
                });
                let (begin, limit) = (Instant::now(), Duration::from_secs(60));
                let event = near.next(Some(limit));
                is_done.store(true, Ordering::Relaxed);
                assert!(begin.elapsed() < limit, "nothing woke the thread");
                event.unwrap()
            });
            let end = event.map(|event| unmanaged::event(event).1);
            assert!(matches!(end, Some(Event::Ended(_))), "round {round}: {end:?}");
        }
    }
}
