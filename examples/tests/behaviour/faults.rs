//! Programs that react to faults of their own devices.

use crate::common::process::Process;

/// Runs a program, which succeeds, and returns the lines of its output.
fn lines(program: &str, options: &[&str]) -> Vec<String> {
    let output = Process::example(program, options).end();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Returns the numbers in a line.
fn numbers(line: &str) -> Vec<u32> {
    line.split(|letter: char| !letter.is_ascii_digit()).filter_map(|it| it.parse().ok()).collect()
}

#[test]
fn a_client_reconnects_once_its_port_is_active_again() {
    let lines = lines("port_flap", &["--flaps", "2"]);
    let [flaps @ .., last] = &lines[..] else { panic!("{lines:?}") };
    // On a busy machine, the port may go down more often.
    assert!(flaps.len() >= 2, "{lines:?}");
    let begin = "port 1 went down: reconnected, epoch ";
    assert!(flaps.iter().all(|line| line.starts_with(begin)), "{lines:?}");
    let [answered, executed] = numbers(last)[..] else { panic!("{lines:?}") };
    assert!(answered > 0 && answered == executed, "{lines:?}");
}

#[test]
fn a_moved_gid_is_found_at_its_new_index() {
    let lines = lines("gid_move", &["--moves", "2"]);
    let [_gid, connected @ ..] = &lines[..] else { panic!("{lines:?}") };
    let indexes: Vec<_> = connected.iter().map(|line| numbers(line)[0]).collect();
    let written: Vec<_> = connected.iter().map(|line| numbers(line)[1]).collect();
    assert_eq!(written, [0, 1, 2], "{lines:?}");
    assert!(indexes.iter().any(|index| *index != indexes[0]), "{lines:?}");
}

#[test]
fn each_failed_request_ends_once_and_the_same_ones_fail_for_a_seed() {
    let run = |seed| {
        let lines = lines("error_completion", &["--seed", seed, "--records", "100"]);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let [written, failed, flushed, connections] = numbers(line)[..] else { panic!("{line}") };
        assert!(written == 100 && failed > 0 && flushed > 0, "{line}");
        // Each failure ends a connection. The last connection may fail, too.
        assert!(connections == failed || connections == failed + 1, "{line}");
        line.clone()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}
