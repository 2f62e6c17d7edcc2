//! `cargo xtask ci`: runs the jobs of CI by name, in the same way locally and on GitHub.

mod jobs;
mod load;
mod needs;
pub(crate) mod only;
mod recipes;
mod setting;
mod step;
mod timed;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tree;
pub(crate) use jobs::{JOBS, Job, Tier};
use setting::Setting;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The names of the jobs to run; by default, those of --gate
    jobs: Vec<String>,
    /// Run the jobs that every change must pass
    #[arg(long, conflicts_with_all = ["jobs", "full"])]
    gate: bool,
    /// Run all jobs, including the long ones
    #[arg(long, conflicts_with = "jobs")]
    full: bool,
    /// Leave this job out
    #[arg(long, value_name = "JOB")]
    except: Vec<String>,
    /// Fail if a job cannot run because the machine lacks something
    #[arg(long)]
    strict: bool,
    /// List the jobs, each with its tier, its duration in minutes, and what it finds
    #[arg(long)]
    list: bool,
}

enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

/// Returns the names of all jobs.
fn names() -> impl Iterator<Item = &'static str> {
    JOBS.iter().map(|job| job.name)
}

/// Runs all selected jobs, even after one has failed. Returns `false` if any failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.list {
        for job in JOBS {
            println!("{:<16}{:<6}{:>5}  {}", job.name, job.tier.as_str(), job.minutes, job.about);
        }
        return Ok(true);
    }
    let chosen = choose(args)?;
    let setting = Setting::of(&tree::root())?;
    let mut rows = Vec::new();
    for job in chosen {
        println!("\n=== {}: {}", job.name, job.about);
        let start = Instant::now();
        let outcome = run_job(job, &setting, args.strict);
        let disk = setting.disk_use();
        println!("=== {}: {}, {}", job.name, outcome.text(), seconds(start.elapsed()));
        rows.push(Row { job, outcome, time: start.elapsed(), disk });
    }
    println!("\n{}", summary(&rows));
    Ok(!rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_))))
}

/// The result of a job.
struct Row {
    job: &'static Job,
    outcome: Outcome,
    time: Duration,
    /// The size of the target folder at the end of the job, in bytes.
    disk: u64,
}

/// Returns a line for each job, with the measured and the stated duration. The last line has the
/// sums of the durations and the maximum disk use.
fn summary(rows: &[Row]) -> String {
    let line = |name: &str, time: Duration, minutes: f64, disk: u64, result: &str| {
        let (time, stated) = (seconds(time), seconds(Duration::from_secs_f64(minutes * 60.0)));
        let disk = format!("{:.1} GiB", disk as f64 / f64::from(1 << 30));
        let result: String = result.chars().take(80).collect();
        format!("{name:<16}{time:>10}{stated:>10}{disk:>10}  {result}").trim_end().to_owned()
    };
    let mut lines =
        vec![format!("{:<16}{:>10}{:>10}{:>10}  result", "job", "time", "stated", "disk")];
    lines.extend(
        rows.iter().map(|row| {
            line(row.job.name, row.time, row.job.minutes, row.disk, &row.outcome.text())
        }),
    );
    let stated = rows.iter().map(|row| row.job.minutes).sum();
    let most = rows.iter().map(|row| row.disk).max().unwrap_or_default();
    lines.push(line(
        "total",
        rows.iter().map(|row| row.time).sum(),
        stated,
        most,
        "the most on disk",
    ));
    lines.join("\n")
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
            (true, true) => !matches!(job.tier, Tier::Short(_)),
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
            let is_short = matches!(job.tier, Tier::Short(_));
            assert_eq!(full.contains(&job.name), !is_short, "{}", job.name);
            if let Tier::Short(long) = job.tier {
                assert!(full.contains(&long), "{}: the job `{long}` does not exist", job.name);
                assert!(job.minutes < JOBS.iter().find(|job| job.name == long).unwrap().minutes);
            }
        }
    }

    #[test]
    fn jobs_are_chosen_and_left_out_by_name() {
        assert_eq!(chosen("ci tidy fmt"), ["fmt", "tidy"]);
        assert!(!chosen("ci --gate --except test").contains(&"test"));
    }

    /// The feature needs libraries that most machines lack, so all other jobs test the crates
    /// without it.
    #[test]
    fn only_the_job_linked_enables_the_feature() {
        for job in JOBS.iter().filter(|job| job.name != "linked") {
            let steps = format!("{:?}", job.steps);
            assert!(!steps.contains("--all-features"), "{}", job.name);
            assert!(!steps.contains("--features linked"), "{}", job.name);
        }
    }

    /// Besides these jobs and the installation of tools, a change waits only for what is in
    /// `.ci/run`.
    #[test]
    fn the_gate_states_thirty_minutes_at_most() {
        let minutes: f64 =
            JOBS.iter().filter(|job| job.tier != Tier::Full).map(|job| job.minutes).sum();
        assert!(minutes <= 30.0, "{minutes} minutes");
    }

    #[test]
    fn the_summary_shows_stated_and_measured_times_and_the_disk_use() {
        let row = |name: &str, time, outcome| {
            let job = JOBS.iter().find(|job| job.name == name).unwrap();
            Row { job, outcome, time: Duration::from_secs(time), disk: time << 30 }
        };
        let rows =
            [row("clippy", 5, Outcome::Passed), row("doc", 2, Outcome::Failed("why".into()))];
        let text = summary(&rows);
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let [clippy, doc] = [&rows[0], &rows[1]]
            .map(|row| seconds(Duration::from_secs_f64(row.job.minutes * 60.0)));
        assert_eq!(lines[1], format!("clippy 5.0 s {clippy} 5.0 GiB ok"));
        assert_eq!(lines[2], format!("doc 2.0 s {doc} 2.0 GiB FAILED: why"));
        assert!(lines[3].starts_with("total 7.0 s ") && lines[3].contains(" 5.0 GiB"), "{text}");
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
        let job =
            |steps| Job { name: "x", about: "", tier: Tier::Both, minutes: 1.0, needs: &[], steps };
        assert!(matches!(run_job(&job(PASSING), &setting, false), Outcome::Passed));
        let failing = job(FAILING);
        let Outcome::Failed(why) = run_job(&failing, &setting, false) else { panic!("passed") };
        assert!(why.contains("`false`"), "{why}");
    }

    #[test]
    fn a_missing_requirement_skips_the_job_unless_strict() {
        const LACK: &[needs::Need] = &[needs::Need::Tool("no-such-tool", "install it")];
        let setting = Setting::of(&tree::root()).unwrap();
        let job =
            Job { name: "x", about: "", tier: Tier::Both, minutes: 1.0, needs: LACK, steps: &[] };
        let Outcome::Skipped(why) = run_job(&job, &setting, false) else { panic!("not skipped") };
        assert!(why.contains("no-such-tool") && why.contains("install it"), "{why}");
        assert!(matches!(run_job(&job, &setting, true), Outcome::Failed(_)));
    }
}
