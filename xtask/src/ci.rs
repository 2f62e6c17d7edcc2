//! `cargo xtask ci`: every job of CI by name, the same here as on GitHub.

mod jobs;
mod needs;
mod step;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tree;
use jobs::{JOBS, Job, Tier};
use step::Setting;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Jobs to run, by name; without any, those of --gate
    jobs: Vec<String>,
    /// The jobs that every change has to pass
    #[arg(long, conflicts_with_all = ["jobs", "full"])]
    gate: bool,
    /// Every job, the long ones too
    #[arg(long, conflicts_with = "jobs")]
    full: bool,
    /// Leave this job out
    #[arg(long, value_name = "JOB")]
    except: Vec<String>,
    /// Fail where a job would be skipped because the machine lacks something
    #[arg(long)]
    strict: bool,
    /// Remove what a job has built in a folder of its own when the job is over: all of them together need a large disk
    #[arg(long)]
    remove_outputs: bool,
    /// Say which jobs there are and what they check
    #[arg(long)]
    list: bool,
}

enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

/// The names of all jobs.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    JOBS.iter().map(|job| job.name)
}

/// Runs all chosen jobs, also after one failed; `false` if any did.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.list {
        for job in JOBS {
            println!("{:<16}{:<6}{}", job.name, job.tier.as_str(), job.about);
        }
        return Ok(true);
    }
    let chosen = choose(args)?;
    let setting = Setting::of(&tree::root())?;
    let mut rows = Vec::new();
    for job in chosen {
        println!("\n=== {}: {}", job.name, job.about);
        let start = Instant::now();
        let before = setting.outputs()?;
        let outcome = run_job(job, &setting, args.strict);
        if args.remove_outputs {
            setting.remove_outputs_but(&before)?;
        }
        println!("=== {}: {}, {}", job.name, outcome.text(), seconds(start.elapsed()));
        rows.push((job.name, outcome, start.elapsed()));
    }
    println!("\n{:<16}{:>10}  result", "job", "time");
    for (name, outcome, time) in &rows {
        let result: String = outcome.text().chars().take(80).collect();
        println!("{name:<16}{:>10}  {result}", seconds(*time));
    }
    let total = rows.iter().map(|(.., time)| *time).sum();
    println!("{:<16}{:>10}", "total", seconds(total));
    Ok(!rows.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_))))
}

fn run_job(job: &Job, setting: &Setting, strict: bool) -> Outcome {
    if let Some(lack) = job.needs.iter().find_map(|need| need.lack(setting)) {
        return if strict { Outcome::Failed(lack) } else { Outcome::Skipped(lack) };
    }
    for step in job.steps {
        if let Err(error) = step.run(setting) {
            return Outcome::Failed(format!("{error:#}"));
        }
    }
    Outcome::Passed
}

fn choose(args: &Args) -> Result<Vec<&'static Job>> {
    for name in args.jobs.iter().chain(&args.except) {
        if !names().any(|known| known == name) {
            bail!("no job `{name}`; there are {}", names().collect::<Vec<_>>().join(", "));
        }
    }
    let asked = |job: &&Job| {
        let by_name = args.jobs.iter().any(|name| name == job.name);
        let by_tier = match (args.jobs.is_empty(), args.full) {
            (false, _) => false,
            (true, true) => job.tier != Tier::Gate,
            (true, false) => job.tier != Tier::Full,
        };
        (by_name || by_tier) && !args.except.iter().any(|name| name == job.name)
    };
    Ok(JOBS.iter().filter(asked).collect())
}

impl Outcome {
    fn text(&self) -> String {
        match self {
            Self::Passed => "ok".to_owned(),
            Self::Skipped(why) => format!("skipped: {why}"),
            Self::Failed(why) => format!("FAILED: {why}"),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn chosen(line: &str) -> Vec<&'static str> {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        choose(&cli.args).unwrap().iter().map(|job| job.name).collect()
    }

    #[test]
    fn the_gate_is_the_default_and_full_replaces_its_short_jobs() {
        let (gate, full) = (chosen("ci --gate"), chosen("ci --full"));
        assert_eq!(chosen("ci"), gate);
        for job in JOBS {
            assert_eq!(gate.contains(&job.name), job.tier != Tier::Full, "{}", job.name);
            assert_eq!(full.contains(&job.name), job.tier != Tier::Gate, "{}", job.name);
        }
    }

    #[test]
    fn jobs_are_chosen_and_left_out_by_name() {
        assert_eq!(chosen("ci tidy fmt"), ["fmt", "tidy"]);
        assert!(!chosen("ci --gate --except test").contains(&"test"));
    }

    /// What it links is not there on most machines, and others test what happens without.
    #[test]
    fn only_its_own_job_turns_linked_on() {
        for job in JOBS.iter().filter(|job| job.name != "linked") {
            let steps = format!("{:?}", job.steps);
            assert!(!steps.contains("--all-features"), "{}", job.name);
            assert!(!steps.contains("--features linked"), "{}", job.name);
            let excluded = steps.contains("--exclude-features linked");
            assert_eq!(steps.contains("--each-feature"), excluded, "{}", job.name);
        }
    }

    #[test]
    fn an_unknown_job_is_an_error_that_lists_the_known() {
        let cli = Cli::try_parse_from(["ci", "clipy"]).unwrap();
        let error = choose(&cli.args).unwrap_err().to_string();
        assert!(error.contains("no job `clipy`") && error.contains("clippy"), "{error}");
    }

    #[test]
    fn a_job_passes_only_if_each_step_does() {
        const PASSING: &[step::Step] = &[step::run("true")];
        const FAILING: &[step::Step] = &[step::run("true"), step::run("false")];
        let setting = Setting::of(&tree::root()).unwrap();
        let job = |steps| Job { name: "x", about: "", tier: Tier::Both, needs: &[], steps };
        assert!(matches!(run_job(&job(PASSING), &setting, false), Outcome::Passed));
        let failing = job(FAILING);
        let Outcome::Failed(why) = run_job(&failing, &setting, false) else { panic!("passed") };
        assert!(why.contains("`false`"), "{why}");
    }

    #[test]
    fn a_lack_skips_unless_strict() {
        const LACK: &[needs::Need] = &[needs::Need::Tool("no-such-tool", "install it")];
        let setting = Setting::of(&tree::root()).unwrap();
        let job = Job { name: "x", about: "", tier: Tier::Both, needs: LACK, steps: &[] };
        let Outcome::Skipped(why) = run_job(&job, &setting, false) else { panic!("not skipped") };
        assert!(why.contains("no-such-tool") && why.contains("install it"), "{why}");
        assert!(matches!(run_job(&job, &setting, true), Outcome::Failed(_)));
    }
}
