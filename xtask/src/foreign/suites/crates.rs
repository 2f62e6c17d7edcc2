//! Crates of crates.io that use libibverbs: their own tests and examples.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::foreign::installation::Installation;
use crate::foreign::libtest;
use crate::foreign::output::{both_counts, counts, result};
use crate::foreign::packages::Needs;
use crate::foreign::pair::{connect, outcome, words};
use crate::foreign::process::{Process, free_port};
use crate::foreign::published::{self, Programs, TOOLS};
use crate::foreign::report::{Outcome, Row};

pub(super) const NEEDS: Needs = Needs { packages: TOOLS, wheels: &[] };

/// A published crate.
#[derive(Debug)]
pub(super) struct Crate {
    /// The name and the version, as `NAME==VERSION`.
    pub(super) package: &'static str,
    /// The program that its build script starts instead of cmake.
    cmake: Option<&'static str>,
    /// The devices on which its programs run.
    devices: &'static str,
    programs: &'static [(&'static str, Kind)],
}

/// A test program or an example.
#[derive(Debug)]
enum Kind {
    /// A test program, and the part of the library that it uses.
    Tests(Use),
    /// An example that ends by itself, what it uses, and a text that it prints.
    Example(Use, &'static str),
    /// An example that exchanges messages as a server and a client, with these options.
    Pair(&'static str),
    /// An example that connects by address as a server and a client, with these options, and a text that the client prints.
    ByAddress([&'static str; 2], &'static str),
    /// An example with three processes, and a text that the first one prints.
    Network(&'static str),
    /// A test program that does not run, for this reason.
    NoTests(&'static str),
    /// An example that does not run, for this reason.
    NoExample(&'static str),
}

/// The part of the library that a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Nothing,
    Devices,
    Requests,
}

use Kind::{ByAddress, Example, Network, NoExample, NoTests, Pair, Tests};

/// The build script of `ibverbs-sys` needs only headers.
const HEADERS: Option<&str> = Some("cmake.sh");

pub(super) const IBVERBS: Crate = Crate {
    package: "ibverbs==0.9.2",
    cmake: HEADERS,
    devices: "soft0",
    programs: &[("ibverbs", Tests(Use::Nothing)), ("loopback", Example(Use::Requests, "received"))],
};

pub(super) const SIDEWAY: Crate = Crate {
    package: "sideway==0.4.3",
    cmake: None,
    devices: "soft0",
    programs: &[
        ("sideway", Tests(Use::Devices)),
        ("test_atomic", Tests(Use::Requests)),
        ("test_cq", Tests(Use::Devices)),
        ("test_mr_and_cq", Tests(Use::Devices)),
        ("test_post_send", Tests(Use::Requests)),
        ("test_qp", Tests(Use::Devices)),
        ("compiletest", NoTests("it only compares messages of the compiler")),
        ("ibv_devinfo", Example(Use::Devices, "hca_id: soft0")),
        ("rc_pingpong", Pair("-d soft0 -g 1")),
        ("rc_pingpong_split", Pair("-d soft0 -g 1")),
        ("show_gids", NoExample("it requires that each GID has a network interface")),
        ("cmtime", ByAddress(["-c 20", "-c 20 -s 127.0.0.1"], "Disconnect")),
    ],
};

pub(super) const IBVERBS_RS: Crate = Crate {
    package: "ibverbs-rs==0.4.1",
    cmake: HEADERS,
    // The examples open a device of this name. They connect by LIDs.
    devices: "mlx5_0,port=ib",
    programs: &[
        ("ibverbs_rs", Tests(Use::Nothing)),
        ("channel", Example(Use::Requests, "Mem after exchange: [8, 8, 8, 8, 8, 8, 8, 8]")),
        ("multi_channel", Example(Use::Requests, "Recv mem after: [1, 1, 1, 1]")),
        ("multi_channel_scatter_gather", Example(Use::Requests, "Recv mem after: [1, 2, 3, 4, 5]")),
        ("network", Network("Mem after: [1, 1, 1, 1, 2, 2, 2, 2]")),
        ("network_barrier_test", Network("Barrier end!")),
        ("network_barrier_test_random", NoExample("it sleeps 10,000 times, for 50 s in all")),
    ],
};

/// Runs the test programs and the examples.
///
/// # Errors
/// Returns an error if cargo cannot build them, or if they differ from the listed ones.
pub(super) fn run(installation: &Installation, crate_: &Crate, row: &mut Row) -> Result<()> {
    let built = published::build(installation, crate_.package, crate_.cmake)?;
    let found = built.tests.len() + built.examples.len();
    let listed = crate_.programs.len();
    ensure!(found == listed, "{found} programs were built, but {listed} are listed: {built:?}");
    let installation = installation.with_variable("RDMA_SOFT_DEVICES", crate_.devices);
    for (name, kind) in crate_.programs {
        let program = [path(&built, name, kind)?];
        row.case(name, || match kind {
            Tests(uses) => tests(&installation, &program, *uses),
            Example(uses, text) => example(&installation, &program, *uses, text),
            Pair(options) => pair(&installation, &program, options),
            ByAddress(options, text) => by_address(&installation, &program, *options, text),
            Network(text) => network(&installation, &program, text),
            NoTests(reason) | NoExample(reason) => Ok(Outcome::Skipped(reason)),
        });
    }
    Ok(())
}

fn path(built: &Programs, name: &str, kind: &Kind) -> Result<String> {
    let programs = match kind {
        Tests(..) | NoTests(_) => &built.tests,
        Example(..) | Pair(_) | ByAddress(..) | Network(_) | NoExample(_) => &built.examples,
    };
    let path = programs.get(name).with_context(|| format!("the package has no program {name}"))?;
    Ok(path.to_string_lossy().into_owned())
}

fn tests(installation: &Installation, program: &[String], uses: Use) -> Result<Outcome> {
    let words = installation.counted(program);
    let ended = Process::start(&words, &installation.environment())?.end()?;
    let accepted = || {
        let tests = libtest::parse(&ended.output)?;
        uses.check(&ended.output)?;
        tests.none_failed().map(|()| tests)
    };
    accepted().map(Outcome::Tests).with_context(|| ended.to_string())
}

fn example(
    installation: &Installation,
    program: &[String],
    uses: Use,
    text: &str,
) -> Result<Outcome> {
    let words = installation.counted(program);
    let ended = Process::start(&words, &installation.environment())?.end()?;
    let check = || {
        ensure!(ended.succeeded(), "the process failed");
        ensure!(ended.output.contains(text), "the output does not contain {text:?}");
        uses.check(&ended.output)
    };
    check().with_context(|| ended.to_string())?;
    Ok(Outcome::Passed(text.to_owned()))
}

fn pair(installation: &Installation, program: &[String], options: &str) -> Result<Outcome> {
    let words = [installation.counted(program), words(options)].concat();
    let environment = installation.environment();
    outcome(connect(&words, [&environment, &environment]), |server, client| {
        Ok(format!("{}, {}", result(&client.output)?, both_counts(server, client)?))
    })
}

/// Runs a server, and a client as soon as the server listens at its port of rdma_cm.
fn by_address(
    installation: &Installation,
    program: &[String],
    ends: [&str; 2],
    text: &str,
) -> Result<Outcome> {
    let port = ["-p".to_owned(), free_port()?.to_string()];
    let start = |options: &str| {
        let words = [installation.counted(program), port.to_vec(), words(options)].concat();
        Process::start(&words, &installation.environment())
    };
    let server = start(ends[0])?;
    if !server.listens_by_address(port[1].parse()?) {
        bail!("the server does not listen\n{}", server.end()?);
    }
    let client = start(ends[1])?.end()?;
    outcome(Ok((server.end()?, client)), |server, client| {
        ensure!(client.output.contains(text), "the client's output does not contain {text:?}");
        Use::Devices.check(&server.output)?;
        Use::Devices.check(&client.output)?;
        Ok(text.to_owned())
    })
}

/// Runs three processes, which find each other by a file with their TCP ports.
fn network(installation: &Installation, program: &[String], text: &str) -> Result<Outcome> {
    let file = installation.home.join("network.json");
    let host = |rank: usize| -> Result<String> {
        let port = free_port()?;
        Ok(format!(r#"{{"hostname":"127.0.0.1","port":{port},"ibdev":"mlx5_0","rankid":{rank}}}"#))
    };
    let hosts = (0..3).map(host).collect::<Result<Vec<_>>>()?;
    fs::write(&file, format!(r#"{{"hosts":[{}]}}"#, hosts.join(",")))?;
    let start = |rank: usize| {
        let options = [words_of(&file), rank.to_string()];
        let words = [program, &options].concat();
        Process::start(&installation.counted(&words), &installation.environment())
    };
    let processes = (0..3).map(start).collect::<Result<Vec<_>>>()?;
    let ended = processes.into_iter().map(Process::end).collect::<Result<Vec<_>>>()?;
    let check = || -> Result<()> {
        for one in &ended {
            ensure!(one.succeeded(), "a process failed");
            counts(&one.output)?;
        }
        ensure!(ended[0].output.contains(text), "the output does not contain {text:?}");
        Ok(())
    };
    let all = || ended.iter().map(|one| format!("\n{one}")).collect::<String>();
    check().with_context(all)?;
    Ok(Outcome::Passed(text.to_owned()))
}

fn words_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Use {
    /// Checks what `rdma-soft-run --stats` has counted.
    ///
    /// # Errors
    /// Returns an error if the program has used less of the library.
    fn check(self, output: &str) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Devices => {
                ensure!(output.contains(" process(es)"), "the program has listed no devices");
                Ok(())
            }
            Self::Requests => counts(output).map(|_| ()),
        }
    }
}
