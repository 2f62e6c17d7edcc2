//! Queue pair 1: the management datagrams (MADs) from and to other hosts.
//!
//! The program's communication manager reads MADs from a socket, so a MAD wakes the thread that waits for the socket.
//! No packet waits for that thread: a MAD that finds the socket full is dropped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use rdma_proto::cm::Transmit;
use rdma_proto::cm::wire::MAD_LEN;
use rdma_proto::wire::{Bth, Operation, Service};
use rdma_proto::{Burst, Datagrams, Destination, MessageEnd};
use rdma_types::{Gid, Mtu, Psn};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::receiver::PortReceiver;
use super::{address, entry};
use crate::address::{Address, Path, Route};
use crate::device::Device;
use crate::device::arrivals::is_of_partition;
use crate::engine::adapter::notices::Reason;
use crate::engine::completion::work_completion::Source;
use crate::engine::operation::Opcode;
use crate::engine::wire::letter::{Datagram, Letter};
use crate::engine::wire::{Carrier, drop_burst, route_header};
use crate::fabric::run_queue::Task;
use crate::link::descriptor::Descriptor;
use crate::sync::locked;

/// The hop limit of MADs.
const HOPS: u8 = 64;

/// Queue pair 1 of a device, which all of its addresses share.
#[derive(Debug)]
pub(super) struct Mads {
    /// The end of the socket to which arriving MADs are written, once the program has opened the other end.
    socket: Mutex<Option<Descriptor>>,
    sender: Mutex<Datagrams>,
}

impl Mads {
    pub(super) fn new() -> Self {
        let sender = Datagrams::new(Transmit::QPN, Mtu::MTU4096, Psn::masked(0));
        Self { socket: Mutex::default(), sender: Mutex::new(sender) }
    }

    /// Returns the end of a new socket from which the program reads MADs.
    pub(super) fn open(&self) -> Result<OwnedFd> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut program = None;
        let own = Descriptor::open(|| {
            let (own, other) = socketpair(family, kind, flags, None)?;
            program = Some(other);
            Ok(own)
        })?;
        *locked(&self.socket) = Some(own);
        program.ok_or(Errno::BADF)
    }

    pub(super) fn is_open(&self) -> bool {
        locked(&self.socket).is_some()
    }

    /// Passes a packet for queue pair 1 to the program. Returns false if it was dropped, and counts it then.
    pub(super) fn receive(
        &self,
        device: &'static Device,
        path: &Path,
        burst: &Burst,
        payload: &[u8],
        datagram: Option<Datagram>,
    ) -> bool {
        let Bth { opcode, p_key, .. } = burst.header.bth;
        let deth = burst.header.deth;
        let reason = match deth {
            _ if !device.port_is_up() => Some(Reason::PortDown),
            _ if !is_of_partition(p_key) => Some(Reason::WrongPartition),
            _ if opcode.service() != Service::Ud => Some(Reason::WrongService),
            Some(deth) if deth.qkey != Transmit::QKEY => Some(Reason::WrongQkey),
            _ => None,
        };
        if let Some(reason) = reason {
            drop_burst(device, path, burst, reason, deth.map(|deth| deth.source.get()));
            return false;
        }
        let is_plain = opcode.operation() == Operation::SendOnly;
        let is_from_mads = deth.is_some_and(|deth| deth.source == Transmit::QPN);
        let (Address::Gid(from), Address::Gid(to)) = (path.local, path.remote) else {
            return false;
        };
        if !is_plain || !is_from_mads || payload.len() != MAD_LEN {
            device.tally.rare.malformed.count();
            return false;
        }
        if let Some(tap) = &device.tap {
            tap.received(None, &Letter::from_outside(*path, *burst, datagram, payload.into()));
        }
        let message = [from.gid.as_bytes(), to.gid.as_bytes(), payload].concat();
        let socket = locked(&self.socket);
        let file = socket.as_ref().and_then(|socket| socket.get().ok());
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let is_read = file.is_some_and(|file| send(file, &message, flags).is_ok());
        if !is_read {
            Reason::NoReceive.count(&device.tally.rare, 1);
        }
        is_read
    }

    /// Returns the packet of the next MAD.
    fn packet(&self) -> Option<Burst> {
        let to =
            Destination { qpn: Transmit::QPN, qkey: Transmit::QKEY, p_key: Bth::DEFAULT_P_KEY };
        let length = u32::try_from(MAD_LEN).unwrap_or(u32::MAX);
        let end = MessageEnd { length, immediate: None, invalidate: None, solicited: false };
        locked(&self.sender).send(&to, &end)
    }

    /// Sends a MAD through a carrier. If the carrier has no space, the MAD is lost. The caller holds no lock.
    pub(super) fn send(
        &self,
        device: &'static Device,
        carrier: Arc<dyn Carrier>,
        (local, remote): (Gid, Gid),
        mad: &[u8; MAD_LEN],
    ) {
        if !device.port_is_up() {
            return Reason::PortDown.count(&device.tally.rare, 1);
        }
        // No task gets a turn when there is space: the communication manager sends lost MADs again.
        let nobody: Weak<dyn Task> = Weak::<PortReceiver>::new();
        let (Some(mut buffer), Some(burst)) = (carrier.buffer(nobody), self.packet()) else {
            return Reason::NotSent.count(&device.tally.rare, 1);
        };
        let [source, destination] = [local, remote].map(|gid| entry(address(gid)));
        let path = Path { local: Address::Gid(source), remote: Address::Gid(destination) };
        let route =
            Route { source, destination: remote, traffic_class: 0, flow_label: 0, hop_limit: HOPS };
        let header = Some(route_header::of(&route, Opcode::Send, MAD_LEN as u64));
        let source = Source { qpn: Transmit::QPN.get(), lid: 0, service_level: 0, path_bits: 0 };
        let datagram = Datagram { source, header, group: None };
        buffer[..MAD_LEN].copy_from_slice(mad);
        if let Some(tap) = &device.tap {
            tap.sent(&path, &burst, Some(&datagram), &buffer);
        }
        Arc::clone(&carrier).send(Letter::new(path, burst, Some(datagram), buffer));
        carrier.flush();
        device.fabric.run_queue.run();
    }
}
