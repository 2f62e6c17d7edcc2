//! Processes that start, exchange messages in pairs, and end. Some are killed at any moment. Every byte of each message
//! is checked; a process that loses its peer is notified and meets another; no sockets remain.
//!
//! It takes five seconds, or `RDMA_TEST_SOAK` seconds, with eight processes at a time, or `RDMA_TEST_SOAK_PROCESSES`.
//! `RDMA_TEST_SEED` determines the processes that are killed, and the times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)]
#![allow(clippy::disallowed_methods)] // The programs' side has clocks and threads of its own.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rdma_soft::Builder;
use rdma_sys::{ibv_gid, ibv_wc_status as Status};
use rustix::process::{Pid, Signal, kill_process};
use test_support::program::this_program;
use test_support::rig::connect::{Endpoint, Knobs, RTR, Side, attributes, to_init, to_rts};
use test_support::rig::datagram::gid_of;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Size};

/// The environment variable with the address where a process of the soak listens; `soft0` means the common device.
const PLACE: &str = "RDMA_TEST_SOAK_PLACE";
/// The number of messages that two processes exchange, and the maximum length of each.
const MESSAGES: u64 = 40;
const LONGEST: usize = 40_000;
/// The number of meetings of a process before it ends.
const MEETINGS: u32 = 5;
/// The limit for noticing a lost peer over UDP: eight timeouts of 33 ms, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if let Ok(place) = env::var(PLACE) {
        talk(&place);
        return ExitCode::SUCCESS;
    }
    if env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let number = |name: &str, usual: u64| {
        env::var(name)
            .map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
    };
    let (time, count) = (number("RDMA_TEST_SOAK", 5), number("RDMA_TEST_SOAK_PROCESSES", 8));
    let seed = number("RDMA_TEST_SEED", u64::from(std::process::id()));
    println!("soak test of {time} s, {count} processes, RDMA_TEST_SEED={seed}");
    let mut soak = Soak::new(Random(seed | 1), count as usize);
    soak.run(Duration::from_secs(time));
    soak.end();
    ExitCode::SUCCESS
}

/// A random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// A report from a process.
enum Said {
    /// It has a queue pair, and waits for a peer.
    Here(String),
    /// Whether all messages arrived; if not, its peer was lost.
    Met(bool),
    /// It has ended.
    End,
}

struct Member {
    child: Child,
    commands: ChildStdin,
    by_udp: bool,
    /// The address of its queue pair, while it waits for a peer.
    here: Option<String>,
    killed: bool,
}

/// The controller, which pairs processes.
struct Soak {
    random: Random,
    count: usize,
    members: Vec<Option<Member>>,
    sender: Sender<(usize, Said)>,
    said: Receiver<(usize, Said)>,
    met: u64,
    lost: u64,
    killed: u64,
    started: u64,
}

impl Soak {
    fn new(random: Random, count: usize) -> Self {
        let members = Vec::new();
        let (sender, said) = channel();
        Self { random, count, members, sender, said, met: 0, lost: 0, killed: 0, started: 0 }
    }

    fn start(&mut self) {
        let (number, by_udp) = (self.members.len(), self.members.len() % 3 == 2);
        let own = Ipv4Addr::from_bits(0x7f20_0000 + (number as u32 & 0x1f_ffff));
        let mut command = this_program();
        command.env(PLACE, if by_udp { own.to_string() } else { "soft0".to_owned() });
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, lines) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let said = match line.split_once(' ') {
                    Some(("here", place)) => Said::Here(place.to_owned()),
                    Some(("met", all)) => Said::Met(all == "all"),
                    _ => panic!("{line}"),
                };
                sender.send((number, said)).unwrap();
            }
            sender.send((number, Said::End)).unwrap();
        });
        self.members.push(Some(Member { child, commands, by_udp, here: None, killed: false }));
        self.started += 1;
    }

    fn alive(&self) -> usize {
        self.members.iter().flatten().count()
    }

    fn run(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            while self.alive() < self.count {
                self.start();
            }
            self.hear();
            if self.random.below(20) == 0 {
                self.kill_one();
            }
        }
    }

    /// Handles a report from one of the processes.
    fn hear(&mut self) {
        let (number, said) =
            self.said.recv_timeout(PATIENCE).expect("no process has reported within the limit");
        let killed = self.members[number].as_ref().is_some_and(|member| member.killed);
        match said {
            Said::Here(_) | Said::Met(_) if killed => {}
            Said::Here(place) => self.introduce(number, place),
            Said::Met(all) => *(if all { &mut self.met } else { &mut self.lost }) += 1,
            Said::End => {
                let mut member = self.members[number].take().unwrap();
                let status = member.child.wait().unwrap();
                assert!(status.success() || killed, "process {number}: {status}");
            }
        }
    }

    /// Pairs a process with another one that waits and uses the same kind of link.
    fn introduce(&mut self, number: usize, place: String) {
        let by_udp = self.members[number].as_ref().unwrap().by_udp;
        let waits = |member: &&mut Member| member.by_udp == by_udp && member.here.is_some();
        let other = self.members.iter_mut().flatten().find(waits);
        let Some(other) = other else {
            self.members[number].as_mut().unwrap().here = Some(place);
            return;
        };
        let there = other.here.take().unwrap();
        // A process that was killed meanwhile does not read.
        let _ = writeln!(other.commands, "{place}");
        let member = self.members[number].as_mut().unwrap();
        let _ = writeln!(member.commands, "{there}");
    }

    fn kill_one(&mut self) {
        let place = self.random.below(self.members.len() as u64) as usize;
        let living = |member: &&mut Option<Member>| member.as_ref().is_some_and(|it| !it.killed);
        let mut members = self.members.iter_mut().skip(place);
        if let Some(Some(member)) = members.find(living) {
            kill_process(Pid::from_child(&member.child), Signal::KILL).unwrap();
            (member.killed, member.here) = (true, None);
            self.killed += 1;
        }
    }

    /// Ends all processes, and checks that nothing of them is left.
    fn end(&mut self) {
        while self.alive() > 0 {
            // A process that waits for a peer is notified that no peer remains.
            for member in self.members.iter_mut().flatten() {
                if member.here.take().is_some() {
                    let _ = writeln!(member.commands, "nobody");
                }
            }
            self.hear_at_end();
        }
        println!(
            "{} processes, {} of them killed; {} complete meetings, and {} with a lost peer",
            self.started, self.killed, self.met, self.lost
        );
        assert!(self.met > 0);
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let own = format!("@rdma-soft/4/{}/soak-", rustix::process::geteuid().as_raw());
        assert!(!sockets.contains(&own), "{sockets}");
    }

    fn hear_at_end(&mut self) {
        let (number, said) =
            self.said.recv_timeout(PATIENCE).expect("no process has reported within the limit");
        match said {
            Said::Here(place) => self.members[number].as_mut().unwrap().here = Some(place),
            said => {
                self.sender.send((number, said)).unwrap();
                self.hear();
            }
        }
    }
}

/// Runs a process of the soak test.
fn talk(place: &str) {
    rdma_soft::install();
    let device = match place {
        "soft0" => {
            let shared = Builder::new("soak-soft0").peers(rdma_soft::Peers::SameUser);
            shared.install().unwrap().name()
        }
        place => Builder::new("soak-udp").gids([]).listen(place).install().unwrap().name(),
    };
    let mut random = Random(u64::from(std::process::id()) << 8 | 1);
    for _ in 0..MEETINGS {
        let side = Side::new(device, &Size::default(), 64);
        let own = side.endpoint();
        // Space for two messages and two writes: a peer is at most one step ahead.
        let memory = side.pd.register(4 * LONGEST, ALL_ACCESS);
        let gid = u128::from_be_bytes(gid_of(&own.gid).to_bytes());
        let (address, key) = (memory.address() + 2 * LONGEST as u64, memory.key());
        println!("here {} {gid} {address} {key}", own.qpn);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let words: Vec<u128> =
            line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [qpn, gid, address, key] = words[..] else { return };
        let peer = Endpoint { qpn: qpn as u32, gid: ibv_gid { raw: gid.to_be_bytes() }, ..own };
        let all = meet(&side, &memory, &peer, (address as u64, key as u32), &mut random);
        println!("met {}", if all { "all" } else { "some" });
    }
}

/// Exchanges messages and writes with a peer. Returns true if the peer stayed to the end.
fn meet(
    side: &Side,
    memory: &test_support::rig::Mr,
    peer: &Endpoint,
    (address, key): (u64, u32),
    random: &mut Random,
) -> bool {
    let own = side.endpoint();
    let knobs = Knobs { timeout: 13, retries: 7, rnr_retries: 7, ..Knobs::default() };
    let attr = attributes(&own, peer, &knobs);
    to_init(&side.qp, &attr);
    let receive = |n: u64| {
        side.qp.post_receive(n, &[memory.sge(n as usize % 2 * LONGEST, LONGEST)]);
    };
    // The first two receives are posted before the peer's first message.
    receive(0);
    receive(1);
    let to_rtr = rdma_sys::ibv_qp_attr { qp_state: rdma_sys::ibv_qp_state::IBV_QPS_RTR, ..attr };
    if side.qp.modify(to_rtr, RTR) != 0 {
        return false; // the peer was killed before
    }
    to_rts(&side.qp, &attr);
    let source = side.pd.register(LONGEST, ALL_ACCESS);
    for n in 0..MESSAGES {
        let length = 1 + random.below(LONGEST as u64 - 1) as usize;
        let bytes: Vec<u8> = (0..length).map(|at| (at as u64 * 7 + n) as u8).collect();
        source.copy_in(0, &bytes);
        let to = address + n % 2 * LONGEST as u64;
        let write = Wr::write(1, &[source.sge(0, length)], &source, 0).remote(to, key);
        side.qp.post(&write);
        side.qp.post(&Wr::send(2, &[source.sge(0, length)]).with_imm(n as u32));
        let (mut sent, mut received) = (0, false);
        let begin = Instant::now();
        while sent < 2 || !received {
            for wc in side.send_cq.try_poll::<4>().unwrap() {
                if wc.status != Status::IBV_WC_SUCCESS {
                    let lost = [Status::IBV_WC_RETRY_EXC_ERR, Status::IBV_WC_WR_FLUSH_ERR];
                    assert!(lost.contains(&wc.status), "{:?}", wc.status);
                    return false;
                }
                sent += 1;
            }
            // The next message may have arrived, too.
            let came = if received { Vec::new() } else { side.receive_cq.try_poll::<1>().unwrap() };
            for wc in came {
                if wc.status != Status::IBV_WC_SUCCESS {
                    return false;
                }
                let came = wc.byte_len as usize;
                let right: Vec<u8> = (0..came).map(|at| (at as u64 * 7 + n) as u8).collect();
                for from in [n % 2, 2 + n % 2] {
                    let from = from as usize * LONGEST;
                    let mut bytes = vec![0; came];
                    memory.copy_out(from, &mut bytes);
                    assert!(bytes == right, "message {n} of {came} bytes, at {from}");
                }
                received = true;
                receive(n + 2);
            }
            if sent == 2 && !received && begin.elapsed() > Duration::from_secs(5) {
                return false; // the peer has ended; a waiting receiver gets no error for that
            }
            std::thread::yield_now();
        }
    }
    true
}
