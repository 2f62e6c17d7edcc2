//! The receiving end for one address of a device, or for a group that the device has joined at the address.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use quinn_udp::RecvMeta;
use rdma_proto::cm::Transmit;
use rdma_proto::wire::Service;
use rdma_types::Gid;
use rustix::event::epoll;
use rustix::io::Errno;

use super::coalesced::CoalescedBurst;
use super::open::Open;
use super::outgoing::Outgoing;
use super::packet::{Flow, NoPacket, Reader};
use super::{address, entry};
use crate::address::{Address, Group, Path, Route};
use crate::device::Device;
use crate::device::arrivals::is_for_nobody;
use crate::engine::adapter::notices::{Endpoints, Reason};
use crate::engine::completion::work_completion::Source;
use crate::engine::wire::Mailbox as _;
use crate::engine::wire::letter::{BURST_BYTES, Datagram, Letter};
use crate::engine::wire::route_header;
use crate::fabric::run_queue::{Entry, Task};
use crate::link::Link;
use crate::link::descriptor::Descriptor;
use crate::link::driver::{SocketEvent, Watched};
use crate::sync::{AtomicBool, Mutex, Ordering, locked_for_calls};

/// The maximum number of read calls per turn.
const TURN: u32 = 4;
/// The maximum number of bytes that the kernel coalesces in one call.
const RECEIVED: usize = 65_536;
/// A limit on the number of turns, larger than a full socket buffer requires.
const MOST_TURNS: u32 = 64;
/// The hop limit that is reported for received datagrams and used for replies. The socket does not report the real one.
const HOPS: u8 = 64;

#[derive(Debug)]
pub(super) struct PortReceiver {
    device: &'static Device,
    pub(super) open: Arc<Open>,
    /// The local address of arriving packets.
    own: IpAddr,
    /// The group, if this socket is for one.
    group: Option<Group>,
    /// The index of the interface on which the group's packets arrive. The kernel also delivers packets from other
    /// interfaces; the receiver drops them.
    interface: Option<u32>,
    /// The sender that uses the same socket, if there is one.
    outgoing: Option<Arc<Outgoing>>,
    /// Locked by the thread that reads, so that packets stay in order.
    reading: Mutex<Reading>,
    /// Whether packets arrive or leave on this socket.
    used: AtomicBool,
    /// Whether the receiver waits for space in an inbox instead of for packets.
    waits: AtomicBool,
    entry: Entry,
}

#[derive(Debug)]
struct Reading {
    received: Box<[u8]>,
    /// The part of `received` that has not been handled yet.
    left: Option<Unread>,
    reader: Reader,
}

/// Packets from one sender.
#[derive(Debug, Clone, Copy)]
struct Unread {
    way: Flow,
    /// The offset of the first packet in the buffer.
    begin: usize,
    /// The offset after the last packet.
    end: usize,
    /// The length of each packet except the last.
    stride: usize,
    /// The ECN bits of the IP header.
    ecn: u8,
}

/// The result of looking at the socket once.
#[derive(Debug, PartialEq, Eq)]
enum PortRead {
    Packets,
    /// No packet was for a receiver of this device.
    Useless,
    Nothing,
    /// An inbox has no space for the packets.
    NoRoom,
}

impl PortReceiver {
    /// Creates the receiver of one of the device's addresses.
    pub(super) fn new(
        device: &'static Device,
        own: IpAddr,
        open: Arc<Open>,
        outgoing: Arc<Outgoing>,
    ) -> Arc<Self> {
        Self::with(device, own, open, None, Some(outgoing))
    }

    pub(super) fn of_group(
        device: &'static Device,
        group: Gid,
        interface: u32,
        open: Arc<Open>,
    ) -> Arc<Self> {
        let of = Some((Group { gid: group, lid: 0 }, interface));
        Self::with(device, address(group), open, of, None)
    }

    fn with(
        device: &'static Device,
        own: IpAddr,
        open: Arc<Open>,
        group: Option<(Group, u32)>,
        outgoing: Option<Arc<Outgoing>>,
    ) -> Arc<Self> {
        let (group, interface) = group.unzip();
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            device,
            open,
            own,
            group,
            interface,
            outgoing,
            reading: Mutex::new(Reading {
                received: vec![0; RECEIVED].into_boxed_slice(),
                left: None,
                reader: Reader::default(),
            }),
            used: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            entry: Entry::new(device.fabric, weak.clone()),
        })
    }

    /// Makes polls look at this socket from now on.
    pub(super) fn use_it(&self) {
        if !self.used.load(Ordering::Relaxed) && !self.used.swap(true, Ordering::Relaxed) {
            self.open.driver.note_use(self.open.token);
        }
    }

    /// Makes one read call, and passes the received packets to the inboxes of their receivers, in buffers of these.
    fn receive_one(self: &Arc<Self>, reading: &mut Reading) -> PortRead {
        if self.waits.swap(false, Ordering::Relaxed) {
            self.open.set_event(epoll::EventFlags::IN, true);
        }
        if reading.left.is_none() {
            match self.open.socket.receive(&mut reading.received) {
                Ok(meta) if self.is_elsewhere(&meta) => return PortRead::Useless,
                Ok(meta) => reading.left = self.left_of(&meta),
                Err(Errno::INTR) => return PortRead::Packets,
                // A packet of another socket caused this error. The kernel reports it once.
                Err(Errno::CONNREFUSED) => return PortRead::Packets,
                Err(_) => return PortRead::Nothing,
            }
        }
        let mut found = PortRead::Useless;
        while let Some(left) = reading.left {
            let taken = self.receive_run(&left, &reading.received, &mut reading.reader);
            let Some((begin, useful)) = taken else {
                // The inbox queues a turn when it has space. Until then, no thread should look for packets.
                self.waits.store(true, Ordering::Relaxed);
                self.open.set_event(epoll::EventFlags::IN, false);
                return PortRead::NoRoom;
            };
            if useful {
                found = PortRead::Packets;
            }
            reading.left = (begin < left.end).then_some(Unread { begin, ..left });
        }
        found
    }

    /// Returns true if packets to a group arrived on an interface other than the group's.
    fn is_elsewhere(&self, meta: &RecvMeta) -> bool {
        let came_by = meta.interface_index.filter(|_| self.interface.is_some());
        came_by.is_some_and(|came_by| Some(came_by) != self.interface)
    }

    fn left_of(&self, meta: &RecvMeta) -> Option<Unread> {
        let from = meta.addr.ip();
        let way = Flow { from, from_port: meta.addr.port(), to: self.own };
        let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
        let (end, stride) = (meta.len.min(RECEIVED), meta.stride.max(1));
        let left = Unread { way, begin: 0, end, stride, ecn };
        if end == 0 {
            self.drop_one(NoPacket::Malformed, &left);
            return None;
        }
        Some(left)
    }

    /// Receives the next packets that form one run. Returns the offset of the packets after them, and whether the run
    /// was for a receiver of this device. If there is no space, receives nothing and returns `None`.
    fn receive_run(
        self: &Arc<Self>,
        left: &Unread,
        bytes: &[u8],
        reader: &mut Reader,
    ) -> Option<(usize, bool)> {
        let packet_at = |begin: usize| &bytes[begin..left.end.min(begin + left.stride)];
        let identification = |begin: usize| u16::try_from(begin / left.stride).unwrap_or(0);
        let first = packet_at(left.begin);
        let behind = left.begin + first.len();
        let read = reader.read(&left.way, identification(left.begin), first);
        let (headers, payload) = match read {
            Ok(packet) => packet,
            Err(why) => {
                self.drop_one(why, left);
                return Some((behind, false));
            }
        };

        let path = Path {
            local: Address::Gid(entry(left.way.from)),
            remote: Address::Gid(entry(self.own)),
        };
        let mut run = CoalescedBurst::of(headers, payload.len());
        if self.is_own(&path) {
            return Some((behind, true));
        }
        let mads = &self.device.mads;
        let is_for_mads = run.burst.header.bth.destination == Transmit::QPN;
        if is_for_mads && self.group.is_none() && mads.is_open() {
            let is_accepted = mads.accepts(self.device, &path, &run.burst, payload);
            if let Some(tap) = self.device.tap.as_ref().filter(|_| is_accepted) {
                let datagram = self.datagram(&run, left, first.len());
                tap.received(
                    None,
                    &Letter::from_outside(path, run.burst, datagram, payload.into()),
                );
            }
            let is_read = is_accepted && mads.deliver(self.device, &path, payload);
            if !is_read {
                self.open.driver.note_useless();
            }
            return Some((behind, is_read));
        }
        if is_for_nobody(self.device, &path, &run.burst, self.group.is_some()) {
            self.open.driver.note_useless();
            return Some((behind, false));
        }
        self.use_it();
        let inbox = self.device.inbox(run.burst.header.bth.destination.get());
        let mut buffer = inbox.buffer(Arc::<Self>::downgrade(self))?;
        let mut length = payload.len();
        buffer[..length].copy_from_slice(payload);
        let mut begin = behind;
        while begin < left.end {
            let Ok((headers, payload)) =
                reader.read(&left.way, identification(begin), packet_at(begin))
            else {
                break;
            };
            let longer = length + payload.len();
            if longer > BURST_BYTES || !run.extend(&headers, payload.len()) {
                break;
            }
            buffer[length..longer].copy_from_slice(payload);
            length = longer;
            begin += packet_at(begin).len();
        }
        let datagram = self.datagram(&run, left, first.len());
        inbox.arrive(Letter::from_outside(path, run.burst, datagram, buffer));
        Some((begin, true))
    }

    /// Returns true if the packet is for a group and this process itself sent it. The members in this process have then
    /// received it already.
    fn is_own(&self, path: &Path) -> bool {
        self.group.is_some() && self.device.subnet.at(Link::Ethernet, &path.local).is_some()
    }

    /// Returns what else the receiver of a datagram needs: its source, its route header and its group. Returns `None`
    /// for packets of connections.
    fn datagram(&self, run: &CoalescedBurst, left: &Unread, length: usize) -> Option<Datagram> {
        let header = &run.burst.header;
        let source = header.deth.filter(|_| header.bth.opcode.service() == Service::Ud)?.source;
        let route = Route {
            source: entry(left.way.from),
            destination: entry(left.way.to).gid,
            traffic_class: left.ecn,
            flow_label: 0,
            hop_limit: HOPS,
        };
        let header = Some(route_header::of_packet(&route, length as u64));
        let source = Source { qpn: source.get(), lid: 0, service_level: 0, path_bits: 0 };
        Some(Datagram { source, header, group: self.group })
    }

    #[cold]
    fn drop_one(&self, why: NoPacket, left: &Unread) {
        self.open.driver.note_useless();
        match why {
            NoPacket::Malformed => self.device.tally.rare.malformed.count(),
            NoPacket::Damaged => {
                let address = Some(Address::Gid(entry(left.way.from)));
                let endpoints = Endpoints { qpn: 0, peer_qpn: None, address };
                self.device.drop_packets(Reason::Damaged, 1, endpoints);
            }
        }
    }
}

impl Watched for PortReceiver {
    fn descriptor(&self) -> &Descriptor {
        self.open.socket.descriptor()
    }

    fn handle_event(self: Arc<Self>, flags: epoll::EventFlags) -> SocketEvent {
        if let Some(outgoing) = &self.outgoing
            && flags.contains(epoll::EventFlags::OUT)
        {
            self.open.set_event(epoll::EventFlags::OUT, false);
            outgoing.entry().queue();
        }
        if flags.intersects(!epoll::EventFlags::OUT) {
            self.entry().queue();
            return SocketEvent::Messages;
        }
        SocketEvent::Other
    }

    fn look(self: Arc<Self>) -> bool {
        // The thread that holds the lock is already looking on behalf of this one.
        let Ok(mut reading) = self.reading.try_lock() else { return false };
        self.receive_one(&mut reading) == PortRead::Packets
    }

    fn read_all(self: Arc<Self>) {
        // The number of turns is bounded, because peers may send endlessly.
        for _ in 0..MOST_TURNS {
            let more = Arc::clone(&self).run();
            self.device.execute_all();
            // A turn also ends when an inbox has no space, and all of them are empty now.
            if !more && !self.waits.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.has_letters())
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
}

impl Task for PortReceiver {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Stops at the first read without useful packets. The driver's thread reads the rest, and pauses after useless
    /// packets.
    fn run(self: Arc<Self>) -> bool {
        let reading = &mut *locked_for_calls(&self.reading);
        (0..TURN).all(|_| self.receive_one(reading) == PortRead::Packets)
    }
}
