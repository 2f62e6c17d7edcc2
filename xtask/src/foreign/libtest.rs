//! The results in the output of Rust's test programs.

use anyhow::{Context as _, Result, ensure};

use super::output::Tests;

/// A test that fails because of a property of the device.
#[derive(Debug)]
pub(super) struct Difference {
    /// The name of the test.
    pub(super) test: &'static str,
    /// A part of the error that it reports.
    pub(super) error: &'static str,
    /// The property.
    pub(super) cause: &'static str,
}

/// Parses the output of a test program.
///
/// # Errors
/// Returns an error if the summary is missing, or contradicts the lines of the tests.
pub(super) fn parse(output: &str) -> Result<Tests> {
    let mut tests = Tests::default();
    for (name, result) in output.lines().filter_map(line) {
        match result {
            "ok" => tests.passed += 1,
            "FAILED" => tests.failed.push(name.to_owned()),
            _ => tests.skipped.push(result.to_owned()),
        }
    }
    let summary = output.lines().find_map(|line| line.strip_prefix("test result: "));
    let summary = summary.context("the tests did not run to their end")?;
    for (what, lines) in
        [("passed", tests.passed), ("failed", tests.failed.len()), ("ignored", tests.skipped.len())]
    {
        let counted = summary.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what));
        let counted: usize = counted.context("the summary has no counts")?.trim().parse()?;
        ensure!(counted == lines, "{counted} tests are counted as {what}, but {lines} lines are");
    }
    Ok(tests)
}

/// Counts the known differences as skipped if they fail.
///
/// # Errors
/// Returns an error if another test failed, or if a known difference has another error.
pub(super) fn accepted(mut tests: Tests, output: &str, known: &[Difference]) -> Result<Tests> {
    for Difference { test, error, cause } in known {
        // The other process that a test expects to be missing may happen to exist.
        let Some(at) = tests.failed.iter().position(|name| name == test) else { continue };
        ensure!(details(output, test).contains(error), "{test} failed with another error");
        tests.failed.remove(at);
        tests.skipped.push((*cause).to_owned());
    }
    let Tests { passed, failed, .. } = &tests;
    ensure!(failed.is_empty(), "these tests failed, and {passed} passed: {failed:?}");
    Ok(tests)
}

/// Returns the name and the result in the line of a test.
fn line(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.strip_suffix(" - should panic").unwrap_or(name), result))
}

/// Returns the output of a failed test.
fn details<'a>(output: &'a str, test: &str) -> &'a str {
    let begin = output.split_once(&format!("---- {test} stdout ----"));
    let rest = begin.map_or("", |(_, rest)| rest);
    let end = ["\n---- ", "\nfailures:"].iter().filter_map(|end| rest.find(end)).min();
    &rest[..end.unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 5 tests
test a::one ... ok
test a::two - should panic ... ok
test main ... FAILED
test slow ... ignored, it takes an hour
test b::three ... FAILED

failures:

---- main stdout ----
Error: HostUnreachable
---- b::three stdout ----

thread 'b::three' panicked at src/lib.rs:1:1:
assertion failed

failures:
    b::three
    main

test result: FAILED. 2 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    const UNREACHABLE: Difference =
        Difference { test: "main", error: "HostUnreachable", cause: "far away" };

    #[test]
    fn the_lines_and_the_summary_are_parsed() {
        let tests = parse(OUTPUT).unwrap();
        assert_eq!(tests.passed, 2);
        assert_eq!(tests.failed, ["main", "b::three"]);
        assert_eq!(tests.skipped, ["ignored, it takes an hour"]);
        assert!(parse(&OUTPUT.replace("2 passed", "3 passed")).is_err());
        assert!(parse("test main ... Segmentation fault\n").is_err());
    }

    #[test]
    fn only_failures_with_the_known_error_count_as_skipped() {
        let accept = |known: &[Difference]| accepted(parse(OUTPUT).unwrap(), OUTPUT, known);
        let three = || Difference { test: "b::three", error: "assertion", cause: "by design" };
        let tests = accept(&[UNREACHABLE, three()]).unwrap();
        assert_eq!(tests.skipped, ["ignored, it takes an hour", "far away", "by design"]);
        let refused = |known: &[Difference]| accept(known).unwrap_err().to_string();
        assert!(refused(&[UNREACHABLE]).ends_with("2 passed: [\"b::three\"]"));
        let other = Difference { error: "Unreachable", ..three() };
        assert_eq!(refused(&[UNREACHABLE, other]), "b::three failed with another error");
        let passed = Difference { test: "a::one", ..UNREACHABLE };
        let three = [three(), passed];
        assert!(accept(&three).unwrap_err().to_string().ends_with("2 passed: [\"main\"]"));
    }
}
