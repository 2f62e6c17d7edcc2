//! The table of librdmacm, with libraries that lack functions. Each test has a process of its own, which loads one
//! library.
#![cfg(not(target_feature = "crt-static"))]

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use rdma_sys::cm::{Librdmacm, LibrdmacmError, librdmacm};
use test_support::packages::skip_without;
use test_support::program::{c_compiler, in_own_process_with};

const SOURCE: &str = include_str!("../../src/cm/library.rs");

/// Returns the functions that the source lists as required, or as optional.
fn functions(is_required: bool) -> Vec<&'static str> {
    let (_, table) = SOURCE.split_once("\nfunctions! {\n").unwrap();
    let (required, optional) = table.split_once("    }\n").unwrap();
    let part = if is_required { required } else { optional };
    let entries = part.lines().filter_map(|line| line.split_once(": rdma_")?.1.split_once(" ="));
    entries.map(|(name, _)| name).collect()
}

/// Builds a library with these functions, which do nothing. Returns `None` without a C compiler.
fn build(folder: &Path, functions: &[&str]) -> Option<PathBuf> {
    let (source, library) = (folder.join("stub.c"), folder.join("librdmacm.so.1"));
    let mut code = String::new();
    for name in functions {
        writeln!(code, "void rdma_{name}(void) {{}}").unwrap();
    }
    fs::write(&source, code).unwrap();
    let mut compiler = c_compiler();
    let output = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            skip_without(&format!("a C compiler ({error})"), "gcc libc6-dev");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(library)
}

/// Loads a library with these functions in a process of its own, and checks the result there.
fn load(
    test: &str,
    functions: &[&str],
    check: impl FnOnce(Result<&Librdmacm, LibrdmacmError>, &str),
) {
    const PATH: &str = "RDMA_LIBRDMACM";
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = build(folder.path(), functions) else { return };
    in_own_process_with(
        &format!("cm_library::{test}"),
        |program| _ = program.env(PATH, &library),
        || check(librdmacm(), &env::var(PATH).unwrap()),
    );
}

#[test]
fn a_library_of_an_older_rdma_core_is_refused_with_the_function_that_it_lacks() {
    let test = "a_library_of_an_older_rdma_core_is_refused_with_the_function_that_it_lacks";
    let mut present = functions(true);
    assert!(present.len() > 15, "{present:?}");
    present.retain(|&name| name != "establish");
    load(test, &present, |result, file| {
        let error = result.unwrap_err();
        let expected = format!(
            "{file} cannot be used: it has no function rdma_establish; install librdmacm of \
             rdma-core 23 or newer (Debian, Ubuntu: librdmacm1; "
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
    });
}

#[test]
fn a_library_without_the_optional_functions_is_loaded() {
    let test = "a_library_without_the_optional_functions_is_loaded";
    load(test, &functions(true), |result, _| {
        let library = result.unwrap();
        let optional = functions(false);
        assert!(optional.len() > 20, "{optional:?}");
        let lacking = library.lacking();
        let names: Vec<_> = lacking.iter().map(|(name, _)| &name["rdma_".len()..]).collect();
        assert_eq!(names, optional);
        assert!(lacking.contains(&("rdma_reject_ece", "RDMACM_1.3 (rdma-core 31)")));
        assert!(library.create_ep.is_none() && library.join_multicast_ex.is_none());
    });
}
