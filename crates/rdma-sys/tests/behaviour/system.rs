//! The installed libibverbs, or its absence.

#![allow(unsafe_code)]

use std::{ffi::CStr, process::Command};

use rdma_sys::{LoadError, ibv_wc_status, providers, system};

/// Returns true if the loader of this machine knows the library for the test's architecture, which need not be that of
/// the machine. The check differs from that of the crate.
fn installed() -> bool {
    let architecture = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };
    let is_it = |line: &str| line.contains("libibverbs.so.1 ") && line.contains(architecture);
    let list = Command::new("/sbin/ldconfig").arg("-p").output();
    list.is_ok_and(|list| String::from_utf8_lossy(&list.stdout).lines().any(is_it))
}

#[test]
fn system_is_there_exactly_where_libibverbs_is_installed() {
    if std::env::var_os("RDMA_LIBIBVERBS").is_some() {
        println!("SKIP: RDMA_LIBIBVERBS is set");
        return;
    }
    match system() {
        Ok(verbs) => {
            assert!(installed());
            assert_eq!(verbs.name, "system");
            assert!(verbs.note_mapped.is_none(), "libibverbs has no such function");
            assert!(verbs.wants_file.is_none() && verbs.note_file.is_none());
            // A library has all functions up to its own version.
            let by_version = [
                verbs.get_pkey_index.is_some(),
                verbs.reg_mr_iova2.is_some(),
                verbs.query_gid_table.is_some(),
                verbs.query_qp_data_in_order.is_some(),
            ];
            assert!(by_version.is_sorted_by(|earlier, later| earlier >= later), "{by_version:?}");
            // SAFETY: any valid status is allowed (SAFETY.md F1).
            let text = unsafe { (verbs.wc_status_str)(ibv_wc_status::IBV_WC_WR_FLUSH_ERR) };
            // SAFETY: the function returns a constant text (SAFETY.md F1).
            let text = unsafe { CStr::from_ptr(text) };
            assert_eq!(text.to_str(), Ok("Work Request Flushed Error"));
        }
        Err(error) => {
            assert!(!installed(), "{error}");
            assert_eq!(error, LoadError::NotFound { file: "libibverbs.so.1".into() });
        }
    }
}

#[test]
fn without_libibverbs_the_provider_is_listed_with_the_reason() {
    let found = providers().unwrap();
    let provider = found.iter().find(|provider| provider.name == "system").unwrap();
    assert_eq!(provider.verbs.is_ok(), system().is_ok());
}
