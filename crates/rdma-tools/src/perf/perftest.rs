//! perftest's programs, such as `ib_write_lat`, as references to compare with. Both ends run as
//! processes on this host.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::perf::ends::{Local, Plan};
use crate::perf::report::Measure;
use crate::perf::settings::{Operation, Settings, name};
use crate::perf::watch::Watch;

/// The interval between the client's attempts to connect. Nothing reports when the server starts to
/// listen.
const RETRY: Duration = Duration::from_millis(100);
/// The minimum number of iterations that the programs accept.
const LEAST: u64 = 5;
/// perftest's megabyte, in bytes.
const MEGABYTE: f64 = 1_048_576.0;

/// A perftest program, and the arguments that are the same for all blocks.
#[derive(Debug)]
pub(crate) struct Perftest {
    program: PathBuf,
    arguments: Vec<String>,
    measure: Measure,
    /// Whether the program accepts the message length as an argument.
    has_size: bool,
}

/// The server process. When dropped, it is killed.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Perftest {
    /// Finds the perftest program for these settings.
    ///
    /// # Errors
    /// Returns the reason why no program can be used.
    pub(crate) fn find(settings: &Settings, local: &Local) -> Result<Self, String> {
        let (device, provider) =
            (local.context.device().name().to_owned(), local.context.verbs().name);
        let kind = if settings.measure == Measure::Lat { "lat" } else { "bw" };
        let program = format!("ib_{}_{kind}", name(settings.operation));
        if provider != "system" {
            return Err(format!(
                "{program} does not see {device}, which is not a device of libibverbs"
            ));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join(&program));
        let Some(program) = found.into_iter().find(|program| program.is_file()) else {
            return Err(format!("{program} is not installed (package perftest)"));
        };
        // With `-F`, a varying frequency of the processor is only a warning, not an error.
        let mut arguments = vec!["-F".to_owned(), "-d".to_owned(), device];
        if let Some(index) = local.gid_index {
            arguments.extend(["-x".to_owned(), index.to_string()]);
        }
        let has_size = settings.operation != Operation::Atomic;
        Ok(Self { program, arguments, measure: settings.measure, has_size })
    }

    /// Runs both ends for one block. Returns the number of operations and the measured figure.
    ///
    /// # Errors
    /// Returns an error if the programs fail or print unexpected output, or if the user interrupts.
    pub(crate) fn block(&self, plan: &Plan, watch: &mut Watch) -> anyhow::Result<(u64, f64)> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let queue_pairs = plan.queue_pairs as u64;
        let iterations = (plan.iterations / queue_pairs).max(LEAST); // per queue pair
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.args(["-p", &port.to_string(), "-n", &iterations.to_string()]);
        if self.has_size {
            command.args(["-s", &plan.bytes.to_string()]);
        }
        if self.measure != Measure::Lat {
            command.args(["-q", &plan.queue_pairs.to_string(), "-t", &plan.depth.to_string()]);
        }
        let start = || format!("cannot start {}", self.program.display());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Server(command.spawn().with_context(start)?);
        command.arg(Ipv4Addr::LOCALHOST.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
        watch.begin();
        loop {
            let output = command.output().with_context(start)?;
            if output.status.success() {
                let figure = self.figure(&output);
                let figure = figure.with_context(|| complaint(&self.program, &output))?;
                return Ok((iterations * queue_pairs, figure));
            }
            watch.check()?;
            if let Some(status) = server.0.try_wait()? {
                bail!("{}; the server ended: {status}", complaint(&self.program, &output));
            }
            thread::sleep(RETRY);
        }
    }

    /// Returns the measured figure from the program's output. It is in the last line that begins
    /// with the number of bytes and the number of iterations.
    fn figure(&self, output: &Output) -> Option<f64> {
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers = |line: &str| -> Option<Vec<f64>> {
            line.split_whitespace().map(|word| word.parse().ok()).collect()
        };
        let line = text.lines().filter_map(numbers).rfind(|numbers| numbers.len() >= 5)?;
        match self.measure {
            // The columns are: bytes, iterations, minimum, maximum, typical (the median). The times
            // are in microseconds.
            Measure::Lat => line.get(4).map(|microseconds| microseconds * 1e3),
            // The columns are: bytes, iterations, peak, average, millions of messages per second.
            Measure::Bw => line.get(3).map(|megabytes| megabytes * MEGABYTE),
            Measure::Rate => line.get(4).map(|millions| millions * 1e6),
        }
    }
}

/// Formats the output of a program that failed as an error message.
fn complaint(program: &Path, output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{} failed: {text:?}", program.display())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;
    use std::sync::Arc;

    use crate::perf::ends::Role;

    use super::*;

    fn figure(measure: Measure, text: &str) -> Option<f64> {
        let (program, arguments) = (PathBuf::new(), Vec::new());
        let perftest = Perftest { program, arguments, measure, has_size: true };
        let status = ExitStatus::from_raw(0);
        perftest.figure(&Output { status, stdout: text.into(), stderr: Vec::new() })
    }

    #[test]
    fn figures_are_read_from_the_line_of_numbers() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n \
                       2       1000          0.86           4.34         0.91     \t       0.92        \t0.07\n----\n";
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         65536      1000             11049.32            100.00\t\t   0.176722\n";
        assert_eq!(figure(Measure::Lat, latency), Some(910.0));
        assert_eq!(figure(Measure::Bw, bandwidth), Some(104_857_600.0));
        assert_eq!(figure(Measure::Rate, bandwidth), Some(176_722.0));
        assert_eq!(figure(Measure::Lat, "Unable to find device\n"), None);
    }

    /// Runs a block with a shell script instead of a perftest program.
    fn block(script: &str) -> anyhow::Result<(u64, f64)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let _peer = listener.accept()?;
        let mut watch = Watch::new(&stream, Arc::default())?;
        let arguments = ["-c", script, "ib_write_bw"].map(str::to_owned).to_vec();
        let perftest =
            Perftest { program: "sh".into(), arguments, measure: Measure::Bw, has_size: true };
        let (role, queue_pairs) = (Role::Stream, 2);
        let plan = Plan { role, bytes: 64, size: 0, queue_pairs, depth: 3, iterations: 20 };
        perftest.block(&plan, &mut watch)
    }

    #[test]
    fn a_block_runs_a_server_and_a_client() -> anyhow::Result<()> {
        // The client prints its number of iterations as the average bandwidth.
        let script = "case \"$*\" in *' -n 10 -s 64 -q 2 -t 3 127.0.0.1') echo 64 10 0 $4 0;; *) exec sleep 600;; esac";
        assert_eq!(block(script)?, (20, 10.0 * MEGABYTE));
        Ok(())
    }

    #[test]
    fn programs_that_fail_or_print_no_figure_are_errors() {
        let of = |script| block(script).map_err(|error| error.to_string()).unwrap_err();
        let error = of("echo no such device; exit 3");
        assert!(
            error.contains("\"no such device\"") && error.contains("exit status: 3"),
            "{error}"
        );
        let error = of("case \"$*\" in *127.0.0.1) echo nothing;; *) exec sleep 600;; esac");
        assert!(error.contains("\"nothing\""), "{error}");
    }
}
