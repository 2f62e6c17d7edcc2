//! The command line of `copy_file`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{Control, Error, Job, Settings, Summary, copy, receive, send};
use rdma_examples_common::out_of_band::{OutOfBand, Peer};
use rdma_examples_common::program;

/// Copy a file over RDMA: a sender writes it, chunk by chunk, into the memory of a receiver.
///
/// DST appears only when it is complete; an existing file is replaced at that moment.
///
/// The two sides are threads, or two processes. The process that creates DST listens, and the one
/// that reads SRC connects.
#[derive(Debug, Parser)]
#[command(
    name = "copy_file",
    override_usage = "copy_file [OPTIONS] SRC DST
       copy_file [OPTIONS] --listen ADDR:PORT DST
       copy_file [OPTIONS] --connect ADDR:PORT SRC"
)]
struct Arguments {
    /// The file to copy; with --listen, the file to create
    #[arg(value_name = "SRC")]
    file: PathBuf,
    /// The file to create
    #[arg(value_name = "DST", required_unless_present_any = ["listen", "connect"])]
    #[arg(conflicts_with_all = ["listen", "connect"])]
    dst: Option<PathBuf>,
    #[command(flatten)]
    peer: Peer,
    /// The time to wait for the other process at the start
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
    /// The RDMA device: soft0 (RoCE) or softib0 (InfiniBand), or one that libibverbs offers
    #[arg(long, value_name = "NAME", default_value = "soft0")]
    device: String,
    /// The size of a chunk, 64 to 1073741824 bytes; between processes, the sender's value applies
    #[arg(long, value_name = "BYTES", default_value_t = Settings::default().chunk())]
    #[arg(conflicts_with = "listen")]
    chunk: usize,
    /// The number of chunks in flight, 1 to 4096; each side registers chunk x depth bytes, at most
    /// 1 GiB
    #[arg(long, value_name = "N", default_value_t = Settings::default().depth())]
    #[arg(conflicts_with = "listen")]
    depth: usize,
}

/// The `main` function of the program. Copies as the command line specifies, and prints one line.
#[must_use]
pub fn main() -> ExitCode {
    program(|arguments: &Arguments| Ok(run(arguments)?.to_string()))
}

fn run(arguments: &Arguments) -> Result<Summary, Error> {
    let Arguments { file, dst, device, peer, wait, chunk, depth } = arguments;
    let settings = Settings::new(*chunk, *depth)?;
    // Until the other process has connected, a signal ends this process immediately.
    let other = peer.meet(Duration::from_secs(*wait))?;
    let makes = other.as_ref().is_some_and(OutOfBand::listens);
    let length = if makes { None } else { fs::metadata(file).ok().map(|source| source.len()) };
    let bar = progress_bar(length);
    let progress = |bytes| bar.set_position(bytes);
    let cancelled = cancelled_by_signals();
    let control = Control { progress: &progress, cancelled: &cancelled, ..Control::default() };
    let copied = match (other, dst) {
        (Some(other), _) if makes => receive(file, device, other.into_stream(), control),
        (Some(other), _) => send(file, device, settings, other.into_stream(), control),
        (None, destination) => {
            let destination = destination.clone().unwrap_or_default(); // the parser ensures that it is given
            let job = Job { source: file.clone(), destination, device: device.clone(), settings };
            copy(&job, control)
        }
    };
    bar.finish_and_clear();
    copied
}

/// Creates the progress bar. It is drawn on standard error, and only if that is a terminal.
fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let style = match bytes {
        Some(_) => "{wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        None => "{bytes} {binary_bytes_per_sec}",
    };
    let style = ProgressStyle::with_template(style);
    let bar = bytes.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Returns a flag that the first signal sets, to cancel the copy. A second signal ends the program
/// immediately.
fn cancelled_by_signals() -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let again = flag::register_conditional_shutdown(signal, 1, Arc::clone(&cancelled));
        // If the handlers cannot be registered, a signal ends the program immediately.
        let _ = again.and_then(|_| flag::register(signal, Arc::clone(&cancelled)));
    }
    cancelled
}
