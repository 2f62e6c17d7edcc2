mod bad_input;
mod endings;
mod figures;
mod schema;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Returns a command that runs `rdmatool perf` with these arguments, separated by spaces, by default on `soft0`.
fn perf(arguments: &str) -> Command {
    let mut program = crate::program(&["perf"]);
    program.args(arguments.split_whitespace()).env("RDMA_DEVICE", "soft0");
    program
}

/// A process that serves clients, and is killed if the test fails.
struct Listener {
    process: Child,
    lines: Option<BufReader<ChildStdout>>,
    address: String,
}

impl Listener {
    /// Starts it for one client, and waits until it listens.
    fn start(command: &mut Command) -> Self {
        Self::start_many(command.arg("--once"))
    }

    /// Starts it for any number of clients, and waits until it listens.
    fn start_many(command: &mut Command) -> Self {
        let command = command.args(["--listen", "127.0.0.1:0"]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = process.stdout.take().map(BufReader::new);
        let mut listener = Self { process, lines, address: String::new() };
        let line = listener.line();
        listener.address =
            line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        listener
    }

    /// Returns the next line of its standard output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for its end.
    fn finish(mut self) -> Output {
        let status = self.process.wait().unwrap();
        let mut stderr = Vec::new();
        std::io::Read::read_to_end(self.process.stderr.as_mut().unwrap(), &mut stderr).unwrap();
        Output { status, stdout: Vec::new(), stderr }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns standard error as text.
fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the standard output of a run that succeeds.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}
