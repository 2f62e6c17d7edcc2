//! A program that runs with the drop-in, and its output.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, PipeReader, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// The limit in seconds after which a program is killed. It only ends programs that hang.
pub(super) const LIMIT: &str = "100";

/// The time between two reads of the list of listening sockets. The kernel does not report its changes.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Variables for a program.
pub(super) type Environment = [(&'static str, String)];

#[derive(Debug)]
pub(super) struct Process {
    /// `timeout`, which runs the program. Both are in a process group of their own.
    child: Child,
    line: String,
    output: Arc<Output>,
    reader: Option<JoinHandle<()>>,
}

/// The text that a process has written to its output and error streams.
#[derive(Debug, Default)]
struct Output {
    /// The text, and whether all processes have closed the streams.
    text: Mutex<(String, bool)>,
    changed: Condvar,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, (String, bool)> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects the text until the streams end.
    fn collect(&self, mut from: PipeReader) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            self.lock().0.push_str(&String::from_utf8_lossy(&bytes[..count]));
            self.changed.notify_all();
        }
        self.lock().1 = true;
        self.changed.notify_all();
    }
}

/// A process that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    line: String,
    status: ExitStatus,
    pub(super) output: String,
}

impl Ended {
    pub(super) fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// Returns true if the program exited with an error, and was not killed.
    pub(super) fn exited_with_error(&self) -> bool {
        // A signal that kills the program also kills `timeout`, so there is no exit status.
        self.status.code().is_some_and(|code| code != 0)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, status, output } = self;
        let killed = match status.signal() {
            Some(_) => format!(" (programs are killed after {LIMIT} s)"),
            None => String::new(),
        };
        write!(f, "--- {line}\n{}\n--- {status}{killed}", output.trim_end())
    }
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// Returns an error if the program `timeout` of coreutils cannot be started.
    pub(super) fn start(words: &[String], environment: &Environment) -> Result<Self> {
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", LIMIT]).args(words);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        let child = command.spawn().context("starting `timeout`, a program of coreutils")?;
        // The command has the only writers in this process. The output ends when they are closed.
        drop(command);
        let output = Arc::<Output>::default();
        let collector = Arc::clone(&output);
        let reader = Some(thread::spawn(move || collector.collect(reader)));
        Ok(Self { child, line: words.join(" "), output, reader })
    }

    /// Waits until a process listens on this TCP port. Returns `false` if this program ends first.
    pub(super) fn listens(&self, port: u16) -> bool {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
        self.reaches(|| tables.iter().any(|path| has_listener(&read(path), port)))
    }

    /// Waits until a process listens on this port of rdma_cm. Returns `false` if this program ends first.
    pub(super) fn listens_by_address(&self, port: u16) -> bool {
        self.reaches(|| has_service(&read("/proc/net/unix"), port))
    }

    /// Waits until an interface of this host is a member of a multicast group. Returns `false` if this program ends first.
    pub(super) fn joins(&self, group: Ipv4Addr) -> bool {
        self.reaches(|| has_member(&read("/proc/net/igmp"), group))
    }

    /// Waits until a condition is true. Returns `false` if this program ends first.
    fn reaches(&self, is_true: impl Fn() -> bool) -> bool {
        let mut output = self.output.lock();
        while !output.1 {
            if is_true() {
                return true;
            }
            let waited = self.output.changed.wait_timeout(output, LOOK_AGAIN);
            output = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Waits until the output contains one of these texts. Returns `false` if the program ends first.
    pub(super) fn prints(&self, texts: &[&str]) -> bool {
        let has_one = |output: &str| texts.iter().any(|text| output.contains(text));
        let output = self.output.lock();
        let missing = |output: &mut (String, bool)| !has_one(&output.0) && !output.1;
        let output = self.output.changed.wait_while(output, missing);
        has_one(&output.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Sends a signal to the program and to the programs that it has started.
    ///
    /// # Errors
    /// Returns an error if they have all ended.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let group = Pid::from_raw(self.child.id().cast_signed());
        kill_process_group(group.context("a process has no number")?, signal)
            .with_context(|| format!("{} has ended, and cannot receive a signal", self.line))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// Returns an error if another thread has waited for the program.
    pub(super) fn end(mut self) -> Result<Ended> {
        if let Some(reader) = self.reader.take() {
            reader.join().ok().context("the thread that reads the output panicked")?;
        }
        let status = self.child.wait()?;
        let output = std::mem::take(&mut self.output.lock().0);
        Ok(Ended { line: std::mem::take(&mut self.line), status, output })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.signal(Signal::KILL); // fails if the program ends now
            let _ = self.child.wait();
        }
    }
}

/// Returns a TCP port on which no process listens. It is below the range from which the kernel
/// chooses ports for other programs.
///
/// # Errors
/// Returns an error if the host has no free port.
pub(super) fn free_port() -> Result<u16> {
    let random = RandomState::new().build_hasher().finish() % 20_000;
    let first = 10_000 + u16::try_from(random)?;
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    (first..32_768).find(is_free).context("no TCP port is free")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns true if a table of sockets, in the form of `/proc/net/tcp`, has a listener on this port.
fn has_listener(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|local| local.ends_with(&end)) && state == Some("0A")
    })
}

/// Returns true if a table of sockets, in the form of `/proc/net/unix`, has a listener of `rdma-cm` on this port. The port
/// is in the port space for connections, or in that for datagrams.
fn has_service(table: &str, port: u16) -> bool {
    const LISTENS: &str = "00010000";
    let ends = [0x0106, 0x0111].map(|space| format!("/{:#018x}", space << 16 | u64::from(port)));
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, flags, .., name] = words[..] else { return false };
        flags == LISTENS
            && name.starts_with("@rdma-cm/")
            && ends.iter().any(|end| name.ends_with(end))
    })
}

/// Returns true if a table of memberships, in the form of `/proc/net/igmp`, has this group.
fn has_member(table: &str, group: Ipv4Addr) -> bool {
    let [a, b, c, d] = group.octets();
    let group = format!("{d:02X}{c:02X}{b:02X}{a:02X}");
    table.lines().any(|line| line.split_whitespace().next() == Some(group.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_in_the_table_of_memberships() {
        let table = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n1\tlo        :     2      V3\n\
            \t\t\t\t0307FFEF     1 0:00000000\t\t0\n";
        assert!(has_member(table, Ipv4Addr::new(239, 255, 7, 3)));
        assert!(!has_member(table, Ipv4Addr::new(239, 255, 3, 7)));
    }

    #[test]
    fn a_service_is_found_in_the_table_of_unix_sockets() {
        let line = "0000000000000000: 00000002 00000000 00010000 0005 01 40341 \
            @rdma-cm/1/5254:0000:0000:0001/0x0000000001061d2f\n";
        assert!(has_service(line, 7471));
        assert!(has_service(&line.replace("0106", "0111"), 7471));
        assert!(!has_service(line, 7472));
        assert!(!has_service(&line.replace("00010000", "00000000"), 7471));
        assert!(!has_service(&line.replace("0106", "0107"), 7471));
    }

    fn start(script: &str) -> Process {
        let words = ["sh", "-c", script].map(str::to_owned);
        Process::start(&words, &[("WORD", "blue".to_owned())]).unwrap()
    }

    #[test]
    fn the_output_of_both_streams_and_the_status_are_collected() {
        let ended = start("echo $WORD; echo red >&2; exit 3").end().unwrap();
        assert_eq!(ended.output, "blue\nred\n");
        assert!(!ended.succeeded() && ended.exited_with_error());
        assert!(ended.to_string().ends_with("red\n--- exit status: 3"), "{ended}");
        assert!(start("true").end().unwrap().succeeded());
        assert!(!start("kill -KILL $$").end().unwrap().exited_with_error());
    }

    #[test]
    fn text_that_a_running_program_prints_is_seen() {
        let process = start("echo ready; exec sleep 90");
        assert!(process.prints(&["steady", "ready"]));
        assert!(!process.output.lock().1, "the program still runs");
        process.signal(Signal::KILL).unwrap();
        let ended = process.end().unwrap();
        assert!(!ended.succeeded() && !ended.exited_with_error());
        assert!(!start("echo ready").prints(&["steady", "go"]));
    }

    #[test]
    fn a_listening_socket_is_found_and_a_missing_one_ends_the_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(start("exec sleep 90").listens(port));
        // No socket listens at port 0. Another test could take any other port.
        assert!(!start("true").listens(0));
        let table =
            "  0: 0100007F:1F90 00000000:0000 0A 0\n  1: 0100007F:1F91 0100007F:1F90 01 0\n";
        assert!(has_listener(table, 8080) && !has_listener(table, 8081));
    }
}
