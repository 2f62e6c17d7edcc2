//! The two sides of a copy are processes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::Duration;

use copy_file::Settings;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, is_seen_writing, noise, said, wait_until_written};

/// One side, which is killed if its test fails.
struct Side(Option<Child>);

impl Side {
    fn start(bench: &Bench, arguments: &[&str]) -> Self {
        let mut command = bench.command();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    /// Starts the side that creates `copy`, and returns its address.
    fn listen(bench: &Bench, more: &[&str]) -> (Self, String) {
        let arguments = [&["--listen", "127.0.0.1:0", "copy"], more].concat();
        let mut side = Self::start(bench, &arguments);
        let (output, mut line) = (side.0.as_mut().unwrap().stdout.as_mut().unwrap(), Vec::new());
        let mut byte = [0];
        while !line.ends_with(b"\n") {
            output.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let line = String::from_utf8(line).unwrap();
        (side, line.trim().strip_prefix("listening on ").unwrap().to_owned())
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.0.as_ref().unwrap());
        kill_process(pid, signal).unwrap();
    }

    fn kill(mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
    }

    fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Checks that it failed, and returns its single line of output.
    fn fail(self) -> String {
        let said = said(&self.end(), 1);
        assert!(said.starts_with("error: ") && said.lines().count() == 1, "{said}");
        said
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts both sides on this device; the listening one is first.
fn sides(bench: &Bench, device: &str, more: &[&str]) -> [Side; 2] {
    let (listens, address) = Side::listen(bench, &["--device", device]);
    let connect = ["--connect", &address, "source", "--device", device];
    [listens, Side::start(bench, &[&connect, more].concat())]
}

/// A folder with a source so large that its copy cannot finish before the test does.
fn endless() -> Bench {
    let bench = Bench::with_source(b"");
    File::options().write(true).open(bench.at("source")).unwrap().set_len(1 << 40).unwrap();
    bench
}

/// Returns true if the file system of the tests supports files without a name.
fn has_unnamed_files(bench: &Bench) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    open(bench.folder(), OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR).is_ok()
}

#[test]
fn files_of_every_size_arrive_in_the_other_process() {
    let chunk = Settings::default().chunk();
    for length in [0, 1, chunk, 5_000_011] {
        let bytes = noise(length);
        for device in ["soft0", "softib0"] {
            let bench = Bench::with_source(&bytes);
            for side in sides(&bench, device, &[]) {
                let output = side.end();
                assert_eq!(said(&output, 0), "", "{length} on {device}");
                let line = String::from_utf8(output.stdout).unwrap();
                let begin = format!("{device}: {length} bytes in ");
                assert!(line.lines().last().unwrap().starts_with(&begin), "{line}");
            }
            assert!(fs::read(bench.at("copy")).unwrap() == bytes, "{length} on {device}");
            assert_eq!(bench.names(), ["copy", "source"]);
        }
    }
}

#[test]
fn the_senders_sizes_apply_and_an_old_file_is_replaced() {
    let bench = Bench::with_source(&noise(10_000));
    fs::write(bench.at("copy"), "old").unwrap();
    for side in sides(&bench, "soft0", &["--chunk", "1000", "--depth", "3"]) {
        let output = side.end();
        said(&output, 0);
        let line = String::from_utf8(output.stdout).unwrap();
        assert!(line.ends_with("each side registered 3000 bytes (3 x 1000)\n"), "{line}");
    }
    assert!(fs::read(bench.at("copy")).unwrap() == noise(10_000));
    assert_eq!(bench.names(), ["copy", "source"]);
}

#[test]
fn a_killed_side_is_noticed_immediately_and_leaves_nothing() {
    for device in ["soft0", "softib0"] {
        for killed in [0, 1] {
            let bench = endless();
            fs::write(bench.at("copy"), "old").unwrap();
            let mut sides = Vec::from(sides(&bench, device, &[]));
            wait_until_written(sides[0].pid(), &bench);
            sides.remove(killed).kill();
            let said = sides.remove(0).fail();
            assert!(said.contains("the other process ended before"), "{said}");
            if killed == 1 || has_unnamed_files(&bench) {
                assert_eq!(bench.names(), ["copy", "source"]);
            }
            assert_eq!(fs::read(bench.at("copy")).unwrap(), b"old");
        }
    }
}

#[test]
fn an_interrupted_side_reports_it_to_the_other() {
    for interrupted in [0, 1] {
        let bench = endless();
        let mut sides = Vec::from(sides(&bench, "soft0", &[]));
        wait_until_written(sides[0].pid(), &bench);
        sides[interrupted].signal(Signal::INT);
        let said = sides.remove(interrupted).fail();
        assert_eq!(said, "error: interrupted; nothing was written\n");
        let said = sides.remove(0).fail();
        assert!(said.contains("the other process has given up: interrupted"), "{said}");
        assert_eq!(bench.names(), ["source"]);
    }
}

#[test]
fn a_side_that_is_stopped_for_a_while_continues() {
    for device in ["soft0", "softib0"] {
        for stopped in [0, 1] {
            // On a busy machine, a copy may end before this process stops a side. A longer one takes longer.
            let mut sizes = (17..23).map(|bits| 1 << bits);
            assert!(sizes.any(|size| is_stopped_while_copying(device, stopped, size)));
        }
    }
}

/// Stops a side for a while. Returns false if the copy had ended before.
fn is_stopped_while_copying(device: &str, stopped: usize, size: usize) -> bool {
    let bytes = noise(size);
    let bench = Bench::with_source(&bytes);
    let sides = sides(&bench, device, &["--chunk", "64", "--depth", "1"]);
    let is_seen = is_seen_writing(sides[0].pid(), &bench);
    sides[stopped].signal(Signal::STOP);
    let is_early = is_seen && bench.names() == ["source"];
    if is_early {
        thread::sleep(Duration::from_secs(3)); // without any sign of life
    }
    let was_copying = is_early && bench.names() == ["source"];
    sides[stopped].signal(Signal::CONT);
    for side in sides {
        said(&side.end(), 0);
    }
    assert!(fs::read(bench.at("copy")).unwrap() == bytes);
    assert_eq!(bench.names(), ["copy", "source"]);
    was_copying
}

#[test]
fn a_side_that_stays_stopped_is_given_up_and_learns_that_later() {
    thread::scope(|threads| {
        for stopped in [0, 1] {
            threads.spawn(move || {
                let bench = endless();
                let mut sides = Vec::from(sides(&bench, "soft0", &[]));
                wait_until_written(sides[0].pid(), &bench);
                sides[stopped].signal(Signal::STOP);
                let stopped = sides.remove(stopped);
                let said = sides.remove(0).fail();
                assert!(said.contains("no sign of life from the other process for 10s"), "{said}");
                stopped.signal(Signal::CONT);
                let said = stopped.fail();
                assert!(said.contains("the other process "), "{said}");
                assert_eq!(bench.names(), ["source"]);
            });
        }
    });
}

#[test]
fn both_sides_report_the_error_of_one() {
    let bench = Bench::with_source(b"x");
    let mut listens = Side::start(&bench, &["--listen", "127.0.0.1:0", "no/copy"]);
    let mut line = String::new();
    let output = listens.0.as_mut().unwrap().stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap();
    let connects = Side::start(&bench, &["--connect", address, "source"]);
    for side in [listens, connects] {
        let said = side.fail();
        assert!(said.contains("cannot write `no/copy`: No such file or directory"), "{said}");
    }
    let (listens, address) = Side::listen(&bench, &["--device", "softib0"]);
    let connects = Side::start(&bench, &["--connect", &address, "source", "--device", "soft0"]);
    for side in [listens, connects] {
        let said = side.fail();
        assert!(said.contains("give both processes the same `--device`"), "{said}");
    }
    assert_eq!(bench.names(), ["source"]);
}

#[test]
fn a_foreign_peer_is_an_error() {
    let bench = Bench::with_source(b"x");
    let (side, address) = Side::listen(&bench, &[]);
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let said = side.fail();
    assert!(said.contains("is it `copy_file` of the same version?"), "{said}");

    let (side, address) = Side::listen(&bench, &[]);
    drop(TcpStream::connect(address).unwrap());
    assert!(side.fail().contains("the other process ended before"));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let side = Side::start(&bench, &["--connect", &address, "source"]);
    drop(listener.accept().unwrap());
    assert!(side.fail().contains("the other process ended before"));
    assert_eq!(bench.names(), ["source"]);
}
