//! The example of the same name once more: Cargo builds programs, but not examples, for every run of
//! the tests that execute it.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdma_examples::copy_file::main()
}
