//! A process that works while it is attacked by another process of the host, of its own user or another one. Time
//! limits only catch hangs: what the attacker sends takes an hour to release.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rdma_soft::{Builder, Peers};
use rdma_sys::{Errno, ibv_qp_attr, ibv_qp_state, ibv_qp_type};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use test_support::events::{Event, Hears};
use test_support::program::is_emulated;
use test_support::rig::connect::{Endpoint, RTR, Side, attributes, pair_with, to_init};
use test_support::rig::post::Wr;
use test_support::rig::{Size, until};

use crate::local_link::attacker::{Attacker, Plan};
use crate::local_link::hostile::{Head, name_at, name_of, slot_of};
use crate::local_link::ring::{Connection, listen_at};
use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{Peer, in_directory};

/// No call takes this long on any machine.
const HANGS: Duration = Duration::from_secs(30);
/// The additional memory and files that a victim may use during an attack.
const MEMORY: usize = 64 << 20;
const FILES: usize = 128;

/// A process that works and is attacked.
struct Victim {
    watchdog: Watchdog,
    near: Near,
    name: String,
    files: usize,
    memory: usize,
}

impl Victim {
    /// Starts a victim: on a simulated kernel that does not refuse files, or on the running kernel, which may.
    fn new(earlier_kernel: bool) -> Self {
        rdma_soft::install();
        let peer = if earlier_kernel { Peer::start_on_earlier_kernel() } else { Peer::start() };
        let watchdog = Watchdog::default();
        watchdog.watch(peer.pid());
        let mut near = Near::on("soft0", peer, ibv_qp_type::IBV_QPT_RC, &PATIENT);
        near.all_of_it();
        let name = name_of(slot_of(near.far.qpn));
        let (files, memory) = (near.peer.files(), near.peer.memory());
        Self { watchdog, near, name, files, memory }
    }

    /// Starts an attacker of this process.
    fn attacker(&self, plan: Plan, as_other: bool) -> Attacker {
        let attacker = Attacker::start(plan, &self.name, as_other);
        self.watchdog.watch(attacker.pid());
        attacker
    }

    fn counter(&mut self, name: &str) -> u64 {
        self.near.peer.counter(name)
    }

    /// Checks that nothing that the victim has is held up.
    fn expect_to_work(&mut self) {
        self.near.all_of_it();
        let longest = self.near.peer.longest_call(20);
        let files = self.near.peer.files().saturating_sub(self.files);
        let memory = self.near.peer.memory().saturating_sub(self.memory);
        println!("longest call {longest:?}, {files} additional files, {memory} additional bytes");
        assert!(longest < HANGS, "a call took {longest:?}");
        assert!(files <= FILES, "{files} additional files");
        assert!(memory <= MEMORY, "{memory} additional bytes");
        self.near.peer.fork_and_join();
        self.near.all_of_it();
    }

    /// Checks that another process is served.
    fn expect_to_accept(&mut self) {
        let before = self.counter("unknown_qp");
        let mut to = Connection::patiently_to(&self.name);
        to.send_all(&Head::new(0x00ab_cdef).bytes(0));
        self.near.peer.until_counter("unknown_qp", before + 1);
    }

    /// Checks that everything is as before the attack.
    fn expect_to_recover(mut self) {
        self.expect_to_accept();
        self.near.peer.until_files(self.files);
        self.near.all_of_it();
        self.near.peer.end();
    }
}

/// Queue pair numbers are still assigned. A connection to another process fails, and the event states the reason.
#[test]
fn a_device_whose_names_are_taken_by_another_user_works_within_its_process() {
    if !Attacker::may_be_other() {
        eprintln!("skipped: only root can run the attacker as another user");
        return;
    }
    let name = "squatted";
    let all = name_at(name, 0).strip_suffix("000").unwrap().to_owned();
    let _attacker = Attacker::start(Plan::Names, &all, true);
    Builder::new(name).peers(Peers::SameUser).install().unwrap();
    let (say, said) = mpsc::channel();
    let hears = Hears(move |event: Event| drop(say.send(event)));
    let (one, other) =
        tracing::subscriber::with_default(hears, || pair_with(name, &Size::default(), &PATIENT));
    other.qp.post_receive(1, &[]);
    one.qp.post(&Wr::send(1, &[]));
    other.receive_cq.expect_success(1);
    let event = said.recv_timeout(HANGS).unwrap();
    assert_eq!(event.field("user"), Some("65534"), "{event:?}");
    // A number of a slot that this process does not have.
    let side = Side::new(name, &Size::default(), 8);
    let slot = (slot_of(side.qp.number()) + 1) % 4096;
    let peer = Endpoint { qpn: slot << 12 | 5, ..side.endpoint() };
    let attr = attributes(&side.endpoint(), &peer, &PATIENT);
    to_init(&side.qp, &attr);
    let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..attr };
    assert_eq!(side.qp.modify(attr, RTR), Errno::EACCES.raw());
}

/// Processes of a directory use no name that others could bind.
#[test]
fn processes_of_a_directory_reach_each_other() {
    let path = std::env::temp_dir().join(format!("rdma-soft-private-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&path).unwrap();
    let path = path.to_str().unwrap();
    let device = in_directory(path);
    let near = || {
        let mut near = Near::on(device, Peer::start_in(path), ibv_qp_type::IBV_QPT_RC, &PATIENT);
        near.all_of_it();
        near
    };
    let (mut killed, other) = (near(), near());
    let abstract_names = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!abstract_names.contains(&name_at(device, 0)[..name_at(device, 0).len() - 3]));
    // The files that a killed process leaves do not get in the way.
    killed.wait();
    killed.peer.kill();
    killed.expect_end();
    near().peer.end();
    other.peer.end();
    std::fs::remove_dir_all(path).unwrap();
}

/// Ends processes that hang, since their test would hang with them. Ends the newest first: what it has sent may keep
/// the others alive.
struct Watchdog {
    watched: Arc<Mutex<Vec<OwnedFd>>>,
    /// The thread waits until this is dropped.
    _alive: mpsc::Sender<()>,
}

impl Default for Watchdog {
    #[allow(clippy::disallowed_methods)] // A thread of the program's.
    fn default() -> Self {
        let (alive, ended) = mpsc::channel();
        let watched = Arc::<Mutex<Vec<OwnedFd>>>::default();
        let all = Arc::clone(&watched);
        std::thread::spawn(move || {
            if ended.recv_timeout(4 * HANGS) == Err(mpsc::RecvTimeoutError::Timeout) {
                for process in all.lock().unwrap().iter().rev() {
                    // One that has ended is no error: the descriptor never refers to another process.
                    let _ = pidfd_send_signal(process, Signal::KILL);
                }
            }
        });
        Self { watched, _alive: alive }
    }
}

impl Watchdog {
    fn watch(&self, process: Pid) {
        let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
        self.watched.lock().unwrap().push(process);
    }
}

/// Returns true if the kernel can refuse files on a socket that requests it (Linux 6.16). An emulator does not pass on
/// such requests.
fn kernel_refuses_files() -> bool {
    if is_emulated() {
        return false;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    version >= (6, 16)
}

#[test]
fn files_of_another_user_hold_up_nothing() {
    let mut victim = Victim::new(false);
    let as_other = Attacker::may_be_other();
    let mut attacker = victim.attacker(Plan::Strangers(20), as_other);
    let sent = attacker.attack(&victim.near.peer);
    assert_eq!(sent, if kernel_refuses_files() { 0 } else { 20 });
    victim.expect_to_work();
    if as_other {
        victim.near.peer.until_counter("refused_connections", 320);
    }
    if kernel_refuses_files() {
        victim.expect_to_accept();
    }
    drop(attacker);
    victim.expect_to_recover();
}

/// More files than there are threads to close them, and more than may wait for these threads.
#[test]
fn files_of_another_user_hold_up_only_new_connections_on_an_earlier_kernel() {
    let mut victim = Victim::new(true);
    let as_other = Attacker::may_be_other();
    let mut attacker = victim.attacker(Plan::Strangers(150), as_other);
    assert_eq!(attacker.attack(&victim.near.peer), 150);
    victim.expect_to_work();
    if as_other {
        until("a full pool", || victim.counter("held_up_connections") > 0);
        let listens = |slot| Some((slot, listen_at(&name_of(slot)).ok()?));
        let (slot, _listener) = (0x400..0x600).find_map(listens).unwrap();
        let far = Endpoint { qpn: slot << 12 | 5, ..victim.near.side.endpoint() };
        assert_eq!(victim.near.peer.ready_to_receive(&far), Errno::EBUSY.raw());
    }
    victim.expect_to_work();
    drop(attacker);
    victim.expect_to_recover();
}

#[test]
fn files_of_the_same_user_hold_up_nothing_else() {
    for earlier_kernel in [false, true] {
        let mut victim = Victim::new(earlier_kernel);
        let mut attacker = victim.attacker(Plan::Guests(30), false);
        assert_eq!(attacker.attack(&victim.near.peer), 30);
        victim.expect_to_work();
        // The process ends although they are not released.
        victim.near.peer.end();
    }
}

/// Closing any copy takes as long as the file system likes, not only closing the last one. A forked child with a copy
/// would not end before that.
#[test]
fn files_of_fuse_hold_up_nothing_else() {
    let mut victim = Victim::new(false);
    let mut attacker = victim.attacker(Plan::Fuse(10), false);
    match attacker.attack(&victim.near.peer) {
        0 => eprintln!("skipped: this machine has no FUSE"),
        sent => {
            assert_eq!(sent, 10);
            // While the victim opens them. A child of several threads may hang in an emulator.
            let forks = if is_emulated() { 0 } else { 100 };
            (0..forks).for_each(|_| victim.near.peer.fork_and_join());
        }
    }
    victim.expect_to_work();
    drop(attacker);
    victim.expect_to_recover();
}

#[test]
fn files_of_a_process_that_was_connected_to_hold_up_nothing() {
    let plans = [Plan::Squatter(1), Plan::FuseGrant, Plan::FuseVersions];
    for (plan, earlier_kernel) in plans.into_iter().flat_map(|plan| [(plan, false), (plan, true)]) {
        let mut victim = Victim::new(earlier_kernel);
        let slot = (0x200..0x400).find(|&slot| listen_at(&name_of(slot)).is_ok());
        let slot = slot.unwrap();
        let mut attacker = Attacker::start(plan, &name_of(slot), false);
        victim.watchdog.watch(attacker.pid());
        let squatter = Endpoint { qpn: slot << 12 | 5, ..victim.near.side.endpoint() };
        victim.near.peer.victims(&squatter);
        victim.files = victim.near.peer.files();
        let sent = attacker.attack(&victim.near.peer);
        // A process of this user may send the files of its regions, so no kernel refuses them.
        match (plan, sent) {
            (Plan::FuseGrant | Plan::FuseVersions, 0) => {
                eprintln!("skipped: this machine has no FUSE")
            }
            _ => assert_eq!(sent, 1),
        }
        victim.expect_to_work();
        victim.near.peer.end();
    }
}
