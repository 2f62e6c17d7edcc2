//! An interrupted program leaves nothing.

use std::fs;
use std::process::{Command, Stdio};

use crate::bench::{Bench, said, wait_until_written};

#[test]
fn an_interrupted_copy_leaves_nothing() {
    let bench = Bench::with_source(b"");
    // Sparse, and so large that the program cannot finish before it is interrupted.
    let source = fs::File::options().write(true).open(bench.at("source")).unwrap();
    source.set_len(1 << 40).unwrap();
    for signal in ["-INT", "-TERM"] {
        let mut command = bench.command();
        command.args(["source", "copy"]).stderr(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        wait_until_written(child.id(), &bench);
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let said = said(&child.wait_with_output().unwrap(), 1);
        assert_eq!(said, "error: interrupted; nothing was written\n");
        assert_eq!(bench.names(), ["source"]);
    }
}
