//! `chat`: in one process, and in several.

use std::io::Write as _;
use std::process::{Command, Stdio};

use test_support::program::{devices_by_udp, on};

use crate::common::process::{Process, command, unlimited};

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
fn join(chat: &mut Command, name: &str, server: &str) -> Process {
    chat.args(["join", name, "--connect", server]);
    let mut member = Process::of(chat.stdin(Stdio::piped()));
    member.line(&format!("{name} has joined"));
    member
}

fn say(member: &mut Process, line: &str) {
    writeln!(member.0.stdin.as_mut().unwrap(), "{line}").unwrap();
}

/// The first device is that of the server, and each other one that of a member. `limited` returns the command of a
/// process that the test does not kill.
fn leave_and_die(
    [of_server, of_ada, of_bob, of_eve]: [&str; 4],
    limited: fn(&str, &[&str]) -> Command,
) {
    let mut serves = Process::of(on(&mut unlimited("chat", &["serve"]), of_server));
    let server = serves.address();
    let mut ada = join(on(&mut limited("chat", &[]), of_ada), "ada", &server);
    let bob = join(on(&mut limited("chat", &[]), of_bob), "bob", &server);
    let mut eve = join(on(&mut unlimited("chat", &[]), of_eve), "eve", &server);
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
    let options = ["join", "eve", "--connect", &server];
    let alone = Process::of(on(&mut limited("chat", &options), of_eve)).fail();
    assert!(alone.contains("no process is listening"), "{alone}");
}

#[test]
fn a_member_that_leaves_or_dies_is_reported_to_the_others() {
    ["soft0", "softib0"].into_iter().for_each(|device| leave_and_die([device; 4], command));
}

/// The devices of the processes differ, as those of hosts do.
#[test]
fn a_member_that_leaves_or_dies_is_reported_by_udp() {
    let devices = devices_by_udp([3, 4, 5, 6]);
    leave_and_die(devices.each_ref().map(String::as_str), command);
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn a_member_that_leaves_or_dies_is_reported_on_rxe() {
    // The virtual machine has a limit of its own. An emulated one may be slow.
    leave_and_die(["rxe0"; 4], unlimited);
}
