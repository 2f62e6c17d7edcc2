//! The command line, for people.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{Control, Error, Job, Settings, copy};

/// Copy a file through RDMA: a sender writes it, chunk by chunk, into the memory of a receiver.
///
/// DST appears whole or not at all; if it exists, it is replaced at the end.
#[derive(Debug, Parser)]
#[command(name = "copy_file")]
struct Arguments {
    /// The file to copy
    src: PathBuf,
    /// The file to make
    dst: PathBuf,
    /// The RDMA device: soft0 (RoCE) or softib0 (InfiniBand), or one that libibverbs offers
    #[arg(long, value_name = "NAME", default_value = "soft0")]
    device: String,
    /// Bytes of a chunk, 64 to 1073741824
    #[arg(long, value_name = "BYTES", default_value_t = Settings::default().chunk())]
    chunk: usize,
    /// Chunks in flight, 1 to 4096; each side registers chunk x depth bytes, at most 1 GiB
    #[arg(long, value_name = "N", default_value_t = Settings::default().depth())]
    depth: usize,
}

/// What `main` of the program does: copies as the arguments say, and prints one line.
///
/// Errors go to standard error; the exit status is 1, or 2 for arguments that are not allowed.
#[must_use]
pub fn main() -> ExitCode {
    let Arguments { src, dst, device, chunk, depth } = Arguments::parse();
    let settings = Settings::new(chunk, depth).unwrap_or_else(|error| {
        Arguments::command().error(ErrorKind::ValueValidation, error).exit()
    });
    rdma_soft::install();
    match run(&Job { source: src, destination: dst, device, settings }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copy_file: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(job: &Job) -> Result<(), Error> {
    let bar = progress_bar(fs::metadata(&job.source).map_or(0, |source| source.len()));
    let progress = |bytes| bar.set_position(bytes);
    let cancelled = cancelled_by_signals();
    let control = Control { progress: &progress, cancelled: &cancelled, ..Control::default() };
    let summary = copy(job, control);
    bar.finish_and_clear();
    println!("{}", summary?);
    Ok(())
}

/// It is drawn on standard error, and only if that is a terminal.
fn progress_bar(bytes: u64) -> ProgressBar {
    let style = "{wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(style);
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Interrupted, the program takes its temporary file away; interrupted again, it ends at once.
fn cancelled_by_signals() -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let again = flag::register_conditional_shutdown(signal, 1, Arc::clone(&cancelled));
        // Without them the program can be ended all the same.
        let _ = again.and_then(|_| flag::register(signal, Arc::clone(&cancelled)));
    }
    cancelled
}
