//! The program copies, and prints a summary.

use std::fs;
use std::process::Command;

use copy_file::Settings;

use crate::bench::{Bench, noise, program, said};

#[test]
fn files_of_every_size_arrive_on_both_kinds_of_port() {
    let chunk = Settings::default().chunk();
    for length in [0, 1, chunk - 1, chunk, chunk + 1, 10_000_019] {
        let bytes = noise(length);
        for device in ["soft0", "softib0"] {
            let bench = Bench::with_source(&bytes);
            let output = bench.program(&["--device", device]);
            assert_eq!(said(&output, 0), "", "{length} on {device}");
            assert!(fs::read(bench.at("copy")).unwrap() == bytes, "{length} on {device}");
            assert_eq!(bench.names(), ["copy", "source"]);
            let line = String::from_utf8(output.stdout).unwrap();
            assert!(line.starts_with(&format!("{device}: {length} bytes in ")), "{line}");
            assert!(line.contains(" GB/s; ") && line.lines().count() == 1, "{line}");
        }
    }
}

#[test]
fn sizes_of_the_pipeline_are_read_from_the_command_line_and_printed() {
    let bench = Bench::with_source(&noise(10_000));
    for (chunk, depth, registered) in [("64", "1", "64"), ("1000", "3", "3000")] {
        let output = bench.program(&["--chunk", chunk, "--depth", depth]);
        said(&output, 0);
        let line = String::from_utf8(output.stdout).unwrap();
        let says = format!("each side registered {registered} bytes ({depth} x {chunk})\n");
        assert!(line.ends_with(&says), "{line}");
        assert!(fs::read(bench.at("copy")).unwrap() == noise(10_000));
    }
}

#[test]
fn a_file_larger_than_the_memory_limit_of_the_program_arrives() {
    let bench = Bench::with_source(b"");
    let length = 160 << 20;
    fs::File::options().write(true).open(bench.at("source")).unwrap().set_len(length).unwrap();
    let limited = |arguments| {
        let script = format!("ulimit -v 131072; exec '{}' {arguments}", program().display());
        Command::new("sh").args(["-c", &script]).current_dir(bench.folder()).output().unwrap()
    };
    if !limited("--help").status.success() {
        println!("skipped: the program cannot start with this limit, because it has a sanitizer");
        return;
    }
    said(&limited("source copy"), 0);
    assert_eq!(fs::metadata(bench.at("copy")).unwrap().len(), length);
}

#[test]
fn the_program_is_not_linked_to_libibverbs() {
    let Ok(output) = Command::new("ldd").arg(program()).output() else {
        println!("skipped: no ldd");
        return;
    };
    let libraries = String::from_utf8(output.stdout).unwrap();
    assert!(libraries.contains("libc.so") && !libraries.contains("ibverbs"), "{libraries}");
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn a_file_is_copied_on_rxe() {
    let bytes = noise(1_000_003);
    let bench = Bench::with_source(&bytes);
    assert_eq!(said(&bench.program(&["--device", "rxe0"]), 0), "");
    assert!(fs::read(bench.at("copy")).unwrap() == bytes);
}
