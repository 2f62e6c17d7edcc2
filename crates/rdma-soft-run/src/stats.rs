//! `--stats`: runs the program as a child (`child`), and prints what its processes have counted.
//!
//! Each process that lists the devices writes a record into a folder (`stats` in `rdma-dropin`).

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{self, Command};

use anyhow::{Context as _, Result};

use crate::child;

/// The environment variable with the folder of the records.
const FOLDER_VARIABLE: &str = "RDMA_DROPIN_STATS";

/// Runs the command, prints the counts, and returns the exit status of the command, or 128 plus the number of the signal
/// that killed it.
pub(crate) fn run(mut command: Command) -> Result<u8> {
    let folder = tempfile::Builder::new().prefix("rdma-soft-run-").tempdir();
    let folder = folder.with_context(|| {
        format!(
            "--stats cannot create a folder in {}; set TMPDIR to a folder in which this user may create files",
            env::temp_dir().display()
        )
    })?;
    command.env(FOLDER_VARIABLE, folder.path());
    let status = child::run(&mut command, "--stats", "omit --stats")?;
    match Counts::read(folder.path()) {
        Ok(counts) => eprintln!("rdma-soft-run: {counts}"),
        Err(error) => {
            let folder = folder.path().display();
            eprintln!("rdma-soft-run: the counts in {folder} cannot be read: {error}");
        }
    }
    Ok(status)
}

/// Removes the records of this process, which lists the devices before it becomes the program. It has a record if the
/// system's libibverbs is our library, as in an image for containers.
pub(crate) fn forget_this_process() -> io::Result<()> {
    let Some(folder) = env::var_os(FOLDER_VARIABLE) else { return Ok(()) };
    let own = format!("{}-", process::id());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&own) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The counts of all processes.
#[derive(Debug, Default)]
struct Counts {
    processes: u64,
    requests: u64,
    bytes: u64,
    served: u64,
    served_bytes: u64,
    faults: u64,
    /// The processes whose record is not final.
    unfinished: Vec<String>,
}

impl Counts {
    fn read(folder: &Path) -> io::Result<Self> {
        let mut counts = Self::default();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())?;
            counts.add(&entry.file_name().to_string_lossy(), &text);
        }
        counts.unfinished.sort();
        Ok(counts)
    }

    /// Adds a record: its state, the number of its process, five counts, and the name of the program.
    fn add(&mut self, file: &str, text: &str) {
        self.processes += 1;
        let words: Vec<_> = text.split_whitespace().collect();
        let [state, process, counts @ .., command] = &*words else {
            self.unfinished.push(file.to_owned());
            return;
        };
        let sums = [
            &mut self.requests,
            &mut self.bytes,
            &mut self.served,
            &mut self.served_bytes,
            &mut self.faults,
        ];
        for (sum, count) in sums.into_iter().zip(counts) {
            *sum += count.parse().unwrap_or(0);
        }
        if *state != "ended" {
            self.unfinished.push(format!("{process} ({command})"));
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.processes == 0 {
            return f.write_str("no process has listed RDMA devices, so nothing went over RDMA");
        }
        let Self { processes, requests, bytes, served, served_bytes, faults, unfinished } = self;
        let least = if unfinished.is_empty() { "" } else { "at least " };
        write!(
            f,
            "{least}{requests} requests with {bytes} bytes over RDMA, and {served} requests of peers with \
             {served_bytes} bytes, in {processes} process(es)"
        )?;
        if *faults > 0 {
            write!(f, "; injected_faults is {faults}")?;
        }
        if !unfinished.is_empty() {
            write!(
                f,
                "; the last counts are unknown for {}, which still run, were killed, called _exit, or executed \
                 another program",
                unfinished.join(", ")
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_records_make_the_counts_a_minimum() {
        let mut counts = Counts::default();
        let nothing = "no process has listed RDMA devices, so nothing went over RDMA";
        assert_eq!(counts.to_string(), nothing);
        counts.add("7-0", "ended 7 1 20 300 4000 0 pingpong\n");
        let one = "1 requests with 20 bytes over RDMA, and 300 requests of peers with 4000 bytes, in 1 process(es)";
        assert_eq!(counts.to_string(), one);
        counts.add("8-0", "running 8 1 1 1 1 5 python3\n");
        counts.add("9-0", "");
        let text = counts.to_string();
        assert!(text.starts_with("at least 2 requests with 21 bytes"), "{text}");
        assert!(text.contains("in 3 process(es); injected_faults is 5; the last"), "{text}");
        assert!(text.contains("unknown for 8 (python3), 9-0, which"), "{text}");
    }
}
