//! Copies a file through two RDMA channels: see the library `copy_file`.

use std::process::ExitCode;

fn main() -> ExitCode {
    copy_file::main()
}
