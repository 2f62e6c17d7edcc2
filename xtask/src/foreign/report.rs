//! The results: a line for each case, and a table of suites.

use std::fmt;
use std::time::Instant;

use anyhow::Result;

use super::output::Tests;

/// The result of a case that did not fail.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The result that the program reported.
    Passed(String),
    /// The tests of a suite that runs them itself. None failed.
    Tests(Tests),
    /// The reason why the case cannot run.
    Skipped(&'static str),
}

/// The results of a suite.
#[derive(Debug)]
pub(super) struct Row {
    suite: &'static str,
    version: String,
    passed: usize,
    skipped: usize,
    failed: usize,
}

impl Row {
    pub(super) fn new(suite: &'static str, version: String) -> Self {
        Self { suite, version, passed: 0, skipped: 0, failed: 0 }
    }

    /// Runs a case, counts it, and prints its line. The error of a failed case has the output of the processes.
    pub(super) fn case(&mut self, name: &str, run: impl FnOnce() -> Result<Outcome>) {
        let begin = Instant::now();
        let outcome = run();
        let seconds = begin.elapsed().as_secs_f64();
        let (word, detail, passed, skipped, failed) = match outcome {
            Ok(Outcome::Passed(detail)) => ("ok", detail, 1, 0, 0),
            Ok(Outcome::Tests(Tests { passed, skipped, .. })) => {
                let detail = format!("{passed} tests passed, {} skipped", skipped.len());
                ("ok", detail, passed, skipped.len(), 0)
            }
            Ok(Outcome::Skipped(reason)) => ("skipped", reason.to_owned(), 0, 1, 0),
            Err(error) => ("FAILED", format!("{error:#}"), 0, 0, 1),
        };
        println!("{word:7} {seconds:6.2} s  {} {name}: {detail}", self.suite);
        self.passed += passed;
        self.skipped += skipped;
        self.failed += failed;
    }
}

/// The results of all suites. Its text is a Markdown table.
#[derive(Debug, Default)]
pub(super) struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Returns true if no case failed and each suite had a case that passed.
    pub(super) fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.failed == 0 && row.passed > 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| suite | version | passed | skipped | failed |\n|---|---|---|---|---|")?;
        for Row { suite, version, passed, skipped, failed } in &self.rows {
            writeln!(f, "| {suite} | {version} | {passed} | {skipped} | {failed} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_case_or_a_suite_without_passed_cases_fails_the_report() {
        let report = |cases: Vec<Result<Outcome>>| {
            let mut row = Row::new("suite", "1.0".to_owned());
            cases.into_iter().for_each(|outcome| row.case("case", || outcome));
            Report { rows: vec![row] }
        };
        let passed = || Ok(Outcome::Passed(String::new()));
        let skipped = || Ok(Outcome::Skipped("reason"));
        assert!(report(vec![passed(), skipped()]).passed());
        assert!(!report(vec![passed(), Err(anyhow::anyhow!("why"))]).passed());
        assert!(!report(vec![skipped()]).passed());
        let text = report(vec![passed(), skipped()]).to_string();
        assert!(text.ends_with("\n| suite | 1.0 | 1 | 1 | 0 |\n"), "{text}");
    }
}
