//! Makes a failing program smaller, as long as the result is fair and still fails.

use rdma_sys::ibv_access_flags as Access;

use super::generate::ALL_ACCESS;
use super::model::Model;
use super::program::*;
use super::windows::REMOTE_ACCESS;

/// Returns the smallest failing program that was found in at most `tries` attempts.
pub(super) fn shrink(
    program: Program,
    mut tries: usize,
    mut fails: impl FnMut(&Program) -> bool,
) -> Program {
    let mut smallest = program;
    'again: loop {
        for candidate in candidates(&smallest) {
            if Model::check(&candidate).is_err() {
                continue;
            }
            if tries == 0 {
                return smallest;
            }
            tries -= 1;
            if fails(&candidate) {
                smallest = candidate;
                continue 'again;
            }
        }
        return smallest;
    }
}

/// Returns programs that are smaller in one respect, roughly with the largest reductions first.
fn candidates(program: &Program) -> Vec<Program> {
    let mut found = Vec::new();
    found.extend((0..program.pairs.len()).filter_map(|pair| without_pair(program, pair)));
    let steps = program.steps.len();
    for (size, stride) in [(16, 16), (4, 4), (1, 1), (2, 1), (3, 1)] {
        for from in (0..steps).step_by(stride).rev() {
            let mut smaller = program.clone();
            smaller.steps.drain(from..(from + size).min(steps));
            found.push(smaller);
        }
    }
    for (n, step) in program.steps.iter().enumerate() {
        let smaller = match step {
            Step::Phase(requests) => smaller_phases(requests),
            Step::Register { end, slot, length, access } => {
                let (end, slot) = (*end, *slot);
                let rights = ALL_ACCESS | *access & Access::IBV_ACCESS_MW_BIND.0;
                let all = Step::Register { end, slot, length: SLOT_BYTES, access: rights };
                let long = Step::Register { end, slot, length: SLOT_BYTES, access: *access };
                let free = Step::Register { end, slot, length: *length, access: rights };
                let mut simpler = vec![all, long, free];
                simpler.retain(|simpler| simpler != step);
                simpler
            }
            Step::Race(race) if race.length > 1 => {
                vec![Step::Race(Race { length: race.length / 2, ..*race })]
            }
            _ => Vec::new(),
        };
        for step in smaller {
            let mut candidate = program.clone();
            candidate.steps[n] = step;
            found.push(candidate);
        }
    }
    for n in 0..program.pairs.len() {
        let plan = program.pairs[n];
        for simple in [
            Pair {
                shared: false,
                joined: false,
                windows: false,
                all_signaled: false,
                access: ALL_ACCESS,
                ..plan
            },
            Pair { shared: false, joined: false, ..plan },
            Pair { joined: false, ..plan },
            Pair { windows: false, ..plan },
            Pair { all_signaled: false, ..plan },
            Pair { access: ALL_ACCESS, ..plan },
        ] {
            if simple != plan {
                let mut candidate = program.clone();
                candidate.pairs[n] = simple;
                found.push(candidate);
            }
        }
    }
    found
}

/// Returns the program without one pair and without all steps of that pair. `None` if it is the
/// only pair.
fn without_pair(program: &Program, pair: usize) -> Option<Program> {
    let gone = u8::try_from(pair).ok()?;
    if program.pairs.len() == 1 {
        return None;
    }
    let mut smaller = program.clone();
    smaller.pairs.remove(pair);
    smaller.pairs[0].joined = false;
    smaller.steps.retain_mut(|step| match step {
        Step::Phase(requests) => {
            requests.retain_mut(|request| keep(end_of(request), gone));
            !requests.is_empty()
        }
        Step::Reconnect { pair } => {
            let mut end = QpId { pair: *pair, side: Side::A };
            let kept = keep(&mut end, gone);
            *pair = end.pair;
            kept
        }
        Step::Race(race) => {
            let (mut end, _) = race.ends();
            let kept = keep(&mut end, gone);
            race.pair = end.pair;
            kept
        }
        Step::Register { end, .. }
        | Step::Deregister { end, .. }
        | Step::Renew { end, .. }
        | Step::Fail { end }
        | Step::Refused { end, .. } => keep(end, gone),
    });
    Some(smaller)
}

fn end_of(request: &mut ProgramRequest) -> &mut QpId {
    match request {
        ProgramRequest::Receive { end, .. } => end,
        ProgramRequest::Send(send) => &mut send.end,
    }
}

/// Returns true if the end exists in a program without pair `gone`. If so, renumbers the end's pair
/// if necessary.
fn keep(end: &mut QpId, gone: u8) -> bool {
    let kept = end.pair != gone;
    end.pair -= u8::from(end.pair > gone);
    kept
}

fn smaller_phases(requests: &[ProgramRequest]) -> Vec<Step> {
    let mut found = Vec::new();
    for n in 0..requests.len() {
        let mut fewer = requests.to_vec();
        fewer.remove(n);
        if !fewer.is_empty() {
            found.push(Step::Phase(fewer));
        }
    }
    // Removes two requests, for example a send and the receive that it consumes.
    for n in 0..requests.len() {
        for m in 0..n {
            let mut fewer = requests.to_vec();
            fewer.remove(n);
            fewer.remove(m);
            if !fewer.is_empty() {
                found.push(Step::Phase(fewer));
            }
        }
    }
    for (n, request) in requests.iter().enumerate() {
        for simpler in simpler_requests(request) {
            let mut candidate = requests.to_vec();
            candidate[n] = simpler;
            found.push(Step::Phase(candidate));
        }
    }
    found
}

fn simpler_requests(request: &ProgramRequest) -> Vec<ProgramRequest> {
    match request {
        ProgramRequest::Receive { end, elements } => {
            let simpler = simpler_elements(elements).into_iter();
            simpler.map(|elements| ProgramRequest::Receive { end: *end, elements }).collect()
        }
        ProgramRequest::Send(send) => {
            simpler_sends(send).into_iter().map(ProgramRequest::Send).collect()
        }
    }
}

fn simpler_sends(send: &Send) -> Vec<Send> {
    let lists = simpler_elements(&send.elements).into_iter();
    let mut found: Vec<Send> = lists.map(|elements| Send { elements, ..send.clone() }).collect();
    let mut offer = |simpler: Send| {
        if simpler != *send {
            found.push(simpler);
        }
    };
    offer(Send { fenced: false, solicited: false, ..send.clone() });
    offer(Send { inline: false, ..send.clone() });
    offer(Send { signaled: true, ..send.clone() });
    offer(Send { operands: (1, 1), ..send.clone() });
    offer(Send {
        remote: send.remote.map(|remote| Remote { offset: 0, ..remote }),
        ..send.clone()
    });
    offer(Send {
        remote: send.remote.map(|remote| Remote { key: Key::Own, ..remote }),
        ..send.clone()
    });
    let simple = |bind: Bind| Bind { access: REMOTE_ACCESS, low: 1, ..bind };
    offer(Send { bind: send.bind.map(simple), ..send.clone() });
    let whole = |bind: Bind| Bind { offset: 0, length: 1024, ..simple(bind) };
    offer(Send { bind: send.bind.map(whole), ..send.clone() });
    found
}

/// Returns simpler versions of the elements: first those with an element removed. In each of the
/// others, one element is shorter, has the key of its slot, or is at the beginning of its slot.
fn simpler_elements(elements: &[Element]) -> Vec<Vec<Element>> {
    let mut found = Vec::new();
    let mut change = |n: usize, new: Option<Element>| {
        let mut simpler = elements.to_vec();
        match new {
            Some(element) => simpler[n] = element,
            None => drop(simpler.remove(n)),
        }
        found.push(simpler);
    };
    (0..elements.len()).for_each(|n| change(n, None));
    for (n, &element) in elements.iter().enumerate() {
        for length in [1, element.length / 2, element.length - 1] {
            if 0 < length && length < element.length {
                change(n, Some(Element { length, ..element }));
            }
        }
        if element.key != Key::Own {
            change(n, Some(Element { key: Key::Own, ..element }));
        }
        if element.offset > 0 {
            change(n, Some(Element { offset: 0, ..element }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::generate;
    use super::*;

    fn sends(program: &Program) -> Vec<&Send> {
        let phases = program.steps.iter().filter_map(|step| match step {
            Step::Phase(requests) => Some(requests),
            _ => None,
        });
        let requests = phases.flatten();
        requests
            .filter_map(
                |request| if let ProgramRequest::Send(send) = request { Some(send) } else { None },
            )
            .collect()
    }

    #[test]
    fn a_program_with_one_failing_request_is_shrunk_to_it_and_its_dependencies() {
        let is_it = |send: &&Send| send.opcode == Opcode::CompareSwap;
        let fails = |program: &Program| sends(program).iter().any(is_it);
        let mut shrunk = 0;
        for program in (0..100).map(generate::program).filter(|program| fails(program)) {
            let small = shrink(program, 10_000, fails);
            assert_eq!(Model::check(&small), Ok(()));
            assert!(fails(&small));
            assert_eq!((small.pairs.len(), sends(&small).len()), (1, 1), "{small}");
            // A registration at each end, possibly a deregistration, and the phase.
            assert!(small.steps.len() <= 4, "{small}");
            shrunk += 1;
        }
        assert!(shrunk > 10);
    }

    #[test]
    fn lengths_shrink_to_the_smallest_that_fails() {
        let long = |send: &&Send| super::super::model::length(&send.elements) >= 100;
        let fails = |program: &Program| sends(program).iter().any(long);
        for program in (0..60).map(generate::program).filter(|program| fails(program)).take(10) {
            let small = shrink(program, 20_000, fails);
            let lengths: Vec<u32> = sends(&small)
                .iter()
                .map(|send| super::super::model::length(&send.elements))
                .collect();
            // A program is fair only if a lost send is followed by one that arrives, so two sends
            // may remain.
            assert_eq!(lengths.iter().sum::<u32>(), 100, "{small}");
        }
    }

    #[test]
    fn tries_are_limited() {
        let mut tries = 0;
        shrink(generate::program(1), 7, |_| {
            tries += 1;
            false
        });
        assert_eq!(tries, 7);
    }

    #[test]
    fn every_candidate_differs_from_the_program() {
        for seed in 0..20 {
            let program = generate::program(seed);
            assert!(candidates(&program).iter().all(|candidate| *candidate != program));
        }
    }
}
