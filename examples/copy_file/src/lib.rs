//! A file is copied through two channels.
//!
//! A *sender* reads the file into registered slots and writes each, with RDMA, into the same slot of a
//! *receiver*, which runs on a thread of its own and writes the new file. The receiver learns of each
//! chunk from the immediate of its write, and gives the slot back by a *credit*: a write of nothing,
//! with an immediate. Without a credit the sender waits, so a slow receiver slows it down, and files of
//! any size pass through `depth` slots of `chunk` bytes, which is all that each side registers. The
//! last message carries length and checksum of the whole.
//!
//! ```text
//!  SRC -> slots of the sender ==RDMA WRITE WITH IMM==> slots of the receiver -> unnamed file -> DST
//!                             <=======credits========
//! ```
//!
//! Each side ends when the other does: by a flag that both look at while they wait, and by a limit on
//! how long anything may take.
//!
//! Both sides can be in one process, as threads: then the flag and the exchange of endpoints need no
//! network. Or each is a process, on one host or on two: then there is a TCP connection beside, by which
//! they tell each other where they are, that they run, and why they end. The file's bytes go by nothing
//! but RDMA.

mod command;
mod connect;
mod destination;
mod error;
mod inbox;
mod message;
mod process;
mod receiver;
mod sender;
mod settings;
mod source;
mod stop;
mod summary;
mod transfer;

use std::path::PathBuf;
use std::time::Instant;

pub use command::main;
pub use error::Error;
pub use process::{receive, send};
pub use settings::Settings;
pub use summary::Summary;
pub use transfer::{Control, Transferred, transfer};

use destination::{Destination, Origin};
use source::SourceFile;

/// What to copy, where to, and through which device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The file to read.
    pub source: PathBuf,
    /// The file to make or to replace.
    pub destination: PathBuf,
    /// The device, by its name in the device list.
    pub device: String,
    /// Sizes of the pipeline.
    pub settings: Settings,
}

/// Copies a file.
///
/// The destination appears under its name, whole and on disk, or not at all. A new file gets the
/// permissions of the source, less the umask; one that is replaced keeps its own.
///
/// # Errors
/// Any [`Error`]; then the destination is what it was before.
///
/// # Examples
/// ```
/// use copy_file::{Control, Job, Settings, copy};
///
/// rdma::soft::install();
/// let folder = tempfile::tempdir()?;
/// let (source, destination) = (folder.path().join("a"), folder.path().join("b"));
/// std::fs::write(&source, "hello")?;
/// let settings = Settings::default();
/// let job = Job { source, destination, device: "soft0".to_owned(), settings };
/// let summary = copy(&job, Control::default())?;
/// assert_eq!(summary.bytes, 5);
/// assert_eq!(std::fs::read(&job.destination)?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn copy(job: &Job, control: Control<'_>) -> Result<Summary, Error> {
    let Job { source: from, destination: to, device, settings } = job;
    let mut source = SourceFile::open(from)?;
    let mut destination = Destination::create(to, Origin::from(source.metadata()))?;
    let started = Instant::now();
    let transferred = transfer(device, &mut source, &mut destination, *settings, control)
        .map_err(|error| error.of_source(from).of_destination(to))?;
    destination.commit().map_err(|error| Error::file("write", to, error))?;
    Ok(Summary {
        device: device.clone(),
        bytes: transferred.bytes,
        registered_bytes: transferred.registered_bytes,
        settings: *settings,
        transfer: transferred.time,
        until_on_disk: started.elapsed(),
    })
}
