//! The table of checks.

mod datagrams;
mod header;
mod outstanding;
mod refusals;
mod reliable;
mod shapes;
mod unreliable;

use anyhow::Result;

use super::command::Service::{Rc, Uc, Ud};
use super::scene::Scene;

/// A named check, in which side A acts on side B.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) run: fn(&mut Scene<'_>) -> Result<()>,
}

const fn check(name: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Check {
    Check { name, run }
}

pub(super) const CHECKS: &[Check] = &[
    check("rc/send", |scene| reliable::messages(scene, reliable::SEND)),
    check("rc/send-imm", |scene| reliable::messages(scene, reliable::SEND_IMM)),
    check("rc/send-invalidate", reliable::invalidations),
    check("rc/write", |scene| reliable::messages(scene, reliable::WRITE)),
    check("rc/write-imm", |scene| reliable::messages(scene, reliable::WRITE_IMM)),
    check("rc/read", reliable::reads),
    check("rc/compare-swap", reliable::compare_swaps),
    check("rc/fetch-add", reliable::fetch_adds),
    check("rc/inline", |scene| shapes::inline(scene, Rc)),
    check("rc/elements", |scene| shapes::elements(scene, Rc)),
    check("rc/elements-write-read", shapes::elements_of_writes_and_reads),
    check("rc/outstanding-16", |scene| outstanding::mixed(scene, 16)),
    check("rc/outstanding-64", |scene| outstanding::mixed(scene, 64)),
    check("rc/late-receive", refusals::late_receive),
    check("rc/no-receive", refusals::no_receive),
    check("rc/bad-key", refusals::bad_keys),
    check("rc/out-of-bounds", refusals::out_of_bounds),
    check("rc/no-rights", refusals::no_rights),
    check("rc/refused-write-imm", refusals::refused_write_imm),
    check("rc/too-long", refusals::too_long),
    check("rc/destroyed-peer", refusals::destroyed_peer),
    check("rc/seven-retries", refusals::seven_retries),
    check("uc/send", |scene| unreliable::sends(scene, false)),
    check("uc/send-imm", |scene| unreliable::sends(scene, true)),
    check("uc/write", unreliable::writes),
    check("uc/write-imm", unreliable::writes_imm),
    check("uc/inline", |scene| shapes::inline(scene, Uc)),
    check("uc/elements", |scene| shapes::elements(scene, Uc)),
    check("uc/outstanding-32", |scene| outstanding::sends(scene, Uc)),
    check("uc/too-long", |scene| unreliable::too_long(scene, Uc)),
    check("ud/send", |scene| datagrams::sends(scene, false)),
    check("ud/send-imm", |scene| datagrams::sends(scene, true)),
    check("ud/inline", |scene| shapes::inline(scene, Ud)),
    check("ud/elements", |scene| shapes::elements(scene, Ud)),
    check("ud/outstanding-32", |scene| outstanding::sends(scene, Ud)),
    check("ud/too-long", |scene| unreliable::too_long(scene, Ud)),
    check("ud/wrong-qkey", datagrams::wrong_qkey),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_unique_name() {
        let mut names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }
}
