//! `rdmatool perf`: measures the latency, bandwidth or message rate of a device.

mod arguments;
mod client;
mod ends;
mod pair;
mod perftest;
pub(crate) mod protocol;
pub(crate) mod report;
mod samples;
mod scale;
mod server;
mod settings;
mod table;
mod watch;

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::SystemTime;

use anyhow::{Context as _, Error, bail};
use rdma::device::Context;
use signal_hook::consts::SIGINT;

use crate::devices;
use crate::output::{Destination, print, warn};
pub(crate) use crate::perf::arguments::Arguments;
use crate::perf::client::{Measured, measure};
use crate::perf::ends::Local;
use crate::perf::pair::SecondEnd;
use crate::perf::perftest::Perftest;
use crate::perf::protocol::Control;
use crate::perf::report::{Device, Machine, Report, VERSION};
use crate::perf::watch::Stop;
use crate::plot;

/// The exit status after an interruption, the same as that of a program killed by SIGINT.
const INTERRUPTED: u8 = 130;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let context = devices::open(arguments.device.as_deref())?;
    let local = Local { context, gid_index: arguments.gid_index };
    if let Some(address) = &arguments.listen {
        server::listen(address, &local, arguments.once)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(address) = &arguments.serve {
        // The parent process handles interruptions, and receives all errors over the connection.
        signal_hook::flag::register(SIGINT, Arc::default())?;
        let _ = server::serve(TcpStream::connect(address)?, &local, |_| {});
        return Ok(ExitCode::SUCCESS);
    }
    let mut run = arguments.run().context("nothing to measure")?;
    run.settings.check(&local.context)?;
    // The files are opened before the measurement, so that an error is reported early.
    let standard_output = Path::new("-");
    let json = arguments.json.as_deref();
    if json.is_some() && json == arguments.plot.as_deref() {
        bail!("--json and --plot name the same file: give two different ones");
    }
    let prints_json = json == Some(standard_output);
    let json = json.filter(|path| *path != standard_output).map(Destination::open).transpose()?;
    let picture = arguments.plot.as_deref().map(plot::Picture::open).transpose()?;
    if arguments.scale {
        match arguments.connect.is_none().then(|| Perftest::find(&run.settings, &local)) {
            Some(Ok(perftest)) => run.add(perftest),
            Some(Err(reason)) => warn(format_args!("note: no rows of perftest: {reason}")),
            None => warn("note: no rows of perftest, whose two ends run on one host"),
        }
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    // A second interruption ends the program immediately.
    let status = INTERRUPTED.into();
    signal_hook::flag::register_conditional_shutdown(SIGINT, status, Arc::clone(&interrupted))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
    let (second, stream) = meet(arguments, &local)?;
    let measured = Control::meet(stream, interrupted, false)
        .and_then(|mut control| measure(&run, &local, &mut control));
    drop(second);
    let measured = match measured {
        Err(error) if is_interruption(&error) => return Ok(ExitCode::from(INTERRUPTED)),
        measured => measured?,
    };
    let Measured { rows, mtu, error } = measured;
    let report = Report { rows, ..report(&local.context, mtu)? };
    if !report.rows.is_empty() {
        let text = serde_json::to_string_pretty(&report)?;
        // The files are written first, so that they are complete even if standard output is full or
        // closed.
        let written = json.map_or(Ok(()), |file| file.write(format!("{text}\n").as_bytes()));
        let drawn = picture.map_or(Ok(()), |picture| picture.draw(slice::from_ref(&report)));
        match prints_json {
            true => print(&text)?,
            false => print(table::table(&report, run.settings.operation))?,
        }
        written.and(drawn)?;
    }
    match error {
        None => Ok(ExitCode::SUCCESS),
        Some(error) if is_interruption(&error) => Ok(ExitCode::from(INTERRUPTED)),
        Some(error) => Err(error),
    }
}

fn is_interruption(error: &anyhow::Error) -> bool {
    error.downcast_ref() == Some(&Stop::Interrupted)
}

/// Connects to the other end. Also returns that end if this program started it.
fn meet(arguments: &Arguments, local: &Local) -> anyhow::Result<(Option<SecondEnd>, TcpStream)> {
    if let Some(address) = &arguments.connect {
        let stream = TcpStream::connect(address).map_err(|error| {
            let cure = match error.kind() {
                ErrorKind::InvalidInput => "give HOST:PORT, such as 192.0.2.7:18515".to_owned(),
                _ => format!("start `rdmatool perf --listen {address}` there first"),
            };
            Error::new(error).context(format!("cannot connect to {address}: {cure}"))
        })?;
        return Ok((None, stream));
    }
    let (second, stream) = match arguments.threads {
        true => SecondEnd::thread(local)?,
        false => SecondEnd::process(local)?,
    };
    Ok((Some(second), stream))
}

/// Returns a report that has no rows yet.
fn report(context: &Context, mtu: u32) -> anyhow::Result<Report> {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let machine = Machine {
        processor: processor(),
        processors: u32::try_from(processors)?,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
    };
    let device = Device {
        name: context.device().name().to_owned(),
        provider: context.verbs().name.to_owned(),
        firmware: context.query_device()?.firmware_version.clone(),
        mtu,
    };
    let rdmatool = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Report { version: VERSION, rdmatool, time, machine, device, rows: Vec::new() })
}

/// Returns the model name of the processor, or its architecture if the kernel reports no name.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or(std::env::consts::ARCH, |(_, name)| name).to_owned()
}
