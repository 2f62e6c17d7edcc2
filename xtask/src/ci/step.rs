//! The command lines of a job, and how they are run.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Error, Result, bail, ensure};

use super::load::Load;
use super::seconds;
use super::setting::Setting;

/// Commands to run from the root. Each consists of words separated by spaces, and is run without a
/// shell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    lines: Lines,
    env: &'static [(&'static str, &'static str)],
    tests: bool,
    rounds: u32,
    loaded: bool,
    /// The time limit in seconds. When it has passed, the command is killed, but only if `CI` is
    /// set.
    limit_s: u32,
}

#[derive(Clone, Copy, Debug)]
enum Lines {
    One(&'static str),
    /// Commands that run two at a time.
    Many(&'static [&'static str]),
}

const fn step(lines: Lines) -> Step {
    Step { lines, env: &[], tests: false, rounds: 1, loaded: false, limit_s: 1800 }
}

/// Returns a step with one command, which must succeed.
pub(crate) const fn run(line: &'static str) -> Step {
    step(Lines::One(line))
}

/// Returns a step with one command that runs tests. The command must succeed, and at least one test
/// must have run.
pub(crate) const fn tests(line: &'static str) -> Step {
    Step { tests: true, ..step(Lines::One(line)) }
}

/// Returns a step with several commands, which run two at a time and must all succeed. The output
/// of a successful command is printed when the command is done. The output of failed commands is
/// printed after all others.
pub(crate) const fn two_at_a_time(lines: &'static [&'static str]) -> Step {
    step(Lines::Many(lines))
}

/// Like [`two_at_a_time`], for commands that run tests. In each, at least one test must have run.
pub(crate) const fn tests_two_at_a_time(lines: &'static [&'static str]) -> Step {
    Step { tests: true, ..step(Lines::Many(lines)) }
}

impl Step {
    pub(crate) const fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    /// Makes the step run this many times in sequence, while two loops for each processor keep the
    /// machine busy.
    pub(crate) const fn under_load(self, rounds: u32) -> Self {
        Self { rounds, loaded: true, limit_s: 4 * 1800, ..self }
    }

    pub(crate) fn run(&self, setting: &Setting) -> Result<()> {
        let _load = self.loaded.then(Load::start);
        for round in 1..=self.rounds {
            let begin = Instant::now();
            if self.rounds > 1 {
                println!("+ round {round} of {}", self.rounds);
            }
            match self.lines {
                Lines::One(line) => self.show(&setting.fill(line), setting)?,
                Lines::Many(lines) => self.two_at_a_time(lines, setting)?,
            }
            println!("+ took {}", seconds(begin.elapsed()));
        }
        Ok(())
    }

    /// Runs a command, and prints its output while it runs.
    fn show(&self, line: &str, setting: &Setting) -> Result<()> {
        println!("+ {}", self.shown(line, setting));
        let mut command = self.command(line, setting)?;
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("starting `{line}`"))?;
        let stdout = child.stdout.take().context("the step has no output")?;
        let passed = copy_and_count(BufReader::new(stdout))?;
        self.succeeded(child.wait()?, passed, line)
    }

    fn two_at_a_time(&self, lines: &[&str], setting: &Setting) -> Result<()> {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let worker = || {
            while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
                let line = setting.fill(line);
                let (said, outcome) = self.captured(&line, setting);
                match outcome {
                    Ok(()) => self.print(&line, setting, &said),
                    Err(error) => {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push((line, said, error));
                    }
                }
            }
        };
        thread::scope(|threads| {
            threads.spawn(worker);
            threads.spawn(worker);
        });
        let failed: Vec<(String, Vec<u8>, Error)> =
            failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (line, said, _) in &failed {
            self.print(line, setting, said);
        }
        let errors: Vec<_> = failed.iter().map(|(.., error)| format!("{error:#}")).collect();
        ensure!(errors.is_empty(), "{}", errors.join("; "));
        Ok(())
    }

    /// Runs a command. Returns its output, from both of its streams, and whether it succeeded.
    fn captured(&self, line: &str, setting: &Setting) -> (Vec<u8>, Result<()>) {
        let mut said = Vec::new();
        let mut run = || -> Result<()> {
            let (mut output, writer) = io::pipe().context("a pipe")?;
            let mut command = self.command(line, setting)?;
            let child = command.stdout(writer.try_clone()?).stderr(writer).spawn();
            let mut child = child.with_context(|| format!("starting `{line}`"))?;
            drop(command); // Now only the child can write, so the output ends when the child exits.
            output.read_to_end(&mut said)?;
            let passed = String::from_utf8_lossy(&said).lines().map(passed_in).sum();
            self.succeeded(child.wait()?, passed, line)
        };
        let outcome = run();
        (said, outcome)
    }

    fn succeeded(&self, status: ExitStatus, passed: usize, line: &str) -> Result<()> {
        if status.signal() == Some(9) {
            bail!("{status}, as when its limit of {} s has passed: `{line}`", self.limit_s);
        }
        if !status.success() {
            bail!("{status}: `{line}`");
        }
        ensure!(!self.tests || passed > 0, "no test ran, so it shows nothing: `{line}`");
        Ok(())
    }

    fn print(&self, line: &str, setting: &Setting, said: &[u8]) {
        let mut out = io::stdout().lock();
        // If nothing reads the output any more, printing fails, which is ignored.
        let _ = writeln!(out, "+ {}", self.shown(line, setting));
        let _ = out.write_all(said);
    }

    /// Returns the command line as one would type it in a shell.
    fn shown(&self, line: &str, setting: &Setting) -> String {
        let env = self.env.iter().map(|(k, v)| (setting.fill(k), setting.fill(v)));
        let env: String = env.map(|(key, value)| format!("{key}='{value}' ")).collect();
        format!("{env}{line}")
    }

    fn command(&self, line: &str, setting: &Setting) -> Result<Command> {
        // In CI, a step that hangs is killed. `timeout` also kills the processes that the step has
        // started, even those that ignore other signals: the output ends when none has it open.
        let limit = std::env::var_os("CI");
        let limit = limit.map(|_| format!("timeout --signal=KILL {}", self.limit_s));
        let limit = limit.unwrap_or_default();
        let mut words = limit.split_whitespace().chain(line.split_whitespace());
        let program = words.next().context("an empty step")?;
        let mut command = Command::new(program);
        command.args(words).current_dir(&setting.root).stdin(Stdio::null());
        // `cargo run` sets these variables. If they stayed set, build scripts would run again.
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&key);
            }
        }
        command.envs(self.env.iter().map(|(k, v)| (setting.fill(k), setting.fill(v))));
        Ok(command)
    }
}

/// Prints the output, and counts the tests that passed according to it.
fn copy_and_count(mut output: impl BufRead) -> Result<usize> {
    let (mut passed, mut line) = (0, Vec::new());
    while output.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        passed += passed_in(&text);
        line.clear();
    }
    Ok(passed)
}

/// Returns the number of passed tests in libtest's summary, `test result: ok. 3 passed; 0 failed;
/// …`.
fn passed_in(line: &str) -> usize {
    let count = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "));
    count.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::tree;

    fn setting() -> Setting {
        Setting::of(&tree::root()).unwrap()
    }

    #[test]
    fn a_missing_program_and_a_failing_one_are_errors_that_name_it() {
        let error = run("no-such-program x").run(&setting()).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program"));
        let error = run("cargo no-such-command").run(&setting()).unwrap_err();
        assert!(error.to_string().contains("cargo no-such-command"), "{error}");
    }

    #[test]
    fn the_environment_reaches_the_command() {
        run("printenv A").with(&[("A", "1")]).run(&setting()).unwrap();
        run("printenv A").run(&setting()).unwrap_err();
    }

    #[test]
    fn a_test_step_without_a_test_fails() {
        let none = tests("echo test result: ok. 0 passed; 0 failed;");
        assert!(none.run(&setting()).unwrap_err().to_string().contains("no test ran"));
        tests("echo test result: ok. 2 passed; 0 failed;").run(&setting()).unwrap();
        const SOME: &str = "echo test result: ok. 2 passed; 0 failed;";
        tests_two_at_a_time(&[SOME, SOME]).run(&setting()).unwrap();
        let error = tests_two_at_a_time(&[SOME, "true"]).run(&setting()).unwrap_err().to_string();
        assert!(error.contains("no test ran") && error.contains("`true`"), "{error}");
    }

    #[test]
    fn all_parallel_commands_run_and_each_failure_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mark = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (first, last) = (mark("first"), mark("last"));
        let touch = |path: &str| &*format!("touch {path}").leak();
        let lines: Vec<&str> = vec![touch(&first), "false one", "false two", touch(&last)];
        let error = two_at_a_time(lines.leak()).run(&setting()).unwrap_err().to_string();
        assert!(error.contains("`false one`") && error.contains("`false two`"), "{error}");
        assert!([first, last].iter().all(|path| std::path::Path::new(path).exists()));
        two_at_a_time(&["true", "true", "true"]).run(&setting()).unwrap();
    }

    #[test]
    fn two_run_at_a_time() {
        // Each of the two commands waits for a byte from the other one, so they succeed only if
        // both run at the same time.
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        for path in [&one, &other] {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        }
        let line = |from: &std::path::Path, to: &std::path::Path| {
            let script = folder.path().join(from.file_name().unwrap()).with_extension("sh");
            let text = format!(
                "exec 3<>{0} 4<>{1}; echo x >&4; head -c1 <&3 >/dev/null",
                from.display(),
                to.display()
            );
            std::fs::write(&script, text).unwrap();
            &*format!("timeout 60 sh {}", script.display()).leak()
        };
        let lines = vec![line(&one, &other), line(&other, &one)];
        two_at_a_time(lines.leak()).run(&setting()).unwrap();
    }

    #[test]
    fn the_output_of_each_parallel_command_is_kept_whole() {
        let line = "sh -c echo";
        let (said, outcome) = run("").captured(line, &setting());
        assert_eq!((said, outcome.is_ok()), (b"\n".to_vec(), true));
        let (said, outcome) = run("").captured("ls /no/such/folder", &setting());
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("/no/such/folder") && outcome.is_err(), "{said}");
    }

    #[test]
    fn a_step_under_load_runs_in_each_round() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = format!(
            "dd if=/dev/zero of={} bs=1 count=1 oflag=append conv=notrunc",
            file.path().display()
        );
        run(line.leak()).under_load(3).run(&setting()).unwrap();
        assert_eq!(file.as_file().metadata().unwrap().len(), 3);
    }
}
