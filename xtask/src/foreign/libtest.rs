//! The results in the output of Rust's test programs.

use anyhow::{Context as _, Result, ensure};

use super::output::Tests;

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

/// Returns the name and the result in the line of a test.
fn line(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.strip_suffix(" - should panic").unwrap_or(name), result))
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
    fn tests_that_failed_are_named() {
        let error = parse(OUTPUT).unwrap().none_failed().unwrap_err().to_string();
        assert!(error.ends_with("2 passed: [\"main\", \"b::three\"]"), "{error}");
        assert!(Tests { passed: 1, ..Tests::default() }.none_failed().is_ok());
    }
}
