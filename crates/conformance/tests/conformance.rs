//! `cargo test -p conformance`: the suite, on every device that is there.

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::main()
}
