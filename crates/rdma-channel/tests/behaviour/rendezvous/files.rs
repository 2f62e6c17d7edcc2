//! A process with too many open files, which is a child process.

use std::fs::File;
use std::net::TcpStream;

use rdma_channel::ConnectError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::in_own_process;

use crate::rendezvous::{LATER, SOON, listener};

#[test]
fn too_many_open_files_are_an_error_and_the_client_waits() {
    let test = "rendezvous::files::too_many_open_files_are_an_error_and_the_client_waits";
    in_own_process(test, without_files);
}

fn without_files() {
    let mut listener = listener("soft0");
    let client = TcpStream::connect(listener.local_addr()).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum }).unwrap();
    let mut files: Vec<_> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
    for _ in 0..2 {
        let error = listener.incoming(Some(LATER)).unwrap_err();
        assert!(matches!(error, ConnectError::Io { .. }), "{error:?}");
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    }
    files.pop();
    let outcome = listener.incoming(Some(SOON));
    assert!(matches!(outcome, Err(ConnectError::Timeout { .. })), "{outcome:?}");
    assert_eq!(listener.refused(), 0);
    drop(client);
}
