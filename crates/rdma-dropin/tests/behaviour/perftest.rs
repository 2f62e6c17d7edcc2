//! Programs of perftest, in two processes. They link with libraries of two vendors, whose imports are among the private
//! symbols.

use crate::two_processes::run;

fn perftest(program: &str, arguments: &[&str]) {
    let arguments = [&["-F", "-n", "100"], arguments].concat();
    let Some([_, client]) = run(program, &arguments) else { return };
    let count = client.lines().filter_map(|line| line.split_whitespace().nth(1));
    assert!(count.into_iter().any(|count| count == "100"), "{program}: {client}");
}

#[test]
fn sends_have_a_latency() {
    perftest("ib_send_lat", &["-d", "soft0", "-x", "1"]);
    perftest("ib_send_lat", &["-d", "softib0"]);
    perftest("ib_send_lat", &["-d", "soft0", "-x", "1", "-c", "UD"]);
}

#[test]
fn writes_have_a_latency() {
    perftest("ib_write_lat", &["-d", "soft0", "-x", "1"]);
}

#[test]
fn reads_and_atomics_have_a_latency() {
    perftest("ib_read_lat", &["-d", "soft0", "-x", "1"]);
    perftest("ib_atomic_lat", &["-d", "soft0", "-x", "1"]);
}

#[test]
fn sends_and_writes_have_a_bandwidth() {
    perftest("ib_send_bw", &["-d", "soft0", "-x", "1"]);
    perftest("ib_write_bw", &["-d", "soft0", "-x", "1"]);
}
