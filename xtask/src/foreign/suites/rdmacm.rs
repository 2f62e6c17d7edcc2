//! Programs that connect by address and port, with librdmacm.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use crate::foreign::installation::Installation;
use crate::foreign::output::result;
use crate::foreign::packages::Needs;
use crate::foreign::pair::{outcome, words};
use crate::foreign::process::{Environment, Process, free_port};
use crate::foreign::report::{Outcome, Row};
use crate::foreign::two_hosts;

/// The packages of the applications.
pub(super) const NEEDS: Needs = Needs {
    packages: &[
        ("libfabric-bin", "usr/bin/fi_pingpong"),
        ("qperf", "usr/bin/qperf"),
        ("fio", "usr/bin/fio"),
    ],
    wheels: &[],
};

/// The command lines of a server and a client. `PORT` stands for a port, `ADDRESS` for the server's address, `CLIENT` for the
/// client's, and `GROUP` for a multicast group.
struct Pair {
    server: &'static str,
    client: &'static str,
    /// Text that a successful server and client print.
    prints: [&'static str; 2],
    /// Whether the server ends after one client. Another server is killed.
    ends: bool,
    /// The port of a program that has no option for it.
    port: Option<u16>,
    begins: Begins,
    /// Whether the pair is run without `--full`.
    is_quick: bool,
}

/// The event after which the client is started.
#[derive(Clone, Copy)]
enum Begins {
    /// The server listens at the port of rdma_cm.
    Listens,
    /// The server listens at the TCP port, at which the two processes begin.
    ListensByTcp,
    /// The server's device has joined the group.
    Joins,
}

const fn pair(server: &'static str, client: &'static str, prints: [&'static str; 2]) -> Pair {
    Pair {
        server,
        client,
        prints,
        ends: true,
        port: None,
        begins: Begins::Listens,
        is_quick: false,
    }
}

const fn quick(server: &'static str, client: &'static str, prints: [&'static str; 2]) -> Pair {
    Pair { is_quick: true, ..pair(server, client, prints) }
}

const UDADDY: u16 = 7174;
const PINGED: [&str; 2] = ["server ping data: rdma-ping-4", "ping data: rdma-ping-4"];
const ENDED: [&str; 2] = ["rdma_server: end 0", "rdma_client: end 0"];
const STATUS: [&str; 2] = ["return status 0"; 2];
const RESULT: [&str; 2] = ["", "#iterations"];

/// The programs of rdmacm-utils, and perftest with rdma_cm.
const PROGRAMS: &[Pair] = &[
    quick("rping -s -C 5 -v -p PORT", "rping -c -C 5 -v -p PORT -a ADDRESS", PINGED),
    pair("rping -s -C 5 -v -S 9000 -p PORT", "rping -c -C 5 -v -S 9000 -p PORT -a ADDRESS", PINGED),
    quick("rdma_server -p PORT", "rdma_client -p PORT -s ADDRESS", ENDED),
    quick("ucmatose -p PORT", "ucmatose -p PORT -s ADDRESS", STATUS),
    pair(
        "ucmatose -c 20 -C 50 -S 4096 -p PORT",
        "ucmatose -c 20 -C 50 -S 4096 -p PORT -s ADDRESS",
        STATUS,
    ),
    Pair { port: Some(UDADDY), ..quick("udaddy", "udaddy -s ADDRESS", STATUS) },
    Pair {
        port: Some(UDADDY),
        ..pair("udaddy -c 10 -C 20", "udaddy -c 10 -C 20 -s ADDRESS", STATUS)
    },
    Pair {
        ends: false,
        ..quick("cmtime -p PORT", "cmtime -c 50 -p PORT -s ADDRESS", ["", "disconnect   :"])
    },
    quick("ib_send_lat -R -F -n 200 -p PORT", "ib_send_lat -R -F -n 200 -p PORT ADDRESS", RESULT),
    pair(
        "ib_send_lat -c UD -R -F -n 200 -p PORT",
        "ib_send_lat -c UD -R -F -n 200 -p PORT ADDRESS",
        RESULT,
    ),
    pair("ib_send_bw -R -F -n 200 -p PORT", "ib_send_bw -R -F -n 200 -p PORT ADDRESS", RESULT),
    quick("ib_write_bw -R -F -n 200 -p PORT", "ib_write_bw -R -F -n 200 -p PORT ADDRESS", RESULT),
    pair("ib_read_bw -R -F -n 200 -p PORT", "ib_read_bw -R -F -n 200 -p PORT ADDRESS", RESULT),
    pair(
        "ib_atomic_lat -R -F -n 200 -p PORT",
        "ib_atomic_lat -R -F -n 200 -p PORT ADDRESS",
        RESULT,
    ),
];

/// Programs whose datagrams reach a multicast group. The members are at addresses of the network.
const GROUPS: &[Pair] = &[Pair {
    begins: Begins::Joins,
    ..pair(
        "mckey -m GROUP -b ADDRESS",
        "mckey -m GROUP -b CLIENT -s",
        ["data transfers complete", "data transfers complete"],
    )
}];

/// Programs of other projects.
const APPLICATIONS: &[Pair] = &[
    Pair {
        begins: Begins::ListensByTcp,
        ..quick(
            "fi_pingpong -p verbs -e msg -I 100 -B PORT",
            "fi_pingpong -p verbs -e msg -I 100 -P PORT ADDRESS",
            ["1m ", "1m "],
        )
    },
    Pair {
        begins: Begins::ListensByTcp,
        ..pair(
            "fi_pingpong -p verbs;ofi_rxm -e rdm -I 100 -B PORT",
            "fi_pingpong -p verbs;ofi_rxm -e rdm -I 100 -P PORT ADDRESS",
            ["1m ", "1m "],
        )
    },
    Pair {
        begins: Begins::ListensByTcp,
        ends: false,
        ..quick(
            "qperf -lp PORT",
            "qperf -lp PORT -cm 1 -t 1 ADDRESS rc_lat rc_rdma_write_bw",
            ["", "rc_rdma_write_bw:"],
        )
    },
    // Without `--thread`, fio moves each job to a process and a session of its own, which outlive a killed fio.
    quick(
        "fio --thread --name=server --ioengine=rdma --port=PORT --rw=read --bs=64k --size=4m --iodepth=4",
        "fio --thread --name=client --ioengine=rdma --hostname=ADDRESS --port=PORT --verb=write --rw=write --bs=64k \
         --size=4m --iodepth=4",
        ["Run status", "WRITE: bw="],
    ),
    // fio listens with `--rw=read`, and connects with `--rw=write`, whatever the verb.
    pair(
        "fio --thread --name=server --ioengine=rdma --port=PORT --rw=read --bs=64k --size=4m --iodepth=4",
        "fio --thread --name=client --ioengine=rdma --hostname=ADDRESS --port=PORT --verb=read --rw=write --bs=64k \
         --size=4m --iodepth=4",
        ["Run status", "WRITE: bw="],
    ),
    // The server posts a receive for each of the 64 messages, because the client allows no retry after an RNR NAK.
    quick(
        "fio --thread --name=server --ioengine=rdma --port=PORT --rw=read --bs=64k --size=4m --iodepth=64",
        "fio --thread --name=client --ioengine=rdma --hostname=ADDRESS --port=PORT --verb=send --rw=write --bs=64k \
         --size=4m --iodepth=4",
        ["Run status", "WRITE: bw="],
    ),
];

/// The output of a client that was too early. Clients of perftest with RC and UD, and of qperf, have connected before the
/// server listened. A client of fio has sent before the server posted a receive, and then waits without a limit.
const EARLY: [&str; 4] = [
    "RDMA_CM_EVENT_REJECTED; error: 8.",
    "RDMA_CM_EVENT_UNREACHABLE; error: 1.",
    "unexpected event from RDMA CM: Event rejected",
    "cq completion status 13(",
];
/// The number of times that such a pair is run.
const ATTEMPTS: u32 = 10;

/// The addresses of two devices that are like two hosts. The server's is the first.
const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// The time in seconds before requests to a silent peer fail. A busy host may stall a process for longer than the default of
/// 2 seconds.
const RETRY_S: &str = "60";

/// Runs the programs between two processes of this host, between two network namespaces, and with `--full` also over UDP
/// between two addresses. Groups have members at both addresses.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(installation: &Installation, full: bool, row: &mut Row) -> Result<()> {
    let usual = installation.environment();
    let chosen = || PROGRAMS.iter().filter(|pair| full || pair.is_quick);
    for pair in chosen() {
        row.case(pair.client, || run_pair(|| attempt(installation, pair, [&usual, &usual])));
    }
    over_udp(installation, GROUPS, row);
    between_hosts(installation, chosen().chain(GROUPS), row)?;
    if full {
        over_udp(installation, PROGRAMS, row);
    }
    Ok(())
}

/// Runs the programs of other projects between two processes of this host, over UDP, and between two network namespaces.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run_applications(
    installation: &Installation,
    full: bool,
    row: &mut Row,
) -> Result<()> {
    let usual = installation.environment();
    let chosen = || APPLICATIONS.iter().filter(|pair| full || pair.is_quick);
    for pair in chosen() {
        row.case(pair.client, || run_pair(|| attempt(installation, pair, [&usual, &usual])));
    }
    over_udp(installation, chosen(), row);
    between_hosts(installation, chosen(), row)
}

fn over_udp<'a>(
    installation: &Installation,
    pairs: impl IntoIterator<Item = &'a Pair>,
    row: &mut Row,
) {
    let environments = ADDRESSES.map(|address| {
        let mut environment = installation.environment();
        environment.push(("RDMA_SOFT_LISTEN", address.to_owned()));
        environment.push(("RDMA_SOFT_RETRY_TIME", RETRY_S.to_owned()));
        environment
    });
    let [server, client] = &environments;
    for pair in pairs {
        let name = format!("{}, over UDP", pair.client);
        row.case(&name, || run_pair(|| attempt(installation, pair, [server, client])));
    }
}

/// Runs the programs in two network namespaces, which a pair of interfaces joins.
///
/// # Errors
/// Returns an error if this process cannot start programs.
fn between_hosts<'a>(
    installation: &Installation,
    pairs: impl IntoIterator<Item = &'a Pair>,
    row: &mut Row,
) -> Result<()> {
    let can_run = two_hosts::can_run()?;
    for pair in pairs {
        let name = format!("{}, between two network namespaces", pair.client);
        row.case(&name, || match can_run {
            true => run_pair(|| attempt_between_hosts(installation, pair)),
            false => Ok(Outcome::Skipped("this machine refuses the namespaces, or has no `ip`")),
        });
    }
    Ok(())
}

/// Runs a pair. The server of perftest closes its listener after a first connection, and listens again. That of qperf
/// reports its port before it listens. A client that connects too early is rejected, and does not try again. A client of
/// fio sends half a second after it has connected, with no retry after an RNR NAK. Its server may still have to post
/// receives. Such a pair is run again.
fn run_pair(attempt: impl Fn() -> Result<Option<Outcome>>) -> Result<Outcome> {
    for _ in 1..ATTEMPTS {
        if let Some(outcome) = attempt()? {
            return Ok(outcome);
        }
    }
    attempt()?.with_context(|| format!("the client was too early in {ATTEMPTS} attempts"))
}

impl Pair {
    /// Returns a port, and a multicast group that no other pair has.
    fn place(&self) -> Result<(u16, Ipv4Addr)> {
        let port = self.port.map_or_else(free_port, Ok)?;
        let [high, low] = port.to_be_bytes();
        Ok((port, Ipv4Addr::new(239, 255, high, low)))
    }
}

/// Returns the words of a command line of a pair.
fn line(
    installation: &Installation,
    line: &str,
    (port, group): (u16, Ipv4Addr),
    [server, client]: [&str; 2],
) -> Vec<String> {
    let line = line.replace("PORT", &port.to_string()).replace("GROUP", &group.to_string());
    let line = words(&line.replace("ADDRESS", server).replace("CLIENT", client));
    let (name, options) = line.split_first().unzip();
    let program = installation.program(name.map_or("", String::as_str));
    [&program, options.unwrap_or(&[])].concat()
}

/// Runs a pair in two network namespaces. Returns `None` if the client was too early.
fn attempt_between_hosts(installation: &Installation, pair: &Pair) -> Result<Option<Outcome>> {
    let (port, group) = pair.place()?;
    let lines = [pair.server, pair.client];
    let lines = lines.map(|of| line(installation, of, (port, group), two_hosts::ADDRESSES));
    let socket = match pair.begins {
        Begins::Listens => two_hosts::socket_of_service(port),
        Begins::ListensByTcp => two_hosts::tcp_socket(port),
        Begins::Joins => two_hosts::membership(group),
    };
    let words = two_hosts::words(&socket, &lines, pair.ends);
    let mut environment = installation.environment();
    environment.push(("RDMA_SOFT_RETRY_TIME", RETRY_S.to_owned()));
    let both = Process::start(&words, &environment)?;
    if both.prints(&EARLY) {
        return Ok(None);
    }
    let both = both.end()?;
    let check = || {
        ensure!(both.succeeded(), "a process failed");
        let [server, client] = pair.prints;
        // The output is that of both ends.
        let least = if server.contains(client) { 2 } else { 1 };
        let has = |text, least| both.output.matches(text).count() >= least;
        ensure!(has(server, 1), "the output lacks {server:?}");
        ensure!(has(client, least), "the output lacks {client:?} of the client");
        Ok(Outcome::Passed(result(&both.output).unwrap_or_else(|_| client.to_owned())))
    };
    check().with_context(|| both.to_string()).map(Some)
}

/// Runs a server, and a client as soon as the server listens. Returns `None` if the client was too early.
fn attempt(
    installation: &Installation,
    pair: &Pair,
    [server, client]: [&Environment; 2],
) -> Result<Option<Outcome>> {
    let (port, group) = pair.place()?;
    let start = |of: &str, environment: &Environment| {
        Process::start(&line(installation, of, (port, group), ADDRESSES), environment)
    };
    let server = start(pair.server, server)?;
    let listens = match pair.begins {
        Begins::Listens => server.listens_by_address(port),
        Begins::ListensByTcp => server.listens(port),
        Begins::Joins => server.joins(group),
    };
    if !listens {
        bail!("the server does not listen\n{}", server.end()?);
    }
    let client = start(pair.client, client)?;
    if client.prints(&EARLY) {
        return Ok(None); // both processes are killed when they are dropped
    }
    let client = client.end()?;
    if !pair.ends {
        server.signal(Signal::KILL)?;
        let server = server.end()?;
        let passed = client.succeeded() && client.output.contains(pair.prints[1]);
        ensure!(passed, "the client failed\nclient {client}\nserver {server}");
        return Ok(Some(Outcome::Passed(pair.prints[1].to_owned())));
    }
    let passed = outcome(Ok((server.end()?, client)), |server, client| {
        for (ended, text) in [server, client].into_iter().zip(pair.prints) {
            ensure!(ended.output.contains(text), "the output lacks {text:?}");
        }
        Ok(result(&client.output).unwrap_or_else(|_| pair.prints[1].to_owned()))
    });
    passed.map(Some)
}
