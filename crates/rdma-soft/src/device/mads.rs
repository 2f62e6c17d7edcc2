//! Queue pair 1: the management datagrams (MADs) from and to other devices of a simulated network, or other hosts.
//!
//! The program's communication manager reads MADs from a socket, so a MAD wakes the thread that waits for the socket.
//! No packet waits for that thread: a MAD that finds the socket full is dropped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use rdma_proto::cm::Transmit;
use rdma_proto::cm::wire::MAD_LEN;
use rdma_proto::wire::{Bth, Operation, Service};
use rdma_proto::{Burst, Datagrams, Destination, MessageEnd};
use rdma_types::{Gid, GidType, Mtu, Psn};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use crate::address::{Address, GidEntry, Path, Route};
use crate::engine::adapter::Adapter;
use crate::engine::adapter::notices::Reason;
use crate::engine::completion::work_completion::Source;
use crate::engine::operation::Opcode;
use crate::engine::wire::letter::{Datagram, Letter};
use crate::engine::wire::{Outlet, drop_burst, is_of_partition, route_header};
use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::fabric::run_queue::{Entry, Task};
use crate::link::descriptor::Descriptor;
use crate::sync::locked;

/// The hop limit of MADs.
const HOPS: u8 = 64;

/// The message that only makes the program's file readable.
const WAKE: [u8; 1] = [0];

/// Queue pair 1 of a device, which all of its addresses share.
#[derive(Debug)]
pub(crate) struct Mads {
    /// The end of the socket to which arriving MADs are written, once the program has opened the other end.
    socket: Arc<Socket>,
    sender: Mutex<Datagrams>,
    /// The alarm of the device's program, once it was set.
    alarm: Mutex<Option<Arc<Alarm>>>,
}

type Socket = Mutex<Option<Descriptor>>;

/// Makes the program's file readable at a time of the device's clock.
struct Alarm {
    socket: Arc<Socket>,
    entry: Entry,
}

impl std::fmt::Debug for Alarm {
    /// Prints the alarm without its entry, which refers to the alarm.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}

impl Task for Alarm {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn expire(self: Arc<Self>) {
        write(&self.socket, &WAKE);
    }
}

impl Mads {
    pub(super) fn new() -> Self {
        let sender = Datagrams::new(Transmit::QPN, Mtu::MTU4096, Psn::masked(0));
        Self { socket: Arc::default(), sender: Mutex::new(sender), alarm: Mutex::default() }
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

    pub(crate) fn is_open(&self) -> bool {
        locked(&self.socket).is_some()
    }

    /// Closes the socket, once the device has no users left.
    pub(super) fn close(&self) {
        let closed = (locked(&self.socket).take(), locked(&self.alarm).take());
        drop(closed);
    }

    /// Makes the program's file readable at `at`, unless an earlier alarm is set.
    pub(super) fn set_alarm(&self, fabric: &'static Fabric, at: Time) {
        let mut alarm = locked(&self.alarm);
        let alarm = alarm.get_or_insert_with(|| {
            let socket = Arc::clone(&self.socket);
            Arc::new_cyclic(|own: &Weak<Alarm>| Alarm {
                socket,
                entry: Entry::new(fabric, own.clone()),
            })
        });
        alarm.entry.set_timer(at);
    }

    /// Checks a packet for queue pair 1. Returns false if it is dropped, and counts it then.
    pub(crate) fn accepts(
        &self,
        device: &'static Adapter,
        path: &Path,
        burst: &Burst,
        payload: &[u8],
    ) -> bool {
        let Bth { opcode, p_key, .. } = burst.header.bth;
        let deth = burst.header.deth;
        let reason = match deth {
            _ if !self.is_open() => Some(Reason::UnknownQp),
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
        let is_mad = is_plain && is_from_mads && payload.len() == MAD_LEN;
        if !is_mad {
            device.tally.rare.malformed.count();
        }
        is_mad
    }

    /// Passes an [accepted](Self::accepts) packet to the program. Returns false if the program does not read it, and
    /// counts it then.
    pub(crate) fn deliver(&self, device: &'static Adapter, path: &Path, payload: &[u8]) -> bool {
        let (Address::Gid(from), Address::Gid(to)) = (path.local, path.remote) else {
            return false;
        };
        let is_read =
            write(&self.socket, &[from.gid.as_bytes(), to.gid.as_bytes(), payload].concat());
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

    /// Sends a MAD through an outlet. If that has no space, the MAD is lost. The caller holds no lock.
    pub(crate) fn send(
        &self,
        device: &'static Adapter,
        outlet: &Outlet,
        (local, remote): (Gid, Gid),
        mad: &[u8; MAD_LEN],
    ) {
        if !device.port_is_up() {
            return Reason::PortDown.count(&device.tally.rare, 1);
        }
        // No task gets a turn when there is space: the communication manager sends lost MADs again.
        let nobody: Weak<dyn Task> = Weak::<Alarm>::new();
        let (Some(mut buffer), Some(burst)) = (outlet.buffer(nobody), self.packet()) else {
            return Reason::NotSent.count(&device.tally.rare, 1);
        };
        let [source, destination] =
            [local, remote].map(|gid| GidEntry { gid, kind: GidType::ROCE_V2 });
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
        outlet.send(device, Letter::new(path, burst, Some(datagram), buffer));
        if let Some(carrier) = outlet.carrier() {
            Arc::clone(carrier).flush();
        }
        device.fabric.run_queue.run();
    }
}

/// Writes a message to the program's file. Returns false if the program does not read it.
fn write(socket: &Socket, message: &[u8]) -> bool {
    let socket = locked(socket);
    let file = socket.as_ref().and_then(|socket| socket.get().ok());
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    file.is_some_and(|file| send(file, message, flags).is_ok())
}
