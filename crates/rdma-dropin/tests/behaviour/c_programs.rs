//! Programs in C, compiled for these tests.

use std::path::Path;
use std::process::Command;

use wait_timeout::ChildExt;

use crate::library::{folder, output, with_library};
use crate::two_processes::LIMIT;

/// Compiles a program against the libraries, or with other options something else.
pub(crate) fn compile(source: &str, program: &Path, options: &[&str]) {
    let libraries = ["libibverbs.so.1", "librdmacm.so.1"].map(|name| folder().join(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let mut compiler = test_support::program::c_compiler();
    compiler.args(["-Wall", "-Werror", "-pthread"]).args(options);
    compiler.arg("-o").arg(program).arg(source);
    compiler.arg("-Wl,--as-needed").args(libraries);
    output(compiler);
}

/// Compiles a program against the library, and returns its output. `prepare` changes its command.
pub(crate) fn run(source: &str, prepare: impl FnOnce(&mut Command)) -> Option<String> {
    with_program(source, |mut program| {
        prepare(&mut program);
        output(program)
    })
}

/// Compiles a program against the library, and passes its command to `run`.
pub(crate) fn with_program<T>(source: &str, run: impl FnOnce(Command) -> T) -> Option<T> {
    if test_support::program::is_emulated() {
        println!("skipped: the library is not built for the emulated processor");
        return None;
    }
    let target = tempfile::tempdir().unwrap();
    let program = target.path().join("program");
    compile(source, &program, &[]);
    Some(run(with_library(Command::new(program))))
}

#[test]
fn a_thread_that_waits_for_an_event_can_be_cancelled() {
    let Some(text) = run("cancel.c", |_| {}) else { return };
    assert_eq!(text, "completion event: cancelled\nasynchronous event: cancelled\n");
}

#[test]
fn the_library_stays_loaded_after_dlclose() {
    let library = folder().join("libibverbs.so.1");
    let Some(text) = run("reload.c", |program| _ = program.arg(library)) else { return };
    assert_eq!(text, "2 devices, opened\n2 devices, opened\nthe first one is closed\n");
}

#[test]
fn missing_verbs_answer_as_in_libibverbs() {
    let Some(text) = run("missing.c", |_| {}) else { return };
    let unsupported = "import_device import_pd set_ece query_ece alloc_dmah create_comp_cntr";
    assert_eq!(text, format!("unsupported: {unsupported}\nin order: 0\n"));
}

#[test]
fn allocated_buffers_can_be_registered() {
    let Some(text) = run("buffers.c", |_| {}) else { return };
    let lines = [
        "a part: 9900 bytes, 0",
        "too long: Invalid argument",
        "attributes: 50 bytes, 0",
        "a DMA handle: Operation not supported",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}

/// The handler of a signal may exit while its thread holds locks of the device. The exit then waits for another thread,
/// but not forever.
#[test]
fn a_signal_handler_can_exit_during_a_post() {
    with_program("faults.c", |mut program| {
        program.arg("exit");
        for _ in 0..5 {
            let mut child = program.spawn().unwrap();
            let status = child.wait_timeout(LIMIT).unwrap();
            if status.is_none() {
                child.kill().unwrap();
            }
            assert_eq!(status.and_then(|status| status.code()), Some(7));
        }
    });
}
