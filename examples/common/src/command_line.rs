//! The entry point that all programs share.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use rdma::device::list_devices;

/// An error whose message is written for the user.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The options of a program that connects by address, as a server or as a client.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Role {
    #[arg(long, value_name = "ADDRESS:PORT", help = "Be the server")]
    listen: Option<String>,
    #[arg(long, value_name = "ADDRESS:PORT", help = "Be the client")]
    connect: Option<String>,
}

/// One end of a connection, with the server's address.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_enums)] // a connection has two ends
pub enum Side<'a> {
    /// The program listens at the address.
    Server(&'a str),
    /// The program connects to the address.
    Client(&'a str),
}

impl Role {
    /// Returns the end that the options name.
    #[must_use]
    pub fn side(&self) -> Side<'_> {
        match &self.listen {
            Some(address) => Side::Server(address),
            // One of both options is present.
            None => Side::Client(self.connect.as_deref().unwrap_or_default()),
        }
    }
}

/// Runs a program with the options of its command line. Returns the exit status: 0, or 1 after any
/// error, including wrong options. The result is printed to standard output, and an error to
/// standard error.
pub fn program<A: Parser>(run: impl FnOnce(&A) -> Result<String, Failure>) -> ExitCode {
    let outcome = match A::try_parse() {
        Ok(arguments) => run(&arguments).and_then(|said| Ok(print(&said)?)),
        Err(error) if error.use_stderr() => {
            // If the error cannot be printed, there is nowhere to report that.
            let _ = error.print();
            return ExitCode::FAILURE;
        }
        Err(help) => print(format!("{help}{}", devices::<A>()).trim_end()).map_err(Failure::from),
    };
    if let Err(error) = outcome {
        warn(format_args!("error: {}", explain(&*error)));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Prints a line and flushes it.
///
/// # Errors
/// Returns an error if the output cannot be written, for example because its reader has exited or
/// the disk is full.
pub fn print(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "{line}").and_then(|()| out.flush());
    printed.map_err(|error| {
        io::Error::new(error.kind(), format!("the output cannot be written: {error}"))
    })
}

/// Prints a warning to standard error. Ignores a failure to print it.
pub fn warn(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Formats each byte as a number.
#[must_use]
pub fn bytes(bytes: &[u8]) -> String {
    bytes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Formats an error and its sources. Omits a source that the text already contains.
#[must_use]
pub fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = source.source();
    }
    text
}

/// Returns the last lines of the help text. They list the devices if the program has the option
/// `--device`.
fn devices<A: Parser>() -> String {
    if !A::command().get_arguments().any(|argument| argument.get_id() == "device") {
        return String::new();
    }
    let list = list_devices();
    let names: Vec<_> = list.iter().map(|device| device.name()).collect();
    let mut text = format!("\nDevices: {}\n", names.join(", "));
    for error in list.errors() {
        text += &format!("No others, because: {}\n", explain(error));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the file cannot be read")]
    struct Silent(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("no record: {0}")]
    struct Telling(#[source] Silent);

    #[test]
    fn each_source_of_an_error_is_named_once() {
        let error = Telling(Silent(io::Error::other("it is torn")));
        assert_eq!(explain(&error), "no record: the file cannot be read: it is torn");
    }
}
