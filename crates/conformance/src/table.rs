//! The outcomes, and the table that is printed at the end.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Mutex, PoisonError};

use crate::outcome::Outcome;

/// The outcome of each case on each device, by device and case name.
#[derive(Debug, Default)]
pub(crate) struct Results(Mutex<BTreeMap<(String, String), Outcome>>);

#[derive(Default)]
struct Row<'a> {
    passed: usize,
    alone: Vec<&'a str>,
    differs: usize,
    skipped: BTreeMap<&'a str, usize>,
    failed: usize,
}

impl Results {
    pub(crate) fn add(&self, device: &str, case: String, outcome: Outcome) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((device.to_owned(), case), outcome);
    }
}

impl Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = BTreeMap::<&str, Row<'_>>::new();
        for ((device, case), outcome) in all.iter() {
            let row = rows.entry(device).or_default();
            match outcome {
                Outcome::Passed => row.passed += 1,
                Outcome::PassedAlone => row.alone.push(case),
                Outcome::Differs { .. } => row.differs += 1,
                Outcome::Skipped { reason } => *row.skipped.entry(reason).or_default() += 1,
                Outcome::Failed { .. } => row.failed += 1,
            }
        }
        writeln!(
            f,
            "{:<20}{:>8}{:>9}{:>9}{:>8}",
            "device", "passed", "differs", "skipped", "failed"
        )?;
        for (device, Row { passed, alone, differs, skipped, failed }) in &rows {
            let (passed, skipped) = (passed + alone.len(), skipped.values().sum::<usize>());
            writeln!(f, "{device:<20}{passed:>8}{differs:>9}{skipped:>9}{failed:>8}")?;
        }
        for (device, row) in &rows {
            for case in &row.alone {
                writeln!(f, "{device}: passed only when run alone: {case}")?;
            }
            for (reason, count) in &row.skipped {
                writeln!(f, "{device}: skipped {count}: {reason}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted_once_and_in_its_column() {
        let results = Results::default();
        let skipped = || Outcome::Skipped { reason: "no multicast".to_owned() };
        let outcomes = [
            Outcome::Passed,
            Outcome::PassedAlone,
            Outcome::Differs { differences: vec!["x".to_owned()] },
            skipped(),
            skipped(),
            Outcome::Failed { message: String::new() },
        ];
        for (n, outcome) in outcomes.into_iter().enumerate() {
            results.add("rxe0", format!("case{n}"), outcome);
        }
        results.add("soft0", "case0".to_owned(), Outcome::Passed);
        let text = results.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["rxe0", "2", "1", "2", "1"]);
        assert_eq!(lines[2], ["soft0", "1", "0", "0", "0"]);
        assert_eq!(text.lines().nth(3), Some("rxe0: passed only when run alone: case1"));
        assert_eq!(text.lines().nth(4), Some("rxe0: skipped 2: no multicast"));
    }
}
