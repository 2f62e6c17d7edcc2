//! `rdmatool compare`: compares two reports row by row, and shows which of them is faster.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use serde_json::json;

use crate::output::{print, warn};
use crate::perf::report::{Measure, Report};
use crate::reports::{self, Key};
use crate::units;

/// Compares two reports of `rdmatool perf --json` row by row
///
/// A difference is shown if the 95 % confidence intervals of the two medians do not overlap.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The report to use as the baseline
    base: PathBuf,
    /// The report to compare with the baseline
    new: PathBuf,
    /// Exit with status 3 if a row is slower by more than this
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_above: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The exit status when a row is slower by more than `--fail-above`.
const SLOWER: u8 = 3;
const RESAMPLES: usize = 10_000;
/// A fixed seed, so that comparing the same reports always gives the same result.
const SEED: u64 = 1;
/// The minimum number of blocks. With fewer, the interval would be narrower than the data justify.
const LEAST_BLOCKS: usize = 5;

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let [base, new] = [&arguments.base, &arguments.new];
    let comparison = compare(&reports::read(base)?, &reports::read(new)?)?;
    if comparison.rows.is_empty() {
        let [base, new] = [base.display(), new.display()];
        bail!("{base} and {new} have no row in common: measure both with the same options");
    }
    if arguments.json {
        let names = json!({ "base": base, "new": new });
        let mut all = serde_json::to_value(&comparison)?;
        if let (Some(all), Some(names)) = (all.as_object_mut(), names.as_object()) {
            all.extend(names.clone());
        }
        print(format_args!("{all:#}"))?;
    } else {
        print(comparison.table())?;
    }
    let Some(limit) = arguments.fail_above else { return Ok(ExitCode::SUCCESS) };
    let slower: Vec<_> = comparison.rows.iter().filter(|row| row.is_slower_by(limit)).collect();
    for row in &slower {
        warn(format_args!(
            "slower by more than {limit} %: {} ({:+.1} %)",
            row.key, row.change_percent
        ));
    }
    Ok(if slower.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(SLOWER) })
}

fn percent(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or("give a number of percent from 0, such as 5")
}

#[derive(Debug, Serialize)]
struct Comparison {
    rows: Vec<Compared>,
    only_base: Vec<Key>,
    only_new: Vec<Key>,
}

#[derive(Debug, Serialize)]
struct Compared {
    #[serde(flatten)]
    key: Key,
    base: Estimate,
    new: Estimate,
    /// The change of the median from the base to the new report, in percent.
    change_percent: f64,
    verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Verdict {
    #[serde(rename = "faster")]
    Faster,
    #[serde(rename = "slower")]
    Slower,
    #[serde(rename = "no difference shown")]
    NoDifferenceShown,
}

/// A median, and an interval that contains the true median with a confidence of 95 %.
#[derive(Debug, Clone, Copy, Serialize)]
struct Estimate {
    median: f64,
    low: f64,
    high: f64,
}

impl Estimate {
    /// Computes the median of the blocks. Its interval is a percentile bootstrap: it comes from the
    /// medians of samples drawn from the blocks with replacement.
    fn of(blocks: &[f64]) -> Self {
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut sample = blocks.to_vec();
        let median = reports::median(&mut sample);
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                sample.fill_with(|| random.choice(blocks).copied().unwrap_or_default());
                reports::median(&mut sample)
            })
            .collect();
        medians.sort_unstable_by(f64::total_cmp);
        let tail = RESAMPLES / 40;
        let at = |index: usize| medians.get(index).copied().unwrap_or(median);
        Self { median, low: at(tail), high: at(RESAMPLES - 1 - tail) }
    }
}

fn compare(base: &Report, new: &Report) -> Result<Comparison> {
    for difference in differences(base, new) {
        warn(format_args!("warning: {difference}"));
    }
    let mut others: HashMap<Key, &[f64]> = HashMap::new();
    others.extend(new.rows.iter().map(|row| (Key::of(row), &*row.blocks)));
    let (mut rows, mut only_base) = (Vec::new(), Vec::new());
    for row in &base.rows {
        let key = Key::of(row);
        match others.remove(&key) {
            Some(blocks) => rows.push(Compared::of(key, &row.blocks, blocks)?),
            None => only_base.push(key),
        }
    }
    let only_new = new.rows.iter().map(Key::of).filter(|key| others.contains_key(key)).collect();
    Ok(Comparison { rows, only_base, only_new })
}

/// Returns the differences between the machines and the devices of the reports that may explain a
/// change.
fn differences(base: &Report, new: &Report) -> Vec<String> {
    let [(a, b), (c, d)] = [(&base.machine, &base.device), (&new.machine, &new.device)];
    let pairs = [
        ("processor", a.processor.clone(), c.processor.clone()),
        ("number of processors", a.processors.to_string(), c.processors.to_string()),
        ("kernel", a.kernel.clone(), c.kernel.clone()),
        ("device", b.name.clone(), d.name.clone()),
        ("provider", b.provider.clone(), d.provider.clone()),
        ("firmware", b.firmware.clone(), d.firmware.clone()),
        ("MTU", b.mtu.to_string(), d.mtu.to_string()),
        ("version of rdmatool", base.rdmatool.clone(), new.rdmatool.clone()),
    ];
    let pairs = pairs.iter().filter(|(_, base, new)| base != new);
    pairs.map(|(what, base, new)| format!("the {what} differs: {base:?}, then {new:?}")).collect()
}

impl Compared {
    fn of(key: Key, base: &[f64], new: &[f64]) -> Result<Self> {
        let blocks = base.len().min(new.len());
        ensure!(
            blocks >= LEAST_BLOCKS,
            "the row `{key}` has {blocks} blocks, too few to compare: measure it with at least {LEAST_BLOCKS}"
        );
        let [base, new] = [base, new].map(Estimate::of);
        let less_is_faster = key.measure == Measure::Lat;
        let verdict = if new.high < base.low {
            if less_is_faster { Verdict::Faster } else { Verdict::Slower }
        } else if new.low > base.high {
            if less_is_faster { Verdict::Slower } else { Verdict::Faster }
        } else {
            Verdict::NoDifferenceShown
        };
        let change_percent = (new.median / base.median - 1.0) * 100.0;
        Ok(Self { key, base, new, change_percent, verdict })
    }

    fn is_slower_by(&self, percent: f64) -> bool {
        self.verdict == Verdict::Slower && self.change_percent.abs() > percent
    }

    fn cells(&self) -> Vec<String> {
        let Key { measure, operation, bytes, queue_pairs, depth, mode } = &self.key;
        let value = |value| units::value(*measure, value);
        let estimate = |Estimate { median, low, high }| {
            format!("{} [{}, {}]", value(median), value(low), value(high))
        };
        let verdict = match self.verdict {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifferenceShown => "no difference shown",
        };
        vec![
            reports::name(*measure).to_owned(),
            operation.clone(),
            units::bytes(*bytes),
            queue_pairs.to_string(),
            depth.to_string(),
            mode.clone(),
            estimate(self.base),
            estimate(self.new),
            format!("{:+.1} %", self.change_percent),
            verdict.to_owned(),
        ]
    }
}

const HEAD: [&str; 10] = [
    "measure",
    "operation",
    "size",
    "QPs",
    "depth",
    "mode",
    "base [95 % interval]",
    "new [95 % interval]",
    "change",
    "verdict",
];

impl Comparison {
    fn table(&self) -> String {
        let head = HEAD.map(str::to_owned).to_vec();
        let lines: Vec<_> =
            [head].into_iter().chain(self.rows.iter().map(Compared::cells)).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<_> = (0..HEAD.len()).map(width).collect();
        let line = |cells: &Vec<String>| {
            let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut text = lines.iter().map(line).collect::<Vec<_>>();
        text.extend(self.only_base.iter().map(|key| format!("only in the base report: {key}")));
        text.extend(self.only_new.iter().map(|key| format!("only in the new report: {key}")));
        text.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_has_the_median_and_is_the_same_each_time() {
        let blocks = [5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 7.0, 6.0, 8.0, 10.0];
        let Estimate { median, low, high } = Estimate::of(&blocks);
        assert_eq!(median, 5.5);
        assert!((1.0..=4.0).contains(&low) && (7.0..=10.0).contains(&high), "{low} to {high}");
        let again = Estimate::of(&blocks);
        assert_eq!((again.low, again.high), (low, high));
    }

    #[test]
    fn equal_blocks_have_an_interval_without_width() {
        let Estimate { median, low, high } = Estimate::of(&[7.0; 10]);
        assert_eq!((median, low, high), (7.0, 7.0, 7.0));
    }
}
