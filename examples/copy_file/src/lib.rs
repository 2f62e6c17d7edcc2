//! Copies a file over a connection between two channels.
//!
//! A *sender* reads the file into registered slots. It writes each slot, with RDMA, to the slot
//! with the same index of a *receiver*, which runs on another thread or in another process. The
//! immediate data of the write notifies the receiver of the chunk. The receiver writes the chunk to
//! the new file, and frees the slot with a *credit*: a write of zero bytes with immediate data.
//! Without credits the sender waits, so a slow receiver slows the sender down. A file of any size
//! passes through `depth` slots of `chunk` bytes, and each side registers no other memory. The last
//! message contains the length and the checksum of the whole file.
//!
//! ```text
//!  SRC -> slots of the sender ==RDMA WRITE WITH IMM==> slots of the receiver -> unnamed file -> DST
//!                             <=======credits========
//! ```
//!
//! When one side ends, so does the other: both check a shared flag while they wait, and every wait
//! has a time limit.
//!
//! The two sides can be threads of one process. Then neither the flag nor the exchange of endpoints
//! needs a network. Or they can be processes, on the same host or on two hosts. Then the processes
//! use an additional TCP connection to exchange endpoints, signs of life and errors. The bytes of
//! the file are transferred only by RDMA.

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

/// The files of a copy, the device to use, and the sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The file to read.
    pub source: PathBuf,
    /// The file to create or to replace.
    pub destination: PathBuf,
    /// The device, by its name in the device list.
    pub device: String,
    /// The sizes of the pipeline.
    pub settings: Settings,
}

/// Copies a file.
///
/// The destination appears only when it is complete and on disk. A new file gets the permissions of
/// the source, reduced by the umask; when a file is replaced, its permissions are kept.
///
/// # Errors
/// Returns any [`Error`]. The destination is then unchanged.
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
