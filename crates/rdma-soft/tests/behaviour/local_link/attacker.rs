//! A hostile neighbour: a process that sends files whose release takes an hour. It is a second instance of this
//! program, run as another user where possible.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, accept, send, sockopt};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::{is_emulated, this_program};
use test_support::rig::{fork, until};

use crate::local_link::fuse;
use crate::local_link::grants::{Terms, VERSIONS};
use crate::local_link::ring::{
    Connection, VERSION, connect_patiently, listen_at, say, wait_until_asked,
};
use crate::two_processes::peer::Peer;

/// Entry point of the attacking process; not a test.
#[test]
fn attacker() {
    if std::env::var_os(PLAN).is_some() {
        obey();
    }
}

/// The environment variables with the attack plan and the name of the attacked socket.
const PLAN: &str = "RDMA_TEST_ATTACK";
const NAME: &str = "RDMA_TEST_ATTACKED";
const MARK: &str = "attacked ";
/// The user `nobody`, which never runs the tests.
const NOBODY: u32 = 65534;

const HOUR: Duration = Duration::from_secs(3600);

/// The attack to run, with the number of lingering files to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Sends files unsolicited; closes every other connection at once. Opens 300 silent connections first.
    Strangers(usize),
    /// Sends files after the device has requested the ring: instead of the ring, with two others, or with a later
    /// message.
    Guests(usize),
    /// Sends a FUSE file instead of the ring, up to three times in one message.
    Fuse(usize),
    /// Sends files over connections made to the attacker, which has bound the name.
    Squatter(usize),
    /// The same, with one FUSE file instead of the memory of a grant, or of the versions.
    FuseGrant,
    FuseVersions,
    /// Binds all names of a device.
    Names,
}

impl Plan {
    fn words(self) -> String {
        match self {
            Self::Strangers(count) => format!("strangers {count}"),
            Self::Guests(count) => format!("guests {count}"),
            Self::Fuse(count) => format!("fuse {count}"),
            Self::Squatter(count) => format!("squatter {count}"),
            Self::FuseGrant => "fuse-grant 1".to_owned(),
            Self::FuseVersions => "fuse-versions 1".to_owned(),
            Self::Names => "names 4096".to_owned(),
        }
    }
}

pub(crate) struct Attacker {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Attacker {
    /// Returns true if the attacker can run as another user, which also needs access to this program.
    pub(crate) fn may_be_other() -> bool {
        let mut command = this_program();
        command.arg("--list").stdout(Stdio::null()).uid(NOBODY).gid(NOBODY);
        let may = rustix::process::geteuid().is_root()
            && !is_emulated()
            && command.status().is_ok_and(|status| status.success());
        if !may {
            eprintln!("the attacker runs as this user: only root can start it as another user");
        }
        may
    }

    /// Starts an attacker, and returns when it is ready to attack.
    pub(crate) fn start(plan: Plan, name: &str, as_other: bool) -> Self {
        let mut command = this_program();
        let test = "local_link::attacker::attacker";
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.env(PLAN, plan.words()).env(NAME, name);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if as_other {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn().unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut attacker = Self { child, commands, answers: BufReader::new(answers) };
        attacker.finish();
        attacker
    }

    /// Attacks a victim that is stopped meanwhile, so that nothing is released before the attacker has closed its own
    /// copies. Returns the number of files that the kernel accepted.
    pub(crate) fn attack(&mut self, victim: &Peer) -> usize {
        victim.stop();
        writeln!(self.commands).unwrap();
        let sent = self.finish();
        victim.go_on();
        sent
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn finish(&mut self) -> usize {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the attacker has ended");
            if let Some((_, sent)) = line.split_once(MARK) {
                return sent.trim().parse().unwrap();
            }
        }
    }
}

/// Ends the attacker, which releases all lingering files.
impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A socket that is released when its last descriptor is closed, which takes an hour because the other end does not
/// read.
struct Lingering {
    listener: TcpListener,
    ends: Vec<TcpStream>,
}

impl Lingering {
    fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), ends: Vec::new() }
    }

    fn make(&mut self) -> OwnedFd {
        let socket = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        self.ends.push(self.listener.accept().unwrap().0);
        sockopt::set_socket_linger(&socket, Some(HOUR)).unwrap();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let bytes = [0; 1 << 16];
        while send(&socket, &bytes, flags) != Err(Errno::AGAIN) {}
        socket.into()
    }
}

/// Sends the files, and holds what must stay open until the attacker ends.
struct Arms {
    lingering: Lingering,
    kept: Vec<OwnedFd>,
    sent: usize,
}

impl Arms {
    /// Sends a file `times` times in one message, and closes the local copy.
    fn send(&mut self, socket: &OwnedFd, bytes: &[u8], times: usize) {
        let file = self.lingering.make();
        if say(socket, bytes, &vec![file.as_fd(); times]) {
            self.sent += 1;
        } else {
            // Closing this one would take an hour here.
            self.kept.push(file);
        }
    }
}

/// Runs the attack, and returns when standard input ends.
fn obey() {
    let (plan, name) = (std::env::var(PLAN).unwrap(), std::env::var(NAME).unwrap());
    let (plan, count) = plan.split_once(' ').unwrap();
    let count = count.parse().unwrap();
    let mut arms = Arms { lingering: Lingering::new(), kept: Vec::new(), sent: 0 };
    match plan {
        "strangers" => strangers(&mut arms, &name, count),
        "guests" => guests(&mut arms, &name, count),
        "fuse" => fuse_file(&mut arms, &name, count),
        "names" => names(&mut arms, &name, count),
        "fuse-grant" => squatter(&mut arms, &name, count, Some(&Terms::FINE.bytes())),
        "fuse-versions" => squatter(&mut arms, &name, count, Some(&[VERSIONS])),
        _ => squatter(&mut arms, &name, count, None),
    }
    println!("{MARK}{}", arms.sent);
    wait_for_line();
    // Without waiting for files that could not be sent.
    fork::leave();
}

/// Reports that the attacker is ready, and waits for the command to attack.
fn wait_until_called() {
    println!("{MARK}0");
    wait_for_line();
}

fn wait_for_line() {
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn strangers(arms: &mut Arms, name: &str, count: usize) {
    wait_until_called();
    arms.kept.extend((0..300).map(|_| connect_patiently(name)));
    for number in 0..count {
        let socket = connect_patiently(name);
        arms.send(&socket, &[VERSION], 1);
        if number % 2 == 0 {
            arms.kept.push(socket);
        }
    }
}

fn guests(arms: &mut Arms, name: &str, count: usize) {
    let (mut asked, mut connected) = (Vec::new(), Vec::new());
    for number in 0..count {
        if number % 3 == 2 {
            let to = Connection::patiently_to(name);
            to.wait_until_read();
            connected.push(to.socket);
        } else {
            let socket = connect_patiently(name);
            assert!(wait_until_asked(&socket));
            asked.push((socket, 1 + number % 3 * 2));
        }
    }
    wait_until_called();
    connected.iter().for_each(|socket| arms.send(socket, &[0], 1));
    asked.iter().for_each(|(socket, files)| arms.send(socket, &[VERSION], *files));
    arms.kept.extend(connected.into_iter().chain(asked.into_iter().map(|(socket, _)| socket)));
}

fn fuse_file(arms: &mut Arms, name: &str, count: usize) {
    let sockets: Vec<OwnedFd> = (0..count).map(|_| connect_patiently(name)).collect();
    assert!(sockets.iter().all(wait_until_asked));
    wait_until_called();
    // The file stays open only briefly: at its end this process would wait for an answer from itself.
    match fuse::file() {
        Ok(file) => {
            for (number, socket) in sockets.iter().enumerate() {
                let files = vec![file.as_fd(); 1 + number % 3];
                arms.sent += usize::from(say(socket, &[VERSION], &files));
            }
        }
        Err(why) => eprintln!("cannot open a FUSE file: {why}"),
    }
    arms.kept.extend(sockets);
}

/// Binds all names with the prefix `name`.
fn names(arms: &mut Arms, name: &str, count: usize) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    arms.kept.extend((0..count).map(|slot| listen_at(&format!("{name}{slot:03x}")).unwrap()));
    wait_until_called();
}

/// Sends that message with a FUSE file, or a lingering socket if there is none.
fn squatter(arms: &mut Arms, name: &str, count: usize, with_fuse: Option<&[u8]>) {
    let mut listener = None;
    // Until its `exec`, a child of the tests keeps the socket open with which they found a free name.
    until("the name is free", || {
        listener = listen_at(name).ok();
        listener.is_some()
    });
    let listener = listener.unwrap();
    wait_until_called();
    for _ in 0..count {
        let socket = accept(&listener).unwrap();
        match with_fuse {
            None => arms.send(&socket, &[VERSION], 1),
            Some(message) => match fuse::file() {
                Ok(file) => arms.sent += usize::from(say(&socket, message, &[file.as_fd()])),
                Err(why) => eprintln!("cannot open a FUSE file: {why}"),
            },
        }
        arms.kept.push(socket);
    }
}
