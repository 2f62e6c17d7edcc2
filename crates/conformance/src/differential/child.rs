//! Runs programs on one device, one after the other, in a separate process. Each device has its own
//! process, so a crash or hang on one device does not affect another device.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{env, io, thread};

use anyhow::{Context as _, Result, bail};
use test_support::program::this_program;

use super::program::Program;
use super::run;
use super::trace::Trace;
use crate::devices;

/// The environment variable that marks a child process; its value is the device's name.
const VARIABLE: &str = "RDMA_TEST_DIFFERENTIAL";

/// The time limit for one program, far longer than any working device needs.
const LIMIT: Duration = Duration::from_secs(100);

/// If this process was started for a device, runs the programs that the parent sends and returns
/// true.
pub(super) fn serve() -> bool {
    let Ok(name) = env::var(VARIABLE) else { return false };
    let device = devices::prepare(&name);
    let context = device.open();
    for line in io::stdin().lines() {
        let line = line.expect("the parent's pipe is readable");
        let program = Program::from_json(&line).expect("the parent sends a program");
        let trace = run::run(&context, &program, !devices::is_rxe(&name));
        println!("{}", serde_json::to_string(&trace).expect("a trace is plain data"));
    }
    true
}

/// Returns the command that starts a device's process. For a device that sends over UDP, the
/// process gets its own network namespace, because SoftRoCE may occupy the port in the current one.
/// If this user may not create namespaces (root may), the process stays in the current one.
fn command(device: &str) -> Command {
    const UP: &str = "ip link set lo up";
    let isolated = |then: &str| {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", &format!("{UP} {then}"), "sh"]);
        command
    };
    let program = this_program();
    let works = || isolated("").output().is_ok_and(|output| output.status.success());
    if !devices::is_by_network(device) || !works() {
        return program;
    }
    let mut command = isolated("&& exec \"$@\"");
    command.arg(program.get_program()).args(program.get_args());
    command
}

/// A device and the process that runs its programs. The process is restarted after it dies.
pub(super) struct Device {
    pub(super) name: String,
    process: Option<Process>,
}

struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<io::Result<String>>,
}

impl Device {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), process: None }
    }

    /// Runs the program on the device. Returns the trace, or an error if the process dies or
    /// exceeds the time limit.
    pub(super) fn run(&mut self, program: &Program) -> Result<Trace> {
        let trace = self.try_run(program);
        if trace.is_err() {
            self.process = None;
        }
        trace.with_context(|| format!("in the process of {}", self.name))
    }

    fn try_run(&mut self, program: &Program) -> Result<Trace> {
        let process = match &mut self.process {
            Some(process) => process,
            None => self.process.insert(Process::start(&self.name)?),
        };
        writeln!(process.input, "{}", program.to_json())?;
        let Ok(line) = process.lines.recv_timeout(LIMIT) else {
            let status = process.child.try_wait()?;
            bail!("the process died ({status:?}), or took longer than {LIMIT:?}");
        };
        Ok(serde_json::from_str(&line?)?)
    }
}

impl Process {
    fn start(device: &str) -> Result<Self> {
        let mut child = command(device)
            .env(VARIABLE, device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("the process has no input")?;
        let output = child.stdout.take().context("the process has no output")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, input, lines })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
