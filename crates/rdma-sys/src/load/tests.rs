//! Tests of each way in which loading fails, with real files.
//!
//! A test program that is linked with `-C target-feature=+crt-static` can fail in only one way.

#![cfg_attr(target_feature = "crt-static", allow(unused_imports, dead_code))]

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use test_support::program::c_compiler;

use super::*;

fn load(file: &OsStr) -> Result<Verbs, LoadError> {
    // SAFETY: the tests' files are not libraries, or have harmless initialisers. Their functions
    // ignore their arguments (SAFETY.md F2).
    unsafe { system_at(file) }
}

/// Compiles C into a shared library. Without a C compiler, prints a message and returns `None`.
fn shared_library(folder: &Path, source: &str) -> Option<PathBuf> {
    let (code, library) = (folder.join("library.c"), folder.join("libexample.so"));
    fs::write(&code, source).unwrap();
    match c_compiler().args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code).status() {
        Ok(status) => {
            assert!(status.success(), "cc failed");
            Some(library)
        }
        Err(error) => {
            eprintln!("SKIP: no C compiler ({error})");
            None
        }
    }
}

#[test]
#[cfg(not(target_feature = "crt-static"))]
fn a_missing_file_is_not_found() {
    let file = OsString::from("/nonexistent/libibverbs.so.1");
    assert_eq!(load(&file).unwrap_err(), LoadError::NotFound { file });
}

#[test]
#[cfg(not(target_feature = "crt-static"))]
fn a_missing_soname_is_not_found() {
    let file = OsString::from("libibverbs-nonexistent.so.1");
    assert_eq!(load(&file).unwrap_err(), LoadError::NotFound { file });
}

#[test]
#[cfg(not(target_feature = "crt-static"))]
fn a_library_without_a_required_function_is_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let source = "void *ibv_get_device_list(int *n) { return 0; }";
    let Some(library) = shared_library(folder.path(), source) else { return };
    let LoadError::TooOld { file, symbol } = load(library.as_os_str()).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!((file, symbol), (library.into_os_string(), "ibv_free_device_list"));
}

#[test]
#[cfg(not(target_feature = "crt-static"))]
fn a_library_of_another_machine_is_the_wrong_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libibverbs.so.1");
    // This test program, marked as built for another processor: the loader reports "not found".
    let mut bytes = fs::read("/proc/self/exe").unwrap();
    bytes[18..20].copy_from_slice(&libc::EM_S390.to_le_bytes());
    fs::write(&library, bytes).unwrap();
    let LoadError::WrongArchitecture { found, .. } = load(library.as_os_str()).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(found, "64-bit S/390");
}

#[test]
#[cfg(not(target_feature = "crt-static"))]
fn a_file_that_is_no_library_is_refused_in_the_loaders_words() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "not ELF").unwrap();
    let LoadError::Refused { reason, .. } = load(file.path().as_os_str()).unwrap_err() else {
        panic!("another error");
    };
    assert!(!reason.is_empty());
}

#[test]
#[cfg(not(target_feature = "crt-static"))]
fn a_library_whose_needs_are_missing_is_refused_with_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = shared_library(folder.path(), "int needed(void) { return 0; }") else {
        return;
    };
    let user = folder.path().join("libuser.so");
    let needs = c_compiler()
        .args(["-shared", "-o"])
        .arg(&user)
        .args(["-Wl,--no-as-needed", "-L"])
        .arg(folder.path())
        .arg("-lexample")
        .status()
        .unwrap();
    assert!(needs.success());
    fs::remove_file(library).unwrap();
    let LoadError::Refused { reason, .. } = load(user.as_os_str()).unwrap_err() else {
        panic!("another error");
    };
    assert!(reason.contains("libexample.so"), "{reason}");
}

/// A library with every required function and one optional one.
#[test]
#[cfg(not(target_feature = "crt-static"))]
fn a_complete_library_gives_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = String::from("int ibv_get_pkey_index(void) { return 7; }\n");
    for name in Verbs::REQUIRED {
        source.push_str(&format!("int {name}(void) {{ return 0; }}\n"));
    }
    let Some(library) = shared_library(folder.path(), &source) else { return };
    let verbs = load(library.as_os_str()).unwrap();
    assert_eq!(verbs.name, "system");
    assert!(verbs.note_mapped.is_none(), "no library has it");
    assert!(verbs.wants_file.is_none() && verbs.note_file.is_none(), "nor these");
    assert!(verbs.wake_early.is_none() && verbs.mads.is_none(), "nor these");
    assert!(verbs.get_pkey_index().is_ok());
    let missing = verbs.reg_mr_iova2().unwrap_err();
    assert_eq!((missing.verb, missing.since), ("ibv_reg_mr_iova2", "IBVERBS_1.8, rdma-core 28"));
    // SAFETY: the C function above ignores its arguments (SAFETY.md F1).
    assert_eq!(unsafe { (verbs.get_pkey_index.unwrap())(std::ptr::null_mut(), 1, 0) }, 7);
}

#[test]
#[cfg(target_feature = "crt-static")]
fn a_static_program_gets_the_static_error() {
    assert_eq!(system().unwrap_err(), LoadError::StaticBinary);
}
