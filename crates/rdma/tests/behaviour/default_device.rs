//! The device of a program that names none.
#![cfg(feature = "soft")]

use std::process::Command;

use rdma::device::{Error, open_default_device};

use crate::child::in_child;

/// Runs the work of the named test in a process of its own with these variables.
fn with(test: &str, variables: &[(&str, &str)], work: impl FnOnce()) {
    let prepare = |program: &mut Command| {
        _ = program.env_remove("RDMA_DEVICE").envs(variables.iter().copied())
    };
    in_child(&format!("default_device::{test}"), prepare, work);
}

#[test]
fn without_a_nic_it_is_a_software_device() {
    with("without_a_nic_it_is_a_software_device", &[("RDMA_PROVIDERS", "soft")], || {
        assert_eq!(open_default_device().unwrap().device().name(), "soft0");
    });
}

#[test]
fn the_variable_names_it() {
    with("the_variable_names_it", &[("RDMA_DEVICE", "softib0")], || {
        assert_eq!(open_default_device().unwrap().device().name(), "softib0");
    });
}

#[test]
fn a_name_that_no_device_has_is_an_error() {
    with("a_name_that_no_device_has_is_an_error", &[("RDMA_DEVICE", "mlx5_77")], || {
        let Err(Error::UnknownDevice(unknown)) = open_default_device() else { panic!() };
        assert_eq!(unknown.name, "mlx5_77");
        assert!(unknown.known.iter().any(|name| name == "soft0"), "{unknown}");
    });
}

#[test]
fn the_error_without_a_device_has_a_remedy() {
    let error = Error::NoDevice { errors: Vec::new() };
    assert!(error.to_string().contains("rdma_soft::install()"), "{error}");
}

#[cfg(feature = "async")]
#[test]
fn two_ends_connect_by_their_address_alone() {
    let variables = [("RDMA_PROVIDERS", "soft")];
    with("two_ends_connect_by_their_address_alone", &variables, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use rdma::aio::BufferExt as _;
            let (endpoint, listener) = rdma::aio::listen("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr();
            let server = async {
                let connection = listener.accept().await.unwrap();
                let room = endpoint.allocate(64).await.unwrap();
                let question = connection.receive(room).await.unwrap();
                let answer = question.memory.slice(0..question.length);
                connection.send(answer).await.unwrap();
            };
            let client = async {
                let (endpoint, connection) = rdma::aio::connect(address).await.unwrap();
                let room = endpoint.allocate(64).await.unwrap();
                let answer = connection.receive(room).post().await.unwrap();
                connection.send(endpoint.buffer(b"hello").await.unwrap()).await.unwrap();
                let answer = answer.await.unwrap();
                assert_eq!(answer.memory[..answer.length], *b"hello");
            };
            tokio::join!(server, client);
        });
    });
}
