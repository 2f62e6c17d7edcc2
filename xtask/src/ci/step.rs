//! One command line of a job.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use cargo_metadata::MetadataCommand;

/// Folders of the target folder that more than one job uses.
const SHARED_OUTPUTS: &[&str] = &["debug", "release", "rxe", "tmp"];

/// Where the jobs run.
pub(crate) struct Setting {
    pub(crate) root: PathBuf,
    /// cargo's target folder; `{target}` in a line.
    target: String,
    /// The triple of this machine; `{host}`.
    host: String,
    /// The oldest compiler, from the root manifest; `{msrv}`.
    msrv: String,
}

impl Setting {
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
        let msrv = metadata.packages.iter().find_map(|package| package.rust_version.as_ref());
        let msrv = msrv.context("no crate has a `rust-version`")?;
        let rustc = Command::new("rustc").arg("-vV").output().context("starting rustc")?;
        let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
        Ok(Self {
            root: root.to_path_buf(),
            target: metadata.target_directory.to_string(),
            host: host.context("`rustc -vV` does not say its host")?.to_owned(),
            msrv: format!("{}.{}", msrv.major, msrv.minor),
        })
    }

    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("{target}", &self.target)
            .replace("{host}", &self.host)
            .replace("{HOST}", &self.host.to_uppercase().replace('-', "_"))
            .replace("{msrv}", &self.msrv)
    }
}

impl Setting {
    /// The folders of the target folder.
    pub(crate) fn outputs(&self) -> Result<Vec<PathBuf>> {
        let Ok(entries) = fs::read_dir(&self.target) else { return Ok(Vec::new()) };
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
        Ok(folders)
    }

    /// Removes the folders that a job has made in the target folder, but for those that other jobs use, too.
    pub(crate) fn remove_outputs_but(&self, before: &[PathBuf]) -> Result<()> {
        for folder in self.outputs()? {
            let is_shared = SHARED_OUTPUTS.iter().any(|name| folder.ends_with(name));
            if !is_shared && !before.contains(&folder) {
                let failed = || format!("removing {}", folder.display());
                fs::remove_dir_all(&folder).with_context(failed)?;
            }
        }
        Ok(())
    }
}

/// A command: words separated by blanks, run without a shell from the root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    line: &'static str,
    env: &'static [(&'static str, &'static str)],
    tests: bool,
}

/// A command that has to succeed.
pub(crate) const fn run(line: &'static str) -> Step {
    Step { line, env: &[], tests: false }
}

/// A run of tests that has to succeed and to have run at least one.
pub(crate) const fn tests(line: &'static str) -> Step {
    Step { line, env: &[], tests: true }
}

impl Step {
    pub(crate) const fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    pub(crate) fn run(&self, setting: &Setting) -> Result<()> {
        let line = setting.fill(self.line);
        let env: Vec<_> =
            self.env.iter().map(|(k, v)| (setting.fill(k), setting.fill(v))).collect();
        let shown: String = env.iter().map(|(key, value)| format!("{key}='{value}' ")).collect();
        println!("+ {shown}{line}");

        // Where nobody watches, a step that hangs is ended; `timeout` ends its children too.
        let limit = std::env::var_os("CI").map_or("", |_| "timeout --kill-after=30 1800");
        let mut words = limit.split_whitespace().chain(line.split_whitespace());
        let program = words.next().context("an empty step")?;
        let mut command = Command::new(program);
        command.args(words).current_dir(&setting.root).stdin(Stdio::null()).stdout(Stdio::piped());
        // `cargo run` left its mark, which would make build scripts run again.
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&key);
            }
        }
        let child = command.envs(env).spawn();
        let mut child = child.with_context(|| format!("starting `{program}`"))?;
        let stdout = child.stdout.take().context("the step has no output")?;
        let passed = copy_and_count(BufReader::new(stdout))?;
        let status = child.wait()?;
        if !status.success() {
            bail!("{status}: `{line}`");
        }
        ensure!(!self.tests || passed > 0, "no test ran, so it shows nothing: `{line}`");
        Ok(())
    }
}

/// Passes the output on and adds up the tests that passed in it.
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

/// The count in libtest's summary, `test result: ok. 3 passed; 0 failed; …`.
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
    fn what_a_job_has_built_for_itself_is_removed() {
        let target = tempfile::tempdir().unwrap();
        let path = |name: &str| target.path().join(name);
        let make = |name: &str| fs::create_dir_all(path(name).join("deps")).unwrap();
        let setting = Setting { target: target.path().to_str().unwrap().to_owned(), ..setting() };
        make("doc");
        fs::write(path("log"), "").unwrap();
        let before = setting.outputs().unwrap();
        ["debug", "asan"].into_iter().for_each(make);
        setting.remove_outputs_but(&before).unwrap();
        let is_there = ["debug", "asan", "doc", "log"].map(|name| path(name).exists());
        assert_eq!(is_there, [true, false, true, true]);
    }

    #[test]
    fn placeholders_are_filled() {
        let setting = setting();
        let filled = setting.fill("{target}/x {host} CARGO_TARGET_{HOST}_RUNNER +{msrv}");
        assert!(!filled.contains('{') && filled.contains("_LINUX_GNU_RUNNER +1."), "{filled}");
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
    }
}
