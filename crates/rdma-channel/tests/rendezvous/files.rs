//! A process that has too many files open, which is a process of its own.

use std::env;
use std::fs::File;
use std::net::TcpStream;

use rdma_channel::ConnectError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::this_program;

use crate::{LATER, SOON, listener};

const CHILD: &str = "RDMA_CHANNEL_FILES_CHILD";

#[test]
fn too_many_open_files_are_said_and_the_client_waits() {
    if env::var_os(CHILD).is_some() {
        return without_files();
    }
    let mut child = this_program();
    let test = "files::too_many_open_files_are_said_and_the_client_waits";
    let output = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
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
