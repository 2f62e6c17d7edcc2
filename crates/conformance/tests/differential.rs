//! `cargo test -p conformance --test differential`: random programs, compared between devices.

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::differential::main()
}
