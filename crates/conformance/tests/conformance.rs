//! `cargo test -p conformance`: the suite, on every available device.

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::main()
}
