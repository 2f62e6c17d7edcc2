//! The speed of the links between processes and between hosts, compared with the sockets that they are made of.
//! `docs/performance.md` has the results.
//!
//! ```sh
//! cargo bench -p benches --bench links
//! cargo bench -p benches --bench links -- trips  # or `waits`, `crossing`, `wakes`, `writes`, `sends`, `frames`, `mapped`; `soft0`, `udp`; `peers`
//! ```
//!
//! Two processes, this program twice, poll without a pause. Only in `wakes` and in the READs of `waits`, the second one
//! sleeps. The figures have no meaning on a machine with fewer than two idle processors. Each row is measured in turn
//! with the one that it is compared with, several times, and the median is printed.
#![allow(clippy::disallowed_methods)] // The programs' side has a clock of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench panics if it fails.
#![allow(clippy::cast_precision_loss)]

mod frames;
mod latency;
mod mapped;
mod peers;
mod streams;

use std::env;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rdma_soft::Builder;
use rdma_sys::{ibv_qp_type, ibv_wc, ibv_wc_status};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect as connect_to, listen, recv, recvmsg, send, sendmsg, socket_with,
};
use test_support::rig::connect::{Endpoint, Knobs, Side, connect, connect_unreliably};
use test_support::rig::datagram::gid_of;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Cq, LOCAL_WRITE, Mr, Size};

use frames::Frames;
use latency::Waits;
use mapped::{Mapped, PAGE};

/// In the environment of the second process: the name of the first one's socket.
const SOCKET: &str = "RDMA_SOFT_LINKS_SOCKET";
/// In the environment of the second process: the address at which it listens, if the processes
/// communicate by UDP.
const PLACE: &str = "RDMA_SOFT_LINKS_PLACE";
/// The port of the sockets that UDP is compared with.
const PORT: u16 = 18_591;
const ROUNDS: usize = 5;
const ROUND_TRIPS: u64 = 20_000;
const ROUND_WAKES: u64 = 5_000;
/// The number of bytes that a round moves.
const BYTES: usize = 256 << 20;
/// The size of one write to a socket.
const CHUNK: usize = 64 << 10;
const LARGEST: usize = 1 << 20;
/// The number of requests that a queue accepts.
const QUEUE: usize = 64;

fn main() -> ExitCode {
    if peers::serve() {
        return ExitCode::SUCCESS;
    }
    if let Ok(name) = env::var(SOCKET) {
        let socket = connected(&name);
        let wakes = receive_wakes(&socket);
        Ends::new(socket, wakes, env::var(PLACE).ok().map(|place| place.parse().unwrap())).serve();
        return ExitCode::SUCCESS;
    }
    // `cargo test --benches` only checks that it starts.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if env::args().any(|argument| argument == "peers") {
        peers::measure();
        return ExitCode::SUCCESS;
    }
    let own = |last: u32| Ipv4Addr::from_bits(0x7f00_0002 + (std::process::id() << 3) + last);
    let has = |link: &str| !env::args().any(|argument| argument == link);
    let (local, udp) = (has("udp").then_some(None), has("soft0").then(|| Some((own(0), own(1)))));
    for places in local.into_iter().chain(udp) {
        let name = format!("rdma-soft-links/{}/{}", std::process::id(), places.is_some());
        let listener = listening(&name);
        let mut command = Command::new(env::current_exe().unwrap());
        command.env(SOCKET, name);
        if let Some((_, far)) = places {
            command.env(PLACE, far.to_string());
        }
        let mut child = command.spawn().unwrap();
        let socket = accept(&listener).unwrap();
        let wakes = send_wakes(&socket);
        Ends::new(socket, wakes, places.map(|(near, _)| near)).measure();
        assert!(child.wait().unwrap().success());
    }
    ExitCode::SUCCESS
}

/// Returns a socket, and the abstract address with this name.
fn socket(name: &str) -> (OwnedFd, SocketAddrUnix) {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = socket_with(family, SocketType::SEQPACKET, flags, None).unwrap();
    (socket, SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap())
}

fn listening(name: &str) -> OwnedFd {
    let (socket, address) = socket(name);
    bind(&socket, &address).unwrap();
    listen(&socket, 1).unwrap();
    socket
}

fn connected(name: &str) -> OwnedFd {
    let (socket, address) = socket(name);
    connect_to(&socket, &address).unwrap();
    socket
}

/// Sends two descriptors by which the processes wake each other. The first descriptor wakes the
/// first process, and the second one the second process.
fn send_wakes(socket: &OwnedFd) -> [OwnedFd; 2] {
    let flags = [EventfdFlags::NONBLOCK, EventfdFlags::empty()];
    let wakes = flags.map(|flags| eventfd(0, flags).unwrap());
    let files = wakes.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    assert!(along.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(socket, &[IoSlice::new(&[1])], &mut along, SendFlags::empty()).unwrap();
    wakes
}

fn receive_wakes(socket: &OwnedFd) -> [OwnedFd; 2] {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut along, RecvFlags::empty()).unwrap();
    let files = along.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    files.collect::<Vec<_>>().try_into().unwrap()
}

/// The work of a round.
#[derive(Clone, Copy)]
enum Work {
    /// Eight bytes there and back.
    RawTrips,
    /// The system calls for the packets of `Trips` on a network, without code that makes or reads the packets.
    PacketTrips,
    Trips,
    /// A round trip to a process that sleeps until it is woken up.
    RawWakes,
    Wakes,
    /// Chunks in one direction.
    RawBytes,
    /// Writes of that many bytes in one direction.
    Writes(usize),
    /// Copies to and from a ring, without a device.
    RingCopies,
    /// Messages of that many bytes in one direction.
    Sends(usize),
    Frames(Frames),
    Waits(Waits),
    Mapped(Mapped),
    End,
}

/// The numbers of [`Work::Sends`] begin here. Smaller numbers are other work, or the length of writes.
const SENDS: u64 = 1 << 28;
/// The numbers of [`Frames`] begin here. Frames to a ring have odd numbers.
const FRAMES: u64 = 1 << 30;
/// The numbers of [`Waits`] begin here.
const WAITS: u64 = 1 << 32;
/// The numbers of [`Mapped`] begin here.
const MAPPED: u64 = 1 << 40;

impl Work {
    fn to_bytes(self) -> [u8; 8] {
        let number: u64 = match self {
            Self::RawTrips => 0,
            Self::Trips => 1,
            Self::RawBytes => 2,
            Self::End => 3,
            Self::RawWakes => 4,
            Self::Wakes => 5,
            Self::PacketTrips => 6,
            Self::RingCopies => 7,
            Self::Writes(length) => length as u64,
            Self::Sends(length) => SENDS + length as u64,
            Self::Frames(Frames { length, to_ring }) => FRAMES + length as u64 + u64::from(to_ring),
            Self::Waits(Waits::Sends) => WAITS,
            Self::Waits(Waits::UnreliableSends) => WAITS + 1,
            Self::Waits(Waits::Writes) => WAITS + 2,
            Self::Waits(Waits::CrossingSends) => WAITS + 3,
            Self::Waits(Waits::Reads(length)) => WAITS + 4 + u64::from(length),
            Self::Mapped(mapped) => MAPPED + mapped.to_number(),
        };
        number.to_le_bytes()
    }

    fn from_bytes(bytes: [u8; 8]) -> Self {
        match u64::from_le_bytes(bytes) {
            0 => Self::RawTrips,
            1 => Self::Trips,
            2 => Self::RawBytes,
            3 => Self::End,
            4 => Self::RawWakes,
            5 => Self::Wakes,
            6 => Self::PacketTrips,
            7 => Self::RingCopies,
            length if length < SENDS => Self::Writes(usize::try_from(length).unwrap()),
            number if number < FRAMES => Self::Sends(usize::try_from(number - SENDS).unwrap()),
            number if number < WAITS => Self::Frames(Frames {
                length: usize::try_from((number - FRAMES) & !1).unwrap(),
                to_ring: number & 1 == 1,
            }),
            number if number >= MAPPED => Self::Mapped(Mapped::from_number(number - MAPPED)),
            number => Self::Waits(match number - WAITS {
                0 => Waits::Sends,
                1 => Waits::UnreliableSends,
                2 => Waits::Writes,
                3 => Waits::CrossingSends,
                length => Waits::Reads(u16::try_from(length - 4).unwrap()),
            }),
        }
    }
}

/// A socket that, like that of a RoCEv2 port, is not connected.
struct Packets {
    socket: UdpSocket,
    far: SocketAddr,
}

impl Packets {
    /// The length of a SEND of eight bytes: its headers, its payload and its ICRC.
    const MESSAGE: usize = 12 + 8 + 4;
    const ACKNOWLEDGEMENT: usize = 12 + 4 + 4;

    fn new(near: Ipv4Addr, far: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((near, PORT + 1)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, far: (far, PORT + 1).into() }
    }

    fn send<const LENGTH: usize>(&self) {
        assert_eq!(self.socket.send_to(&[0; LENGTH], self.far).unwrap(), LENGTH);
    }

    /// Returns the length of the next packet.
    fn receive(&self) -> usize {
        loop {
            match self.socket.recv_from(&mut [0; 64]) {
                Ok((length, _)) => return length,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

/// One of two processes.
struct Ends {
    socket: OwnedFd,
    wakes: [OwnedFd; 2],
    /// The socket that UDP is compared with.
    datagrams: Option<UdpSocket>,
    packets: Option<Packets>,
    // The memory is dropped before its domain.
    memory: Mr,
    /// Memory that the other process maps, unless the processes communicate by UDP.
    mapped: Mr,
    side: Side,
    /// An unreliable connection, and its memory.
    unreliable: (Mr, Side),
    /// The address of the other process's memory, and its key.
    remote: (u64, u32),
    /// The address of the other process's memory of this kind, and its key.
    mapped_remote: (u64, u32),
}

impl Ends {
    fn new(socket: OwnedFd, wakes: [OwnedFd; 2], place: Option<Ipv4Addr>) -> Self {
        rdma_soft::install();
        let device = place.map_or("soft0", |place| {
            let device = Builder::new("links-udp").gids([]).listen(place.to_string());
            device.install().unwrap().name()
        });
        let depth = u32::try_from(QUEUE).unwrap();
        let size = Size { send_wr: depth, receive_wr: depth, ..Size::default() };
        let side = Side::new(device, &size, 256);
        let memory = side.pd.register(LARGEST + PAGE, ALL_ACCESS).mapped();
        let own = side.endpoint();
        let mut said = Vec::from(own.qpn.to_le_bytes());
        said.extend(memory.address().to_le_bytes());
        said.extend(memory.key().to_le_bytes());
        said.extend(gid_of(&own.gid).to_bytes());
        let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..size };
        let unreliable = Side::new(device, &size, 256);
        said.extend(unreliable.qp.number().to_le_bytes());
        let mapped = mapped::memory(&side);
        said.extend(mapped.address().to_le_bytes());
        said.extend(mapped.key().to_le_bytes());
        send(&socket, &said, SendFlags::empty()).unwrap();
        let mut heard = [0; 48];
        assert_eq!(recv(&socket, &mut heard, RecvFlags::empty()).unwrap().0, heard.len());
        let number = |at: usize| u32::from_le_bytes(*heard[at..].first_chunk().unwrap());
        let long = |at: usize| u64::from_le_bytes(*heard[at..].first_chunk().unwrap());
        let (remote, mapped_remote) = ((long(4), number(12)), (long(36), number(44)));
        let (far, other) = (*heard[16..].first_chunk::<16>().unwrap(), number(32));
        let peer = Endpoint { qpn: number(0), gid: rdma_sys::ibv_gid { raw: far }, ..own };
        let far = Ipv4Addr::from(*far.last_chunk::<4>().unwrap());
        let datagrams = place.map(|place| {
            let socket = UdpSocket::bind((place, PORT)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket.connect((far, PORT)).unwrap();
            socket
        });
        let packets = place.map(|place| Packets::new(place, far));
        let knobs = Knobs { mtu: rdma_sys::ibv_mtu::IBV_MTU_4096, ..Knobs::default() };
        connect(&side.qp, &own, &peer, &knobs);
        let other = Endpoint { qpn: other, ..peer };
        let word = unreliable.pd.register(8, LOCAL_WRITE).mapped();
        connect_unreliably(&unreliable.qp, &unreliable.endpoint(), &other, &knobs);
        let ends = Self {
            socket,
            wakes,
            datagrams,
            packets,
            memory,
            side,
            unreliable: (word, unreliable),
            remote,
            mapped,
            mapped_remote,
        };
        ends.meet();
        ends
    }

    /// Returns when the other process has reached this point, too.
    fn meet(&self) {
        send(&self.socket, &[1], SendFlags::empty()).unwrap();
        assert_eq!(recv(&self.socket, &mut [0], RecvFlags::empty()).unwrap().0, 1);
    }

    /// Like [`meet`](Self::meet), but polls meanwhile.
    fn poll_until_met(&self) {
        send(&self.socket, &[1], SendFlags::empty()).unwrap();
        while let Err(Errno::AGAIN) = recv(&self.socket, &mut [0], RecvFlags::DONTWAIT) {
            assert!(self.side.receive_cq.try_poll::<1>().unwrap().is_empty());
        }
    }

    fn serve(&self) {
        loop {
            let mut work = [0; 8];
            assert_eq!(recv(&self.socket, &mut work, RecvFlags::empty()).unwrap().0, 8);
            match Work::from_bytes(work) {
                Work::RawTrips => self.raw_trips(false),
                Work::PacketTrips => self.packet_trips(false),
                Work::Trips => self.trips(false),
                Work::RawBytes => self.take_chunks(),
                Work::RawWakes => self.raw_wakes(false),
                // This process sleeps meanwhile, and takes no part in the writes.
                Work::Wakes | Work::RingCopies => self.meet(),
                Work::Writes(_) => self.poll_until_met(),
                Work::Sends(length) => self.receive_all(length),
                Work::Frames(frames) => self.read_frames(frames),
                Work::Waits(waits) => self.wait_for(waits, false),
                Work::Mapped(mapped) => self.run_mapped(mapped, false),
                Work::End => return,
            }
        }
    }

    /// Returns the duration of a round.
    fn round(&self, work: Work) -> Duration {
        send(&self.socket, &work.to_bytes(), SendFlags::empty()).unwrap();
        let start = Instant::now();
        match work {
            Work::RawTrips => self.raw_trips(true),
            Work::PacketTrips => self.packet_trips(true),
            Work::Trips => self.trips(true),
            Work::RawBytes => self.send_chunks(),
            Work::RawWakes => self.raw_wakes(true),
            Work::Wakes => self.wake(),
            Work::Writes(length) => self.write_all(length),
            Work::RingCopies => {
                streams::copy_through_ring();
                self.meet();
            }
            Work::Sends(length) => self.send_all(length),
            Work::Frames(frames) => self.write_frames(frames),
            Work::Waits(waits) => self.wait_for(waits, true),
            Work::Mapped(mapped) => self.run_mapped(mapped, true),
            Work::End => {}
        }
        start.elapsed()
    }

    fn measure(&self) {
        let all = !env::args().any(|argument| {
            matches!(
                &*argument,
                "trips" | "waits" | "crossing" | "wakes" | "writes" | "sends" | "frames" | "mapped"
            )
        });
        let has = |rows: &str| all || env::args().any(|argument| argument == rows);
        if has("trips") {
            self.measure_trips();
        }
        if has("waits") {
            self.measure_latencies();
        }
        if has("crossing") {
            self.measure_crossing();
        }
        if has("wakes") {
            self.measure_wakes();
        }
        if has("writes") {
            self.measure_writes();
        }
        if has("sends") {
            self.measure_sends();
        }
        if has("frames") && self.packets.is_none() {
            self.measure_frames();
        }
        if has("mapped") && self.packets.is_none() {
            self.measure_mapped();
        }
        self.round(Work::End);
    }

    fn measure_trips(&self) {
        let trips = |time: Duration| time.as_secs_f64() * 1e9 / (2 * ROUND_TRIPS) as f64;
        let last = if self.packets.is_some() { Work::PacketTrips } else { Work::RawTrips };
        let [raw, own, packets] = self.medians([Work::RawTrips, Work::Trips, last]).map(trips);
        println!("half a round trip of 8 bytes       ns   ratio");
        println!("socket                       {raw:>8.0}");
        if self.packets.is_some() {
            println!("packets of a SEND alone      {packets:>8.0}   {:.2}", packets / raw);
        }
        let name = if self.datagrams.is_some() { "UDP" } else { "soft0" };
        println!("SEND on {name:<21}{own:>8.0}   {:.2}", own / raw);
    }

    fn measure_wakes(&self) {
        let wakes = |time: Duration| time.as_secs_f64() * 1e9 / ROUND_WAKES as f64;
        let [raw, own] = self.medians([Work::RawWakes, Work::Wakes]).map(wakes);
        println!("there and back, the peer sleeps       ns   ratio");
        println!("eventfd                      {raw:>8.0}");
        let name = if self.datagrams.is_some() { "UDP" } else { "soft0" };
        println!("WRITE of 8 bytes on {name:<9}{own:>8.0}   {:.2}", own / raw);
    }

    /// Returns the median of each kind of work, with rounds in turn.
    fn medians<const N: usize>(&self, works: [Work; N]) -> [Duration; N] {
        let mut times = [const { Vec::new() }; N];
        for _ in 0..ROUNDS {
            works.iter().zip(&mut times).for_each(|(&work, times)| times.push(self.round(work)));
        }
        times.map(|mut times| {
            times.sort();
            times[ROUNDS / 2]
        })
    }

    fn raw_trips(&self, first: bool) {
        // Neither process sends before the other one is here.
        self.meet();
        let socket = self.datagrams.as_ref().map_or(self.socket.as_fd(), AsFd::as_fd);
        for _ in 0..ROUND_TRIPS {
            if first {
                spin(|| send(socket, &[0; 8], SendFlags::DONTWAIT));
            }
            spin(|| recv(socket, &mut [0; 8], RecvFlags::DONTWAIT).map(|got| got.0));
            if !first {
                spin(|| send(socket, &[0; 8], SendFlags::DONTWAIT));
            }
        }
    }

    /// Each end acknowledges a message before its program receives it and answers.
    fn packet_trips(&self, first: bool) {
        self.meet();
        let Some(packets) = &self.packets else { return };
        if first {
            packets.send::<{ Packets::MESSAGE }>();
        }
        for trip in 1..=ROUND_TRIPS {
            // The acknowledgement of the previous message comes before the answer.
            while packets.receive() != Packets::MESSAGE {}
            packets.send::<{ Packets::ACKNOWLEDGEMENT }>();
            if !first || trip < ROUND_TRIPS {
                packets.send::<{ Packets::MESSAGE }>();
            }
        }
        if !first {
            assert_eq!(packets.receive(), Packets::ACKNOWLEDGEMENT);
        }
    }

    fn raw_wakes(&self, first: bool) {
        self.meet();
        let (own, other) = if first { (0, 1) } else { (1, 0) };
        for _ in 0..ROUND_WAKES {
            if first {
                write(&self.wakes[other], &1_u64.to_ne_bytes()).unwrap();
            }
            spin(|| read(&self.wakes[own], &mut [0_u8; 8]));
            if !first {
                write(&self.wakes[other], &1_u64.to_ne_bytes()).unwrap();
            }
        }
    }

    fn wake(&self) {
        let (address, key) = self.remote;
        let sge = [self.memory.sge(0, 8)];
        for _ in 0..ROUND_WAKES {
            self.side.qp.post(&Wr::write(0, &sge, &self.memory, 0).remote(address, key));
            let mut done = 0;
            while done == 0 {
                done = self.side.send_cq.try_poll::<1>().unwrap().len();
            }
        }
        self.meet();
    }

    fn trips(&self, first: bool) {
        let (qp, sge) = (&self.side.qp, [self.memory.sge(0, 8)]);
        // Receives are posted before anything is sent.
        (0..16).for_each(|n| qp.post_receive(n, &sge));
        self.meet();
        let request = Wr::send(0, &sge);
        let post = || qp.post(&request);
        let (mut sent, mut received) = (0, 0);
        let mut posted = 0;
        if first {
            post();
            posted = 1;
        }
        let mut wcs = [ibv_wc::default(); 16];
        while received < ROUND_TRIPS || sent < ROUND_TRIPS {
            sent += self.side.send_cq.poll_into(&mut wcs) as u64;
            for _ in 0..self.side.receive_cq.poll_into(&mut wcs) {
                received += 1;
                if posted < ROUND_TRIPS {
                    posted += 1;
                    post();
                }
                if received + 16 <= ROUND_TRIPS {
                    qp.post_receive(0, &sge);
                }
            }
        }
    }
}

/// Returns the speed of a round in GB/s.
fn speed(time: Duration) -> f64 {
    BYTES as f64 / time.as_secs_f64() / 1e9
}

/// Polls up to 16 completions, and returns their number.
fn completed(cq: &Cq) -> usize {
    let completions = cq.try_poll::<16>().unwrap();
    assert!(completions.iter().all(|wc| wc.status == ibv_wc_status::IBV_WC_SUCCESS));
    completions.len()
}

/// Repeats a call until it does not have to wait.
fn spin<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> T {
    loop {
        match call() {
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            result => return result.unwrap(),
        }
    }
}
