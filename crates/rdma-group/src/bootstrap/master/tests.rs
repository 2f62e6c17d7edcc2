use std::iter;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use test_support::loopback::free_address;

use super::*;
use crate::bootstrap::link::Keys;
use crate::bootstrap::tests::{LIMIT, join_as, root, serve_until_joined, settings, text};

/// An address that no host has.
const NOWHERE: &str = "192.0.2.1:7";

const SHORT: Duration = Duration::from_millis(1);

/// Returns settings with an address that other hosts reach.
fn of_other_hosts(rank: usize, master: &str) -> Settings {
    Settings { secret: Some(b"swordfish".to_vec()), ..Settings::new(rank, 2, master) }
}

#[test]
fn a_look_up_ends_at_the_limit() {
    let (_blocking, blocked) = mpsc::channel::<()>();
    let resolve = move || {
        let _ = blocked.recv();
        Ok(Vec::new())
    };
    let error = look_up(SHORT, resolve).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let expected = "no answer within 1ms: check the name servers of this host";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn a_look_up_that_fails_is_repeated_until_the_limit() {
    let (failure, attempts) = ("the name has no address yet", AtomicUsize::new(0));
    let late = move || match attempts.fetch_add(1, Ordering::Relaxed) {
        3 => Ok(vec![free_address()]),
        _ => Err(io::Error::other(failure)),
    };
    assert_eq!(look_up(LIMIT, late).unwrap().len(), 1);

    let (sender, attempts) = mpsc::channel();
    let never = move || {
        sender.send(()).unwrap();
        Err(io::Error::other(failure))
    };
    let error = look_up(Duration::from_secs(1), never).unwrap_err().to_string();
    let expected = ["no answer within 1s", "the name has no address yet: it was repeated for 1s"];
    assert!(expected.iter().any(|expected| error.starts_with(expected)), "{error}");
    // The thread ends after the limit.
    assert!(attempts.iter().count() > 0);
}

#[test]
fn an_interface_in_an_address_is_looked_up() {
    let found = resolve("[fe80::1%lo]:7").unwrap();
    assert!(matches!(found[..], [SocketAddr::V6(it)] if it.scope_id() > 0 && it.port() == 7));
    assert_eq!(resolve("[::1]:7").unwrap(), [SocketAddr::from((Ipv6Addr::LOCALHOST, 7))]);
    assert!(resolve("localhost:7").unwrap().iter().all(|it| it.ip().is_loopback()));
}

#[test]
fn a_name_without_an_address_is_named() {
    // No name has such a byte, so no server is queried.
    let error = text(join_as(&Settings::new(1, 2, "a\0b:7"), LIMIT));
    let expected = "looking up the address of rank 0, a\0b:7, which the program states: ";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn an_empty_secret_is_none() {
    for secret in [None, Some(Vec::new())] {
        let settings = Settings { secret, ..Settings::new(1, 2, NOWHERE) };
        assert!(matches!(join_as(&settings, LIMIT), Err(Error::SecretRequired { .. })));
    }
}

#[test]
fn an_address_to_which_no_rank_can_connect_is_refused_on_each_rank() {
    for rank in [0, 1] {
        for (master, expected) in [
            ("0.0.0.0:7", "the name or an address of its host"),
            ("[::]:7", "the name or an address of its host"),
            ("[::ffff:0.0.0.0]:7", "the name or an address of its host"),
            ("[fe80::1%lo]:7", "an address that is valid on all hosts"),
            ("[fe80::1]:7", "an address that is valid on all hosts"),
            ("127.0.0.1:0", HOST_AND_PORT),
            ("node1", HOST_AND_PORT),
        ] {
            let error = text(join_as(&of_other_hosts(rank, master), LIMIT));
            let expected = format!(
                "the program states that rank 0 listens at {master}, but this must be {expected}"
            );
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}

/// Returns the error of a rank 0 that cannot listen.
fn cannot_listen(master: &str, errno: Errno) -> String {
    let error = io::Error::from_raw_os_error(errno.raw_os_error());
    format!(
        "rank 0 on {} cannot listen at {master}, which the program states: {error}: ",
        own_host()
    )
}

#[test]
fn a_second_process_of_rank_0_is_named() {
    let master = free_address();
    let (settings, keys) = (settings(0, 2, master), Arc::new(Keys::new(b"")));
    let _first = root(&settings, &keys, LIMIT);
    let error = text(join_as(&settings, LIMIT));
    let expected = cannot_listen(&settings.master, Errno::ADDRINUSE)
        + "another process uses this address: check that rank 0 was started only once";
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn rank_0_on_a_host_without_its_address_is_named() {
    let error = text(join_as(&of_other_hosts(0, NOWHERE), LIMIT));
    let expected = cannot_listen(NOWHERE, Errno::ADDRNOTAVAIL)
        + "this host does not have the address: start rank 0 on the host that has it";
    assert!(error.starts_with(&expected), "{error}");
}

/// A name such as `localhost` has two addresses. Other ranks connect to the first at which a process listens.
#[test]
fn rank_0_skips_only_addresses_that_its_host_does_not_have() {
    let [used, free] = [(); 2].map(|()| free_address());
    let _other = TcpListener::bind(used).unwrap();
    assert_eq!(listen(&[used, free], 2).unwrap_err().kind(), ErrorKind::AddrInUse);
    let listener = listen(&[NOWHERE.parse().unwrap(), free], 2).unwrap();
    assert_eq!(listener.local_addr().unwrap(), free);
}

#[test]
fn a_rank_0_that_never_listens_is_named() {
    let master = free_address();
    let error = text(join_as(&settings(1, 2, master), SHORT));
    let expected = format!("rank 1 could not connect to rank 0 at {master} within 1ms: ");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_rank_0_that_sends_nothing_is_named() {
    let master = free_address();
    let _silent = TcpListener::bind(master).unwrap();
    let join = || join_as(&settings(1, 2, master), SHORT).err().unwrap();
    // On a busy machine, even the attempt to connect may take longer than its limit.
    let mut errors = iter::repeat_with(join).take(1000);
    let error = errors.find(|error| !matches!(error, Error::Unreachable { .. })).unwrap();
    let expected = format!("rank 1 could not join at {master}: rank 0 did not answer within 1ms: ");
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn a_rank_0_that_dies_while_ranks_join_is_named() {
    let expected = |master| {
        format!(
            "rank 1 could not join at {master}: rank 0 closed the connection: check its output, and that no other process has this rank"
        )
    };
    thread::scope(|threads| {
        let master = free_address();
        let listener = TcpListener::bind(master).unwrap();
        let rank = threads.spawn(move || text(join_as(&settings(1, 2, master), LIMIT)));
        let accepted = listener.accept().unwrap();
        // The kernel closes the files of a dead process in this order, too.
        drop(listener);
        drop(accepted);
        assert_eq!(rank.join().unwrap(), expected(master));
    });
    // A process that another test starts has the first listener until it runs its program. So this one has another
    // address.
    let master = free_address();
    thread::scope(|threads| {
        let (settings, keys) = (settings(0, 3, master), Arc::new(Keys::new(b"")));
        let mut root = root(&settings, &keys, LIMIT);
        let other = Settings { rank: 1, ..settings.clone() };
        let rank = threads.spawn(move || text(join_as(&other, LIMIT)));
        serve_until_joined(&mut root, 1);
        drop(root);
        assert_eq!(rank.join().unwrap(), expected(master));
    });
}
