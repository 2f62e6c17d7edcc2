//! `board` and `lend`: in one process, and in several.

use crate::common::process::{Process, processes};

#[test]
fn a_board_is_closed_after_all_have_read_it() {
    for device in ["soft0", "softib0"] {
        for readers in ["0", "1", "8"] {
            let options = ["--device", device, "--readers", readers, "--time", "60000"];
            let said = Process::example("board", &options).succeed();
            let all = format!("{device}: {readers} have read the board");
            assert_eq!(said, format!("{all}, and its 15 bytes are closed again"));
        }
    }
}

#[test]
fn processes_read_the_board_of_another_process() {
    for device in ["soft0", "softib0"] {
        let listen = ["--listen", "127.0.0.1:0", "--readers", "3", "--time", "60000"];
        let listen = [&["--device", device, "--text", "go"], &listen[..]].concat();
        let mut publishes = Process::example("board", &listen);
        let address = publishes.address();
        let connect = ["--device", device, "--connect", &address];
        let readers = [(); 3].map(|()| Process::example("board", &connect));
        for reader in readers {
            assert_eq!(reader.succeed(), "go");
        }
        assert_eq!(publishes.succeed(), "3 have read the board, and its 2 bytes are closed again");
        let late = Process::example("board", &connect).fail();
        assert!(late.contains("no process is listening on"), "{late}");
    }
}

/// A board without readers is closed too.
#[test]
fn a_board_is_closed_when_its_time_is_over() {
    let options = ["--listen", "127.0.0.1:0", "--time", "50"];
    let said = Process::example("board", &options).succeed();
    assert_eq!(said, "0 have read the board, and its 15 bytes are closed again");
}

#[test]
fn memory_is_lent_in_both_directions() {
    for device in ["soft0", "softib0"] {
        let said = Process::example("lend", &["--device", device]).succeed();
        assert_eq!(said, format!("{device}: HELLO, 5 bytes came back"));
        // An answer that is longer than the question, and much of it.
        let more = "ß".repeat(40_000);
        let [client, server] = processes("lend", &["--device", device, "--text", &more]);
        assert_eq!(client, "SS".repeat(40_000));
        assert_eq!(server, "80000 bytes came back");
    }
}

#[test]
fn errors_name_their_cause() {
    let nobody = ["--connect", "127.0.0.1:9"];
    for program in ["board", "lend"] {
        let said = Process::example(program, &nobody).fail();
        assert!(said.contains("no process is listening on 127.0.0.1:9"), "{said}");
        let both = [&nobody[..], &["--listen", "127.0.0.1:0"]].concat();
        let said = Process::example(program, &both).fail();
        assert!(said.contains("cannot be used with"), "{said}");
    }
    for program in ["board", "lend"] {
        let said = Process::example(program, &["--text", ""]).fail();
        assert!(said.contains("--text"), "{said}");
    }
    // A server that lends nothing.
    let mut board = Process::to_kill("board", &["--listen", "127.0.0.1:0"]);
    let address = board.address();
    let said = Process::example("lend", &["--connect", &address]).fail();
    assert!(said.contains("it lends nothing on request"), "{said}");
    let mut lend = Process::example("lend", &["--listen", "127.0.0.1:0"]);
    let said = Process::example("board", &["--connect", &lend.address()]).fail();
    assert!(said.contains("has no board"), "{said}");
    let said = lend.fail();
    assert!(said.contains("the connection has ended"), "{said}");
    board.0.kill().unwrap();
    board.0.wait().unwrap();
}
