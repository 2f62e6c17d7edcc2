//! Ranks with the variables of each launcher.

use std::env;
use std::net::TcpListener;
use std::process::Command;

use rdma_group::Group;

use crate::collectives;
use crate::ranks::{free_address, processes_of};

const SIZE: usize = 3;

/// Calls all collectives. `argument` is the launcher's variable with the rank.
pub(crate) fn part(group: &mut Group, argument: &str) {
    assert_eq!(env::var(argument).unwrap(), group.rank().to_string());
    collectives::blocking::part(group);
}

/// Starts the ranks of a launcher that states the rank in each of `ranks`, and the size in each of `sizes`.
fn start(ranks: &[&str], sizes: &[&str], others: &[(&str, &str)]) {
    let launcher = |number: usize, command: &mut Command| {
        command.envs(ranks.iter().map(|rank| (rank, number.to_string())));
        command.envs(sizes.iter().map(|size| (size, SIZE.to_string())));
        command.envs(others.iter().copied());
    };
    processes_of(SIZE, "launcher", ranks[0], &[], launcher);
}

#[test]
fn ranks_of_torchrun_join_beside_its_store() {
    // No other test uses this port.
    let (address, port) = (own_address(), 29500);
    let _store = TcpListener::bind((&*address, port)).unwrap();
    let others = [("MASTER_ADDR", &*address), ("MASTER_PORT", &port.to_string())];
    // Each host counts the failures of its own processes, so its count may differ from that of other hosts.
    let ranks = ["RANK", "TORCHELASTIC_RESTART_COUNT"];
    start(&ranks, &["WORLD_SIZE"], &others);
}

#[test]
fn ranks_of_slurm_join_at_the_first_host() {
    let address = own_address();
    let (network, host) = address.rsplit_once('.').unwrap();
    let hosts = format!("{network}.[{host},255],elsewhere[1-7]");
    let step = |id| [("SLURM_STEP_NODELIST", &*hosts), ("SLURM_JOB_ID", "4711"), id];
    start(&["SLURM_PROCID"], &["SLURM_NTASKS"], &step(("SLURM_STEP_ID", "1")));
    // srun sets these with `--mpi=pmi2`.
    let [ranks, sizes] = [["SLURM_PROCID", "PMI_RANK"], ["SLURM_NTASKS", "PMI_SIZE"]];
    start(&ranks, &sizes, &step(("SLURM_STEP_ID", "2")));
}

#[test]
fn ranks_of_open_mpi_join_at_the_stated_address() {
    // mpirun may have been started by Slurm.
    let others = [("RDMA_MASTER", &*free_address()), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
    start(&["OMPI_COMM_WORLD_RANK"], &["OMPI_COMM_WORLD_SIZE"], &others);
}

#[test]
fn ranks_of_pmi_join_at_the_stated_address() {
    start(&["PMI_RANK"], &["PMI_SIZE"], &[("RDMA_MASTER", &free_address())]);
}

/// Returns a loopback address of this process.
fn own_address() -> String {
    test_support::loopback::free_address().ip().to_string()
}
