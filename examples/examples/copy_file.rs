//! Copies a file through two RDMA channels: see `rdma_examples::copy_file` for how.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdma_examples::copy_file::main()
}
