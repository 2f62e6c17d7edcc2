//! The rank and the size of the group, as the launcher of the program states them in environment variables.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZero;
use std::{fmt, iter};

use crate::error::Error;

/// The maximum size of a group. Rank 0 allocates a place for each rank before any has joined.
pub(crate) const MOST_RANKS: usize = 65_536;

/// The maximum length of the name of a host.
const HOST_BYTES: usize = 255;

/// The variable that states the address of rank 0 under any launcher.
const MASTER: &str = "RDMA_MASTER";

/// Slurm's list of the number of ranks on each host of the step, which is a single number if the step has one host.
const TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";

/// A description of valid addresses of rank 0.
pub(crate) const HOST_AND_PORT: &str = "HOST:PORT of rank 0, with a port from 1 to 65535";

/// The rank of this process, and the group that it joins.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The address at which rank 0 listens.
    pub(crate) master: String,
    /// The variable that states the address, or else the program or its configuration, as text for errors.
    pub(crate) stated_by: &'static str,
    pub(crate) epoch: u64,
    pub(crate) secret: Option<Vec<u8>>,
    /// The hosts of all ranks; empty if they are unknown before the ranks join.
    pub(crate) hosts: Vec<String>,
    /// Whether all ranks are on one host; `None` if that is unknown.
    pub(crate) one_host: Option<bool>,
}

/// Formats everything except the secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world_size, master, epoch, .. } = self;
        write!(f, "rank {rank} of {world_size} at {master}, epoch {epoch}")
    }
}

/// The variables in which a launcher states the rank and the size.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    /// The variable with the number of ranks on this host.
    local_size: &'static str,
    /// The variable that states the host of rank 0, unless `RDMA_MASTER` states its address.
    stated_by: &'static str,
    /// Returns the address of rank 0, unless `RDMA_MASTER` states it.
    master: fn(&Variables<'_>) -> Result<String, Error>,
    /// Returns the hosts of that many ranks, or none if they are unknown.
    hosts: fn(&Variables<'_>, usize) -> Vec<String>,
}

/// In order of precedence: Open MPI and PMI come before Slurm, which also sets its variables for their processes.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "the launcher",
        rank: "RDMA_RANK",
        world_size: "RDMA_WORLD_SIZE",
        local_size: "RDMA_LOCAL_WORLD_SIZE",
        stated_by: MASTER,
        master: only_stated,
        hosts: unknown,
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_size: "LOCAL_WORLD_SIZE",
        stated_by: "MASTER_ADDR",
        master: of_torchrun,
        hosts: unknown,
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        stated_by: MASTER,
        master: only_stated,
        hosts: unknown,
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_size: "MPI_LOCALNRANKS",
        stated_by: MASTER,
        master: only_stated,
        hosts: unknown,
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_size: TASKS_PER_NODE,
        stated_by: "SLURM_STEP_NODELIST",
        master: of_slurm,
        hosts: of_block_distribution,
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
        number.map_err(|_| Error::BadVariable { variable, value, expected: "a number from 0" })
    }
}

impl Settings {
    /// Returns the settings of a rank of a program that states the address of rank 0 itself.
    pub(crate) fn new(rank: usize, world_size: usize, master: &str) -> Self {
        Self {
            rank,
            world_size,
            master: master.to_owned(),
            stated_by: "the program",
            epoch: 0,
            secret: None,
            hosts: Vec::new(),
            one_host: None,
        }
    }

    /// Reads the variables of the first launcher whose rank is set.
    ///
    /// # Errors
    /// [`Error::NoLauncher`], [`Error::MissingVariable`] or [`Error::BadVariable`].
    pub(crate) fn from_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        // An empty variable has no effect.
        let get = &|variable: &str| get(variable).filter(|value| !value.is_empty());
        // With `--mpi=pmi2`, srun also sets the variables of PMI, but not `RDMA_MASTER`.
        let is_srun =
            get("PMI_RANK") == get("SLURM_PROCID") && get("PMI_SIZE") == get("SLURM_NTASKS");
        let has_rank = |it: &&Launcher| get(it.rank).is_some() && !(is_srun && it.name == "PMI");
        let launcher = LAUNCHERS.iter().find(has_rank).ok_or(Error::NoLauncher)?;
        let variables = Variables { get, launcher: launcher.name };
        let (stated_by, master) = match get(MASTER) {
            Some(stated) => (MASTER, stated),
            None => (launcher.stated_by, (launcher.master)(&variables)?),
        };
        let rank = variables.number(launcher.rank)?;
        let world_size = variables.number(launcher.world_size)?;
        // A group of one rank needs no address.
        if world_size != 1 && !is_address(&master) {
            let (value, is_whole) = (variables.text(stated_by)?, stated_by == MASTER);
            let expected = match is_whole {
                true => HOST_AND_PORT,
                false => "a name or an address of a host, from which that of rank 0 follows",
            };
            return Err(Error::BadVariable { variable: stated_by, value, expected });
        }
        let is_whole = |ranks: String| ranks.trim().parse() == Ok(world_size);
        Ok(Self {
            rank,
            world_size,
            master,
            stated_by,
            // torchrun ends all processes of a group before it starts the next one. Its counts of restarts differ
            // between hosts.
            epoch: 0,
            secret: get("RDMA_GROUP_SECRET").map(String::into_bytes),
            hosts: (launcher.hosts)(&variables, world_size),
            one_host: get(launcher.local_size).map(is_whole),
        })
    }

    /// Returns true if all ranks are known to be on one host. `ip` is the IP address at which rank 0 listens. Only ranks
    /// on this host can connect to a loopback address. But if it belongs to a host's name, others may look up a
    /// different address.
    pub(crate) fn is_one_host(&self, ip: IpAddr) -> bool {
        self.one_host.unwrap_or_else(|| {
            let host = self.master.rsplit_once(':').map_or(&*self.master, |(host, _)| host);
            let is_literal = self.master.parse::<SocketAddr>().is_ok();
            ip.to_canonical().is_loopback() && (is_literal || host == "localhost")
        })
    }
}

fn only_stated(variables: &Variables<'_>) -> Result<String, Error> {
    variables.text(MASTER)
}

/// Returns true if this is `HOST:PORT`, with a port that is not 0.
pub(crate) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_port = port.parse().is_ok_and(|port: u16| port > 0);
    // An address of IPv6 may end with an interface, such as `%eth0`.
    let is_ipv6 = || host.split('%').next().is_some_and(|it| it.parse::<Ipv6Addr>().is_ok());
    is_port && !host.is_empty() && (!host.contains(':') || is_ipv6())
}

/// Returns the name of this host.
pub(crate) fn own_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the address of torchrun's store, with the next port, because the store listens at its own.
fn of_torchrun(variables: &Variables<'_>) -> Result<String, Error> {
    let (host, variable) = (variables.text("MASTER_ADDR")?, "MASTER_PORT");
    match variables.number::<u16>(variable)? {
        port @ 1..=65534 => Ok(with_port(&host, port + 1)),
        _ => {
            let (value, expected) =
                (variables.text(variable)?, "from 1 to 65534: the next port is used");
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
    let first = hosts_in(&hosts, 1).pop().unwrap_or_default();
    Ok(with_port(&first, u16::try_from(port).unwrap_or(10_000)))
}

fn unknown(_: &Variables<'_>, _: usize) -> Vec<String> {
    Vec::new()
}

/// Returns the hosts of the ranks of a Slurm step. They are unknown if the variables do not fit, or if the step is
/// distributed in another way than in blocks. With one rank on each host, the cyclic distribution is equal.
fn of_block_distribution(variables: &Variables<'_>, world_size: usize) -> Vec<String> {
    let get = variables.get;
    if world_size > MOST_RANKS {
        return Vec::new();
    }
    let hosts = get("SLURM_STEP_NODELIST").map(|list| hosts_in(&list, world_size));
    let tasks = get(TASKS_PER_NODE).and_then(|tasks| tasks_in(&tasks, world_size));
    let (hosts, tasks) = (hosts.unwrap_or_default(), tasks.unwrap_or_default());
    let distribution = get("SLURM_DISTRIBUTION").unwrap_or("block".to_owned());
    let is_alone = distribution.starts_with("cyclic") && tasks.len() == world_size;
    if hosts.len() != tasks.len() || !(distribution.starts_with("block") || is_alone) {
        return Vec::new();
    }
    let of_host = |(host, tasks)| iter::repeat_n(host, tasks);
    hosts.into_iter().zip(tasks).flat_map(of_host).collect()
}

/// Returns the numbers in a list such as `2(x3),1`, or `None` if it is invalid. Their sum must be `sum`.
fn tasks_in(list: &str, sum: usize) -> Option<Vec<usize>> {
    let (mut tasks, mut left) = (Vec::new(), sum);
    for part in list.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        // A number is at least 1, so the list has at most `sum` numbers.
        let count: NonZero<usize> = count.parse().ok()?;
        left = left.checked_sub(count.get().checked_mul(times)?)?;
        tasks.extend(iter::repeat_n(count.get(), times));
    }
    (left == 0).then_some(tasks)
}

pub(crate) fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the first hosts of a list such as `gpu[03-05,9]-ib0,login1`, at most that many. The list ends before a name
/// without valid hosts.
fn hosts_in(list: &str, most: usize) -> Vec<String> {
    let (mut hosts, mut inside) = (Vec::new(), false);
    let names = list.split(|character| {
        inside = character == '[' || inside && character != ']';
        character == ',' && !inside
    });
    for name in names {
        let left = most.saturating_sub(hosts.len());
        let mut more = expanded(name, left);
        if name.is_empty() || more.is_empty() {
            break;
        }
        hosts.append(&mut more);
    }
    hosts
}

/// Expands a name with numbers in brackets. Returns the first names, at most that many. They end before one that is too
/// long for a host.
fn expanded(name: &str, most: usize) -> Vec<String> {
    let is_host = |name: &String| name.len() <= HOST_BYTES;
    let mut names = vec![String::new()];
    for part in name.split_inclusive(']') {
        let ends: Vec<_> = match part.split_once('[') {
            Some((before, numbers)) => {
                let numbers = numbers.strip_suffix(']');
                let ranges = numbers.and_then(|it| it.split(',').map(numbers_in).collect());
                let ranges: Vec<_> = ranges.unwrap_or_default();
                let ends = ranges.into_iter().flatten().map(|number| format!("{before}{number}"));
                ends.take_while(is_host).take(most).collect()
            }
            None if part.ends_with(']') => Vec::new(),
            None => vec![part.to_owned()],
        };
        let longer = names.iter().flat_map(|name| ends.iter().map(move |end| name.clone() + end));
        names = longer.take_while(is_host).take(most).collect();
        if names.is_empty() {
            break;
        }
    }
    names.truncate(most);
    names
}

/// Returns the numbers of a range such as `03-05`, or a single one. Returns `None` for other text.
fn numbers_in(range: &str) -> Option<impl Iterator<Item = String>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number =
        |text: &str| -> Option<u64> { if text.contains('+') { None } else { text.parse().ok() } };
    let (start, end) = (number(first)?, number(last)?);
    let width = first.len().min(HOST_BYTES + 1);
    Some((start..=end).map(move |number| format!("{number:0width$}")))
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

    fn settings(rank: usize, world_size: usize, master: &str, stated_by: &'static str) -> Settings {
        Settings { stated_by, ..Settings::new(rank, world_size, master) }
    }

    #[test]
    fn torchrun_states_the_address_of_its_store() {
        let mut variables = vec![("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node1")];
        let error = read(&variables).unwrap_err();
        assert_eq!(
            error.to_string(),
            "torchrun has not set MASTER_PORT: set it, or start the program with a launcher that does"
        );
        variables.push(("MASTER_PORT", "29500"));
        assert_eq!(read(&variables).unwrap(), settings(3, 8, "node1:29501", "MASTER_ADDR"));
        for port in ["0", "65535"] {
            let mut wrong = variables.clone();
            wrong[3].1 = port;
            let error = read(&wrong).unwrap_err().to_string();
            let expected = format!("MASTER_PORT is \"{port}\", but it must be from 1 to 65534: ");
            assert!(error.starts_with(&expected), "{error}");
        }
        variables.extend([("RDMA_RANK", ""), ("RDMA_MASTER", "ib1:7")]);
        assert_eq!(read(&variables).unwrap(), settings(3, 8, "ib1:7", MASTER));
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
        assert_eq!(read(&variables).unwrap(), settings(5, 6, "gpu03:18009", "SLURM_STEP_NODELIST"));
        let [pmi, others] = [["5", "6"], ["0", "2"]].map(|[rank, size]| {
            [&variables[..], &[("PMI_RANK", rank), ("PMI_SIZE", size)]].concat()
        });
        assert_eq!(read(&pmi).unwrap(), settings(5, 6, "gpu03:18009", "SLURM_STEP_NODELIST"));
        let error = read(&others).unwrap_err().to_string();
        assert!(error.starts_with("PMI has not set RDMA_MASTER"), "{error}");
        for (list, first) in [
            ("a", "a"),
            ("a,b[1-2]", "a"),
            ("n[7,9]-ib[0-3],x", "n7-ib0"),
            ("n[0012-0100]", "n0012"),
        ] {
            assert_eq!(hosts_in(list, 1), [first]);
        }
    }

    #[test]
    fn lists_of_hosts_are_expanded_up_to_a_limit() {
        let all = |list| hosts_in(list, 100).join(" ");
        assert_eq!(all("gpu[03-05,9]-ib0,login1"), "gpu03-ib0 gpu04-ib0 gpu05-ib0 gpu9-ib0 login1");
        assert_eq!(all("n[9-11]r[1,2],x"), "n9r1 n9r2 n10r1 n10r2 n11r1 n11r2 x");
        let most = hosts_in("n[0-18446744073709551615],x[0-9]", 3);
        assert_eq!(most, ["n0", "n1", "n2"]);
    }

    #[test]
    fn lists_of_hosts_end_before_an_invalid_name() {
        let all = |list: &str| hosts_in(list, 100).join(" ");
        assert_eq!(all("a,n[3-1],b"), "a");
        assert_eq!(all("a,n[0-18446744073709551615]r[3-1]"), "a");
        for wrong in [
            "n[3", "n]", "n[]", "n[x]", "n[1-]", "n[-1]", "n[1-2-3]", "n[+1]", "n[1]]", "n[[1]", "",
        ] {
            assert_eq!(all(&format!("a,{wrong}")), "a", "{wrong}");
        }
        let long = "x".repeat(HOST_BYTES - 1);
        assert_eq!(all(&format!("a,{long}[9-10]")), format!("a {long}9"));
        assert_eq!(all(&format!("a,n[{}]", "0".repeat(1_000_000))), "a");
        assert_eq!(all(&format!("a,{}", "[1]".repeat(1_000_000))), "a");
    }

    #[test]
    fn slurm_states_the_host_of_each_rank() {
        let hosts_of = |size: &str, tasks: &str, distribution: &str| {
            let variables = [
                ("SLURM_PROCID", "0"),
                ("SLURM_NTASKS", size),
                ("SLURM_STEP_NODELIST", "gpu[1-3],login1"),
                ("SLURM_JOB_ID", "1001"),
                ("SLURM_STEP_TASKS_PER_NODE", tasks),
                ("SLURM_DISTRIBUTION", distribution),
            ];
            read(&variables).unwrap().hosts.join(" ")
        };
        let hosts = |tasks: &str, distribution: &str| hosts_of("6", tasks, distribution);
        let in_blocks = "gpu1 gpu1 gpu2 gpu2 gpu3 login1";
        assert_eq!(hosts("2(x2),1(x2)", ""), in_blocks);
        assert_eq!(hosts("2,2,1,1", "block:cyclic"), in_blocks);
        assert_eq!(hosts("2(x2),1(x2)", "cyclic"), "");
        assert_eq!(hosts_of("4", "1(x4)", "cyclic"), "gpu1 gpu2 gpu3 login1");
        assert_eq!(hosts_of("4", "1(x4)", "arbitrary"), "");
        for wrong in ["", "2(x2),1", "2(x2),1(x3)", "2(x2", "x", "2(x2),1(x99999999999)", "3(x4)"] {
            assert_eq!(hosts(wrong, ""), "", "{wrong}");
        }
        for wrong in ["0(x99999999999),6", "9223372036854775808(x2),6", "6,0,0,0"] {
            assert_eq!(hosts(wrong, ""), "", "{wrong}");
        }
    }

    #[test]
    fn launchers_state_whether_all_ranks_are_on_one_host() {
        let local = [
            ["RDMA_RANK", "RDMA_WORLD_SIZE", "RDMA_LOCAL_WORLD_SIZE"],
            ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"],
            ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
            ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"],
            ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE"],
        ];
        let of_slurm = ("2(x2)", Some(false));
        for (launcher, [rank, size, local]) in local.into_iter().enumerate() {
            let cases = [("4", Some(true)), ("2", Some(false)), ("", None)];
            for (ranks, expected) in cases.into_iter().chain((launcher == 4).then_some(of_slurm)) {
                let variables = [(rank, "0"), (size, "4"), ("RDMA_MASTER", "h:1"), (local, ranks)];
                assert_eq!(read(&variables).unwrap().one_host, expected, "{local}={ranks}");
            }
        }
    }

    #[test]
    fn ranks_at_a_loopback_address_are_on_one_host_unless_it_belongs_to_a_name() {
        let [loopback, other] = ["127.0.1.1", "192.0.2.1"].map(|ip| ip.parse().unwrap());
        for (master, one_host, ip, expected) in [
            ("127.0.1.1:7", None, loopback, true),
            ("localhost:7", None, loopback, true),
            ("node1:7", None, loopback, false),
            ("node1:7", Some(true), loopback, true),
            ("127.0.1.1:7", Some(false), loopback, false),
            ("192.0.2.1:7", None, other, false),
            ("192.0.2.1:7", Some(true), other, true),
        ] {
            let settings = Settings { one_host, ..Settings::new(0, 2, master) };
            assert_eq!(settings.is_one_host(ip), expected, "{master}, {one_host:?}");
        }
    }

    #[test]
    fn the_hosts_of_more_ranks_than_fit_in_a_group_are_unknown() {
        let hosts = |ranks: usize| {
            let size = ranks.to_string();
            let variables = [
                ("SLURM_PROCID", "0"),
                ("SLURM_NTASKS", &*size),
                ("SLURM_STEP_NODELIST", "n"),
                ("SLURM_JOB_ID", "1001"),
                ("SLURM_STEP_TASKS_PER_NODE", &*size),
            ];
            read(&variables).unwrap().hosts.len()
        };
        assert_eq!(hosts(MOST_RANKS), MOST_RANKS);
        assert_eq!(hosts(MOST_RANKS + 1), 0);
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
            assert_eq!(read(&variables).unwrap(), settings(1, 2, "h:1", MASTER));
        }
    }

    #[test]
    fn a_variable_that_is_wrong_is_named() {
        assert!(matches!(read(&[]), Err(Error::NoLauncher)));
        let error = read(&[("RDMA_RANK", "-1"), ("RDMA_MASTER", "h:1")]).unwrap_err();
        assert_eq!(error.to_string(), "RDMA_RANK is \"-1\", but it must be a number from 0");
    }

    #[test]
    fn an_address_that_a_launcher_states_wrongly_is_named() {
        let stated =
            |master| read(&[("RDMA_RANK", "0"), ("RDMA_WORLD_SIZE", "2"), ("RDMA_MASTER", master)]);
        for valid in ["h:1", "192.0.2.1:65535", "[2001:db8::1]:7", "fe80::1%eth0:7"] {
            assert_eq!(stated(valid).unwrap(), settings(0, 2, valid, MASTER));
        }
        for wrong in ["h", "h:", ":7", "h:0", "h:65536", "h:port", "a:b:7", "fe80::1", "[]:7"] {
            let error = stated(wrong).unwrap_err().to_string();
            let expected = format!("RDMA_MASTER is {wrong:?}, but it must be HOST:PORT of rank 0");
            assert!(error.starts_with(&expected), "{error}");
        }
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")];
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "1")];
        for (launcher, stated) in
            [(torchrun, ("MASTER_ADDR", "h:29500")), (slurm, ("SLURM_STEP_NODELIST", "n[3-1]"))]
        {
            let error = read(&[&launcher[..], &[stated]].concat()).unwrap_err().to_string();
            let expected =
                format!("{} is {:?}, but it must be a name or an address", stated.0, stated.1);
            assert!(error.starts_with(&expected), "{error}");
        }
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
