//! `interop serve` and `interop drive`: two devices that communicate, see `docs/interop.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::interop::main()
}
