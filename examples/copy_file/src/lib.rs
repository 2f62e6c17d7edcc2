//! A file is copied through two channels.
//!
//! A *sender* reads the file into registered slots and writes each, with RDMA, into the same slot of a *receiver*. The
//! receiver runs on its own thread and writes the new file. It learns of each chunk from the immediate of the write. It
//! frees the slot with a *credit*: a write of zero bytes with an immediate. Without a credit the sender waits, so a
//! slow receiver slows it down. Files of any size pass through `depth` slots of `chunk` bytes, which is all that each
//! side registers. The last message carries the length and the checksum of the whole file.
//!
//! ```text
//!  SRC -> slots of the sender ==RDMA WRITE WITH IMM==> slots of the receiver -> unnamed file -> DST
//!                             <=======credits========
//! ```
//!
//! Each side ends when the other does: both check a shared flag while they wait, and every wait has a limit.
//!
//! Both sides can be threads of one process: then the flag and the exchange of endpoints need no network. Or each is a
//! process, on one host or on two. Then the processes exchange endpoints, signs of life and errors through an
//! additional TCP connection. The file's bytes only go through RDMA.

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

/// The files of a copy, the device, and the sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The file to read.
    pub source: PathBuf,
    /// The file to create or to replace.
    pub destination: PathBuf,
    /// The device, by its name in the device list.
    pub device: String,
    /// Sizes of the pipeline.
    pub settings: Settings,
}

/// Copies a file.
///
/// The destination appears under its name, whole and on disk, or not at all. A new file gets the permissions of the
/// source, less the umask; a replaced file keeps its own.
///
/// # Errors
/// Any [`Error`]; the destination is then unchanged.
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
