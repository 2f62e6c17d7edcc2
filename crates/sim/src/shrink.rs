//! Makes a failing script smaller: removes and simplifies parts as long as the script still fails.

use crate::campaign::Done;
use crate::message;
use crate::message::script::{By, Operation as MessageOperation, Script as MessageScript};
use crate::run::{Outcome, PANICKED, run};
use crate::script::{Operation, Script, ScriptRequest, Weather, Window};

/// The maximum number of scripts to run.
const RUNS: u32 = 4000;

/// Returns the smallest failing script that was found, and its error.
pub(crate) fn shrink(script: Script, why: String) -> (Script, String) {
    Shrinker { script, why, runs: 0, run }.shrink(|shrinker| {
        shrinker.operations(|script| &mut script.operations);
        shrinker.links();
        shrinker.settings();
        shrinker.requests();
    })
}

/// The same for messages and streams.
pub(crate) fn shrink_messages(script: MessageScript, why: String) -> (MessageScript, String) {
    Shrinker { script, why, runs: 0, run: message::run::run }.shrink(|shrinker| {
        shrinker.operations(|script| &mut script.operations);
        shrinker.conversations();
    })
}

struct Shrinker<S> {
    script: S,
    why: String,
    runs: u32,
    run: fn(&S) -> Outcome<Done>,
}

impl<S: Clone + PartialEq> Shrinker<S> {
    /// Repeats `pass` until it changes nothing.
    fn shrink(mut self, pass: impl Fn(&mut Self)) -> (S, String) {
        loop {
            let before = self.script.clone();
            pass(&mut self);
            if self.script == before || self.runs >= RUNS {
                return (self.script, self.why);
            }
        }
    }

    /// Adopts the script if it fails in the same way as the current one. Returns true if so.
    fn try_it(&mut self, script: S) -> bool {
        if script == self.script || self.runs >= RUNS {
            return false;
        }
        self.runs += 1;
        match (self.run)(&script) {
            // A panic and another error are different failures, so one must not replace the other.
            Err(why) if why.contains(PANICKED) == self.why.contains(PANICKED) => {
                (self.script, self.why) = (script, why);
                true
            }
            _ => false,
        }
    }

    /// Adopts a changed copy of the script if it fails. Returns true if so.
    fn change(&mut self, change: impl FnOnce(&mut S)) -> bool {
        let mut script = self.script.clone();
        change(&mut script);
        self.try_it(script)
    }

    /// Removes operations: first groups of half of them, then of a quarter, and so on, and finally
    /// single ones.
    fn operations<O>(&mut self, of: impl Fn(&mut S) -> &mut Vec<O>) {
        let mut chunk = of(&mut self.script).len().div_ceil(2).max(1);
        loop {
            // This starts at the end, because later operations often depend on earlier ones.
            let mut end = of(&mut self.script).len();
            while end > 0 {
                let start = end.saturating_sub(chunk);
                self.change(|script| drop(of(script).drain(start..end)));
                end = start;
            }
            if chunk == 1 {
                return;
            }
            chunk = chunk.div_ceil(2);
        }
    }
}

impl Shrinker<MessageScript> {
    /// Repairs links, simplifies limits, and shortens messages.
    fn conversations(&mut self) {
        for better in BETTER {
            self.change(|script| better(&mut script.settings.weather));
        }
        self.change(|script| script.settings.deferred = false);
        self.change(|script| script.settings.infiniband = false);
        for n in 0..self.script.operations.len() {
            self.change(|script| {
                if let Some(MessageOperation::Send { by, .. }) = script.operations.get_mut(n) {
                    *by = By::Send;
                }
            });
            while self.change(|script| match script.operations.get_mut(n) {
                Some(
                    MessageOperation::Send { length, .. }
                    | MessageOperation::Call { length, .. }
                    | MessageOperation::Write { length, .. }
                    | MessageOperation::Answer { length: Some(length), .. },
                ) if *length > 16 => *length /= 2,
                Some(MessageOperation::Pass { nanoseconds }) => *nanoseconds /= 2,
                _ => {}
            }) {}
        }
    }
}

impl Shrinker<Script> {
    /// Reduces the faults and delays of links.
    fn links(&mut self) {
        for better in BETTER {
            self.change(|script| better(&mut script.settings.weather));
        }
        for n in 0..self.script.operations.len() {
            for better in BETTER {
                self.change(|script| {
                    if let Some(Operation::Link { weather, .. }) = script.operations.get_mut(n) {
                        better(weather);
                    }
                });
            }
        }
    }

    /// Removes datagram queue pairs and connections, simplifies connections, and shortens messages.
    fn settings(&mut self) {
        while self.last_goes(|script| script.settings.datagrams.pop().is_some()) {}
        // Connections can be removed only when there are no datagram queue pairs, whose numbers
        // follow theirs.
        while self.script.settings.datagrams.is_empty()
            && self.script.settings.connections.len() > 1
            && self.last_goes(|script| script.settings.connections.pop().is_some())
        {}
        for n in 0..self.script.settings.connections.len() {
            self.change(|script| script.settings.connections[n].shared = [false; 2]);
            self.change(|script| script.settings.connections[n].psn = 0);
        }
        self.change(|script| script.settings.infiniband = false);
        while self.change(|script| script.settings.longest = (script.settings.longest / 2).max(64))
        {
        }
    }

    /// Removes the last queue pairs by calling `pop`, and all their operations, if the script still
    /// fails. Returns true if so.
    fn last_goes(&mut self, pop: impl FnOnce(&mut Script) -> bool) -> bool {
        self.change(|script| {
            pop(script);
            let ends = script.settings.ends();
            script.operations.retain(|operation| match operation {
                Operation::Post { end, request } => {
                    *end < ends && (request.to == usize::MAX || request.to < ends)
                }
                Operation::Receive { end, .. }
                | Operation::Deregister { end }
                | Operation::Deallocate { end, .. }
                | Operation::Join { end, .. }
                | Operation::Leave { end, .. }
                | Operation::Error { end } => *end < ends,
                Operation::Reconnect { connection } => 2 * connection < ends,
                _ => true,
            });
        })
    }

    /// Shortens and simplifies requests.
    fn requests(&mut self) {
        for n in 0..self.script.operations.len() {
            for simpler in SIMPLER {
                while self.change(|script| match script.operations.get_mut(n) {
                    Some(Operation::Post { request, .. }) => simpler(request),
                    Some(Operation::Receive { elements, .. }) => *elements = 1,
                    Some(Operation::Pass { nanoseconds }) => *nanoseconds /= 2,
                    _ => {}
                }) {}
            }
        }
    }
}

const BETTER: &[fn(&mut Weather)] = &[
    |weather| *weather = Weather::CLEAR,
    |weather| weather.loss = 0,
    |weather| weather.duplication = 0,
    |weather| weather.reordering = 0,
    |weather| weather.corruption = 0,
    |weather| weather.jitter_ns = 0,
    |weather| weather.bits_per_second = Weather::CLEAR.bits_per_second,
    |weather| weather.latency_ns = Weather::CLEAR.latency_ns,
];

const SIMPLER: &[fn(&mut ScriptRequest)] = &[
    |request| request.length /= 2,
    |request| request.at /= 2,
    |request| request.immediate = false,
    |request| request.fenced = false,
    |request| request.inline = false,
    |request| request.signaled = true,
    |request| request.elements = 1,
    |request| {
        request.window = request.window.filter(|_| request.kind.is_local());
    },
    |request| in_window(request, |window| window.careful = true),
    |request| in_window(request, |window| window.back = 0),
    |request| in_window(request, |window| (window.from, window.bytes) = (0, usize::MAX)),
    |request| in_window(request, |window| window.rights = u8::MAX),
    |request| in_window(request, |window| window.edge = None),
];

fn in_window(request: &mut ScriptRequest, change: fn(&mut Window)) {
    request.window.iter_mut().for_each(change);
}
