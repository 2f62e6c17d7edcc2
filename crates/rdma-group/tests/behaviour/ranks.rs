//! Groups whose ranks are threads of this process, or processes that run this program again.

use std::env;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rdma_group::{Error, Group, GroupBuilder, ProtectionDomain};
use test_support::loopback;
use test_support::program::this_program;

/// The variable that states the part of a process.
const PART: &str = "RDMA_TEST_GROUP_PART";

/// The limits of a call and of joining. They end a test that hangs. No test waits for them.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);
const JOIN_LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn domain() -> ProtectionDomain {
    rdma_soft::install();
    rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap()
}

/// Returns the address of rank 0 of a new group.
pub(crate) fn free_address() -> String {
    loopback::free_address().to_string()
}

/// Runs a group whose ranks are threads. Returns their results in rank order.
pub(crate) fn threads<T: Send>(size: usize, part: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    let (pd, master) = (domain(), free_address());
    thread::scope(|threads| {
        let (pd, master, part) = (&pd, &master, &part);
        let rank = |rank| {
            threads.spawn(move || {
                let builder =
                    Group::builder(pd, rank, size, master).limit(LIMIT).join_limit(JOIN_LIMIT);
                part(&mut builder.join().unwrap())
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs a group whose ranks are processes. Each runs the part with this name, and must succeed, except those that are
/// expected to die. `argument` is passed to the part.
pub(crate) fn processes(size: usize, part: &str, argument: &str, dying: &[usize]) {
    let master = free_address();
    let launcher = |rank: usize, command: &mut Command| {
        command.env("RDMA_RANK", rank.to_string()).env("RDMA_WORLD_SIZE", size.to_string());
        command.env("RDMA_MASTER", &master);
    };
    processes_of(size, part, argument, dying, launcher);
}

/// Like [`processes`], with the variables of another launcher.
pub(crate) fn processes_of(
    size: usize,
    part: &str,
    argument: &str,
    dying: &[usize],
    launcher: impl Fn(usize, &mut Command),
) {
    let spawn = |rank: usize| {
        let mut command = child_command(part, argument);
        launcher(rank, &mut command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..size).map(spawn).collect();
    let outcomes = thread::scope(|threads| {
        let ranks: Vec<_> = ranks.into_iter().map(|rank| threads.spawn(|| outcome(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    for (rank, (succeeded, text)) in outcomes.iter().enumerate() {
        assert_eq!(*succeeded, !dying.contains(&rank), "rank {rank}: {text}");
    }
}

/// Returns a command that runs a part in a process.
pub(crate) fn child_command(part: &str, argument: &str) -> Command {
    let mut command = this_program();
    command.args(["--exact", "ranks::child", "--ignored", "--nocapture"]);
    // A launcher may have started the tests, too.
    for variable in ["RDMA_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RDMA_MASTER"] {
        command.env_remove(variable);
    }
    command.env(PART, format!("{part} {argument}"));
    command
}

fn outcome(child: Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    let mut text = String::new();
    (&output.stdout[..]).chain(&output.stderr[..]).read_to_string(&mut text).unwrap();
    (output.status.success() && text.contains(" 1 passed"), text)
}

/// A rank of [`processes`].
#[test]
#[ignore = "a process of other tests"]
fn child() {
    let words = env::var(PART).unwrap();
    let (part, argument) = words.split_once(' ').unwrap();
    let pd = domain();
    let builder = GroupBuilder::from_environment(&pd).unwrap().limit(LIMIT).join_limit(JOIN_LIMIT);
    match part {
        "collectives" => crate::collectives::blocking::part(&mut builder.join().unwrap()),
        "few" => crate::collectives::few(&mut builder.join_limit(LIMIT).join().unwrap()),
        "death" => crate::failures::death(&mut builder.join().unwrap(), argument),
        "outage" => crate::namespaces::outage(&mut builder.join().unwrap()),
        "launcher" => crate::launchers::part(&mut builder.join().unwrap(), argument),
        #[cfg(feature = "async")]
        "mixed" => {
            crate::asynchronous::part(builder, env::var("RDMA_RANK").unwrap().parse().unwrap())
        }
        #[cfg(feature = "async")]
        "async_death" => crate::asynchronous::death(builder),
        other => panic!("no part {other}"),
    }
}

/// Returns the message of an error.
pub(crate) fn text<T>(result: Result<T, Error>) -> String {
    result.err().unwrap().to_string()
}

/// Checks the rank and the host that an error about different calls names. Returns its message. `odd` is the rank whose
/// call differs from those of all others.
pub(crate) fn named<T>(
    result: Result<T, Error>,
    own: usize,
    odd: usize,
    host: impl Fn(usize) -> Option<String>,
) -> String {
    let error = result.err().unwrap();
    let (Error::Mismatch { rank, host: found, .. } | Error::Failed { rank, host: found, .. }) =
        &error
    else {
        panic!("{error}")
    };
    assert_eq!(Some(found), host(*rank).as_ref());
    let is_mismatch = matches!(error, Error::Mismatch { .. });
    assert!(!is_mismatch || (own == odd) != (*rank == odd), "rank {own}: {error}");
    error.to_string()
}
