//! The packets that a device sends from one address to other hosts.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use quinn_udp::EcnCodepoint;
use rdma_proto::Burst;
use rdma_proto::wire::UdpHeader;
use rustix::event::epoll;
use rustix::io::Errno;

use super::address;
use super::open::Open;
use super::packet::{self, Flow};
use crate::address::Address;
use crate::device::Device;
use crate::engine::adapter::notices::{Endpoints, Reason};
use crate::engine::wire::Carrier;
use crate::engine::wire::letter::{Datagram, Letter};
use crate::fabric::random::SplitMix;
use crate::fabric::run_queue::{Entry, Task};
use crate::link::outbox::{Outbox, Sizes, new_buffer};
use crate::sync::{Mutex, locked_for_calls, locked_in_models as locked};

/// The maximum number of bytes that one call sends, less than a UDP datagram can hold.
const CALL: usize = 65_000;
/// The maximum payload of a burst, chosen so that all packets of the burst are sent in one call.
const BURST: usize = 15 << 12;
const OUTBOX: Sizes = Sizes { bursts: 64, spare: 16, buffer: BURST };
/// The maximum number of calls that one turn makes.
const CALLS: u32 = 16;
/// The hop limit of packets whose sender does not set one.
const HOPS: u8 = 64;

/// For tests: the share of outgoing packets to drop, and a seed that selects them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Loss {
    pub(crate) probability: f64,
    pub(crate) seed: u64,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    device: &'static Device,
    pub(super) open: Arc<Open>,
    own: IpAddr,
    outbox: Mutex<Outbox<Letter>>,
    /// Locked by the thread that writes, so that packets stay in order.
    writing: Mutex<Writing>,
    entry: Entry,
}

/// Packets that will be sent in one call, or in one call each if the kernel cannot split a call's bytes into packets.
#[derive(Debug)]
struct Writing {
    packets: Vec<u8>,
    /// The length of each packet except the last.
    segment: usize,
    /// The number of bytes sent so far.
    sent: usize,
    /// The destination of the packets.
    to: IpAddr,
    /// The sender of the first packet.
    endpoints: Endpoints,
    fields: HeaderFields,
    /// The socket's current hop limit.
    hops_of_socket: u8,
    loss: Option<(f64, SplitMix)>,
}

impl Writing {
    /// Adds the packets of a letter if they can be sent in the same call. Returns true if they were added.
    fn add(&mut self, own: IpAddr, letter: &Letter, most: usize) -> bool {
        let Letter { path, burst, datagram, .. } = letter;
        let Address::Gid(remote) = path.remote else { return true };
        let (to, fields) = (address(remote.gid), HeaderFields::of(datagram.as_ref()));
        let first = first_length(burst);
        let first_of_call = self.packets.is_empty();
        if !first_of_call {
            let count = self.packets.len().div_ceil(self.segment) + usize::from(burst.segments);
            let all = self.packets.len() + first * usize::from(burst.segments);
            let whole = self.packets.len().is_multiple_of(self.segment);
            let as_long = first == self.segment || first < self.segment && burst.segments == 1;
            let same = (to, fields) == (self.to, self.fields);
            if !(same && whole && as_long && count <= most && all <= CALL) {
                return false;
            }
        }
        if first_of_call {
            let qpn = datagram.map_or(0, |datagram| datagram.source.qpn);
            let peer_qpn = Some(burst.header.bth.destination.get());
            self.endpoints = Endpoints { qpn, peer_qpn, address: Some(path.remote) };
            (self.to, self.fields, self.segment, self.sent) = (to, fields, first, 0);
        }
        let way = Flow { from: own, from_port: UdpHeader::ROCE_V2_PORT, to };
        for (headers, payload) in burst.packets(letter.payload()) {
            if self.loses_one() {
                continue;
            }
            // The kernel numbers the packets of a call, starting with 0.
            let index = if most > 1 { self.packets.len() / self.segment } else { 0 };
            let identification = u16::try_from(index).unwrap_or(0);
            let written = packet::write(&way, identification, &headers, payload, &mut self.packets);
            debug_assert!(written.is_ok(), "a packet that no device sends: {headers:?}");
        }
        debug_assert!(self.packets.len() <= CALL, "a burst of {burst:?}");
        true
    }

    fn loses_one(&mut self) -> bool {
        let Some((probability, random)) = &mut self.loss else { return false };
        f64::from(random.next_u32()) < *probability * 4_294_967_296.0
    }
}

/// Returns the length of the first packet in a burst, from its BTH to its ICRC.
fn first_length(burst: &Burst) -> usize {
    let payload = if burst.segments == 1 { burst.length as usize } else { burst.segment.into() };
    burst.header.wire_len() + payload.next_multiple_of(4) + 4
}

/// The fields of a packet's IP header, except the addresses, that its sender can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeaderFields {
    hops: u8,
    ecn: Option<EcnCodepoint>,
}

impl HeaderFields {
    /// Returns the fields that a datagram's header sets. Packets of connections set none.
    fn of(datagram: Option<&Datagram>) -> Self {
        let header = datagram.and_then(|datagram| datagram.header);
        // If the header is IPv4, it is in the last 20 bytes.
        let (hops, class) = match header {
            Some(header) if header[0] == 0 => (header[28], header[21]),
            Some(header) => (header[7], header[1] >> 4),
            None => (0, 0),
        };
        let hops = if hops == 0 { HOPS } else { hops };
        Self { hops, ecn: EcnCodepoint::from_bits(class & 3) }
    }
}

impl Outgoing {
    pub(super) fn new(
        device: &'static Device,
        own: IpAddr,
        open: Arc<Open>,
        loss: Option<Loss>,
    ) -> Arc<Self> {
        let loss = loss.map(|loss| (loss.probability, SplitMix::new(loss.seed)));
        let endpoints = Endpoints { qpn: 0, peer_qpn: None, address: None };
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            device,
            open,
            own,
            outbox: Mutex::new(Outbox::new(OUTBOX)),
            writing: Mutex::new(Writing {
                packets: Vec::with_capacity(CALL),
                segment: 1,
                sent: 0,
                to: own,
                endpoints,
                fields: HeaderFields::of(None),
                hops_of_socket: 0,
                loss,
            }),
            entry: Entry::new(device.fabric, weak.clone()),
        })
    }

    pub(super) fn has_letters(&self) -> bool {
        !locked(&self.outbox).waiting.is_empty()
            || self.writing.try_lock().map_or(true, |writing| !writing.packets.is_empty())
    }

    /// Handles new space: queues a turn for as many waiting senders as fit. If more senders wait, also queues a turn of
    /// this task, which calls this function again.
    fn queue_turns(self: &Arc<Self>) {
        let (first, more) = locked(&self.outbox).take_senders();
        for sender in first.iter().filter_map(Weak::upgrade) {
            sender.entry().queue();
        }
        if more {
            self.entry().queue();
        }
    }

    /// Adds as many letters as one call can send. Returns true if there is something to send.
    fn fill(&self, writing: &mut Writing) -> bool {
        let most = self.open.socket.most_segments();
        while writing.packets.len() < CALL {
            let Some(letter) = locked(&self.outbox).waiting.pop_front() else { break };
            let added = writing.add(self.own, &letter, most);
            let outbox = &mut *locked(&self.outbox);
            if !added {
                outbox.waiting.push_front(letter);
                break;
            }
            outbox.keep(letter.into_buffer());
        }
        !writing.packets.is_empty()
    }

    /// Sends waiting packets. Returns true if there are more and the socket accepts more.
    fn write(&self) -> bool {
        let writing = &mut *locked_for_calls(&self.writing);
        for _ in 0..CALLS {
            if writing.packets.is_empty() && !self.fill(writing) {
                // A letter that has arrived since has queued a turn.
                return false;
            }
            if writing.fields.hops != writing.hops_of_socket
                && self.open.socket.set_hops(writing.fields.hops).is_ok()
            {
                writing.hops_of_socket = writing.fields.hops;
            }
            let left = &writing.packets[writing.sent..];
            let alone = self.open.socket.most_segments() <= 1;
            let call = if alone { left.len().min(writing.segment) } else { left.len() };
            match self.open.socket.send(
                writing.to,
                writing.fields.ecn,
                &left[..call],
                writing.segment,
            ) {
                Ok(()) => writing.sent += call,
                Err(Errno::AGAIN) => {
                    self.open.set_event(epoll::EventFlags::OUT, true);
                    return false;
                }
                // The network is full, has no route, or rejects these packets. They are lost, as on any network.
                Err(_) => {
                    let packets = left[..call].len().div_ceil(writing.segment);
                    let packets = u16::try_from(packets).unwrap_or(u16::MAX);
                    self.device.drop_packets(Reason::NotSent, packets, writing.endpoints);
                    writing.sent += call;
                }
            }
            if writing.sent >= writing.packets.len() {
                writing.packets.clear();
            }
        }
        true
    }
}

impl Carrier for Outgoing {
    fn has_ended(&self) -> bool {
        false
    }

    fn add_user(&self, _user: Weak<dyn Task>) {}

    fn loses_datagrams(&self) -> bool {
        false
    }

    fn buffer(&self, sender: Weak<dyn Task>) -> Option<Box<[u8]>> {
        let mut outbox = locked(&self.outbox);
        if outbox.space() == 0 {
            outbox.add_waiting_sender(sender);
            return None;
        }
        let spare = outbox.lend();
        drop(outbox);
        Some(spare.unwrap_or_else(|| new_buffer(BURST)))
    }

    fn give_back(self: Arc<Self>, buffer: Box<[u8]>) {
        locked(&self.outbox).take_back(buffer);
        self.queue_turns();
    }

    fn ask(self: Arc<Self>, _sender: Weak<dyn Task>) -> u32 {
        0
    }

    fn has_answered(&self, _question: u32) -> bool {
        true
    }

    fn is_silent(&self) -> bool {
        false
    }

    fn carries_void(&self) -> bool {
        false
    }

    fn send(self: Arc<Self>, letter: Letter) {
        locked(&self.outbox).put(letter);
        self.entry().queue();
    }

    fn flush(self: Arc<Self>) {
        self.write();
    }
}

impl Task for Outgoing {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn run(self: Arc<Self>) -> bool {
        let more = self.write();
        self.queue_turns();
        more
    }
}
