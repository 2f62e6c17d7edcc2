//! `cargo xtask sim`: runs the simulator, or checks that it finds certain planted faults
//! (`--planted`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::tree::{self, Tree};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The seed of all workloads; by default derived from the clock
    #[arg(long)]
    seed: Option<String>,
    /// The minimum number of packets to send
    #[arg(long)]
    packets: Option<u64>,
    /// Run fresh seeds one after another for this number of hours
    #[arg(long)]
    hours: Option<f64>,
    /// Run only the workload with this seed
    #[arg(long)]
    workload: Option<String>,
    /// Run workloads of messages and streams instead, until this number of messages and a thousand times
    /// as many bytes of streams have arrived
    #[arg(long)]
    messages: Option<u64>,
    /// Run only the workload of messages and streams with this seed
    #[arg(long)]
    conversation: Option<String>,
    /// Run this number of random groups of ranks instead
    #[arg(long)]
    groups: Option<u64>,
    /// Run only the group of ranks with this seed
    #[arg(long)]
    group: Option<String>,
    /// The maximum number of ranks of a group
    #[arg(long)]
    ranks: Option<usize>,
    /// Run this number of random workloads of connections by address instead
    #[arg(long)]
    connections: Option<u64>,
    /// Run only the workload of connections with this seed
    #[arg(long)]
    connection: Option<String>,
    /// Draw the time of collectives by the number of ranks
    #[arg(long, value_name = "FILE.svg")]
    growth: Option<String>,
    /// Plant the faults in crates/sim/faults one after another, or only those whose names begin with
    /// this; each must be found
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = [
            "packets", "hours", "workload", "messages", "conversation", "groups", "group", "connections",
            "connection", "growth",
        ]
    )]
    planted: Option<Option<String>>,
}

const FAULTS: &str = "crates/sim/faults";
/// The time limit for finding a fault.
const LIMIT: Duration = Duration::from_secs(600);
/// The number of times that a test may pass with a fault before the fault counts as not found.
const ATTEMPTS: u32 = 20;

/// The default seed for planted faults, which makes all runs the same.
const SEED: &str = "1";

pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Some(name) = &args.planted {
        return planted(name.as_deref(), args.seed.as_deref().unwrap_or(SEED));
    }
    let mut words = Vec::new();
    let mut option = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("--{name}={value}")));
    };
    option("seed", args.seed.clone());
    option("packets", args.packets.map(|packets| packets.to_string()));
    option("hours", args.hours.map(|hours| hours.to_string()));
    option("workload", args.workload.clone());
    option("messages", args.messages.map(|messages| messages.to_string()));
    option("conversation", args.conversation.clone());
    option("groups", args.groups.map(|groups| groups.to_string()));
    option("group", args.group.clone());
    option("ranks", args.ranks.map(|ranks| ranks.to_string()));
    option("connections", args.connections.map(|workloads| workloads.to_string()));
    option("connection", args.connection.clone());
    option("growth", args.growth.clone());
    let mut cargo = cargo(&tree::root());
    let status =
        cargo.args(["run", "--quiet", "--release", "-p", "sim", "--"]).args(words).status();
    Ok(status.context("starting cargo")?.success())
}

/// Returns a cargo command, without the variables that `cargo run` has set for this program.
pub(crate) fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder);
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&key);
        }
    }
    cargo
}

/// A patch that plants a fault.
pub(crate) struct Fault<'a> {
    name: &'a str,
    pub(crate) path: &'a str,
    text: &'a str,
}

impl<'a> Fault<'a> {
    /// Returns the test that must find the fault, and whether the simulator cannot find it.
    fn test(&self) -> Result<Option<(FaultTest<'a>, bool)>> {
        let line = |prefix| self.text.lines().find_map(|line| line.strip_prefix(prefix));
        let (test, is_only) = match (line("Test: "), line("Only test: ")) {
            (Some(test), _) => (test, false),
            (None, Some(test)) => (test, true),
            (None, None) => return Ok(None),
        };
        Ok(Some((FaultTest::parse(test)?, is_only)))
    }

    /// Returns the option of the simulator that runs workloads which may find the fault.
    fn option(&self) -> &'static str {
        let layers = ["crates/rdma-message/", "crates/rdma-connect/", "crates/rdma-async/"];
        let is_in = |layer: &str| self.text.contains(&format!("+++ b/{layer}"));
        if is_in("crates/rdma-group/") {
            "--groups"
        } else if is_in("crates/rdma-proto/src/cm/") || is_in("crates/rdma-cm/") {
            "--connections"
        } else if layers.into_iter().any(is_in) {
            "--messages"
        } else {
            "--packets"
        }
    }
}

/// A test that passes without a fault, and fails with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FaultTest<'a> {
    package: &'a str,
    /// The test program, or `lib` for the unit tests.
    program: &'a str,
    name: &'a str,
}

impl<'a> FaultTest<'a> {
    /// Parses a package, a test program and the name of a test.
    fn parse(text: &'a str) -> Result<Self> {
        let words: Vec<_> = text.split(' ').collect();
        let &[package, program, name] = words.as_slice() else {
            bail!("`{text}` names no test: state its package, its program or `lib`, and its name");
        };
        Ok(Self { package, program, name })
    }

    /// Returns the arguments of cargo that select the program.
    fn args(self) -> Vec<&'a str> {
        let mut args = vec!["test", "--quiet", "-p", self.package];
        match self.program {
            "lib" => args.push("--lib"),
            program => args.extend(["--test", program]),
        }
        args
    }
}

/// Returns the faults that the tree contains.
pub(crate) fn faults(tree: &Tree) -> impl Iterator<Item = Fault<'_>> {
    tree.ending(&[".patch"]).filter_map(|(path, text)| {
        let name = path.strip_prefix(FAULTS)?.strip_prefix('/')?.strip_suffix(".patch")?;
        Some(Fault { name, path, text })
    })
}

/// Returns the command `git apply` for a folder, which need not be a checkout.
pub(crate) fn git_apply(folder: &Path) -> Result<Command> {
    let mut git = Command::new("git");
    // If the folder is within another repository, git would interpret paths relative to that
    // repository.
    let above = folder.parent().context("the folder is in no other")?;
    git.current_dir(folder).env("GIT_CEILING_DIRECTORIES", above).arg("apply");
    Ok(git)
}

/// Returns a command that runs another one for at most [`LIMIT`], without its messages.
fn limited(command: &Command) -> Command {
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=10", &LIMIT.as_secs().to_string()]);
    limited.arg(command.get_program()).args(command.get_args()).stderr(Stdio::null());
    limited.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// A copy of the tree in which the faults are planted, and the build folder for it.
struct Copy {
    folder: PathBuf,
    target: PathBuf,
}

/// The result of the search for a planted fault.
struct Found {
    build: Duration,
    search: Duration,
    /// The lines that the simulator printed, or one that names a test.
    lines: Vec<String>,
}

fn planted(name: Option<&str>, seed: &str) -> Result<bool> {
    let root = tree::root();
    let tree = Tree::read(&root)?;
    let named = |fault: &Fault<'_>| name.is_none_or(|name| fault.name.starts_with(name));
    let faults: Vec<_> = faults(&tree).filter(named).collect();
    ensure!(!faults.is_empty(), "{FAULTS} has no fault {}", name.unwrap_or_default());
    // Cargo has put this program into the target folder.
    let target = std::env::current_exe()?;
    let target = target.ancestors().nth(2).context("no target folder")?;
    let copy = Copy { folder: target.join("tmp/planted"), target: target.join("planted") };
    let mut rows = Vec::new();
    for fault in &faults {
        copy.restore(&tree)?;
        println!("{}: {}", fault.name, fault.text.lines().next().unwrap_or_default());
        let found = copy.find(fault, seed);
        match &found {
            Ok(found) => println!("{}\n", found.lines.join("\n")),
            Err(why) => println!("not found: {why:#}\n"),
        }
        rows.push((fault.name, found));
    }
    println!("{:<28}{:>8}{:>8}  result", "fault", "build", "search");
    for (name, found) in &rows {
        match found {
            Ok(Found { build, search, lines }) => {
                let (build, search) = (build.as_secs_f64(), search.as_secs_f64());
                let told = |start: &str| lines.iter().find(|line| line.starts_with(start));
                let told = ["found by", "of its", "found after"].into_iter().filter_map(told);
                let told: Vec<_> = told.map(|line| line.trim_end_matches(':')).collect();
                println!("{name:<28}{build:>6.1} s{search:>6.1} s  {}", told.join(", "));
            }
            Err(_) => println!("{name:<28}{:>8}{:>8}  NOT FOUND", "", ""),
        }
    }
    Ok(rows.iter().all(|(_, found)| found.is_ok()))
}

impl Copy {
    /// Restores all files of the tree. Files that have not changed are not written, so they are not
    /// built again.
    fn restore(&self, tree: &Tree) -> Result<()> {
        for (path, text) in tree.ending(&[""]) {
            let to = self.folder.join(path);
            if std::fs::read(&to).is_ok_and(|there| there == text.as_bytes()) {
                continue;
            }
            let folder = to.parent().context("a file is in a folder")?;
            std::fs::create_dir_all(folder)?;
            std::fs::write(&to, text).with_context(|| format!("writing {}", to.display()))?;
        }
        Ok(())
    }

    fn plant(&self, fault: &Fault<'_>) -> Result<()> {
        let status = git_apply(&self.folder)?.arg(fault.path).status().context("starting git")?;
        ensure!(status.success(), "the patch does not apply");
        Ok(())
    }

    /// Finds a fault with its test, if it names one, and with the simulator, if that can find it.
    fn find(&self, fault: &Fault<'_>, seed: &str) -> Result<Found> {
        let Some((test, is_only)) = fault.test()? else {
            self.plant(fault)?;
            return self.search(fault.option(), seed);
        };
        let mut found = self.test(fault, test)?;
        if !is_only {
            let Found { build, search, lines } = self.search(fault.option(), seed)?;
            found.build += build;
            found.search += search;
            found.lines.extend(lines);
        }
        Ok(found)
    }

    /// Runs a test, which must pass before the fault is planted, and then fail.
    fn test(&self, fault: &Fault<'_>, test: FaultTest<'_>) -> Result<Found> {
        let tests = |words: &[&str]| {
            let mut tests = cargo(&self.folder);
            tests.args(test.args()).arg("--target-dir").arg(&self.target);
            tests.env("CARGO_INCREMENTAL", "1").args(words);
            tests
        };
        let name = test.name;
        let build = || -> Result<()> {
            let status = tests(&["--no-run"]).status().context("starting cargo")?;
            ensure!(status.success(), "it does not build");
            Ok(())
        };
        let run = || limited(&tests(&["--", "--exact", name])).output().context("starting a test");
        build()?;
        let output = run()?;
        let has_passed = String::from_utf8_lossy(&output.stdout).contains(" 1 passed;");
        ensure!(has_passed, "{name} does not pass without the fault: {}", output.status);
        self.plant(fault)?;
        let start = Instant::now();
        build()?;
        let build = start.elapsed();
        let start = Instant::now();
        let mut status = run()?.status;
        // In some tests, a fault shows only if threads run in a certain order.
        for _ in 1..ATTEMPTS {
            if !status.success() || start.elapsed() >= LIMIT {
                break;
            }
            status = run()?.status;
        }
        let is_over_limit = matches!(status.code(), Some(124 | 137));
        ensure!(!status.success() && !is_over_limit, "{name} ends with {status}");
        let lines = vec![format!("found by {name}")];
        Ok(Found { build, search: start.elapsed(), lines })
    }

    /// Builds the simulator and lets it search for the fault.
    fn search(&self, option: &str, seed: &str) -> Result<Found> {
        let start = Instant::now();
        let mut build = cargo(&self.folder);
        build.args(["build", "--quiet", "--release", "-p", "sim", "--target-dir"]);
        let status = build.arg(&self.target).env("CARGO_INCREMENTAL", "1").status();
        ensure!(status.context("starting cargo")?.success(), "it does not build");
        let build = start.elapsed();
        let start = Instant::now();
        let mut search = Command::new(self.target.join("release/sim"));
        search.args(["--seed", seed, option, "1000000000"]);
        let output = limited(&search).output().context("starting the simulator")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if !lines.iter().any(|line| line.starts_with("found after")) {
            bail!("the simulator ended with {}: {text}", output.status);
        }
        Ok(Found { build, search: start.elapsed(), lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_the_test_that_finds_it() {
        let of = |text| Fault { name: "name", path: "path", text }.test();
        let test = FaultTest { package: "a", program: "lib", name: "of::name" };
        assert_eq!(of("Wrong.\nTest: a lib of::name\n").unwrap(), Some((test, false)));
        assert_eq!(of("Wrong.\nOnly test: a lib of::name\n").unwrap(), Some((test, true)));
        assert_eq!(of("Wrong.\n").unwrap(), None);
        of("Wrong.\nTest: of::name\n").unwrap_err();
        assert_eq!(test.args(), ["test", "--quiet", "-p", "a", "--lib"]);
        let test = FaultTest { program: "behaviour", ..test };
        assert_eq!(test.args(), ["test", "--quiet", "-p", "a", "--test", "behaviour"]);
    }
}
