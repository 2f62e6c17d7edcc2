//! The link between processes: a process that has a slot, and sends what it likes.

use std::os::fd::OwnedFd;
use std::sync::{LazyLock, Mutex, PoisonError};

use arbitrary::Unstructured;
use rdma_soft::{Builder, Peers};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    recv, socket_with,
};
use test_support::fuzz::number;
use test_support::rig::connect::Endpoint;

use super::input::{Local, Packet};
use super::packet::{Piece, reshape, spare};
use super::run::{self, Way};
use super::world::World;

/// What is known of the messages is in one place.
#[allow(dead_code)] // Others use all of it.
#[path = "../../../local_link/hostile.rs"]
mod hostile;

use hostile::{DATAGRAM, FIRST, HEAD, Head, SECOND, WITH_LAST};

/// More than the device takes.
const LONGEST: usize = 100_000;

pub(crate) fn run(bytes: &[u8]) {
    static STATE: LazyLock<Mutex<(World, Process)>> = LazyLock::new(|| {
        let device = format!("fuzz-local-{}", std::process::id());
        let (mut slot, mut listener) = (0, None);
        let builder = Builder::new(&*device).peers(Peers::SameUser);
        let world = World::new(builder, |own| {
            let other = |n: &u32| listen_at(&hostile::name_at(&device, *n)).ok();
            let own_slot = hostile::slot_of(own.qpn);
            let free = (1..0x1000).map(|n| (own_slot + n) & 0xfff);
            (slot, listener) = free.map(|n| (n, other(&n))).find(|(_, l)| l.is_some()).unwrap();
            Endpoint { qpn: slot << 12 | 5, ..*own }
        });
        let name = hostile::name_at(&device, hostile::slot_of(world.own.qpn));
        let to = hostile::connect_patiently(&name);
        let listener = listener.expect("a slot was free");
        let process =
            Process { name, to, other: None, listener, from: None, room: vec![0; 1 << 15] };
        Mutex::new((world, process))
    });
    let state = &mut *STATE.lock().unwrap_or_else(PoisonError::into_inner);
    run::run(&mut state.0, &mut state.1, bytes);
}

fn listen_at(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, 8)?;
    Ok(socket)
}

struct Process {
    /// Of the device's socket.
    name: String,
    /// The connection to the device, and one beside it.
    to: OwnedFd,
    other: Option<OwnedFd>,
    /// Where the device connects to, and the connection that it has made.
    listener: OwnedFd,
    from: Option<OwnedFd>,
    room: Vec<u8>,
}

impl Process {
    fn send_now(&mut self, bytes: &[u8]) {
        if !hostile::try_send(&self.to, bytes) {
            self.to = hostile::connect_patiently(&self.name);
            // It may have been refused, too, if there are many that nobody has looked at yet.
            hostile::try_send(&self.to, bytes);
        }
    }
}

impl Way for Process {
    fn send(&mut self, world: &World, mut bytes: Vec<u8>) {
        bytes.truncate(LONGEST);
        spare(world, &mut bytes, FIRST);
        self.send_now(&bytes);
    }

    fn send_packets(
        &mut self,
        world: &World,
        packet: &Packet,
        pieces: &[Piece],
        input: &mut Unstructured<'_>,
    ) {
        let local = Local::read(input);
        let mut payload: Vec<u8> =
            pieces.iter().flat_map(|piece| piece.payload.iter().copied()).collect();
        payload.truncate(LONGEST);
        let own = |bit: u8| local.own >> bit & 1 != 0;
        let is_datagram = packet.opcode >> 5 == 3;
        let natural = Head {
            flags: if is_datagram { DATAGRAM } else { u8::from(pieces.len() > 1) * WITH_LAST },
            indices: [world.own.gid_index; 2],
            segment: pieces[0].payload.len() as u16,
            segments: pieces.len() as u16,
            said: payload.len() as u32,
            ..Head::new(0)
        };
        let head = Head {
            version: if own(0) { local.version } else { natural.version },
            flags: if own(1) { local.flags } else { natural.flags },
            indices: if own(2) { local.indices.to_le_bytes() } else { natural.indices },
            segment: if own(3) { local.segment } else { natural.segment },
            segments: if own(4) { local.segments } else { natural.segments },
            said: if own(5) { local.said } else { natural.said },
            ..natural
        };
        let mut bytes = head.bytes(0);
        bytes[12] = local.service_level;
        put(&mut bytes[FIRST..SECOND], &pieces[0].headers);
        let last = pieces.last().filter(|_| pieces.len() > 1 || own(6));
        put(&mut bytes[SECOND..HEAD], last.map_or(&[], |last| &last.headers));
        bytes.extend(payload);
        reshape(packet, &mut bytes, FIRST);
        self.send_now(&bytes);
    }

    fn send_mark(&mut self, mark: &Piece) {
        let mut bytes = Head { flags: DATAGRAM, ..Head::new(0) }.bytes(0);
        put(&mut bytes[FIRST..SECOND], &mark.headers);
        self.send_now(&bytes);
    }

    fn special(&mut self, world: &World, what: u8, input: &mut Unstructured<'_>) {
        match what % 6 {
            // The end of a connection in the middle.
            0 => self.to = hostile::connect_patiently(&self.name),
            1 => {
                let to = self.other.take();
                let to = to.unwrap_or_else(|| hostile::connect_patiently(&self.name));
                self.other = Some(std::mem::replace(&mut self.to, to));
            }
            // Nobody is there any more who takes what the device sends.
            2 => self.from = None,
            3 => {
                let mut bytes = Head::new(world.number(number(input))).bytes(0);
                bytes[2..4].fill(world.own.gid_index);
                hostile::send_with_descriptors(&self.to, &bytes);
            }
            4 => self.send_now(&[]),
            _ => (0..3).for_each(|_| drop(hostile::connect_patiently(&self.name))),
        }
    }

    fn renew(&mut self) -> bool {
        let closed = hostile::is_closed(&self.to);
        if closed {
            self.to = hostile::connect_patiently(&self.name);
        }
        closed
    }

    fn drain(&mut self, take: &mut dyn FnMut(&[u8])) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(from) = accept_with(&self.listener, flags) {
            self.from = Some(from);
        }
        let Some(from) = &self.from else { return };
        while let Ok((_, count @ 1..)) = recv(from, &mut self.room[..], RecvFlags::DONTWAIT) {
            take(&self.room[..count]);
        }
    }
}

/// Copies what there is space for.
fn put(place: &mut [u8], bytes: &[u8]) {
    let count = place.len().min(bytes.len());
    place[..count].copy_from_slice(&bytes[..count]);
    place[count..].fill(0);
}
