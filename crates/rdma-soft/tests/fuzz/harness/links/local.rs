//! The link between processes, with a hostile process that has a slot.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{LazyLock, Mutex, PoisonError};

use arbitrary::Unstructured;
use rdma_soft::{Builder, Peers};
use rustix::fs::SealFlags;
use test_support::fuzz::number;
use test_support::rig::connect::Endpoint;

use super::input::{self, Local, Packet};
use super::packet::{Piece, reshape, spare};
use super::run::{self, Way};
use super::world::World;

/// The message format is defined in one place.
#[allow(dead_code)] // Others use all of it.
#[path = "../../../behaviour/local_link/hostile.rs"]
mod hostile;
#[allow(dead_code)] // as above
#[path = "../../../behaviour/local_link/ring.rs"]
mod ring;

use hostile::{DATAGRAM, FIRST, HEAD, Head, SECOND, Single, WITH_LAST};
use ring::{Accepted, Connection, Ring, Word};

/// More than the device accepts.
const LONGEST: usize = 100_000;

pub(crate) fn run(bytes: &[u8]) {
    static STATE: LazyLock<Mutex<(World, Process)>> = LazyLock::new(|| {
        let device = format!("fuzz-local-{}", std::process::id());
        let (mut slot, mut listener) = (0, None);
        let builder = Builder::new(&*device).peers(Peers::SameUser);
        let world = World::new(builder, |own| {
            let other = |n: &u32| ring::listen_at(&hostile::name_at(&device, *n)).ok();
            let own_slot = hostile::slot_of(own.qpn);
            let free = (1..0x1000).map(|n| (own_slot + n) & 0xfff);
            (slot, listener) = free.map(|n| (n, other(&n))).find(|(_, l)| l.is_some()).unwrap();
            Endpoint { qpn: slot << 12 | 5, ..*own }
        });
        let name = hostile::name_at(&device, hostile::slot_of(world.own.qpn));
        let to = Connection::patiently_to(&name);
        let listener = listener.expect("a slot was free");
        let process = Process { name, to, other: None, listener, from: None };
        Mutex::new((world, process))
    });
    let state = &mut *STATE.lock().unwrap_or_else(PoisonError::into_inner);
    run::run(&mut state.0, &mut state.1, bytes);
}

struct Process {
    /// The name of the device's socket.
    name: String,
    /// The connection to the device, and another one.
    to: Connection,
    other: Option<Connection>,
    /// The listener that the device connects to, and the connection that it has made.
    listener: OwnedFd,
    from: Option<Accepted>,
}

impl Process {
    fn connect(&mut self) -> Connection {
        let new = Connection::patiently_to(&self.name);
        std::mem::replace(&mut self.to, new)
    }

    fn send_now(&mut self, bytes: &[u8]) {
        if !self.to.try_send(bytes) {
            self.connect();
            // The connection may have been refused if the device's backlog is full.
            self.to.try_send(bytes);
        }
    }

    /// Sends the first packet as a message of one packet.
    fn send_single(&mut self, local: &Local, gid_index: u8, packet: &Piece) {
        let number = |at: usize| {
            packet
                .headers
                .get(at..at + 3)
                .map_or(0, |bytes| bytes.iter().fold(0, |all, &byte| all << 8 | u32::from(byte)))
        };
        let natural = Single::new(number(5), number(9));
        let single = Single {
            flags: if local.own & 2 != 0 { local.flags } else { natural.flags },
            indices: if local.own & 4 != 0 { local.indices.to_le_bytes() } else { [gid_index; 2] },
            word: if local.own & 8 != 0 { local.segment.into() } else { natural.word },
            ..natural
        };
        let mut data = &packet.payload[..packet.payload.len().min(LONGEST)];
        if local.own & 16 != 0 {
            data = &data[..data.len().min(local.segments.into())];
        }
        let bytes = single.bytes(data);
        if !self.to.try_send_with_gap(&bytes) {
            self.connect();
            self.to.try_send_with_gap(&bytes);
        }
    }

    /// Writes a word, or bytes into the ring, as the input demands.
    fn disturb(ring: &Ring, input: &mut Unstructured<'_>) {
        let (which, at): (u8, u32) = (number(input), number(input));
        let word = [Word::Tail, Word::Head, Word::Looks, Word::Waits][usize::from(which % 4)];
        match which / 4 % 4 {
            0 => ring.set(word, at),
            1 => ring.set(word, ring.get(word).wrapping_add(at % 512 * 32)),
            2 => ring.set(word, ring.get(word).wrapping_sub(at % 512 * 32)),
            _ => {
                let mut bytes = input::bytes(input);
                bytes.truncate(ring::CAPACITY as usize);
                ring.write(at, &bytes);
            }
        }
    }

    /// Opens a connection whose first message is taken from the input.
    fn begin_wrong(&self, input: &mut Unstructured<'_>) {
        let (kind, seals): (u8, u8) = (number(input), number(input));
        let (length, mut bytes) = (number::<u32>(input), input::bytes(input));
        bytes.truncate(LONGEST);
        if kind & 1 == 0 {
            bytes.insert(0, ring::VERSION);
        }
        let length = if kind & 2 == 0 { ring::SIZE } else { length.into() };
        let seals = SealFlags::from_bits_truncate(u32::from(seals) & 0x1f);
        let file = ring::file(length, seals);
        let socket = ring::connect_patiently(&self.name);
        ring::wait_until_asked(&socket);
        let files = [file.as_fd(), socket.as_fd(), file.as_fd()];
        ring::say(&socket, &bytes, &files[..usize::from(kind >> 2 & 3)]);
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
        if own(7) {
            return self.send_single(&local, world.own.gid_index, &pieces[0]);
        }
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
        match what % 12 {
            // The connection ends in the middle of a message.
            0 => drop(self.connect()),
            1 => {
                let to = self.other.take();
                let to = to.unwrap_or_else(|| Connection::patiently_to(&self.name));
                self.other = Some(std::mem::replace(&mut self.to, to));
            }
            // No process receives what the device sends any longer.
            2 => self.from = None,
            3 => {
                let mut bytes = Head::new(world.number(number(input))).bytes(0);
                bytes[2..4].fill(world.own.gid_index);
                self.to.send_with_files(&bytes);
            }
            4 => self.send_now(&[]),
            5 => (0..3).for_each(|_| drop(ring::connect_patiently(&self.name))),
            6 => {
                Self::disturb(&self.to.ring, input);
                // The device rewrites its head after it has read this, or ends the connection.
                let mut bytes = Head::new(world.number(number(input))).bytes(0);
                bytes[2..4].fill(world.own.gid_index);
                self.to.put(&bytes);
                self.to.tell();
            }
            7 => {
                let bytes = input::bytes(input);
                ring::say(&self.to.socket, &bytes[..bytes.len().min(LONGEST)], &[]);
            }
            8 => self.to.lie(number(input), &input::bytes(input), number(input)),
            9 => {
                if let Some(from) = &self.from {
                    Self::disturb(&from.ring, input);
                    from.tell();
                }
            }
            10 => self.begin_wrong(input),
            _ => {
                let bytes = input::bytes(input);
                let from = self.from.as_ref();
                from.map(|from| ring::say(&from.socket, &bytes[..bytes.len().min(LONGEST)], &[]));
            }
        }
    }

    fn renew(&mut self) -> bool {
        let closed = self.to.is_closed();
        if closed {
            self.connect();
        }
        closed
    }

    fn drain(&mut self, take: &mut dyn FnMut(&[u8])) {
        if let Some(from) = Accepted::at(&self.listener) {
            self.from = Some(from);
        }
        let Some(from) = &mut self.from else { return };
        let broken = loop {
            match from.read() {
                Ok(Some(message)) => take(&message),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        from.free();
        // Closed by the device, or invalidated by this process's writes.
        if broken || ring::is_closed(&from.socket) {
            self.from = None;
        }
    }
}

/// Copies as much as fits.
fn put(place: &mut [u8], bytes: &[u8]) {
    let count = place.len().min(bytes.len());
    place[..count].copy_from_slice(&bytes[..count]);
    place[count..].fill(0);
}
