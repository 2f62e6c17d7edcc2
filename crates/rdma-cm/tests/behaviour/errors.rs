//! The messages of errors, and their table on the page.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use rdma_cm::{Awaited, End, Error, Phase, Reason};

const SOURCE: &str = include_str!("../../src/error.rs");
const PAGE: &str = include_str!("../../../../docs/connection-manager.md");

/// Returns the variants of an enum in the source.
fn variants(name: &str) -> BTreeSet<&'static str> {
    let (_, body) = SOURCE.split_once(&format!("pub enum {name} {{\n")).unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let names = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = names.filter(|line| line.starts_with(char::is_uppercase));
    names.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap()).collect()
}

#[test]
fn the_table_of_the_page_has_each_error_and_no_other() {
    let (_, table) = PAGE.split_once("| error | cause | cure |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let first = table.lines().map(|row| row.split('|').nth(1).unwrap());
    let named: Vec<_> = first.flat_map(|cell| cell.split('`')).collect();
    for name in ["Error", "End"] {
        let of_page = named.iter().filter_map(|part| part.strip_prefix(name)?.strip_prefix("::"));
        let mut expected = variants(name);
        // Its reasons have the rows.
        expected.remove("Ended");
        assert!(expected.len() > 8, "{expected:?}");
        assert_eq!(of_page.collect::<BTreeSet<_>>(), expected, "{name}");
    }
}

#[test]
fn each_event_that_does_not_arrive_has_its_own_cure() {
    let awaited = [
        Awaited::Address,
        Awaited::Answer,
        Awaited::Request,
        Awaited::Confirmation,
        Awaited::Disconnect,
        Awaited::DisconnectAnswer,
    ];
    let limit = Duration::from_secs(2);
    let cures: BTreeSet<_> = awaited
        .map(|awaited| {
            let text = Error::TimedOut { awaited, limit }.to_string();
            let expected = format!("{awaited} did not arrive within 2s: check ");
            text.strip_prefix(&expected).unwrap_or_else(|| panic!("{text}")).to_owned()
        })
        .into();
    assert_eq!(cures.len(), awaited.len(), "{cures:?}");
}

fn rejected(reason: Reason, private_data: &[u8]) -> String {
    End::Rejected { reason, private_data: private_data.to_vec() }.to_string()
}

#[test]
fn each_reason_of_a_rejection_has_a_cure() {
    for code in 0..40 {
        let (reason, text) = (Reason::new(code), rejected(Reason::new(code), b""));
        let expected = format!("the peer rejected the connection: {reason}; ");
        assert!(text.len() > expected.len() && text.starts_with(&expected), "{text}");
    }
    for (reason, cure) in [
        (Reason::INVALID_SERVICE_ID, "check that the server's program listens at this address"),
        (Reason::CONSUMER_DEFINED, "look for the cause in the output of the peer's program"),
        (Reason::STALE_CONNECTION, "connect again"),
        (Reason::INVALID_MTU, "use the same MTU at the interfaces of both hosts"),
        (Reason::NO_RESOURCES, "retry after connections of the peer have ended"),
        (Reason::TIMEOUT, "call `next` or `wait` more often"),
    ] {
        assert!(rejected(reason, b"").contains(&format!("; {cure}")), "{reason}");
        let refused = End::Refused { reason }.to_string();
        assert!(refused.starts_with(&format!("this end refused the peer's reply: {reason}; ")));
        assert!(refused.contains(&format!("; {cure}")), "{refused}");
    }
}

#[test]
fn a_rejection_shows_the_beginning_of_its_private_data_without_the_padding() {
    let shown = |data: &[u8]| {
        let text = rejected(Reason::CONSUMER_DEFINED, data);
        let (_, rest) = text.split_once("(28)").unwrap();
        rest.split_once(';').unwrap().0.to_owned()
    };
    assert_eq!(shown(&[0; 148]), "");
    assert_eq!(shown(b"no\0\0"), ", with the private data \"no\"");
    assert_eq!(shown(b"\0\x1b[2J\"\n\xff\0"), r#", with the private data "\x00\x1b[2J\"\n\xff""#);
    let long = format!(", with the private data \"{}\" and 84 more bytes", "x".repeat(64));
    assert_eq!((shown(&[b'x'; 148]), shown(&[b'x'; 64]).len()), (long, 24 + 66));
}

#[test]
fn errors_of_the_system_have_a_cure() {
    for (errno, cure) in [
        (libc::EMFILE, "raise the limit of open files (`ulimit -n`)"),
        (libc::ENFILE, "raise the limit of open files (`ulimit -n`)"),
        (libc::ENOMEM, "free memory, or raise the limit of locked memory (`ulimit -l`)"),
        (libc::EACCES, "check the permissions of /dev/infiniband"),
        (libc::ENOSYS, "look for the cause in the kernel's log (`dmesg`)"),
    ] {
        let source = io::Error::from_raw_os_error(errno);
        let expected = format!("the connection manager cannot listen: {source}; {cure}");
        let text = Error::System { tried: "listen", source }.to_string();
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn ends_name_what_to_do() {
    for (end, cure) in [
        (End::PeerGone, ": check that its program is running, and connect again"),
        (End::Busy, ": check that its program calls `incoming`, and retry"),
        (End::OtherUser, ": run both ends as the same user"),
        (End::DeviceRemoved, ": open it again once it is back"),
        (End::Unanswered { phase: Phase::Resolve }, "for the address: check `ip route get`"),
        (End::Unanswered { phase: Phase::Connect }, "the request: check that its program calls"),
        (End::Unanswered { phase: Phase::Accept }, "connection: check that its program calls"),
        (End::Kernel { tried: "connect", errno: 5 }, "; check `ip route get` and `ip neigh`"),
    ] {
        assert!(end.to_string().contains(cure), "{end}");
    }
}
