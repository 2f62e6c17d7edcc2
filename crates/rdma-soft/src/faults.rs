//! Faults that a device injects, for tests of programs.

use std::str::FromStr;
use std::time::Duration;

use rdma_types::WcStatus;

use crate::engine::Refusal;

/// Faults that a device injects, so that a test shows how a program copes with them. [`Builder::faults`] sets them for
/// a device, and the environment variable `RDMA_SOFT_FAULTS` for the devices that [`install`] makes.
///
/// The text form is a list of faults, separated by semicolons:
///
/// - `create_cq@3=ENOMEM`: the third call of `create_cq` fails with this error number. The verb is `open_device`, or one
///   that creates, allocates or registers an object. The device counts the calls of each verb.
/// - `fail=0.1%:RNR_RETRY_EXC`: on average, one request in 1,000 fails with this status. It is not executed. As after
///   any failure, its queue pair goes to error, and later requests are flushed.
/// - `loss=1%`: on average, one in 100 packets that the device sends is lost, except multicast packets.
/// - `slow_peer=5ms`: each packet that the device sends arrives that much later, except multicast packets. The time is
///   at most a minute.
/// - `port_flap=10s`: every ten seconds, the port goes down for a second, which is a tenth of that time. The device
///   raises the events of the port.
/// - `gid_move=30s`: every 30 seconds, each GID of the port moves to the next index, and the last one to index 0. The
///   device raises `IBV_EVENT_GID_CHANGE`. Connections and address handles keep their addresses.
/// - `seed=7`: selects the requests that fail and the packets that are lost. The default is 0.
///
/// The periods of `port_flap` and `gid_move` begin when the device is first opened. They last from 1 ms to 24 hours. Only
/// `fail` (with other statuses) and failed calls (with other numbers) can be repeated.
///
/// The same seed selects the same requests of a queue pair, if the program creates its queue pairs in the same order.
/// The packets that are lost also depend on the number of packets, and so on timing, except in a
/// [simulated network](crate::Network). There, times are virtual.
///
/// A device with `fail`, `loss` or `slow_peer` sends everything as packets, as with
/// [`Builder::force_wire`](crate::Builder::force_wire). The counter `injected_faults` counts all faults except delays.
/// For each counted fault, a `tracing` event (target `rdma_soft::faults`) names the object.
///
/// ```
/// use rdma_soft::{Builder, Faults};
///
/// let faults: Faults = "seed=7; create_cq@3=ENOMEM; fail=0.1%:RNR_RETRY_EXC; loss=1%".parse()?;
/// Builder::new("faulty0").faults(faults).install()?;
/// let error = "create_qc@3=ENOMEM".parse::<Faults>().unwrap_err().to_string();
/// assert!(error.starts_with("`create_qc` in `create_qc@3=ENOMEM`: the verbs are alloc_mw, "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Builder::faults`]: crate::Builder::faults
/// [`install`]: crate::install
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Faults {
    pub(crate) seed: u64,
    pub(crate) calls: Vec<FailedCall>,
    pub(crate) requests: Vec<FailedRequests>,
    /// The fraction of the packets that are lost.
    pub(crate) loss: f64,
    pub(crate) slow_peer: Duration,
    pub(crate) port_flap: Option<Duration>,
    pub(crate) gid_move: Option<Duration>,
}

/// A call that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedCall {
    pub(crate) verb: Verb,
    /// The number of the call, from 1.
    pub(crate) call: u64,
    pub(crate) error: Refusal,
}

/// Requests that fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FailedRequests {
    /// The fraction of the requests.
    pub(crate) fraction: f64,
    pub(crate) status: WcStatus,
}

impl Faults {
    /// Returns true if requests or packets are affected. A direct copy is neither lost nor late.
    pub(crate) fn need_packets(&self) -> bool {
        !self.requests.is_empty() || self.loss > 0.0 || !self.slow_peer.is_zero()
    }
}

macro_rules! verbs {
    ($($verb:ident $name:literal)+) => {
        /// A verb whose calls can fail.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Verb {
            $($verb,)+
        }

        impl Verb {
            pub(crate) const ALL: [Self; [$($name),+].len()] = [$(Self::$verb),+];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$verb => $name,)+ }
            }
        }
    };
}

verbs! {
    AllocMw "alloc_mw"
    AllocPd "alloc_pd"
    CreateAh "create_ah"
    CreateCompChannel "create_comp_channel"
    CreateCq "create_cq"
    CreateQp "create_qp"
    CreateSrq "create_srq"
    OpenDevice "open_device"
    RegMr "reg_mr"
}

/// The error numbers with which calls can fail.
const ERRORS: [(&str, Refusal); 9] = [
    ("EACCES", Refusal::NotAllowed),
    ("EBUSY", Refusal::Busy),
    ("EFAULT", Refusal::Fault),
    ("EINVAL", Refusal::Invalid),
    ("EIO", Refusal::Unusable),
    ("EMFILE", Refusal::TooManyFiles),
    ("ENODEV", Refusal::Gone),
    ("ENOMEM", Refusal::NoRoom),
    ("EOPNOTSUPP", Refusal::Unsupported),
];

macro_rules! statuses {
    ($($name:ident)+) => { [$((stringify!($name), WcStatus::$name)),+] };
}

/// The statuses with which requests can fail.
const STATUSES: [(&str, WcStatus); 12] = statuses! {
    FATAL_ERR GENERAL_ERR LOC_LEN_ERR LOC_PROT_ERR LOC_QP_OP_ERR REM_ABORT_ERR REM_ACCESS_ERR REM_INV_REQ_ERR
    REM_OP_ERR RESP_TIMEOUT_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR
};

/// The error for a text that describes no [`Faults`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` in `{fault}`: {allowed}")]
pub struct FaultsError {
    /// The word that is wrong.
    word: String,
    /// The fault that contains the word.
    fault: String,
    /// The words that are allowed there.
    allowed: String,
}

rdma_types::debug_messages!(struct FaultsError { word, fault, allowed });

/// The word that is wrong, and the words that are allowed in its place.
type Wrong<'a> = (&'a str, String);

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::default();
        let mut given = Vec::new();
        for fault in text.split(';').map(str::trim).filter(|fault| !fault.is_empty()) {
            faults.add(fault, &mut given).map_err(|(word, allowed)| FaultsError {
                word: word.to_owned(),
                fault: fault.to_owned(),
                allowed,
            })?;
        }
        Ok(faults)
    }
}

impl Faults {
    /// Adds a fault. `given` contains the names of the previous faults, except those that may be repeated.
    fn add<'a>(&mut self, fault: &'a str, given: &mut Vec<&'a str>) -> Result<(), Wrong<'a>> {
        let (name, value) = fault.split_once('=').unwrap_or((fault, ""));
        let (name, value) = (name.trim(), value.trim());
        if let Some((verb, call)) = name.split_once('@') {
            return self.add_call(failed_call(verb, call, value)?).map_err(|error| (name, error));
        }
        if name == "fail" {
            return self.add_requests(value);
        }
        if given.contains(&name) {
            return Err((name, TWICE.to_owned()));
        }
        given.push(name);
        match name {
            "seed" => {
                self.seed = value.parse().map_err(|_| (value, "a seed is a number".to_owned()))?;
            }
            "loss" => self.loss = fraction(value)?,
            "slow_peer" => self.slow_peer = delay(value)?,
            "port_flap" => self.port_flap = Some(period(value)?),
            "gid_move" => self.gid_move = Some(period(value)?),
            _ => {
                let allowed = "the faults are <verb>@<call>=<errno>, fail=<percentage>:<status>, loss=<percentage>, \
                     slow_peer=<time>, port_flap=<time>, gid_move=<time> and seed=<number>";
                return Err((name, allowed.to_owned()));
            }
        }
        Ok(())
    }

    fn add_call(&mut self, failed: FailedCall) -> Result<(), String> {
        if self.calls.iter().any(|it| (it.verb, it.call) == (failed.verb, failed.call)) {
            return Err(TWICE.to_owned());
        }
        self.calls.push(failed);
        Ok(())
    }

    fn add_requests<'a>(&mut self, value: &'a str) -> Result<(), Wrong<'a>> {
        let failed = failed_requests(value)?;
        let (percentage, status) = value.split_once(':').unwrap_or((value, ""));
        if self.requests.iter().any(|it| it.status == failed.status) {
            return Err((status.trim(), TWICE.to_owned()));
        }
        self.requests.push(failed);
        let sum: f64 = self.requests.iter().map(|it| it.fraction).sum();
        // The sum of rounded fractions may be slightly greater.
        if sum > 1.000_001 {
            let allowed = "all requests that fail are more than 100%: use smaller percentages";
            return Err((percentage.trim(), allowed.to_owned()));
        }
        Ok(())
    }
}

const TWICE: &str = "this occurs twice: give it once";

fn failed_call<'a>(verb: &'a str, call: &'a str, errno: &'a str) -> Result<FailedCall, Wrong<'a>> {
    let found = Verb::ALL.into_iter().find(|known| known.name() == verb);
    let verb = found
        .ok_or_else(|| (verb, format!("the verbs are {}", Verb::ALL.map(Verb::name).join(", "))))?;
    let number = call.parse().ok().filter(|&call| call > 0);
    let call = number.ok_or_else(|| (call, "calls are numbered from 1".to_owned()))?;
    let found = ERRORS.into_iter().find(|known| known.0 == errno);
    let (_, error) = found.ok_or_else(|| {
        (errno, format!("the error numbers are {}", ERRORS.map(|known| known.0).join(", ")))
    })?;
    Ok(FailedCall { verb, call, error })
}

/// Parses a percentage and the name of a status. The last part of the name, `_ERR`, may be omitted.
fn failed_requests(value: &str) -> Result<FailedRequests, Wrong<'_>> {
    let (percentage, name) = value.split_once(':').unwrap_or((value, ""));
    let fraction = fraction(percentage.trim())?;
    let name = name.trim();
    let is_named = |known: &str| known == name || known.strip_suffix("_ERR") == Some(name);
    let found = STATUSES.into_iter().find(|known| is_named(known.0));
    let (_, status) = found.ok_or_else(|| {
        (name, format!("the statuses are {}", STATUSES.map(|known| known.0).join(", ")))
    })?;
    Ok(FailedRequests { fraction, status })
}

/// Parses a percentage, such as `0.1%`.
fn fraction(text: &str) -> Result<f64, Wrong<'_>> {
    let percentage: Option<f64> = text.strip_suffix('%').and_then(|number| number.parse().ok());
    let percentage = percentage.filter(|percentage| (0.0..=100.0).contains(percentage));
    let fraction = percentage.map(|percentage| percentage / 100.0);
    fraction.ok_or_else(|| (text, "use a percentage from 0% to 100%, such as 0.1%".to_owned()))
}

/// Parses the time of `slow_peer`.
fn delay(text: &str) -> Result<Duration, Wrong<'_>> {
    let allowed = Duration::from_micros(1)..=Duration::from_secs(60);
    let hint = "use a time from 1us to 1min, in us, ms, s or min, such as 5ms";
    duration(text).filter(|time| allowed.contains(time)).ok_or_else(|| (text, hint.to_owned()))
}

/// Parses the length of a period.
fn period(text: &str) -> Result<Duration, Wrong<'_>> {
    let allowed = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
    let hint = "use a time from 1ms to 1440min, in us, ms, s or min, such as 10s";
    duration(text).filter(|time| allowed.contains(time)).ok_or_else(|| (text, hint.to_owned()))
}

/// Parses a time, such as `5ms`.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return None,
    };
    let number: f64 = number.trim().parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_a_text() {
        let text = " seed=7;port_flap=10s;gid_move=0.5min; create_cq@3=ENOMEM;fail=0.1%:RNR_RETRY_EXC;\
            fail=50%:REM_OP_ERR;loss=1%;slow_peer=5ms;";
        let call = FailedCall { verb: Verb::CreateCq, call: 3, error: Refusal::NoRoom };
        let requests = [(0.001, WcStatus::RNR_RETRY_EXC_ERR), (0.5, WcStatus::REM_OP_ERR)];
        let expected = Faults {
            seed: 7,
            calls: vec![call],
            requests: requests.map(|(fraction, status)| FailedRequests { fraction, status }).into(),
            loss: 0.01,
            slow_peer: Duration::from_millis(5),
            port_flap: Some(Duration::from_secs(10)),
            gid_move: Some(Duration::from_secs(30)),
        };
        assert_eq!(text.parse(), Ok(expected));
        assert_eq!("".parse(), Ok(Faults::default()));
        let all = "fail=33.3%:REM_OP;fail=33.3%:REM_ACCESS;fail=33.4%:REM_ABORT";
        assert!(all.parse::<Faults>().is_ok());
    }

    #[test]
    fn a_wrong_word_is_named_with_the_allowed_ones() {
        let all = "the faults are <verb>@<call>=<errno>, fail=";
        for (text, word, fault, allowed) in [
            ("seed=1;noise=3%", "noise", "noise=3%", all),
            ("loss", "", "loss", "use a percentage from 0% to 100%"),
            ("loss=1", "1", "loss=1", "use a percentage"),
            ("loss=101%", "101%", "loss=101%", "use a percentage"),
            ("loss=NaN%", "NaN%", "loss=NaN%", "use a percentage"),
            ("seed=x", "x", "seed=x", "a seed is a number"),
            ("create_qc@1=ENOMEM", "create_qc", "create_qc@1=ENOMEM", "the verbs are alloc_mw, "),
            ("reg_mr@0=ENOMEM", "0", "reg_mr@0=ENOMEM", "calls are numbered from 1"),
            ("reg_mr@1=ENOMEN", "ENOMEN", "reg_mr@1=ENOMEN", "the error numbers are EACCES, "),
            ("fail=1%", "", "fail=1%", "the statuses are FATAL_ERR, "),
            ("fail=1%:SUCCESS", "SUCCESS", "fail=1%:SUCCESS", "the statuses are FATAL_ERR, "),
            ("fail=x:REM_OP", "x", "fail=x:REM_OP", "use a percentage"),
            ("slow_peer=5", "5", "slow_peer=5", "use a time from 1us to 1min, in us, "),
            ("port_flap=0s", "0s", "port_flap=0s", "use a time"),
            ("port_flap=-1s", "-1s", "port_flap=-1s", "use a time"),
            ("port_flap=1us", "1us", "port_flap=1us", "use a time from 1ms to 1440min"),
            (
                "gid_move=25000min",
                "25000min",
                "gid_move=25000min",
                "use a time from 1ms to 1440min",
            ),
            ("slow_peer=61s", "61s", "slow_peer=61s", "use a time from 1us to 1min"),
            (
                "slow_peer=99999999999min",
                "99999999999min",
                "slow_peer=99999999999min",
                "use a time",
            ),
            ("seed=7;seed=8", "seed", "seed=8", "this occurs twice: give it once"),
            ("loss=1%;loss=2%", "loss", "loss=2%", "this occurs twice"),
            ("reg_mr@1=EIO; reg_mr@01=EIO", "reg_mr@01", "reg_mr@01=EIO", "this occurs twice"),
            ("fail=1%:REM_OP;fail=2%:REM_OP_ERR", "REM_OP_ERR", "fail=2%:REM_OP_ERR", "this occ"),
            (
                "fail=60%:REM_OP;fail=60%:REM_ACCESS",
                "60%",
                "fail=60%:REM_ACCESS",
                "all requests that fail are more than 100%",
            ),
        ] {
            let error = text.parse::<Faults>().unwrap_err();
            assert_eq!((&*error.word, &*error.fault), (word, fault));
            let start = format!("`{word}` in `{fault}`: {allowed}");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
    }
}
