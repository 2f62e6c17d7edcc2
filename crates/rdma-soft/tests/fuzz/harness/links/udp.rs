//! The link between hosts, with a hostile host that sends from the address of a peer and from another one.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{LazyLock, Mutex, PoisonError};

use arbitrary::Unstructured;
use quinn_udp::{Transmit, UdpSocketState};
use rdma_proto::wire::{IpHeader, Ipv4Header, UdpHeader, icrc};
use rdma_soft::Builder;
use rdma_sys::ibv_gid;
use rdma_types::Gid;
use test_support::fuzz::number;
use test_support::rig::connect::Endpoint;

use super::input::{self, Packet, Udp};
use super::packet::{Piece, reshape, spare};
use super::run::{self, Way};
use super::world::World;

const PORT: u16 = UdpHeader::ROCE_V2_PORT;
/// The longest datagram.
const LONGEST: usize = 65_507;
/// The number of packets into which the kernel splits the data of one call.
const MOST: usize = 64;

/// Addresses of the loopback interface that are otherwise unused.
fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x7f40_0000 | (std::process::id() & 0xffff) << 4 | number)
}

pub(crate) fn run(bytes: &[u8]) {
    static STATE: LazyLock<Mutex<(World, Hosts)>> = LazyLock::new(|| {
        let [device, peer, stranger] = [1, 2, 3].map(address);
        // From another socket, since `UdpSocketState` makes its own socket merge the datagrams that it receives.
        let spare = UdpSocket::bind((device, 0)).expect("the address is unused");
        let bound = |at: Ipv4Addr, port| {
            let socket = UdpSocket::bind((at, port)).expect("the address is unused");
            socket.set_nonblocking(true).expect("the socket can be non-blocking");
            let cuts = UdpSocketState::new((&spare).into()).expect("the socket state is readable");
            let port = socket.local_addr().map_or(0, |at| at.port());
            Sender { from: at, port, socket, cuts }
        };
        let senders = [bound(peer, PORT), bound(peer, 0), bound(stranger, PORT)];
        let builder = Builder::new("fuzz-udp").gids([]).listen(device.to_string());
        let gid = ibv_gid { raw: Gid::from_ipv4(peer).to_bytes() };
        let world = World::new(builder, |own| Endpoint { qpn: 0x0012_3456, gid, ..*own });
        let to = device;
        Mutex::new((world, Hosts { senders, to, room: vec![0; 1 << 16] }))
    });
    let state = &mut *STATE.lock().unwrap_or_else(PoisonError::into_inner);
    run::run(&mut state.0, &mut state.1, bytes);
}

struct Sender {
    from: Ipv4Addr,
    port: u16,
    socket: UdpSocket,
    /// Makes the kernel split the data of one call.
    cuts: UdpSocketState,
}

impl Sender {
    /// Sends data that the kernel splits into datagrams of `segment` bytes, or one datagram.
    fn send(&self, to: Ipv4Addr, bytes: &[u8], segment: Option<usize>) {
        let transmit = Transmit {
            destination: SocketAddr::from((to, PORT)),
            ecn: None,
            contents: bytes,
            segment_size: segment.map(|segment| segment.max(1)),
            src_ip: None,
        };
        // The kernel refuses what is too long, and drops what finds no space.
        let _ = self.cuts.try_send((&self.socket).into(), &transmit);
    }

    fn icrc(&self, to: Ipv4Addr, identification: u16, packet: &[u8]) -> u32 {
        let Some(udp) = UdpHeader::new(self.port, packet.len() + 4) else { return 0 };
        let Some(ip) = Ipv4Header::new(self.from, to, &udp) else { return 0 };
        icrc(&IpHeader::V4(Ipv4Header { identification, ..ip }), &udp, packet)
    }
}

struct Hosts {
    /// The peer's socket, another socket of the peer, and another host's.
    senders: [Sender; 3],
    to: Ipv4Addr,
    room: Vec<u8>,
}

impl Hosts {
    fn sender(&self, from: u8) -> &Sender {
        &self.senders[usize::from(from % 3)]
    }
}

impl Way for Hosts {
    fn send(&mut self, world: &World, mut bytes: Vec<u8>) {
        bytes.truncate(LONGEST);
        spare(world, &mut bytes, 0);
        let sender = &self.senders[0];
        // A byte determines whether the datagram gets an ICRC.
        if let Some((1, rest)) = bytes.split_last().map(|(last, rest)| (*last & 1, rest)) {
            let icrc = sender.icrc(self.to, 0, rest);
            let rest = rest.to_vec();
            bytes = rest;
            bytes.extend(icrc.to_le_bytes());
        }
        sender.send(self.to, &bytes, None);
    }

    fn send_packets(
        &mut self,
        _world: &World,
        packet: &Packet,
        pieces: &[Piece],
        input: &mut Unstructured<'_>,
    ) {
        let udp = Udp::read(input);
        let sender = self.sender(udp.from);
        // Packets of one length go by one call, and the kernel numbers them.
        let (mut call, mut segment, mut index) = (Vec::new(), 0, 0);
        for piece in pieces {
            let mut bytes = piece.headers.clone();
            bytes.extend(&piece.payload);
            bytes.resize(bytes.len() + (piece.payload.len().wrapping_neg() & 3), 0);
            let length = bytes.len() + 4;
            let fits = length <= segment && call.len() + length <= LONGEST && index < MOST;
            if !(fits && call.len() == index * segment) {
                sender.send(self.to, &call, Some(segment));
                (segment, index) = (length, 0);
                call.clear();
            }
            let identification = udp.identification.wrapping_add(index as u16);
            let icrc = sender.icrc(self.to, identification, &bytes);
            let wrong = packet.shape & Packet::NO_ICRC != 0;
            bytes.extend((icrc ^ u32::from(wrong)).to_le_bytes());
            reshape(packet, &mut bytes, 0);
            call.extend(bytes);
            index += 1;
        }
        sender.send(self.to, &call, Some(segment));
    }

    fn send_mark(&mut self, mark: &Piece) {
        let sender = &self.senders[0];
        let mut bytes = mark.headers.clone();
        bytes.extend(sender.icrc(self.to, 0, &bytes).to_le_bytes());
        sender.send(self.to, &bytes, None);
    }

    fn special(&mut self, world: &World, what: u8, input: &mut Unstructured<'_>) {
        let sender = self.sender(what >> 2);
        match what % 3 {
            0 => sender.send(self.to, &[], None),
            // Many small datagrams by one call, with arbitrary contents.
            1 => {
                let mut bytes = input::bytes(input);
                let segment = usize::from(number::<u16>(input)).max(bytes.len().div_ceil(MOST));
                let starts = (0..bytes.len()).step_by(segment.max(1));
                starts.for_each(|start| spare(world, &mut bytes, start));
                sender.send(self.to, &bytes, Some(segment));
            }
            // As long as possible.
            _ => {
                let mut bytes = vec![0; LONGEST - usize::from(number::<u8>(input))];
                bytes[0] = number(input);
                bytes[4..8].copy_from_slice(&world.number(what >> 2).to_be_bytes());
                sender.send(self.to, &bytes, None);
            }
        }
    }

    fn renew(&mut self) -> bool {
        false
    }

    fn drain(&mut self, take: &mut dyn FnMut(&[u8])) {
        for sender in &self.senders {
            loop {
                match sender.socket.recv(&mut self.room) {
                    Ok(count) => take(&self.room[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("cannot receive: {error}"),
                }
            }
        }
    }
}
