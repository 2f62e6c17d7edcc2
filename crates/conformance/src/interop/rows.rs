//! The results of the checks.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::Serialize;

use crate::outcome::Outcome;

/// The result of one check in one direction.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) check: &'static str,
    /// The name of the acting device.
    pub(super) from: String,
    /// The name of the other device.
    pub(super) to: String,
    pub(super) outcome: Outcome,
    /// The number of UC and UD messages that were sent.
    pub(super) sent: u32,
    /// The number of UC and UD messages that arrived.
    pub(super) arrived: u32,
    pub(super) millis: u128,
}

impl Row {
    pub(super) fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed { .. })
    }
}

/// Returns a short text for the outcome. The messages of failures follow after the table.
fn word(row: &Row) -> String {
    let word = match &row.outcome {
        Outcome::Passed | Outcome::PassedAlone => "passed".to_owned(),
        Outcome::Differs { differences } => format!("differs: {}", differences.join(", ")),
        Outcome::Skipped { reason } => format!("skipped: {reason}"),
        Outcome::Failed { .. } => "FAILED".to_owned(),
    };
    if row.arrived == row.sent { word } else { format!("{word} ({} of {})", row.arrived, row.sent) }
}

/// The results as a table for people, with a line for each check and a column for each direction.
pub(super) struct Table<'a>(pub(super) &'a [Row]);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::<(&str, Vec<String>)>::new();
        let mut titles = Vec::new();
        for row in self.0 {
            let title = format!("{} to {}", row.from, row.to);
            if !titles.contains(&title) {
                titles.push(title);
            }
            match lines.iter_mut().find(|line| line.0 == row.check) {
                Some(line) => line.1.push(word(row)),
                None => lines.push((row.check, vec![word(row)])),
            }
        }
        writeln!(f, "| check | {} |", titles.join(" | "))?;
        writeln!(f, "|---|{}", "---|".repeat(titles.len()))?;
        for (check, words) in &lines {
            writeln!(f, "| `{check}` | {} |", words.join(" | "))?;
        }
        let mut counts = BTreeMap::<&str, usize>::new();
        for row in self.0 {
            let word = match row.outcome {
                Outcome::Passed | Outcome::PassedAlone => "passed",
                Outcome::Differs { .. } => "differ",
                Outcome::Skipped { .. } => "skipped",
                Outcome::Failed { .. } => "failed",
            };
            *counts.entry(word).or_default() += 1;
        }
        let counts = counts.iter().map(|(word, count)| format!("{count} {word}"));
        writeln!(f, "\n{}", counts.collect::<Vec<_>>().join(", "))?;
        for row in self.0 {
            if let Outcome::Failed { message } = &row.outcome {
                writeln!(f, "{}, {} to {}: {message}", row.check, row.from, row.to)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(check: &'static str, from: &str, to: &str, outcome: Outcome) -> Row {
        let (from, to) = (from.to_owned(), to.to_owned());
        Row { check, from, to, outcome, sent: 3, arrived: 3, millis: 1 }
    }

    #[test]
    fn each_check_is_a_line_and_each_direction_a_column() {
        let differs = Outcome::Differs { differences: vec!["x".to_owned()] };
        let failed = || Outcome::Failed { message: "why".to_owned() };
        let rows = [
            row("rc/send", "a", "b", Outcome::Passed),
            row("rc/send", "b", "a", differs),
            row("ud/send", "a", "b", failed()),
            Row { arrived: 2, ..row("ud/send", "b", "a", Outcome::Passed) },
        ];
        let text = Table(&rows).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "| check | a to b | b to a |");
        assert_eq!(lines[2], "| `rc/send` | passed | differs: x |");
        assert_eq!(lines[3], "| `ud/send` | FAILED | passed (2 of 3) |");
        assert_eq!(lines[5], "1 differ, 1 failed, 2 passed");
        assert_eq!(lines[6], "ud/send, a to b: why");
        assert!(rows[2].failed() && !rows[1].failed());
    }
}
