//! Counts instructions with valgrind's callgrind.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

/// The number of instructions, by function, that were executed during one call of a function with
/// `counted` in its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    functions: HashMap<String, u64>,
}

impl Profile {
    /// Returns the number of instructions of all functions whose names match.
    pub fn of(&self, fits: impl Fn(&str) -> bool) -> u64 {
        self.functions.iter().filter(|(name, _)| fits(name)).map(|(_, cost)| cost).sum()
    }

    /// Returns the number of instructions of all functions.
    pub fn total(&self) -> u64 {
        self.of(|_| true)
    }

    /// Parses a callgrind dump. The line after `calls=` is skipped: it contains the cost of the
    /// callee, which the callee's own lines contain too.
    fn parse(dump: &str) -> Option<Self> {
        let (mut names, mut functions) = (HashMap::new(), HashMap::new());
        let (mut current, mut after_calls) = (None, false);
        for line in dump.lines() {
            let function = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn="));
            if let Some((id, name)) = function.and_then(|rest| rest.split_once(')')) {
                // An ID occurs first as "(7) name", and later as "(7)".
                if !name.is_empty() {
                    names.insert(id, name.trim());
                }
                if line.starts_with("fn=") {
                    current = Some(*names.get(id)?);
                }
            } else if line.starts_with("calls=") {
                after_calls = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
                && !std::mem::take(&mut after_calls)
            {
                // The line consists of a line number and a cost, which is omitted if it is 0.
                let cost = line.split_whitespace().nth(1).map_or(Some(0), |c| c.parse().ok())?;
                *functions.entry(current?.to_owned()).or_insert(0) += cost;
            }
        }
        Some(Self { functions })
    }
}

/// The `main` function of a bench, except in the run under callgrind. `compare` prints a table, and
/// returns whether all costs are within their limits.
pub fn bench(compare: impl FnOnce() -> Result<bool, String>) -> ExitCode {
    // `cargo test --benches` only checks that the bench can be started.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    match compare() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("instructions: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program again under callgrind, with these environment variables. Returns one profile
/// for each call of a function with `counted` in its name, in the order of the calls. Nothing else
/// is counted.
///
/// # Errors
/// If valgrind is missing, returns a message that explains how to get it. Otherwise returns the
/// error output of valgrind or of the program.
pub fn profiles(environment: &[(&str, &str)], folder: &Path) -> Result<Vec<Profile>, String> {
    let folder = folder.join(format!("callgrind-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let found = run(environment, &folder);
    // A failure to remove the folder does not matter.
    let _ = fs::remove_dir_all(&folder);
    found
}

/// Runs this program again, like [`profiles`]. It calls the counted function twice: with this
/// number of operations, and with twice as many. Returns the number of instructions per operation.
///
/// # Errors
/// Same errors as [`profiles`], or an error if there were not two calls.
#[expect(clippy::cast_precision_loss, reason = "counts of instructions are far below 2^53")]
pub fn per_operation(
    environment: &[(&str, &str)],
    folder: &Path,
    operations: u64,
) -> Result<f64, String> {
    let profiles = profiles(environment, folder)?;
    let [once, twice] = &profiles[..] else { return Err("not two runs".to_owned()) };
    Ok((twice.total() - once.total()) as f64 / operations as f64)
}

fn run(environment: &[(&str, &str)], folder: &Path) -> Result<Vec<Profile>, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        // The two options use different patterns for the same name, because valgrind obeys only one
        // of two options with equal patterns.
        .args(["--tool=callgrind", "--zero-before=*count?d", "--dump-after=*counte?"])
        .arg(format!("--callgrind-out-file={}", folder.join("out").display()))
        .arg(program)
        .envs(environment.iter().copied())
        .output()
        .map_err(|error| format!("valgrind does not start ({error}): apt-get install valgrind"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("under valgrind: {}\n{report}", output.status));
    }
    let mut profiles = Vec::new();
    // The dump without a number was written at the end of the program, so it is ignored.
    for number in 1.. {
        let Ok(dump) = fs::read_to_string(folder.join(format!("out.{number}"))) else { break };
        let profile = Profile::parse(&dump).ok_or_else(|| format!("not understood:\n{dump}"))?;
        profiles.push(profile);
    }
    if profiles.is_empty() {
        Err(format!("callgrind counted nothing:\n{report}"))
    } else {
        Ok(profiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_belong_to_the_function_that_spent_them() {
        let dump = "version: 1\nevents: Ir\nfl=(1) a.c\nfn=(1) one\n3 5\n+1 7\ncfn=(2) two\n\
                    calls=4 9\n* 400\n* 2\n\nfn=(2)\n9 100\n12\n\nfn=(1)\n30 1\ntotals: 115\n";
        let profile = Profile::parse(dump).unwrap();
        assert_eq!(profile.of(|name| name == "one"), 15);
        assert_eq!(profile.of(|name| name == "two"), 100);
        assert_eq!(profile.total(), 115);
        assert_eq!(Profile::parse("fn=(3)\n1 2\n"), None, "a name that was never defined");
    }
}
