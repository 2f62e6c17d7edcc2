//! Reports that `rdmatool perf --json` has written.

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read as _;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::perf::report::{Measure, Report, Row, VERSION};
use crate::units;

/// The maximum length of a report file, in bytes. The file of a report with a thousand rows has
/// about 500 KiB.
const LONGEST: u64 = 16 << 20;
/// The maximum number of rows in a report.
const MOST_ROWS: usize = 10_000;
/// The maximum number of blocks in a row. `rdmatool perf` writes ten.
const MOST_BLOCKS: usize = 1000;
/// The accepted figures of blocks (nanoseconds, bytes or messages per second). Within this range,
/// their sums and ratios are finite.
const BLOCKS: RangeInclusive<f64> = 1e-9..=1e18;

/// Reads a report. Checks everything that the rest of the program relies on.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a report of this version, or contains rows
/// with absurd values.
pub(crate) fn read(path: &Path) -> Result<Report> {
    parse(path).with_context(|| format!("cannot use {} as a report", path.display()))
}

/// The properties that identify a row. No two rows of a report have the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Key {
    pub(crate) measure: Measure,
    pub(crate) operation: String,
    pub(crate) bytes: u64,
    pub(crate) queue_pairs: u32,
    pub(crate) depth: u32,
    pub(crate) mode: String,
}

impl Key {
    pub(crate) fn of(row: &Row) -> Self {
        Self {
            measure: row.measure,
            operation: row.operation.clone(),
            bytes: row.bytes,
            queue_pairs: row.queue_pairs,
            depth: row.depth,
            mode: row.mode.clone(),
        }
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measure, operation, bytes, queue_pairs, depth, mode } = self;
        let (measure, bytes) = (name(*measure), units::bytes(*bytes));
        write!(f, "{measure} {operation}, {bytes}, {queue_pairs} QP, depth {depth}, {mode}")
    }
}

/// Returns the name of a measure, as used in reports and on the command line.
pub(crate) const fn name(measure: Measure) -> &'static str {
    match measure {
        Measure::Lat => "lat",
        Measure::Bw => "bw",
        Measure::Rate => "rate",
    }
}

/// Sorts the values. Returns their median, which is the middle value or the mean of the middle two,
/// or zero if there are no values.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (at(half.saturating_sub(1)) + at(half)) / 2.0
    } else {
        at(half)
    }
}

/// The only field that every version of the format has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn parse(path: &Path) -> Result<Report> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= LONGEST, "it is longer than {LONGEST} bytes");
    let Version { version } =
        serde_json::from_str(&text).context("give a file written by `rdmatool perf --json`")?;
    ensure!(
        version == VERSION,
        "it has format version {version}, and this rdmatool reads version {VERSION}: measure again with this rdmatool"
    );
    let report: Report = serde_json::from_str(&text)?;
    check(&report)?;
    Ok(report)
}

fn check(report: &Report) -> Result<()> {
    let rows = report.rows.len();
    ensure!((1..=MOST_ROWS).contains(&rows), "it has {rows} rows, not 1 to {MOST_ROWS}");
    let Report { rdmatool, machine, device, .. } = report;
    for text in [rdmatool, &machine.processor, &machine.kernel, &device.name, &device.provider] {
        check_text(text)?;
    }
    let mut keys = HashSet::new();
    for row in &report.rows {
        check_text(&row.operation)?;
        check_text(&row.mode)?;
        let key = Key::of(row);
        let blocks = row.blocks.len();
        ensure!(
            (1..=MOST_BLOCKS).contains(&blocks),
            "the row `{key}` has {blocks} blocks, not 1 to {MOST_BLOCKS}: measure again"
        );
        if let Some(value) = row.blocks.iter().find(|value| !BLOCKS.contains(value)) {
            let (least, most) = (BLOCKS.start(), BLOCKS.end());
            anyhow::bail!(
                "the row `{key}` has a block of {value:e}, outside {least:e} to {most:e}: measure again"
            );
        }
        ensure!(!keys.contains(&key), "it has the row `{key}` twice");
        keys.insert(key);
    }
    Ok(())
}

/// Checks that a text contains no control characters. It will be printed, and must not be able to
/// control a terminal.
fn check_text(text: &str) -> Result<()> {
    ensure!(!text.chars().any(char::is_control), "it has a control character in {text:?}");
    Ok(())
}
