//! Copies a file over RDMA. See the library `copy_file`.

use std::process::ExitCode;

fn main() -> ExitCode {
    copy_file::main()
}
