//! `interop serve` and `interop drive`: two devices that talk to each other, see `docs/interop.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::interop::main()
}
