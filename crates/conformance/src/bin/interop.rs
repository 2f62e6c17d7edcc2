//! The programs `interop serve` and `interop drive`, which let two devices communicate
//! (`docs/interop.md`).

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::interop::main()
}
