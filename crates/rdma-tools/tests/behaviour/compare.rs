//! `rdmatool compare`, with reports in the format of `rdmatool perf --json`.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::report::{report, row};
use crate::{printed, rdmatool};

/// A folder with two reports.
struct Pair {
    folder: TempDir,
    base: PathBuf,
    new: PathBuf,
}

impl Pair {
    fn new(base: &Value, new: &Value) -> Self {
        let folder = TempDir::new().unwrap();
        let [base, new] = [("base.json", base), ("new.json", new)].map(|(name, value)| {
            let path = folder.path().join(name);
            fs::write(&path, value.to_string()).unwrap();
            path
        });
        Self { folder, base, new }
    }

    fn arguments<'a>(&'a self, options: &[&'a str]) -> Vec<&'a str> {
        [&["compare", self.base.to_str().unwrap(), self.new.to_str().unwrap()], options].concat()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&printed(&self.arguments(&["--json"]))).unwrap()
    }

    /// Returns the exit status, and standard error.
    fn status(&self, options: &[&str]) -> (Option<i32>, String) {
        let output = rdmatool(&self.arguments(options));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    fn error(&self) -> String {
        let (status, error) = self.status(&[]);
        assert_eq!(status, Some(1), "{error}");
        assert!(error.contains(self.folder.path().to_str().unwrap()), "{error}");
        error
    }
}

fn all_measures(factor: f64) -> Value {
    report(vec![
        row("lat", "write", 8, 1000.0 * factor),
        row("bw", "write", 65_536, 10e9 / factor),
        row("rate", "send", 8, 5e6 / factor),
    ])
}

fn verdicts(json: &Value) -> Vec<&str> {
    json["rows"].as_array().unwrap().iter().map(|row| row["verdict"].as_str().unwrap()).collect()
}

#[test]
fn longer_latency_and_less_throughput_are_slower() {
    let pair = Pair::new(&all_measures(1.0), &all_measures(1.25));
    let json = pair.json();
    assert_eq!(verdicts(&json), ["slower"; 3]);
    let changes = [25.0, -20.0, -20.0];
    for (row, change) in json["rows"].as_array().unwrap().iter().zip(changes) {
        let found = row["change_percent"].as_f64().unwrap();
        assert!((found - change).abs() < 1e-6, "{row}");
    }
    let pair = Pair::new(&all_measures(1.25), &all_measures(1.0));
    assert_eq!(verdicts(&pair.json()), ["faster"; 3]);
}

#[test]
fn intervals_that_overlap_show_no_difference() {
    let pair = Pair::new(&all_measures(1.0), &all_measures(1.001));
    assert_eq!(verdicts(&pair.json()), ["no difference shown"; 3]);
    assert_eq!(pair.status(&["--fail-above", "0"]).0, Some(0));
}

#[test]
fn the_table_has_medians_intervals_changes_and_verdicts() {
    let pair = Pair::new(&all_measures(1.0), &all_measures(1.25));
    let table = printed(&pair.arguments(&[]));
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    for (line, parts) in lines.iter().zip([
        &["measure", "base [95 % interval]", "verdict"][..],
        &["lat", "write", "8 B", "1.000 us [", "1.250 us [", "+25.0 %", "slower"],
        &["bw", "write", "64 KiB", "10.00 GB/s [", "8.000 GB/s [", "-20.0 %", "slower"],
        &["rate", "send", "8 B", "5.000 M/s [", "4.000 M/s [", "-20.0 %", "slower"],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line} lacks one of {parts:?}");
    }
}

#[test]
fn a_significant_loss_above_the_limit_exits_with_status_3() {
    let pair = Pair::new(&all_measures(1.0), &all_measures(1.25));
    for (limit, status, rows) in [("10", 3, 3), ("22", 3, 1), ("30", 0, 0)] {
        let (found, error) = pair.status(&["--fail-above", limit]);
        assert_eq!((found, error.lines().count()), (Some(status), rows), "{limit}: {error}");
    }
    let gain = Pair::new(&all_measures(1.25), &all_measures(1.0));
    assert_eq!(gain.status(&["--fail-above", "0"]), (Some(0), String::new()));
    for wrong in ["-1", "nan", "inf", "much"] {
        let (status, error) = pair.status(&[&format!("--fail-above={wrong}")]);
        assert!(status == Some(2) && error.contains("percent"), "{wrong}: {error}");
    }
}

#[test]
fn rows_of_one_report_are_listed() {
    let both = row("lat", "write", 8, 1000.0);
    let base = report(vec![both.clone(), row("lat", "read", 8, 1000.0)]);
    let new = report(vec![row("lat", "write", 64, 1000.0), both]);
    let pair = Pair::new(&base, &new);
    let json = pair.json();
    assert_eq!(json["only_base"][0]["operation"], "read");
    assert_eq!(json["only_new"][0]["bytes"], 64);
    let table = printed(&pair.arguments(&[]));
    assert!(
        table.contains("only in the base report: lat read, 8 B, 1 QP, depth 1, polling"),
        "{table}"
    );
    assert!(table.contains("only in the new report: lat write, 64 B"), "{table}");
}

#[test]
fn other_machines_devices_and_versions_are_warnings() {
    let mut new = all_measures(1.0);
    new["machine"]["kernel"] = json!("6.12.1");
    new["device"]["mtu"] = json!(1024);
    new["rdmatool"] = json!("9.9.9");
    let (status, error) = Pair::new(&all_measures(1.0), &new).status(&[]);
    assert_eq!((status, error.lines().count()), (Some(0), 3), "{error}");
    for part in ["kernel differs", "\"6.12.1\"", "MTU differs", "\"9.9.9\""] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn input_that_is_no_report_is_an_error_with_its_path() {
    let good = all_measures(1.0);
    let with = |field: &str, value: Value| {
        let mut report = good.clone();
        report[field] = value;
        Pair::new(&good, &report).error()
    };
    assert!(with("version", json!(2)).contains("format version 2"));
    assert!(with("rows", json!([])).contains("0 rows"));
    assert!(with("surprise", json!(1)).contains("unknown field `surprise`"));
    let with_row = |field: &str, value: Value| {
        let mut row = row("lat", "write", 8, 1000.0);
        row[field] = value;
        with("rows", json!([row]))
    };
    assert!(with_row("blocks", json!([])).contains("0 blocks"));
    assert!(with_row("blocks", json!([1.0, null])).contains("invalid type: null"));
    assert!(with_row("blocks", json!([1.0, -2.0])).contains("block of -2"));
    assert!(with_row("blocks", json!([1e308])).contains("block of 1e308"));
    assert!(with_row("blocks", json!([5e-324])).contains("block of 5e-324"));
    assert!(with_row("operation", json!("\u{1b}[2J")).contains("control character"));
    let twice = row("lat", "write", 8, 1000.0);
    assert!(with("rows", json!([twice, twice])).contains("twice"));

    let pair = Pair::new(&good, &good);
    fs::write(&pair.new, "blocks = 7").unwrap();
    assert!(pair.error().contains("rdmatool perf --json"));
    fs::write(&pair.new, "{\"version\": 1, \"rows\": [NaN]}").unwrap();
    pair.error();
    fs::remove_file(&pair.new).unwrap();
    assert!(pair.error().contains("No such file"));
}

#[test]
fn reports_without_a_common_row_or_enough_blocks_are_errors() {
    let new = report(vec![row("lat", "read", 8, 1000.0)]);
    assert!(Pair::new(&all_measures(1.0), &new).error().contains("no row in common"));
    let mut few = row("lat", "write", 8, 1000.0);
    few["blocks"] = json!([1000.0, 1001.0]);
    let few = report(vec![few]);
    let (status, error) = Pair::new(&few, &few).status(&[]);
    assert!(status == Some(1) && error.contains("2 blocks"), "{error}");
}
