//! One process to which many others send a message each, by turns. A byte on a socket wakes the process whose turn it is.

use std::env;
use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, accept, recv, send};
use rustix::time::{ClockId, clock_gettime};
use test_support::rig::connect::{Endpoint, Knobs, Side, connect, endpoint};
use test_support::rig::datagram::gid_of;
use test_support::rig::post::Wr;
use test_support::rig::{Cq, LOCAL_WRITE, Qp, Size};

use super::latency::one;
use super::{ROUNDS, connected, listening, spin};

/// In the environment of the other processes: the name of the first one's socket.
const PEER: &str = "RDMA_SOFT_LINKS_PEER";
/// The environment variable with the number of processes that send.
const COUNT: &str = "RDMA_PEERS";
/// The default of [`COUNT`].
const PEERS: u16 = 64;
const ROUND_MESSAGES: usize = 4_096;
/// The number of empty polls, after which all processes still count as recently active.
const ROUND_POLLS: usize = 8_192;

/// The answer that a process is asked for.
const BY_SOCKET: u8 = 0;
const BY_SEND: u8 = 1;
const END: u8 = 2;

/// A process that sends, as the first one sees it.
struct Peer {
    qp: Qp,
    socket: OwnedFd,
    child: Child,
}

/// Runs as one of the other processes, if this is one. Returns `false` if it is not.
pub(crate) fn serve() -> bool {
    let Ok(name) = env::var(PEER) else { return false };
    let socket = connected(&name);
    rdma_soft::install();
    let side = Side::new("soft0", &Size::default(), 16);
    introduce(&socket, &side.qp, &side.endpoint());
    let memory = side.pd.register(8, LOCAL_WRITE).mapped();
    let sge = [memory.sge(0, 8)];
    loop {
        let mut asked = [END];
        assert_eq!(recv(&socket, &mut asked, RecvFlags::empty()).unwrap().0, 1);
        match asked[0] {
            BY_SOCKET => assert_eq!(send(&socket, &[0; 8], SendFlags::empty()), Ok(8)),
            BY_SEND => {
                side.qp.post(&Wr::send(0, &sge));
                one(&side.send_cq);
            }
            _ => return true,
        }
    }
}

/// Connects the queue pair to that of the process at the other end of the socket.
fn introduce(socket: &OwnedFd, qp: &Qp, own: &Endpoint) {
    let said = [&own.qpn.to_le_bytes()[..], &gid_of(&own.gid).to_bytes()].concat();
    assert_eq!(send(socket, &said, SendFlags::empty()), Ok(said.len()));
    let mut heard = [0; 20];
    assert_eq!(recv(socket, &mut heard, RecvFlags::empty()).unwrap().0, heard.len());
    let (qpn, gid) = heard.split_at(4);
    let gid = rdma_sys::ibv_gid { raw: gid.try_into().unwrap() };
    let peer = Endpoint { qpn: u32::from_le_bytes(qpn.try_into().unwrap()), gid, ..*own };
    connect(qp, own, &peer, &Knobs::default());
}

pub(crate) fn measure() {
    let count = env::var(COUNT).map_or(PEERS, |count| count.parse().unwrap());
    let name = format!("rdma-soft-links/{}/peers", std::process::id());
    let listener = listening(&name);
    rdma_soft::install();
    let Side { receive_cq, send_cq, pd, context, .. } =
        Side::new("soft0", &Size::default(), 2 * i32::from(count));
    let memory = pd.register(8, LOCAL_WRITE).mapped();
    let sge = [memory.sge(0, 8)];
    let started: Vec<_> = (0..count)
        .map(|_| {
            let child = Command::new(env::current_exe().unwrap()).env(PEER, &name).spawn().unwrap();
            (accept(&listener).unwrap(), child)
        })
        .collect();
    let used = Used::now();
    let mut peers: Vec<_> = started
        .into_iter()
        .map(|(socket, child)| {
            let qp = pd.qp(&send_cq, &receive_cq, &Size::default());
            introduce(&socket, &qp, &endpoint(&context, &qp));
            qp.post_receive(0, &sge);
            Peer { qp, socket, child }
        })
        .collect();
    for peer in &peers {
        ask(peer, BY_SEND, &receive_cq);
        peer.qp.post_receive(0, &sge);
    }
    let connected = used.since();
    let mut times = [const { Vec::new() }; 4];
    let mut polls = Vec::new();
    for _ in 0..ROUNDS {
        for (times, (count, asked)) in times.iter_mut().zip(rows(count)) {
            let start = Instant::now();
            for turn in 0..ROUND_MESSAGES {
                ask(&peers[turn % usize::from(count)], asked, &receive_cq);
                if asked == BY_SEND {
                    peers[turn % usize::from(count)].qp.post_receive(0, &sge);
                }
            }
            times.push(start.elapsed());
        }
        let start = Instant::now();
        (0..ROUND_POLLS).for_each(|_| assert!(receive_cq.is_empty()));
        polls.push(start.elapsed());
    }
    let used = Used::now();
    for peer in &mut peers {
        assert_eq!(send(&peer.socket, &[END], SendFlags::empty()), Ok(1));
        assert!(peer.child.wait().unwrap().success());
    }
    drop(peers);
    print(count, times);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(count);
    println!("processor time of a connection, us    {:>6.0}", each(connected.processor));
    println!("processor time of its end, us         {:>6.0}", each(used.since().processor));
    println!("memory of a connection, KiB           {:>6}", connected.memory / u64::from(count));
    let empty = median(polls, ROUND_POLLS) * 1e9;
    println!("a poll that finds nothing, ns         {empty:>6.0}");
}

/// The processor time and memory that this process has used.
struct Used {
    processor: Duration,
    /// The resident memory in KiB.
    memory: u64,
}

impl Used {
    fn now() -> Self {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let status = read_to_string("/proc/self/status").unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let memory = memory.trim().trim_end_matches(" kB").parse().unwrap();
        Self { processor: time.try_into().unwrap(), memory }
    }

    /// Returns what this process has used since this was measured.
    fn since(&self) -> Self {
        let Self { processor, memory } = Self::now();
        Self { processor: processor - self.processor, memory: memory.saturating_sub(self.memory) }
    }
}

/// Returns the number of processes in each row, and how they answer.
fn rows(count: u16) -> [(u16, u8); 4] {
    [(1, BY_SOCKET), (count, BY_SOCKET), (1, BY_SEND), (count, BY_SEND)]
}

/// Wakes a process, and waits for its message.
fn ask(peer: &Peer, asked: u8, receive_cq: &Cq) {
    assert_eq!(send(&peer.socket, &[asked], SendFlags::empty()), Ok(1));
    match asked {
        BY_SOCKET => {
            spin(|| recv(&peer.socket, &mut [0; 8], RecvFlags::DONTWAIT).map(|got| got.0));
        }
        _ => one(receive_cq),
    }
}

fn print(count: u16, times: [Vec<Duration>; 4]) {
    let [raw, raw_many, own, own_many] = times.map(|times| median(times, ROUND_MESSAGES) * 1e6);
    println!("a message of a process that sleeps      us   ratio");
    println!("socket, always the same process   {raw:>8.2}");
    println!("socket, {count:>4} processes by turns  {raw_many:>8.2}   {:.2}", raw_many / raw);
    println!("SEND, always the same process     {own:>8.2}");
    println!("SEND, {count:>4} processes by turns    {own_many:>8.2}   {:.2}", own_many / own);
}

/// Returns the seconds of one of `count` operations in the median round.
fn median(mut rounds: Vec<Duration>, count: usize) -> f64 {
    rounds.sort();
    rounds[ROUNDS / 2].as_secs_f64() / count as f64
}
