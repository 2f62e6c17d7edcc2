//! Compares the traces of two devices.

use std::collections::BTreeMap;

use rdma_sys::{Errno, ibv_wc_status as Status};

use super::trace::{Completion, Invalidated, RXE_WITH_INV, StepTrace, Trace, WITH_INV};

/// A known difference of SoftRoCE: the value that the contract requires, and the one that SoftRoCE
/// reports.
struct Difference<T: 'static> {
    /// The entry of `docs/rxe-differences.md`.
    name: &'static str,
    contract: T,
    rxe: T,
}

const SENT: &[Difference<Status>] = &[
    Difference {
        name: "status-of-a-bad-lkey",
        contract: Status::IBV_WC_LOC_PROT_ERR,
        rxe: Status::IBV_WC_LOC_QP_OP_ERR,
    },
    Difference {
        name: "receive-too-small",
        contract: Status::IBV_WC_REM_INV_REQ_ERR,
        rxe: Status::IBV_WC_REM_OP_ERR,
    },
    Difference {
        name: "local-invalidation-status",
        contract: Status::IBV_WC_MW_BIND_ERR,
        rxe: Status::IBV_WC_LOC_QP_OP_ERR,
    },
];

const RECEIVED: &[Difference<Status>] = &[
    Difference {
        name: "receive-too-small",
        contract: Status::IBV_WC_LOC_LEN_ERR,
        rxe: Status::IBV_WC_LOC_QP_OP_ERR,
    },
    Difference {
        name: "receive-with-a-bad-element",
        contract: Status::IBV_WC_LOC_PROT_ERR,
        rxe: Status::IBV_WC_LOC_QP_OP_ERR,
    },
    Difference {
        name: "receive-of-a-refused-write-with-immediate",
        contract: Status::IBV_WC_WR_FLUSH_ERR,
        rxe: Status::IBV_WC_REM_ACCESS_ERR,
    },
];

const CALLS: &[Difference<Errno>] =
    &[Difference { name: "bound-region-einval", contract: Errno::EBUSY, rxe: Errno::EINVAL }];

/// The flag of a completed receive whose sender invalidated a key.
const FLAGS: &[Difference<u32>] =
    &[Difference { name: "with-invalidate-flag", contract: WITH_INV, rxe: RXE_WITH_INV }];

/// The known differences that occurred, each with the number of times.
pub(super) type Met = BTreeMap<&'static str, usize>;

/// Returns a description of the first step in which the traces differ, if any. If `met` is given,
/// the right device is SoftRoCE, whose known differences are allowed and counted there.
pub(super) fn difference(left: &Trace, right: &Trace, mut met: Option<&mut Met>) -> Option<String> {
    for (n, (left, right)) in left.steps.iter().zip(&right.steps).enumerate() {
        let other = match &mut met {
            Some(met) => as_contract(left, right, met),
            None => right.clone(),
        };
        if *left != other {
            return Some(describe(n, left, right));
        }
    }
    (left.steps.len() != right.steps.len()).then(|| "the numbers of steps differ".to_owned())
}

/// Returns SoftRoCE's step with its known differences replaced by what the contract requires.
fn as_contract(contract: &StepTrace, rxe: &StepTrace, met: &mut Met) -> StepTrace {
    // SoftRoCE's events are not known well enough to be compared.
    let mut step = StepTrace { events: contract.events.clone(), ..rxe.clone() };
    for (wanted, errno) in contract.calls.iter().zip(&mut step.calls) {
        let (one, other) = (Errno::from_raw(*wanted), Errno::from_raw(*errno));
        if is_known(CALLS, one, other, met) {
            *errno = *wanted;
        }
    }
    put_right(&contract.sent, &mut step.sent, SENT, met);
    put_right(&contract.received, &mut step.received, RECEIVED, met);
    step
}

type Queues = BTreeMap<String, Vec<Completion>>;

fn put_right(contract: &Queues, rxe: &mut Queues, known: &[Difference<Status>], met: &mut Met) {
    for (end, completions) in rxe {
        let wanted = contract.get(end).into_iter().flatten();
        for (wanted, found) in wanted.zip(completions) {
            if is_known(known, Status(wanted.status), Status(found.status), met) {
                found.status = wanted.status;
            }
            let flag = wanted.details.as_ref().and_then(|wanted| Some(wanted.invalidated?.flag));
            let details = found.details.as_mut();
            if let (Some(wanted), Some(Invalidated { flag, .. })) =
                (flag, details.and_then(|found| found.invalidated.as_mut()))
                && is_known(FLAGS, wanted, *flag, met)
            {
                *flag = wanted;
            }
        }
    }
}

fn is_known<T: PartialEq>(known: &[Difference<T>], contract: T, rxe: T, met: &mut Met) -> bool {
    let found = known.iter().find(|known| known.contract == contract && known.rxe == rxe);
    found.inspect(|known| *met.entry(known.name).or_default() += 1).is_some()
}

fn describe(n: usize, left: &StepTrace, right: &StepTrace) -> String {
    let mut lines = vec![format!("step {n}:")];
    if left.calls != right.calls {
        let name = |&errno: &i32| Errno::from_raw(errno).to_string();
        let names = |calls: &[i32]| calls.iter().map(name).collect::<Vec<_>>().join(", ");
        lines.push(format!("  calls: {} | {}", names(&left.calls), names(&right.calls)));
    }
    let states =
        |step: &StepTrace| step.states.iter().map(|(k, v)| (k.clone(), v.to_string())).collect();
    let events = |step: &StepTrace| {
        step.events.iter().map(|(object, found)| (object.clone(), found.join(", "))).collect()
    };
    let queue = |queue: &Queues| {
        queue.iter().map(|(end, found)| (end.clone(), completions(found))).collect()
    };
    lines.extend(entries("events of", &events(left), &events(right)));
    lines.extend(entries("sent by", &queue(&left.sent), &queue(&right.sent)));
    lines.extend(entries("received by", &queue(&left.received), &queue(&right.received)));
    lines.extend(entries("state of", &states(left), &states(right)));
    lines.extend(entries("memory of", &shortened(&left.memory), &shortened(&right.memory)));
    lines.join("\n")
}

/// Keeps the first bytes of each entry, which are enough to recognise it.
fn shortened(memory: &Entries) -> Entries {
    const SHOWN: usize = 32;
    let short = |bytes: &String| match bytes.get(..2 * SHOWN) {
        Some(shown) => format!("{shown}... ({} bytes)", bytes.len() / 2),
        None => bytes.clone(),
    };
    memory.iter().map(|(place, bytes)| (place.clone(), short(bytes))).collect()
}

type Entries = BTreeMap<String, String>;

/// Returns descriptions of the entries that differ.
fn entries(what: &str, left: &Entries, right: &Entries) -> Vec<String> {
    let mut keys: Vec<&String> = left.keys().chain(right.keys()).collect();
    keys.sort();
    keys.dedup();
    let shown =
        |side: &Entries, key: &String| side.get(key).cloned().unwrap_or_else(|| "-".to_owned());
    let differ = keys.into_iter().filter(|key| left.get(*key) != right.get(*key));
    differ
        .map(|key| format!("  {what} {key}: {} | {}", shown(left, key), shown(right, key)))
        .collect()
}

fn completions(found: &[Completion]) -> String {
    let one = |completion: &Completion| {
        let Completion { wr_id, status, details } = completion;
        let details = details.as_ref().map_or(String::new(), |known| format!(" {known:?}"));
        format!("{wr_id} {}{details}", status_name(*status))
    };
    if found.is_empty() {
        "none".to_owned()
    } else {
        found.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

fn status_name(status: u32) -> String {
    format!("{:?}", Status(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(status: Status) -> Trace {
        let completion = Completion { wr_id: 1, status: status.0, details: None };
        let mut step = StepTrace::default();
        step.sent.insert("0A".to_owned(), vec![completion]);
        Trace { steps: vec![StepTrace::default(), step] }
    }

    #[test]
    fn each_known_difference_is_on_the_page() {
        let page = include_str!("../../../../docs/rxe-differences.md");
        let statuses = SENT.iter().chain(RECEIVED).map(|known| known.name);
        let others =
            CALLS.iter().map(|known| known.name).chain(FLAGS.iter().map(|known| known.name));
        for name in statuses.chain(others) {
            assert!(page.contains(&format!("\n## {name}\n")), "{name}");
        }
    }

    #[test]
    fn a_known_difference_applies_in_one_direction_and_only_to_softroce() {
        let contract = step(Status::IBV_WC_LOC_PROT_ERR);
        let rxe = step(Status::IBV_WC_LOC_QP_OP_ERR);
        let mut met = Met::new();
        assert_eq!(difference(&contract, &rxe, Some(&mut met)), None);
        assert_eq!(met, Met::from([("status-of-a-bad-lkey", 1)]));
        assert!(difference(&rxe, &contract, Some(&mut met)).is_some());
        assert!(difference(&contract, &rxe, None).is_some_and(|text| text.starts_with("step 1")));
    }

    #[test]
    fn events_are_compared_except_those_of_softroce() {
        let same = step(Status::IBV_WC_SUCCESS);
        let mut other = same.clone();
        let events = &mut other.steps[1].events;
        events.insert("0A".to_owned(), vec!["IBV_EVENT_QP_FATAL".to_owned()]);
        assert!(difference(&same, &other, None).is_some_and(|text| text.contains("QP_FATAL")));
        assert_eq!(difference(&same, &other, Some(&mut Met::new())), None);
    }

    #[test]
    fn every_field_of_a_trace_is_compared() {
        let same = step(Status::IBV_WC_SUCCESS);
        let changes: [fn(&mut StepTrace); 5] = [
            |step| step.calls.push(22),
            |step| step.sent.get_mut("0A").unwrap().clear(),
            |step| drop(step.received.insert("0B".to_owned(), Vec::new())),
            |step| step.states = BTreeMap::from([("0A".to_owned(), 3)]),
            |step| drop(step.memory.insert("0A slot 0 [1]".to_owned(), "ff".to_owned())),
        ];
        for change in changes {
            let mut other = same.clone();
            change(&mut other.steps[1]);
            assert!(difference(&same, &other, Some(&mut Met::new())).is_some());
            assert!(difference(&other, &same, None).is_some());
        }
    }
}
