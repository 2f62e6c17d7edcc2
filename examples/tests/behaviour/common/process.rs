//! Examples as processes.
#![allow(dead_code)] // not every test needs all of it

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The names of all examples.
pub(crate) fn programs() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let files = fs::read_dir(folder).unwrap().map(|file| name(&file.unwrap().path()));
    let mut names: Vec<_> = files.collect();
    names.sort();
    names
}

/// Returns the path of an example's program.
fn program(name: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(program.exists(), "`cargo build -p rdma-examples --examples` makes the program");
    program.to_str().unwrap().to_owned()
}

/// Returns the command of an example, which is killed if it takes too long.
pub(crate) fn command(name: &str, options: &[&str]) -> Command {
    limited(&program(name), options)
}

/// Returns the command of an example that the test kills: its own process, without a time limit.
pub(crate) fn unlimited(name: &str, options: &[&str]) -> Command {
    let mut command = Command::new(program(name));
    command.args(options);
    command
}

fn limited(program: &str, options: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", "60", program]).args(options);
    command
}

/// A process that is killed if it has not ended in time.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Starts an example.
    pub(crate) fn example(name: &str, options: &[&str]) -> Self {
        Self::start(&program(name), options)
    }

    /// Starts an example that the test kills: its own process, without a time limit.
    pub(crate) fn to_kill(name: &str, options: &[&str]) -> Self {
        Self::of(unlimited(name, options).stdin(Stdio::piped()))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn start(program: &str, options: &[&str]) -> Self {
        Self::of(&mut limited(program, options))
    }

    /// Returns the address at which it listens, as soon as it does.
    pub(crate) fn address(&mut self) -> String {
        self.line("listening on ")
    }

    /// Returns the rest of the line that begins with `begin`, as soon as it is printed.
    pub(crate) fn line(&mut self, begin: &str) -> String {
        let (output, mut text) = (self.0.stdout.as_mut().unwrap(), String::new());
        loop {
            let mut byte = [0];
            assert_eq!(output.read(&mut byte).unwrap(), 1, "it ended: {text}");
            text.push(byte[0].into());
            let line = text.strip_suffix('\n').and_then(|text| text.lines().last());
            if let Some(rest) = line.and_then(|line| line.strip_prefix(begin)) {
                return rest.to_owned();
            }
        }
    }

    pub(crate) fn end(self) -> Output {
        self.0.wait_with_output().unwrap()
    }

    /// Checks that it fails with an error message and not a panic, and returns the message.
    #[track_caller]
    pub(crate) fn fail(self) -> String {
        let output = self.end();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("error: ") && !text.contains("panicked"), "{text}");
        text
    }

    /// Checks that it succeeds, and returns its last line of output.
    pub(crate) fn succeed(self) -> String {
        let output = self.end();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().last().unwrap_or_default().to_owned()
    }
}

/// Runs both sides as processes, and returns the last line of each.
pub(crate) fn processes(name: &str, options: &[&str]) -> [String; 2] {
    let mut listens = Process::example(name, &[options, &["--listen", "127.0.0.1:0"]].concat());
    let address = listens.address();
    let connects = Process::example(name, &[options, &["--connect", &address]].concat());
    [connects, listens].map(Process::succeed)
}
