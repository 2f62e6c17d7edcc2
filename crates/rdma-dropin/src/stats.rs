//! A record of what the devices of this process have counted, for `rdma-soft-run --stats`.
//!
//! The record is a file. It is written when devices are first listed, when a queue pair or a context ends, and at exit.
//! Only a process that exits writes [`ENDED`], so a reader sees that the record of a killed process may be too low.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use rdma_soft::SoftDevice;

/// The environment variable with the folder of the records.
const FOLDER_VARIABLE: &str = "RDMA_DROPIN_STATS";

/// The first words of a record. Both have the same length, because a record is overwritten in place.
const RUNNING: &str = "running";
const ENDED: &str = "ended  ";

/// The time limit of an exit that waits until its record is written.
const LIMIT: Duration = Duration::from_secs(1);

static RECORD: OnceLock<Option<Record>> = OnceLock::new();

#[derive(Debug)]
struct Record {
    /// The file. Each writer reads the counters under this lock, so that later writes have later counts.
    file: Mutex<File>,
    process: u32,
    command: String,
}

/// Begins the record of this process, if the environment names a folder.
pub(crate) fn begin() {
    RECORD.get_or_init(|| {
        let folder = rdma_sys::path_variable(FOLDER_VARIABLE)?;
        let record = Record::create(Path::new(&folder));
        if let Err(error) = &record {
            let folder = folder.display();
            // A write error is ignored.
            let _ = writeln!(
                io::stderr(),
                "libibverbs: operations of process {} are not counted: no file can be created in {folder} \
                 ({FOLDER_VARIABLE}): {error}",
                process::id()
            );
        }
        record.ok()
    });
    update();
}

/// Writes the current counts, if this process has a record.
pub(crate) fn update() {
    if let Some(record) = own() {
        record.write(RUNNING);
    }
}

/// Returns the record of this process. A forked child does not have the record of its parent.
fn own() -> Option<&'static Record> {
    RECORD.get()?.as_ref().filter(|record| record.process == process::id())
}

impl Record {
    fn create(folder: &Path) -> io::Result<Self> {
        let process = process::id();
        // A process that replaces its program keeps its number, and gets a second record.
        for program in 0_u32.. {
            let path = folder.join(format!("{process}-{program}"));
            match OpenOptions::new().write(true).create_new(true).open(path) {
                Ok(file) => {
                    let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
                    let command = command.trim_end().replace(char::is_whitespace, "_");
                    return Ok(Self { file: Mutex::new(file), process, command });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn write(&self, state: &str) {
        let Ok(file) = self.file.lock() else { return };
        let [mut requests, mut bytes, mut served, mut served_bytes, mut faults] = [0; 5];
        for counters in SoftDevice::all().map(|device| device.counters()) {
            requests += counters.sent_pkts;
            bytes += counters.sent_bytes;
            served += counters.rcvd_pkts;
            served_bytes += counters.rcvd_bytes;
            faults += counters.injected_faults;
        }
        let Self { process, command, .. } = self;
        let line = format!(
            "{state} {process:10} {requests:20} {bytes:20} {served:20} {served_bytes:20} {faults:20} {command}\n"
        );
        // If the disk is full, the record stays as it was.
        let _ = file.write_all_at(line.as_bytes(), 0);
    }
}

/// Writes the record when the process exits.
///
/// A signal handler may call `exit` while its thread holds a lock of a device. So this thread takes no lock. It starts
/// another thread that does, and waits for it for at most [`LIMIT`].
extern "C" fn end() {
    let Some(record) = own() else { return };
    let (sender, receiver) = mpsc::channel();
    let write = move || {
        record.write(ENDED);
        // The exit may have stopped waiting.
        let _ = sender.send(());
    };
    if thread::Builder::new().spawn(write).is_ok() {
        let _: Result<(), RecvTimeoutError> = receiver.recv_timeout(LIMIT);
    }
}

/// The loader calls the functions in this section at exit, after the functions of the libraries and programs that use
/// this library.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
