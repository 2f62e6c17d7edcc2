//! The second process: its commands, and the handle by which the first one gives them. Each command is a line. Each
//! answer is a line that begins with a mark, since the test harness writes to the same output.
#![allow(dead_code)] // each test program uses a part of it

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdma_soft::{Builder, Peers, SoftDevice};
use rdma_sys::{
    ibv_gid, ibv_qp_attr, ibv_qp_state, ibv_qp_type, ibv_wc_flags, ibv_wr_opcode as Opcode,
};
use rdma_types::Gid;
use rustix::process::{Pid, Signal, getpid, kill_process};
use test_support::program::{is_emulated, this_program};
use test_support::rig::connect::{
    Endpoint, Knobs, RTR, Side, UC_RTR, attributes, connect, connect_unreliably, endpoint_with_gid,
    to_init,
};
use test_support::rig::datagram::{self, QKEY};
use test_support::rig::fork;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Mr, Size, imm_of, until};
use test_support::system_calls;

use crate::local_link::mapped;
use crate::two_processes::halted;
use crate::two_processes::near::{self, PATIENT};
use crate::two_processes::process::{allow, files, memory_in_use, processor_time, work};

/// The rights of peers to the memory of each side.
pub(crate) const ACCESS: u32 = ALL_ACCESS;
/// The length of that memory.
pub(crate) const LENGTH: usize = 100_000;

/// The environment variable with the address where the second process listens. `soft0` means the device that both have,
/// and `/NAME` one that it makes with the peers of its environment.
const THIS: &str = "RDMA_TEST_SECOND_PROCESS";
/// The ways in which the second process ends when it has its last completion.
pub(crate) const ENDINGS: [&str; 5] = ["_exit", "SIGKILL", "abort", "exit", "return"];
/// The name of a device shared by the processes of a directory, and the variable with the directory.
const IN_DIRECTORY: &str = "private";
const DIRECTORY: &str = "RDMA_TEST_DIRECTORY";
/// If set, the second process runs on a simulated kernel that does not refuse files for its sockets.
const EARLIER: &str = "RDMA_TEST_EARLIER_KERNEL";
const MARK: &str = "> ";

/// From `asm-generic/socket.h`.
const SOL_SOCKET: i32 = 1;
const SO_PASSRIGHTS: i32 = 83;

pub(crate) fn read(memory: &Mr, from: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.copy_out(from, &mut bytes);
    bytes
}

/// A checksum to compare bytes by.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5)
    };
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Connects a queue pair; both ends use the same index of their GID tables.
pub(crate) fn bring_up(side: &Side, far: &Endpoint, knobs: &Knobs) {
    let own = endpoint_with_gid(&side.context, &side.qp, far.gid_index);
    match side.qp.service() {
        ibv_qp_type::IBV_QPT_RC => connect(&side.qp, &own, far, knobs),
        ibv_qp_type::IBV_QPT_UC => connect_unreliably(&side.qp, &own, far, knobs),
        _ => datagram::activate(&side.qp, QKEY),
    }
}

fn say(end: &Endpoint) -> String {
    let gid = u128::from_be_bytes(datagram::gid_of(&end.gid).to_bytes());
    format!("{} {} {gid} {} {}", end.qpn, end.lid, end.gid_index, u8::from(end.ethernet))
}

fn heard(words: &[&str]) -> Endpoint {
    let number = |n: usize| words[n].parse::<u128>().unwrap();
    Endpoint {
        qpn: number(0) as u32,
        lid: number(1) as u16,
        gid: ibv_gid { raw: number(2).to_be_bytes() },
        gid_index: number(3) as u8,
        ethernet: number(4) != 0,
    }
}

/// The second process, as the first one sees it.
pub(crate) struct Peer {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn is_this() -> bool {
        std::env::var_os(THIS).is_some()
    }

    pub(crate) fn start() -> Self {
        Self::start_at("soft0")
    }

    pub(crate) fn start_at(place: &str) -> Self {
        Self::start_with(place, &[])
    }

    /// Starts it on a simulated kernel before Linux 6.16, as far as sockets are concerned. An emulator is one already.
    pub(crate) fn start_on_earlier_kernel() -> Self {
        Self::start_with("soft0", if is_emulated() { &[] } else { &[(EARLIER, "1")] })
    }

    /// Starts it with a device shared by the processes of a directory.
    pub(crate) fn start_in(directory: &str) -> Self {
        Self::start_with(IN_DIRECTORY, &[(DIRECTORY, directory)])
    }

    pub(crate) fn start_with(place: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = this_program();
        command.args([
            "--exact",
            "two_processes::second_process",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(THIS, place).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, answers) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, commands, answers: BufReader::new(answers) }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> Vec<u128> {
        self.tell(command);
        self.finish()
    }

    /// Starts a command that takes a while.
    pub(crate) fn begin(&mut self, command: &str) {
        self.ask(&format!("ready {command}"));
    }

    /// Starts `count` echoes. The process posts the receive request of each after its answer to the previous one.
    pub(crate) fn begin_echoes(&mut self, count: usize) {
        self.tell(&format!("echoes {count}"));
    }

    /// Starts to set the rights that the queue pair grants to its peer.
    pub(crate) fn begin_permit(&mut self, access: u32) {
        self.tell(&format!("permit {access}"));
    }

    /// Starts to receive `count` numbered messages, with at most `ahead` receive requests posted.
    pub(crate) fn begin_trickle(&mut self, count: u64, ahead: u64) {
        self.tell(&format!("trickle {count} {ahead}"));
    }

    /// Waits until that command is done.
    #[track_caller]
    pub(crate) fn finish(&mut self) -> Vec<u128> {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the peer has ended");
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.split_whitespace().map(|word| word.parse().unwrap()).collect();
            }
        }
    }

    pub(crate) fn make(&mut self, qp_type: ibv_qp_type) -> (Endpoint, (u64, u32)) {
        let answer = self.ask(&format!("make {}", qp_type.0));
        let words: Vec<String> = answer.iter().map(u128::to_string).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        (heard(&words), (answer[5] as u64, answer[6] as u32))
    }

    pub(crate) fn connect(&mut self, to: &Endpoint) {
        self.connect_with(to, &PATIENT);
    }

    /// Connects its queue pair with the timers and retries of these knobs.
    pub(crate) fn connect_with(&mut self, to: &Endpoint, knobs: &Knobs) {
        let Knobs { timeout, retries, rnr_retries, min_rnr_timer, .. } = knobs;
        let timers = format!("{timeout} {retries} {rnr_retries} {min_rnr_timer}");
        self.ask(&format!("connect {} {timers}", say(to)));
    }

    /// Returns the numbers of queue pairs of each kind that receive packets, with memory that no peer may touch.
    pub(crate) fn victims(&mut self, to: &Endpoint) -> Vec<u32> {
        self.ask(&format!("victims {}", say(to))).into_iter().map(|qpn| qpn as u32).collect()
    }

    /// Connects a queue pair to that one. Returns 0 or an error number.
    pub(crate) fn ready_to_receive(&mut self, from: &Endpoint) -> i32 {
        self.ask(&format!("ready_to_receive {}", say(from)))[0] as i32
    }

    pub(crate) fn expect_untouched(&mut self) {
        self.ask("untouched");
    }

    pub(crate) fn receive(&mut self) {
        self.ask("receive");
    }

    /// Posts a receive request of that length there.
    pub(crate) fn receive_bytes(&mut self, length: usize) {
        self.ask(&format!("receive_bytes {length}"));
    }

    pub(crate) fn send(&mut self, length: usize, imm: u32) {
        self.ask(&format!("send {length} {imm}"));
    }

    /// Posts that many receive requests there.
    pub(crate) fn receive_all(&mut self, count: usize) {
        self.ask(&format!("receives {count}"));
    }

    /// Polls that many completions there.
    pub(crate) fn complete_all(&mut self, count: usize) {
        self.ask(&format!("completions {count}"));
    }

    /// Returns the kind, the length and the immediate data.
    pub(crate) fn completion(&mut self) -> (u32, u32, u32) {
        let answer = self.ask("completion");
        (answer[0] as u32, answer[1] as u32, answer[2] as u32)
    }

    /// Returns the last GID of its device.
    pub(crate) fn last_gid(&mut self) -> ibv_gid {
        ibv_gid { raw: self.ask("last_gid")[0].to_be_bytes() }
    }

    /// Starts its last command, which it does not answer.
    pub(crate) fn begin_last(&mut self, command: &str) {
        self.tell(command);
    }

    /// Waits until nothing of the process is left.
    pub(crate) fn wait_for_end(&mut self) {
        self.child.wait().unwrap();
    }

    pub(crate) fn sum(&mut self, from: usize, length: usize) -> u64 {
        self.ask(&format!("sum {from} {length}"))[0] as u64
    }

    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        self.ask(&format!("counter {name}"))[0] as u64
    }

    pub(crate) fn until_counter(&mut self, name: &str, value: u64) {
        until(name, || self.counter(name) == value);
    }

    pub(crate) fn files(&mut self) -> usize {
        self.ask("files")[0] as usize
    }

    pub(crate) fn until_files(&mut self, count: usize) {
        until("closed files", || self.files() == count);
    }

    /// Returns its memory use in bytes.
    pub(crate) fn memory(&mut self) -> usize {
        self.ask("memory")[0] as usize
    }

    /// Returns the longest call of a program that does ordinary work `times` times.
    pub(crate) fn longest_call(&mut self, times: usize) -> Duration {
        Duration::from_micros(self.ask(&format!("work {times}"))[0] as u64)
    }

    pub(crate) fn allow_files(&mut self, more: bool) {
        self.ask(&format!("allow {}", u8::from(more)));
    }

    /// Makes its queue pair a member of a group, or removes it.
    pub(crate) fn join(&mut self, group: Gid, join: bool) {
        let command = if join { "join" } else { "leave" };
        self.ask(&format!("{command} {}", u128::from_be_bytes(group.to_bytes())));
    }

    /// Returns the processor time that it uses during a wait of that length, in hundredths of a second.
    pub(crate) fn processor_time(&mut self, milliseconds: u32) -> u64 {
        self.ask(&format!("wait {milliseconds}"))[0] as u64
    }

    /// The child ends when the command pipe is closed.
    pub(crate) fn fork(&mut self) {
        self.ask("fork");
    }

    /// The child ends at once, and is waited for.
    pub(crate) fn fork_and_join(&mut self) {
        self.ask("fork_and_join");
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        self.wait_until_stopped();
    }

    pub(crate) fn wait_until_stopped(&self) {
        let status = format!("/proc/{}/stat", self.child.id());
        until("stopped", || std::fs::read_to_string(&status).unwrap().contains(") T "));
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn end(mut self) {
        drop(self.commands.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of the second process.
struct World {
    /// Opened before the limit of open files is reached.
    stat: File,
    device: &'static str,
    side: Option<(Mr, Side)>,
    victims: Vec<(Mr, Side)>,
    /// Whether the process ends by returning from `main`.
    returns: bool,
}

/// Installs a device that has one address, and returns its name.
pub(crate) fn network(name: &'static str, place: &str) -> &'static str {
    // The other process may get no processor for some seconds.
    let device = Builder::new(name).gids([]).listen(place).retry_time(Duration::from_secs(60));
    device.install().unwrap().name()
}

/// Installs a device shared by the processes of a directory, and returns its name.
pub(crate) fn in_directory(path: &str) -> &'static str {
    let device = Builder::new(IN_DIRECTORY).peers(Peers::SameUser).directory(path);
    device.install().unwrap().name()
}

/// Simulates a kernel that does not refuse files for sockets.
pub(crate) fn simulate_earlier_kernel() {
    system_calls::refuse_socket_option(SOL_SOCKET, SO_PASSRIGHTS);
}

/// Runs commands until the input ends.
pub(crate) fn obey() {
    if std::env::var_os(EARLIER).is_some() {
        simulate_earlier_kernel();
    }
    rdma_soft::install();
    let stat = File::open("/proc/self/stat").unwrap();
    let place = std::env::var(THIS).unwrap();
    let device = match place.strip_prefix('/') {
        Some(name) => {
            let shared = Builder::new(name).peers(Peers::of_environment());
            shared.install().unwrap().name()
        }
        None if place == "soft0" => "soft0",
        None if place == IN_DIRECTORY => in_directory(&std::env::var(DIRECTORY).unwrap()),
        None => network("far", &place),
    };
    let mut world = World { stat, device, side: None, victims: Vec::new(), returns: false };
    for line in std::io::stdin().lines().map(Result::unwrap) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = world.act(words[0], &words[1..]);
        if world.returns {
            // Nothing is destroyed, as at the end of a C program.
            let _ = ManuallyDrop::new(world);
            return;
        }
        println!("{MARK}{answer}");
    }
}

impl World {
    fn act(&mut self, command: &str, words: &[&str]) -> String {
        let number = |n: usize| words[n].parse::<usize>().unwrap();
        match command {
            "make" => return self.make(number(0)),
            "victims" => return self.make_victims(&heard(words)),
            "ready_to_receive" => {
                let side = Side::new(self.device, &Size::default(), 8);
                return to_receive(&side, &heard(words), RTR).to_string();
            }
            "untouched" => self.victims.iter().for_each(|(memory, _)| memory.assert_filled(0xee)),
            "counter" => {
                let counters = SoftDevice::find(self.device).unwrap().counters();
                return counters.iter().find(|(name, _)| *name == words[0]).unwrap().1.to_string();
            }
            "last_gid" => {
                let gids = SoftDevice::find(self.device).unwrap().gids();
                return u128::from_be_bytes(gids.last().unwrap().to_bytes()).to_string();
            }
            "files" => return files().to_string(),
            "fork_and_join" => fork::Child::fork(|| {}).join(),
            "memory" => return memory_in_use().to_string(),
            "work" => return work(number(0)).as_micros().to_string(),
            "allow" => allow(number(0)),
            "wait" => {
                let before = processor_time(&self.stat);
                std::thread::sleep(Duration::from_millis(number(0) as u64));
                return (processor_time(&self.stat) - before).to_string();
            }
            "completion_and_destroy" => {
                self.with_side("completion", words);
                self.side = None;
            }
            "halt" => return halted::act(self.device, &self.side.as_ref().unwrap().1, words),
            "completion_and_end" | "send_and_end" | "write_and_end" => self.end(command, words[0]),
            "ready" => {
                self.with_side("receive", &[]);
                println!("{MARK}");
                return self.with_side(words[0], &words[1..]);
            }
            "fork" => drop(fork::Child::fork(|| {
                // Until every copy of the other end is closed.
                let stdin = std::io::stdin();
                let mut bytes = [0; 64];
                while rustix::io::read(&stdin, &mut bytes).is_ok_and(|read| read > 0) {}
            })),
            _ => return self.with_side(command, words),
        }
        String::new()
    }

    /// Ends as soon as it has its completion.
    fn end(&mut self, command: &str, how: &str) {
        let (memory, side) = self.side.as_ref().unwrap();
        let last = match command {
            "send_and_end" => Some(Wr::send(1, &[memory.sge(0, 8)])),
            "write_and_end" => Some(Wr::new(1, Opcode::IBV_WR_RDMA_WRITE_WITH_IMM, &[])),
            _ => None,
        };
        if let Some(last) = last {
            side.qp.post(&last);
            side.send_cq.expect_success(1);
        } else {
            side.receive_cq.expect_success(1);
        }
        match how {
            "_exit" => fork::leave(),
            "SIGKILL" => kill_process(getpid(), Signal::KILL).unwrap(),
            "abort" => std::process::abort(),
            "exit" => std::process::exit(0),
            _ => self.returns = true,
        }
    }

    fn make(&mut self, kind: usize) -> String {
        let qp_type = ibv_qp_type(kind as u32);
        let size = Size { qp_type, receive_wr: 512, ..Size::default() };
        let side = Side::new(self.device, &size, 1024);
        let (memory, address) = near::memory(&side.pd);
        let said = format!("{} {address} {}", say(&side.endpoint()), memory.rkey());
        self.side = Some((memory, side));
        said
    }

    fn make_victims(&mut self, to: &Endpoint) -> String {
        let rc = ibv_qp_type::IBV_QPT_RC;
        for qp_type in [rc, rc, ibv_qp_type::IBV_QPT_UC, ibv_qp_type::IBV_QPT_UD] {
            let side = Side::new(self.device, &Size { qp_type, ..Size::default() }, 4096);
            // The receive requests are in memory that peers may not access, and peers have rights only for memory that
            // is not registered.
            let memory = side.pd.register_filled(vec![0xee; LENGTH], 1);
            if qp_type == rc && self.victims.is_empty() {
                assert_ne!(to_receive(&side, to, UC_RTR), 0, "RC needs more attributes");
            } else {
                bring_up(&side, to, &PATIENT);
            }
            self.victims.push((memory, side));
        }
        let numbers = self.victims.iter().map(|(_, side)| side.qp.number().to_string());
        numbers.collect::<Vec<_>>().join(" ")
    }

    fn with_side(&mut self, command: &str, words: &[&str]) -> String {
        let number = |n: usize| words[n].parse::<usize>().unwrap();
        let (memory, side) = self.side.as_mut().unwrap();
        match command {
            "connect" => {
                let [timeout, retries, rnr_retries, min_rnr_timer] =
                    [5, 6, 7, 8].map(|n| u8::try_from(number(n)).unwrap());
                let knobs = Knobs { timeout, retries, rnr_retries, min_rnr_timer, ..PATIENT };
                bring_up(side, &heard(words), &knobs);
            }
            "join" | "leave" => {
                let group = ibv_gid { raw: words[0].parse::<u128>().unwrap().to_be_bytes() };
                let join = command == "join";
                let done = if join { side.qp.attach(&group, 0) } else { side.qp.detach(&group, 0) };
                assert_eq!(done, 0);
            }
            "receive" => side.qp.post_receive(1, &[memory.sge(0, LENGTH)]),
            "receive_bytes" => side.qp.post_receive(1, &[memory.sge(0, number(0))]),
            "receives" => {
                (0..number(0)).for_each(|_| side.qp.post_receive(1, &[memory.sge(0, LENGTH)]));
            }
            "completions" => (0..number(0)).for_each(|_| _ = side.receive_cq.expect_success(1)),
            "send" => {
                let imm = u32::try_from(number(1)).unwrap();
                side.qp.post(&Wr::send(1, &[memory.sge(0, number(0))]).with_imm(imm));
                side.send_cq.expect_success(1);
            }
            "completion" => {
                let wc = side.receive_cq.expect_success(1);
                let has_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
                let imm = if has_imm { imm_of(&wc) } else { 0 };
                return format!("{} {} {imm}", wc.opcode.0, wc.byte_len);
            }
            "completion_and_exit" => {
                side.receive_cq.expect_success(1);
                std::process::exit(0);
            }
            "trips" => {
                for _ in 0..number(0) {
                    side.receive_cq.expect_success(1);
                    side.qp.post_receive(1, &[memory.sge(0, LENGTH)]);
                    side.qp.post(&Wr::send(1, &[memory.sge(0, 8)]));
                    side.send_cq.expect_success(1);
                }
            }
            "trickle" => trickle(memory, side, number(0) as u64, number(1) as u64),
            "echoes" => {
                for _ in 0..number(0) {
                    side.qp.post_receive(1, &[memory.sge(0, LENGTH)]);
                    side.receive_cq.expect_success(1);
                    side.qp.post(&Wr::send(1, &[memory.sge(0, 8)]));
                    side.send_cq.expect_success(1);
                }
            }
            "sum" => return sum(&read(memory, number(0), number(1))).to_string(),
            _ => return mapped::act(command, words, memory, side),
        }
        String::new()
    }
}

/// Receives `count` numbered messages. Another thread posts their receive requests, at most `ahead` of them in advance.
fn trickle(memory: &Mr, side: &Side, count: u64, ahead: u64) {
    let received = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                until("a message", || number < received.load(Ordering::Acquire) + ahead);
                // The other threads have reached a different point each time.
                (0..number * 7919 % 30_000).for_each(|_| std::hint::spin_loop());
                side.qp.post_receive(number, &[memory.sge(0, LENGTH)]);
            }
        });
        for number in 0..count {
            let wc = side.receive_cq.expect_success(number);
            assert_eq!(u64::from(imm_of(&wc)), number);
            received.store(number + 1, Ordering::Release);
        }
    });
}

/// Brings a queue pair to the ready-to-receive state. Returns 0 or an error number.
fn to_receive(side: &Side, far: &Endpoint, mask: u32) -> i32 {
    let attr = attributes(&side.endpoint(), far, &PATIENT);
    to_init(&side.qp, &attr);
    side.qp.modify(ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..attr }, mask)
}
