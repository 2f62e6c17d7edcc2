//! What `main` of every program does.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use rdma::device::list_devices;

/// What went wrong, for people.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Runs a program with the options of its command line, and ends it: what it has to say goes to the output, what
/// went wrong to the errors. The exit status is 0, or 1 whatever went wrong, options included.
pub fn program<A: Parser>(run: impl FnOnce(&A) -> Result<String, Failure>) -> ExitCode {
    let outcome = match A::try_parse() {
        Ok(arguments) => run(&arguments).and_then(|said| Ok(print(&said)?)),
        Err(error) if error.use_stderr() => {
            // If that fails, there is nowhere to say so.
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

/// Prints a line at once.
///
/// # Errors
/// If nobody reads it, for instance, or the disk is full.
pub fn print(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "{line}").and_then(|()| out.flush());
    printed.map_err(|error| {
        io::Error::new(error.kind(), format!("the output cannot be written: {error}"))
    })
}

/// Says something to the errors, and goes on. If that fails, there is nowhere to say so.
pub fn warn(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Bytes as numbers.
#[must_use]
pub fn bytes(bytes: &[u8]) -> String {
    bytes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// An error, and what it comes from where it does not say so itself.
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

/// What the help of a program with `--device` ends with.
fn devices<A: Parser>() -> String {
    if !A::command().get_arguments().any(|argument| argument.get_id() == "device") {
        return String::new();
    }
    let list = list_devices();
    let names: Vec<_> = list.iter().map(|device| device.name()).collect();
    let mut text = format!("\nDevices: {}\n", names.join(", "));
    for error in list.errors() {
        text += &format!("No others, since: {}\n", explain(error));
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
    fn what_an_error_comes_from_is_said_once() {
        let error = Telling(Silent(io::Error::other("it is torn")));
        assert_eq!(explain(&error), "no record: the file cannot be read: it is torn");
    }
}
