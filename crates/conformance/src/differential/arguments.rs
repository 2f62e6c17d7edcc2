//! Which programs are run, and on which devices.

use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fmt, fs, iter};

use super::generate;
use super::program::Program;
use crate::devices;

/// As many as a run of CI has.
const COUNT: u64 = 200;

/// The device that others are compared with, unless another one is named.
const SOFTWARE: &str = "soft0";

/// Programs, each with what to call it.
pub(super) type Programs = Box<dyn Iterator<Item = (String, Program)> + Send>;

#[derive(Debug)]
pub(super) struct Arguments {
    seed: u64,
    count: u64,
    program: Option<Program>,
    /// The device that others are compared with.
    pub(super) against: String,
    /// Whether to go on after a failure.
    pub(super) all: bool,
    pub(super) harness: libtest_mimic::Arguments,
}

impl Arguments {
    /// `--seed N`, `--count N`, `--against` with the software device that SoftRoCE and devices of `RDMA_TEST_DEVICES`
    /// are compared with, `--all` to go on after a failure, and `--program` with what a failure printed, or the name of
    /// a file with it; all others are those of the usual harness. Without a seed it is `RDMA_TEST_SEED`, or the
    /// clock's.
    pub(super) fn of_process() -> Self {
        let mut seed = env::var("RDMA_TEST_SEED").ok().map(|text| number(&text));
        let (mut count, mut program, mut all) = (COUNT, None, false);
        let mut against = SOFTWARE.to_owned();
        let mut others = Vec::new();
        let mut given = env::args();
        while let Some(argument) = given.next() {
            let mut value = || given.next().unwrap_or_else(|| panic!("{argument} takes a value"));
            match argument.as_str() {
                "--seed" => seed = Some(number(&value())),
                "--count" => count = number(&value()),
                "--program" => program = Some(written(&value())),
                "--against" => against = software(value()),
                "--all" => all = true,
                _ => others.push(argument),
            }
        }
        let harness = libtest_mimic::Arguments::from_iter(others);
        let seed = seed.unwrap_or_else(seed_of_clock);
        Self { seed, count, program, against, all, harness }
    }

    /// Pairs of devices to compare: the schedules of the software devices and their ways of sending, or the
    /// software device with each that is named.
    pub(super) fn devices(&self) -> impl Iterator<Item = (String, String)> {
        let named = devices::named().into_iter();
        let mut pairs: Vec<_> = named.map(|named| (self.against.clone(), named.name)).collect();
        if pairs.is_empty() {
            let others = |name: &str| {
                ["deferred", "wire"].map(|how| (name.to_owned(), format!("{name}-{how}")))
            };
            pairs = ["soft0", "softib0"].map(others).concat();
            pairs.push((SOFTWARE.to_owned(), "soft0-udp".to_owned()));
        }
        pairs.into_iter()
    }

    /// What tells another process to run the same programs.
    pub(super) fn own(&self) -> Vec<String> {
        let mut own = vec!["--against".to_owned(), self.against.clone()];
        if let Some(program) = &self.program {
            own.extend(["--program".to_owned(), program.to_json()]);
            return own;
        }
        own.extend(["--seed".to_owned(), self.seed.to_string()]);
        own.extend(["--count".to_owned(), self.count.to_string()]);
        own.extend(self.all.then(|| "--all".to_owned()));
        own
    }

    /// Seeds that follow each other, so that each can be run alone.
    pub(super) fn programs(&self) -> Programs {
        if let Some(program) = self.program.clone() {
            return Box::new(iter::once(("the program".to_owned(), program)));
        }
        let seeds = (0..self.count).map({
            let first = self.seed;
            move |n| first.wrapping_add(n)
        });
        Box::new(seeds.map(|seed| (format!("--seed {seed} --count 1"), generate::program(seed))))
    }
}

impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.program {
            Some(_) => write!(f, "one program"),
            None => write!(f, "--seed {} --count {}", self.seed, self.count),
        }
    }
}

fn software(name: String) -> String {
    assert!(devices::is_software(&name), "--against takes a software device, and {name:?} is none");
    name
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is not a number"))
}

fn written(text: &str) -> Program {
    let read =
        |path: &str| fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let json = if text.starts_with('{') { text.to_owned() } else { read(text) };
    Program::from_json(&json).unwrap_or_else(|error| panic!("not a program: {error}"))
}

/// Another one each time.
fn seed_of_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() * 1_000 + u64::from(now.subsec_millis())
}
