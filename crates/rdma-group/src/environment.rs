//! The rank and the size of the group, as the launcher of the program states them in environment variables.

use std::fmt;

use crate::error::Error;

/// The rank of this process, and the group that it joins.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The address at which rank 0 listens.
    pub(crate) master: String,
    pub(crate) epoch: u64,
    pub(crate) secret: Option<Vec<u8>>,
    /// The hosts of all ranks; empty if they are unknown before the ranks join.
    pub(crate) hosts: Vec<String>,
}

/// Formats everything except the secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world_size, master, epoch, secret: _, hosts: _ } = self;
        write!(f, "rank {rank} of {world_size} at {master}, epoch {epoch}")
    }
}

/// The variables in which a launcher states the rank and the size.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    /// Returns the address of rank 0, unless `RDMA_MASTER` states it.
    master: fn(&Variables<'_>) -> Result<String, Error>,
    /// A variable that counts the restarts of the group.
    epoch: Option<&'static str>,
}

/// In order of precedence: Open MPI and PMI come before Slurm, which also sets its variables for their processes.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "the launcher",
        rank: "RDMA_RANK",
        world_size: "RDMA_WORLD_SIZE",
        master: only_stated,
        epoch: None,
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        master: of_torchrun,
        epoch: Some("TORCHELASTIC_RESTART_COUNT"),
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        master: only_stated,
        epoch: None,
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        master: only_stated,
        epoch: None,
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        master: of_slurm,
        epoch: None,
    },
];

/// Reads environment variables for one launcher.
struct Variables<'v> {
    get: &'v dyn Fn(&str) -> Option<String>,
    launcher: &'static str,
}

impl Variables<'_> {
    fn text(&self, variable: &'static str) -> Result<String, Error> {
        let launcher = self.launcher;
        (self.get)(variable).ok_or(Error::MissingVariable { variable, launcher })
    }

    fn number<N: std::str::FromStr>(&self, variable: &'static str) -> Result<N, Error> {
        let value = self.text(variable)?;
        let number = value.trim().parse();
        number.map_err(|_| Error::BadVariable { variable, value, expected: "a whole number" })
    }
}

impl Settings {
    /// Reads the variables of the first launcher whose rank is set.
    ///
    /// # Errors
    /// [`Error::NoLauncher`], [`Error::MissingVariable`] or [`Error::BadVariable`].
    pub(crate) fn from_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        // An empty variable has no effect.
        let get = &|variable: &str| get(variable).filter(|value| !value.is_empty());
        let launcher = LAUNCHERS.iter().find(|launcher| get(launcher.rank).is_some());
        let launcher = launcher.ok_or(Error::NoLauncher)?;
        let variables = Variables { get, launcher: launcher.name };
        let master = match get("RDMA_MASTER") {
            Some(stated) => stated,
            None => (launcher.master)(&variables)?,
        };
        let restarts = launcher.epoch.filter(|epoch| get(epoch).is_some());
        Ok(Self {
            rank: variables.number(launcher.rank)?,
            world_size: variables.number(launcher.world_size)?,
            master,
            epoch: restarts.map_or(Ok(0), |restarts| variables.number(restarts))?,
            secret: get("RDMA_GROUP_SECRET").map(String::into_bytes),
            hosts: Vec::new(),
        })
    }
}

fn only_stated(variables: &Variables<'_>) -> Result<String, Error> {
    variables.text("RDMA_MASTER")
}

/// Returns the address of torchrun's store, with the next port, because the store listens at its own.
fn of_torchrun(variables: &Variables<'_>) -> Result<String, Error> {
    let (host, variable) = (variables.text("MASTER_ADDR")?, "MASTER_PORT");
    match variables.number::<u16>(variable)?.checked_add(1) {
        Some(port) => Ok(with_port(&host, port)),
        None => {
            let (value, expected) =
                (variables.text(variable)?, "at most 65534: the next port is used");
            Err(Error::BadVariable { variable, value, expected })
        }
    }
}

/// Returns the first host of the step. The port depends on the job and the step, so those on one host differ.
fn of_slurm(variables: &Variables<'_>) -> Result<String, Error> {
    let hosts = variables.text("SLURM_STEP_NODELIST")?;
    let job: u64 = variables.number("SLURM_JOB_ID")?;
    let step = variables.number("SLURM_STEP_ID").unwrap_or(0_u64);
    let port = 10_000 + job.wrapping_mul(8).wrapping_add(step) % 20_000;
    Ok(with_port(&first_host(&hosts), u16::try_from(port).unwrap_or(10_000)))
}

pub(crate) fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the first host of a list such as `gpu[03-05,9]-ib0,login1`.
fn first_host(list: &str) -> String {
    let mut host = String::new();
    let mut rest = list;
    while let Some(end) = rest.find(['[', ',']) {
        let (before, after) = rest.split_at(end);
        host.push_str(before);
        let Some(numbers) = after.strip_prefix('[') else { return host };
        let (numbers, after) = numbers.split_once(']').unwrap_or((numbers, ""));
        host.push_str(numbers.split(['-', ',']).next().unwrap_or_default());
        rest = after;
    }
    host.push_str(rest);
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, Error> {
        let get = |name: &str| {
            let variable = variables.iter().find(|(variable, _)| *variable == name);
            variable.map(|(_, value)| (*value).to_owned())
        };
        Settings::from_variables(&get)
    }

    fn settings(rank: usize, world_size: usize, master: &str, epoch: u64) -> Settings {
        Settings {
            rank,
            world_size,
            master: master.to_owned(),
            epoch,
            secret: None,
            hosts: Vec::new(),
        }
    }

    #[test]
    fn torchrun_states_the_address_of_its_store() {
        let mut variables = vec![("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node1")];
        let error = read(&variables).unwrap_err();
        assert_eq!(error.to_string(), "torchrun has not set MASTER_PORT");
        variables.push(("MASTER_PORT", "29500"));
        assert_eq!(read(&variables).unwrap(), settings(3, 8, "node1:29501", 0));
        let mut last = variables.clone();
        last[3].1 = "65535";
        let error = read(&last).unwrap_err().to_string();
        assert!(
            error.starts_with("MASTER_PORT is \"65535\", but it must be at most 65534"),
            "{error}"
        );
        variables.extend([("RDMA_RANK", ""), ("TORCHELASTIC_RESTART_COUNT", "2")]);
        variables.push(("RDMA_MASTER", "ib1:7"));
        assert_eq!(read(&variables).unwrap(), settings(3, 8, "ib1:7", 2));
    }

    #[test]
    fn slurm_states_the_hosts_of_the_step() {
        let variables = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "6"),
            ("SLURM_STEP_NODELIST", "gpu[03-05,9],login1"),
            ("SLURM_JOB_ID", "1001"),
            ("SLURM_STEP_ID", "1"),
        ];
        assert_eq!(read(&variables).unwrap(), settings(5, 6, "gpu03:18009", 0));
        for (list, first) in [
            ("a", "a"),
            ("a,b[1-2]", "a"),
            ("n[7,9]-ib[0-3],x", "n7-ib0"),
            ("n[0012-0100]", "n0012"),
            ("n[3", "n3"),
        ] {
            assert_eq!(first_host(list), first);
        }
    }

    #[test]
    fn launchers_without_an_address_need_it_stated() {
        for (launcher, rank, world_size) in [
            ("the launcher", "RDMA_RANK", "RDMA_WORLD_SIZE"),
            ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI", "PMI_RANK", "PMI_SIZE"),
        ] {
            let mut variables = vec![(rank, "1"), (world_size, "2"), ("SLURM_PROCID", "7")];
            let error = read(&variables).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{launcher} has not set RDMA_MASTER: set it to HOST:PORT of rank 0")
            );
            variables.push(("RDMA_MASTER", "h:1"));
            assert_eq!(read(&variables).unwrap(), settings(1, 2, "h:1", 0));
        }
    }

    #[test]
    fn a_variable_that_is_wrong_is_named() {
        assert!(matches!(read(&[]), Err(Error::NoLauncher)));
        let error = read(&[("RDMA_RANK", "-1"), ("RDMA_MASTER", "h:1")]).unwrap_err();
        assert_eq!(error.to_string(), "RDMA_RANK is \"-1\", but it must be a whole number");
    }

    #[test]
    fn the_secret_is_not_shown() {
        let variables = [
            ("RDMA_RANK", "0"),
            ("RDMA_WORLD_SIZE", "1"),
            ("RDMA_MASTER", "h:1"),
            ("RDMA_GROUP_SECRET", "swordfish"),
        ];
        let settings = read(&variables).unwrap();
        assert_eq!(settings.secret.as_deref(), Some(&b"swordfish"[..]));
        assert_eq!(format!("{settings:?}"), "rank 0 of 1 at h:1, epoch 0");
    }
}
