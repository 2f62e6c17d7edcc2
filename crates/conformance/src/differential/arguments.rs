//! Selects the programs and the devices.

use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fmt, fs, iter};

use super::generate;
use super::program::Program;
use crate::devices;

/// The number of programs in a CI run, and the default.
const COUNT: u64 = 100;

/// If a fresh seed is given, one in `FRESH_IN` programs has a seed from the sequence that starts
/// there.
const FRESH_IN: u64 = 10;

/// The default device to compare others with.
const SOFTWARE: &str = "soft0";

/// Programs with their descriptions.
pub(super) type Programs = Box<dyn Iterator<Item = (String, Program)> + Send>;

#[derive(Debug)]
pub(super) struct Arguments {
    seed: u64,
    count: u64,
    /// The first fresh seed.
    fresh: Option<u64>,
    program: Option<Program>,
    /// The device to compare others with.
    pub(super) against: String,
    /// Whether to continue after a failure.
    pub(super) all: bool,
    pub(super) harness: libtest_mimic::Arguments,
}

impl Arguments {
    /// Reads `--seed N`, `--count N`, `--fresh N`, `--against`, `--all` and `--program`. All other
    /// arguments belong to the usual harness.
    ///
    /// - `--seed` defaults to `RDMA_TEST_SEED` or, without that, to the clock.
    /// - `--fresh` is the first of the seeds that every tenth program uses. It defaults to
    ///   `RDMA_TEST_FRESH_SEED`; without that, there are none.
    /// - `--against` names the software device with which SoftRoCE and the devices of
    ///   `RDMA_TEST_DEVICES` are compared.
    /// - `--all` continues after a failure.
    /// - `--program` takes the program that a failure printed, or a file that contains it.
    pub(super) fn of_process() -> Self {
        let [mut seed, mut fresh] = ["RDMA_TEST_SEED", "RDMA_TEST_FRESH_SEED"]
            .map(|name| env::var(name).ok().map(|text| number(&text)));
        let (mut count, mut program, mut all) = (COUNT, None, false);
        let mut against = SOFTWARE.to_owned();
        let mut others = Vec::new();
        let mut given = env::args();
        while let Some(argument) = given.next() {
            let mut value = || given.next().unwrap_or_else(|| panic!("{argument} needs a value"));
            match argument.as_str() {
                "--seed" => seed = Some(number(&value())),
                "--fresh" => fresh = Some(number(&value())),
                "--count" => count = number(&value()),
                "--program" => program = Some(written(&value())),
                "--against" => against = software(value()),
                "--all" => all = true,
                _ => others.push(argument),
            }
        }
        let harness = libtest_mimic::Arguments::from_iter(others);
        let seed = seed.unwrap_or_else(seed_of_clock);
        Self { seed, count, fresh, program, against, all, harness }
    }

    /// Returns the pairs of devices to compare. If devices are named, each is compared with the
    /// software device. Otherwise, software devices of different schedules and kinds are compared.
    pub(super) fn devices(&self) -> impl Iterator<Item = (String, String)> {
        let named = devices::named().into_iter();
        let mut pairs: Vec<_> = named.map(|named| (self.against.clone(), named.name)).collect();
        if pairs.is_empty() {
            let others = |name: &str| {
                ["deferred", "wire"].map(|how| (name.to_owned(), format!("{name}-{how}")))
            };
            pairs = ["soft0", "softib0"].map(others).concat();
            let more = ["soft0-mapped", "soft0-udp"];
            pairs.extend(more.map(|name| (SOFTWARE.to_owned(), name.to_owned())));
        }
        pairs.into_iter()
    }

    /// Returns the arguments that make another process run the same programs.
    pub(super) fn own(&self) -> Vec<String> {
        let mut own = vec!["--against".to_owned(), self.against.clone()];
        if let Some(program) = &self.program {
            own.extend(["--program".to_owned(), program.to_json()]);
            return own;
        }
        own.extend(["--seed".to_owned(), self.seed.to_string()]);
        own.extend(["--count".to_owned(), self.count.to_string()]);
        own.extend(self.fresh.iter().flat_map(|seed| ["--fresh".to_owned(), seed.to_string()]));
        own.extend(self.all.then(|| "--all".to_owned()));
        own
    }

    /// Returns the program that was passed or, if there is none, the programs for this run's seeds.
    /// Each description contains the arguments that run the program alone.
    pub(super) fn programs(&self) -> Programs {
        if let Some(program) = self.program.clone() {
            return Box::new(iter::once(("the program".to_owned(), program)));
        }
        let seeds = seeds(self.seed, self.count, self.fresh);
        Box::new(seeds.map(|seed| (format!("--seed {seed} --count 1"), generate::program(seed))))
    }
}

impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.program {
            Some(_) => write!(f, "one program"),
            None => {
                write!(f, "--seed {} --count {}", self.seed, self.count)?;
                self.fresh.map_or(Ok(()), |seed| write!(f, " --fresh {seed}"))
            }
        }
    }
}

/// Returns `count` consecutive seeds. If a fresh seed is given, every tenth seed comes from the
/// sequence that starts there.
fn seeds(first: u64, count: u64, fresh: Option<u64>) -> impl Iterator<Item = u64> {
    (0..count).map(move |n| match fresh {
        Some(fresh) if n % FRESH_IN == FRESH_IN - 1 => fresh.wrapping_add(n / FRESH_IN),
        _ => first.wrapping_add(n),
    })
}

fn software(name: String) -> String {
    assert!(
        devices::is_software(&name),
        "--against takes a software device, and {name:?} is not one"
    );
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

/// Returns a seed that differs from run to run.
fn seed_of_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() * 1_000 + u64::from(now.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_in_ten_is_fresh_and_the_others_are_consecutive() {
        let run: Vec<u64> = seeds(500, 200, Some(70_000)).collect();
        assert_eq!(run[9], 70_000, "a run has some from its first programs on");
        let (fresh, known): (Vec<u64>, Vec<u64>) =
            run.into_iter().partition(|seed| *seed >= 70_000);
        assert_eq!(fresh, (70_000..70_020).collect::<Vec<_>>());
        assert_eq!(known, (500..700).filter(|seed| seed % 10 != 9).collect::<Vec<_>>());
    }

    #[test]
    fn a_program_that_failed_runs_alone_by_its_seed() {
        assert_eq!(seeds(70_003, 1, Some(90_000)).collect::<Vec<_>>(), [70_003]);
        assert_eq!(seeds(u64::MAX, 2, None).collect::<Vec<_>>(), [u64::MAX, 0]);
    }

    #[test]
    fn the_fresh_seed_is_passed_on_and_printed() {
        let arguments = Arguments {
            seed: 3,
            count: 100,
            fresh: Some(90_000),
            program: None,
            against: SOFTWARE.to_owned(),
            all: false,
            harness: libtest_mimic::Arguments::default(),
        };
        assert_eq!(arguments.to_string(), "--seed 3 --count 100 --fresh 90000");
        let own = arguments.own().join(" ");
        assert_eq!(own, format!("--against {SOFTWARE} --seed 3 --count 100 --fresh 90000"));
    }
}
