//! The results in the output of the programs.

use anyhow::{Context as _, Result, ensure};

use super::process::Ended;

/// The text before the counts that `rdma-soft-run --stats` prints.
const COUNTED: &str = "rdma-soft-run: ";

/// Returns the result that a pingpong program or a program of perftest has printed.
///
/// # Errors
/// Returns an error if the output has no result, or one without iterations.
pub(super) fn result(output: &str) -> Result<String> {
    if let Some(line) = output.lines().find(|line| line.contains(" iters in ")) {
        return Ok(line.to_owned());
    }
    let (bytes, iterations, average) =
        output.lines().rev().find_map(perftest).context("the output has no result")?;
    ensure!(iterations > 0, "the result has no iterations");
    Ok(format!("{iterations} iterations of {bytes} bytes, average {average}"))
}

/// Parses a line of results of perftest: the size, the iterations, and the average in MB/s or us.
fn perftest(line: &str) -> Option<(u64, u64, f64)> {
    let mut words = line.split_whitespace();
    let (bytes, iterations) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let numbers = words.map(str::parse).collect::<Result<Vec<f64>, _>>().ok()?;
    let average = match numbers[..] {
        // The minimum, the maximum and the typical latency precede the average.
        [_, _, _, average, _, _, _] => average,
        // The peak precedes the average bandwidth, which the message rate follows.
        [_, average, _] => average,
        // A run of a given duration has only the average latency and the rate.
        [average, _] => average,
        _ => return None,
    };
    Some((bytes, iterations, average))
}

/// Returns the iterations in the last line of `ucx_perftest`.
///
/// # Errors
/// Returns an error if the output has no such line, or no iterations.
pub(super) fn ucx(output: &str) -> Result<u64> {
    let line = output.lines().find_map(|line| line.strip_prefix("Final:"));
    let count = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let count = count.context("the output has no line `Final:` with a number of iterations")?;
    ensure!(count > 0, "the result has no iterations");
    Ok(count)
}

/// Returns the requests that `rdma-soft-run --stats` has counted: those of the program and those of its peers.
///
/// # Errors
/// Returns an error if the output has no counts, or if both are 0, because the program did not use RDMA.
pub(super) fn counts(output: &str) -> Result<(u64, u64)> {
    let line = output.lines().filter_map(|line| line.split_once(COUNTED)).find_map(|(_, line)| {
        let line = line.strip_prefix("at least ").unwrap_or(line);
        let (own, rest) = line.split_once(" requests with ")?;
        let (peers, _) = rest.split_once(" over RDMA, and ")?.1.split_once(" requests of peers")?;
        Some((own.parse().ok()?, peers.parse().ok()?))
    });
    let counts = line.context("the output has no counts of requests over RDMA")?;
    ensure!(counts != (0, 0), "nothing went over RDMA");
    Ok(counts)
}

/// Returns the result that one of our programs has printed.
///
/// # Errors
/// Returns an error if the program did not finish.
pub(super) fn finished(output: &str) -> Result<&str> {
    let line = output.lines().find_map(|line| line.strip_prefix("finished: "));
    line.context("the output has no line `finished:`")
}

/// Returns the client's requests, if both processes have counted requests over RDMA.
///
/// # Errors
/// Returns an error if a process did not use RDMA.
pub(super) fn both_counts(server: &Ended, client: &Ended) -> Result<String> {
    counts(&server.output).context("the server")?;
    let (own, peers) = counts(&client.output).context("the client")?;
    Ok(format!("{own} requests, {peers} of the peer"))
}

/// Returns the result that one of our programs has printed as the client, and the client's requests.
///
/// # Errors
/// Returns an error if the client did not finish, or if a process did not use RDMA.
pub(super) fn both_finished(server: &Ended, client: &Ended) -> Result<String> {
    Ok(format!("{}, {}", finished(&client.output)?, both_counts(server, client)?))
}

/// The results of a test program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tests {
    pub(super) passed: usize,
    /// The names of the failed tests.
    pub(super) failed: Vec<String>,
    /// The reasons of the skipped tests.
    pub(super) skipped: Vec<String>,
}

impl Tests {
    /// Checks that no test failed.
    ///
    /// # Errors
    /// Returns an error that names the tests that failed.
    pub(super) fn none_failed(&self) -> Result<()> {
        let Self { passed, failed, .. } = self;
        ensure!(failed.is_empty(), "these tests failed, and {passed} passed: {failed:?}");
        Ok(())
    }
}

/// Parses the output of Python's `unittest`, with `--verbose`.
///
/// # Errors
/// Returns an error if the summary is missing, or contradicts the lines of the skipped and failed tests.
pub(super) fn unittest(output: &str) -> Result<Tests> {
    let ran = output.lines().find_map(|line| line.strip_prefix("Ran ")?.split_once(" test"));
    let ran: usize = ran.context("the tests did not run to their end")?.0.parse()?;
    let last =
        output.lines().rev().find(|line| line.starts_with("OK") || line.starts_with("FAILED"));
    let last = last.context("the output has neither OK nor FAILED")?;
    let count = |name: &str| -> usize {
        let words = last.split(['(', ',', ')', ' ']);
        words
            .filter_map(|word| word.strip_prefix(name)?.strip_prefix("=")?.parse::<usize>().ok())
            .sum()
    };
    let skipped: Vec<_> = output.lines().filter_map(reason).map(str::to_owned).collect();
    let failed: Vec<_> = output.lines().filter_map(failure).map(str::to_owned).collect();
    let bad = ["failures", "errors", "successes"].map(count).iter().sum::<usize>();
    for (counted, lines, what) in
        [(count("skipped"), skipped.len(), "skipped"), (bad, failed.len(), "failed")]
    {
        ensure!(
            counted == lines,
            "{counted} tests are counted as {what}, and {lines} lines name one"
        );
    }
    let passed = ran.checked_sub(failed.len() + skipped.len());
    Ok(Tests { passed: passed.context("fewer tests ran than were counted")?, failed, skipped })
}

/// Returns the name of the test in the line before the details of its failure.
fn failure(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: "))?;
    rest.split_whitespace().next()
}

/// Returns the reason in the line of a skipped test, which has Python's quotes.
fn reason(line: &str) -> Option<&str> {
    let quoted = line.rsplit_once("skipped ")?.1;
    let quote = quoted.chars().next().filter(|first| ['\'', '"'].contains(first))?;
    quoted.strip_prefix(quote)?.strip_suffix(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 2          20               0.50               0.25               0.131072
 65536      800             3072.25            2811.37             0.044982
---------------------------------------------------------------------------------------
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       500          1.50           9.25         1.75     \t       2.50        \t0.50   \t\t3.25    \t\t9.25   
";

    #[test]
    fn the_last_result_of_perftest_is_returned() {
        let found = result(BANDWIDTH).unwrap();
        assert_eq!(found, "800 iterations of 65536 bytes, average 2811.37");
        assert_eq!(result(LATENCY).unwrap(), "500 iterations of 2 bytes, average 2.5");
        let duration =
            " #bytes        #iterations       t_avg[usec]    tps average\n 2   3    4.25  235.29\n";
        assert_eq!(result(duration).unwrap(), "3 iterations of 2 bytes, average 4.25");
        assert!(result("Couldn't connect to 127.0.0.1:18515\n").is_err());
        assert!(result(" 2 0 0.00 0.00 0.00\n").is_err(), "no iterations");
    }

    #[test]
    fn the_result_of_a_pingpong_program_is_its_line() {
        let output = "8192000 bytes in 0.01 seconds = 5461.33 Mbit/sec\n1000 iters in 0.01 seconds = 12.00 usec/iter\n";
        assert_eq!(result(output).unwrap(), "1000 iters in 0.01 seconds = 12.00 usec/iter");
    }

    #[test]
    fn the_iterations_of_ucx_are_those_of_its_last_line() {
        let output =
            "[thread 0]   991   3176.098 11404.885\nFinal:       1000   3182.480  6213.903\n";
        assert_eq!(ucx(output).unwrap(), 1000);
        assert!(ucx("[thread 0]   991   3176.098 11404.885\n").is_err());
        assert!(ucx("Final:  0  0.0\n").is_err());
    }

    #[test]
    fn requests_are_counted_and_their_absence_is_an_error() {
        let line = |own: u64, peers: u64| {
            format!(
                "Waiting for connection...\nrdma-soft-run: {own} requests with 7 bytes over RDMA, and {peers} requests \
                 of peers with 9 bytes, in 1 process(es)\n"
            )
        };
        assert_eq!(counts(&line(3, 0)).unwrap(), (3, 0));
        assert_eq!(counts(&line(0, 4)).unwrap(), (0, 4));
        let least = line(5, 6).replace("rdma-soft-run: ", "| 2.25 |rdma-soft-run: at least ");
        assert_eq!(counts(&least).unwrap(), (5, 6));
        assert!(counts(&line(0, 0)).unwrap_err().to_string().contains("nothing went over RDMA"));
        let none = "rdma-soft-run: no process has listed RDMA devices, so nothing went over RDMA\n";
        assert!(counts(none).is_err());
    }

    #[test]
    fn the_summary_of_unittest_and_the_reasons_are_parsed() {
        let output = "\
test_a (tests.test_a.A.test_a) ... ok
test_b (tests.test_b.B.test_b)
Checks b. ... skipped 'No ODP'
test_c (tests.test_c.C.test_c) ... skipped \"Device x doesn't have y\"
test_d (tests.test_d.D.test_d) ... FAIL
test_e (tests.test_e.E.test_e) ... ERROR

FAIL: test_d (tests.test_d.D.test_d)
ERROR: test_e (tests.test_e.E.test_e)

Ran 5 tests in 0.1s

";
        let failed =
            unittest(&format!("{output}FAILED (failures=1, errors=1, skipped=2)\n")).unwrap();
        let skipped = ["No ODP", "Device x doesn't have y"].map(str::to_owned).to_vec();
        let names = ["test_d", "test_e"].map(str::to_owned).to_vec();
        assert_eq!(failed, Tests { passed: 1, failed: names, skipped });
        assert!(unittest(&format!("{output}OK (skipped=2)\n")).is_err(), "two tests failed");
        assert!(unittest(&format!("{output}OK\n")).is_err(), "two reasons, but none skipped");
        assert!(unittest("test_a (tests.test_a.A.test_a) ... Segmentation fault\n").is_err());
    }
}
