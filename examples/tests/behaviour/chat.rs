//! `chat`: in one process, and in several.

use std::io::Write as _;
use std::process::Stdio;

use crate::common::process::{Process, command};

#[test]
fn a_member_that_does_not_read_delays_no_other() {
    for device in ["soft0", "softib0"] {
        let said = Process::example("chat", &["--device", device]).succeed();
        let begin = format!("{device}: 4 members read 400 lines, and a silent one missed ");
        let missed: u32 = said.strip_prefix(&begin).expect(&said).parse().unwrap();
        assert!((1..400).contains(&missed), "{missed}");
    }
}

/// Starts a process of a member, whose input the test writes.
fn join(name: &str, server: &str) -> Process {
    let options = ["join", name, "--connect", server];
    let mut member = Process::of(command("chat", &options).stdin(Stdio::piped()));
    member.line(&format!("{name} has joined"));
    member
}

fn say(member: &mut Process, line: &str) {
    writeln!(member.0.stdin.as_mut().unwrap(), "{line}").unwrap();
}

#[test]
fn a_member_that_leaves_or_dies_is_reported_to_the_others() {
    let mut serves = Process::to_kill("chat", &["serve"]);
    let server = serves.address();
    let [mut ada, bob] = ["ada", "bob"].map(|name| join(name, &server));
    let options = ["join", "eve", "--connect", &server];
    let mut eve = Process::to_kill("chat", &options);
    eve.line("eve has joined");
    say(&mut ada, "good morning");
    for member in [&mut ada, &mut eve] {
        member.line("ada: good morning");
    }
    assert_eq!(bob.succeed(), "bob has left"); // its input has ended
    ada.line("bob has left");
    eve.0.kill().unwrap(); // SIGKILL
    eve.0.wait().unwrap();
    ada.line("eve was lost");
    assert_eq!(ada.succeed(), "ada has left");
    serves.0.kill().unwrap();
    serves.0.wait().unwrap();
    let alone = Process::example("chat", &["join", "eve", "--connect", &server]).fail();
    assert!(alone.contains("no process is listening"), "{alone}");
}
