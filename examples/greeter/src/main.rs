//! Greets over RDMA or TCP. See the library `greeter`.

use std::process::ExitCode;

fn main() -> ExitCode {
    greeter::main()
}
