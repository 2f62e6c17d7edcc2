//! The libibverbs that the program is linked with.

#![allow(unsafe_code)]

use std::{env, ffi::CStr, process::Command};

use rdma_sys::{LoadError, Verbs, ibv_wc_status, linked, providers, system};

/// The last symbol version that `linked` may need.
const NEWEST: u32 = 14;

#[test]
fn it_needs_no_library_newer_than_documented() {
    for (function, since) in Verbs::SINCE {
        let version = since.strip_prefix("IBVERBS_1.").unwrap();
        let version: String = version.chars().take_while(char::is_ascii_digit).collect();
        assert!(version.parse::<u32>().unwrap() <= NEWEST, "{function} is of {since}");
    }
}

#[test]
fn its_functions_run() {
    // SAFETY: any status is allowed (SAFETY.md F1).
    let text = unsafe { (linked().wc_status_str)(ibv_wc_status::IBV_WC_WR_FLUSH_ERR) };
    // SAFETY: the function returns a constant text (SAFETY.md F1).
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"Work Request Flushed Error");

    let mut count = -1;
    // SAFETY: `count` is alive, and the list is freed once (SAFETY.md F1).
    let list = unsafe { (linked().get_device_list)(&raw mut count) };
    if list.is_null() {
        return; // the kernel has no RDMA: libibverbs returns ENOSYS
    }
    assert!(count >= 0);
    // SAFETY: as above.
    unsafe { (linked().free_device_list)(list) };
}

/// Some functions have two versions in the library. A program must get the newer one.
#[test]
fn linked_and_loaded_are_the_same_functions() {
    let (linked, loaded) = (linked(), system().unwrap());
    assert!(linked.note_mapped.is_none() && loaded.note_mapped.is_none(), "an extension");
    assert_eq!(linked.open_device as usize, loaded.open_device as usize);
    assert_eq!(linked.alloc_pd as usize, loaded.alloc_pd as usize);
    assert_eq!(linked.reg_mr as usize, loaded.reg_mr as usize);
    assert_eq!(linked.create_cq as usize, loaded.create_cq as usize);
    assert_eq!(linked.create_qp as usize, loaded.create_qp as usize);
    assert_eq!(linked.query_port as usize, loaded.query_port as usize);
    let newest = |verbs: &Verbs| verbs.query_qp_data_in_order().unwrap() as usize;
    assert_eq!(newest(linked), newest(loaded));
    let table = |verbs: &Verbs| verbs.query_gid_table().unwrap() as usize;
    assert_eq!(table(linked), table(loaded));
}

#[test]
fn system_is_what_it_is_without_the_feature() {
    const CHILD: &str = "RDMA_TEST_CHILD";
    if env::var_os(CHILD).is_some() {
        assert!(matches!(system(), Err(LoadError::NotFound { .. })), "{:?}", system());
        assert_eq!(linked().name, "linked");
        let listed: Vec<_> = providers().unwrap().iter().map(|one| one.name).collect();
        assert_eq!(listed, ["system"]);
        return;
    }
    let this = "system_is_what_it_is_without_the_feature";
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", this])
        .env(CHILD, "1")
        .env("RDMA_LIBIBVERBS", "/no/such/libibverbs.so.1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}
