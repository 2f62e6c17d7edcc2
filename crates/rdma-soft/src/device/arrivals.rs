//! Handles packets that have arrived at a device: finds their queue pairs, which execute them.

use std::sync::Arc;

use rdma_proto::Burst;
#[cfg(not(loom))]
use rdma_proto::cm::Transmit;
use rdma_proto::wire::Service as WireService;
use rdma_types::Qpn;

use crate::address::{Address, Path};
use crate::device::Device;
use crate::device::subnet::Subnet;
use crate::engine::adapter::notices::Reason;
use crate::engine::aftermath::Aftermath;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::service::Service;
use crate::engine::responder::wire::Answers;
use crate::engine::wire::letter::{ExecutedWords, Letter};
#[cfg(not(loom))]
use crate::engine::wire::single::Single;
use crate::engine::wire::{TURN, drop_burst, drop_packets, is_of_partition};
use crate::link::memory::Receives;
use crate::link::pcap::Tap;
use crate::link::simulation::Links;
#[cfg(not(loom))]
use crate::memory::copy::Segment;

#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

/// Returns true if the packets have no receiver, and counts them. They are for an unknown or destroyed queue pair, or
/// only one of QPN and address is that of a multicast group. Such packets take no space in the inbox.
pub(crate) fn is_for_nobody(
    device: &'static Device,
    path: &Path,
    burst: &Burst,
    to_group: bool,
) -> bool {
    let number = burst.header.bth.destination;
    let for_many = number == Qpn::MULTICAST;
    let nobody = for_many != to_group || !for_many && device.queue_pair(number.get()).is_none();
    if nobody {
        let source = burst.header.deth.map(|deth| deth.source.get());
        drop_burst(device, path, burst, Reason::UnknownQp, source);
    }
    nobody
}

/// Work that is deferred to the end of an inbox's turn, and done before the receive side is released.
#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    /// Queue pairs whose completions are held back until their acknowledgements have been sent.
    held: [Option<Arc<QueuePair>>; TURN as usize],
    /// The words of the process whose requests were executed last. That process may have to be notified.
    words: Option<Arc<dyn ExecutedWords>>,
}

impl Afterwards {
    fn hold(&mut self, own: Arc<QueuePair>) {
        if self.held.iter().map_while(Option::as_ref).any(|held| Arc::ptr_eq(held, &own)) {
            return;
        }
        match self.held.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(own),
            // A turn executes at most as many packets as there are places.
            None => own.responder.lock().publish(&own),
        }
    }

    fn announce(&mut self, words: &Arc<dyn ExecutedWords>) {
        let last = self.words.get_or_insert_with(|| Arc::clone(words));
        if !Arc::ptr_eq(last, words) {
            std::mem::replace(last, Arc::clone(words)).announce();
        }
    }

    /// Does the deferred work. The caller holds the receive side, and none of the locks after it in the
    /// [order](crate::engine).
    #[inline]
    fn settle(&self) {
        if let Some(words) = &self.words {
            words.announce();
        }
        if self.held[0].is_some() {
            self.answer();
        }
    }

    /// Sends as many acknowledgements as the link accepts, before the program can see the completions of the
    /// acknowledged packets.
    fn answer(&self) {
        let held = || self.held.iter().map_while(Option::as_ref);
        held().for_each(|own| own.answer());
        for own in held() {
            let carrier = own.responder.lock().carrier();
            if let Some(carrier) = carrier {
                carrier.flush();
            }
        }
        held().for_each(|own| own.responder.lock().has_answered(own));
    }
}

impl Receives for Device {
    type Afterwards = Afterwards;

    fn receive(
        &'static self,
        letter: &Letter,
        afterwards: &mut Afterwards,
        may_wait: bool,
    ) -> bool {
        receive(self, letter, afterwards, may_wait).is_some()
    }

    fn settle(&self, afterwards: &Afterwards) {
        afterwards.settle();
    }

    fn links(&self) -> Option<&Links> {
        self.subnet.links.as_deref()
    }

    fn tap_at(&self, address: &Address) -> Option<&'static Arc<Tap>> {
        self.subnet.at(self.link, address)?.adapter.tap.as_ref()
    }
}

/// Executes packets that have arrived at a device. Packets for unknown queue pairs get no answer. The caller holds the
/// receive side of their inbox. Returns `None` if nothing was executed, because another thread is using the queue pair of a
/// connection, or answers must be sent first. If `may_wait` is true, it waits instead. A request that fails may always wait.
fn receive(
    device: &'static Device,
    letter: &Letter,
    afterwards: &mut Afterwards,
    may_wait: bool,
) -> Option<()> {
    let bth = &letter.burst.header.bth;
    let source = letter.burst.header.deth.map(|deth| deth.source.get());
    let dropped = |reason| {
        drop_packets(device, letter, reason, source);
        Some(())
    };
    if !device.port_is_up() {
        return dropped(Reason::PortDown);
    }
    if !is_of_partition(bth.p_key) {
        return dropped(Reason::WrongPartition);
    }
    if bth.destination == Qpn::MULTICAST {
        receive_for_many(device, letter);
        return Some(());
    }
    #[cfg(not(loom))]
    if bth.destination == Transmit::QPN && device.subnet.links.is_some() {
        if device.mads.accepts(device, &letter.path, &letter.burst, letter.payload()) {
            device.mads.deliver(device, &letter.path, letter.payload());
        }
        return Some(());
    }
    let Some(own) = device.queue_pair(bth.destination.get()) else {
        return dropped(Reason::UnknownQp);
    };
    let mut aftermath = Aftermath::default();
    let service = match bth.opcode.service() {
        WireService::Rc => Service::ReliableConnection,
        WireService::Uc => Service::UnreliableConnection,
        _ => Service::UnreliableDatagram,
    };
    if own.service != service {
        return dropped(Reason::WrongService);
    }
    let answers = if service == Service::UnreliableDatagram {
        receive_datagram(&own, letter, &mut aftermath);
        Answers::Never
    } else if bth.opcode.operation().is_response() {
        match own.send.lock_if(|| may_wait)?.receive_responses(&own, letter, &mut aftermath) {
            true => Answers::Now,
            false => Answers::Never,
        }
    } else {
        if letter.words.is_some() {
            // The packet may be an answer to a request that the peer's process has executed. As on a NIC, where the
            // acknowledgement arrives first, that request completes first.
            own.complete_executed_if(may_wait)?;
        }
        let mut responder = own.responder.lock_if(|| may_wait)?;
        if !may_wait && responder.may_hold(letter) {
            // Answering takes further locks.
            return None;
        }
        responder.receive_requests(&own, letter, &mut aftermath)
    };
    aftermath.flush(&own);
    if let Some(words) = &letter.words {
        afterwards.announce(words);
    }
    match answers {
        Answers::Never => {}
        Answers::Now => own.entry.queue(),
        Answers::First => afterwards.hold(own),
    }
    Some(())
}

/// Executes a message of one packet from another process, if no packet is needed for it. The caller holds the receive
/// side of the inbox, and all packets that arrived there are executed. Returns false if the message must arrive as a
/// packet.
#[cfg(not(loom))]
pub(crate) fn receive_single(
    device: &'static Device,
    single: &Single,
    data: &[Segment],
    words: &dyn ExecutedWords,
) -> bool {
    // A capture contains packets.
    if !device.port_is_up() || device.tap.is_some() {
        return false;
    }
    let Some(own) = device.queue_pair(single.to.get()) else { return false };
    if own.service != Service::ReliableConnection {
        return false;
    }
    // As for a [packet](receive), a request that the message may answer completes first. If this thread waited for a post
    // of this queue pair, no thread could read messages of the same process for others.
    if own.complete_executed_if(false).is_none() {
        return false;
    }
    let Some(mut responder) = own.responder.lock_if(|| false) else { return false };
    responder.receive_single(&own, single, data, words)
}

/// Makes all queue pairs of a subnet acknowledge the packets that they have executed.
pub(crate) fn answer_all(subnet: &'static Subnet) {
    for own in subnet.devices().flat_map(Device::all_queue_pairs) {
        own.answer_now();
    }
}

/// Makes the queue pairs of a device acknowledge executed packets in their next turn. The caller holds no lock.
pub(crate) fn answer_soon(device: &Device) {
    for own in device.all_queue_pairs() {
        if own.responder.lock().owes_acknowledgement() {
            own.entry.queue();
        }
    }
}

/// Waits until all packets that have arrived at the devices of a subnet are executed. The caller holds no lock.
#[cfg(not(loom))]
pub(crate) fn execute_all(subnet: &'static Subnet) {
    subnet.devices().for_each(Device::execute_all);
}

/// Returns true if another thread will execute packets that have arrived at a device of a subnet.
#[cfg(not(loom))]
pub(crate) fn are_left(subnet: &'static Subnet) -> bool {
    subnet.devices().any(|device| device.inboxes.all().any(|inbox| inbox.has_left_work()))
}

/// Delivers a datagram to the members of a group.
fn receive_for_many(device: &Device, letter: &Letter) {
    let is_datagram = letter.burst.header.bth.opcode.service() == WireService::Ud;
    let group = letter.datagram.and_then(|datagram| datagram.group);
    let Some(group) = group.filter(|_| is_datagram && device.port_is_up()) else { return };
    for member in device.groups.members(group) {
        let mut aftermath = Aftermath::default();
        receive_datagram(&member, letter, &mut aftermath);
        aftermath.flush(&member);
    }
}

fn receive_datagram(own: &Arc<QueuePair>, letter: &Letter, aftermath: &mut Aftermath) {
    let Some(datagram) = letter.datagram else { return };
    let dropped = own.responder.lock().receive_datagram(own, letter, datagram, aftermath);
    let Some(reason) = dropped else { return };
    let peer_qpn = letter.burst.header.deth.map(|deth| deth.source.get());
    drop_packets(own.device, letter, reason, peer_qpn);
}
