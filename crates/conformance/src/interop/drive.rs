//! The driving process, which runs each check in both directions.

use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::arguments::{Drive, Format};
use super::checks::{CHECKS, Check};
use super::command::{Command, Facts};
use super::control::Remote;
use super::rows::{Row, Table};
use super::scene::{Hand, Options, Scene, Skip};
use super::station::Station;
use crate::outcome::Outcome;

/// Runs the selected checks. Returns true unless one failed.
pub(super) fn drive(arguments: &Drive) -> Result<bool> {
    let wanted =
        |check: &Check| arguments.only.as_ref().is_none_or(|text| check.name.contains(text));
    let checks: Vec<_> = (0_u64..).zip(CHECKS).filter(|(_, check)| wanted(check)).collect();
    ensure!(
        !checks.is_empty(),
        "no check has {:?} in its name; omit --only to run all",
        arguments.only
    );
    let mut here = Station::open(&arguments.own)?;
    let mut there = Remote::connect(&arguments.connect, arguments.own.patience())?;
    let facts = [here.facts().clone(), Hand::There(&mut there).facts()?];
    fit(arguments, &facts)?;
    let mut rows = Vec::new();
    for (n, check) in checks {
        for back in [false, true] {
            let row = run(check, back, &mut here, &mut there, &facts, arguments, n)?;
            if arguments.format == Format::Json {
                println!("{}", serde_json::to_string(&row)?);
            } else {
                eprintln!(
                    "{} ms: {}, {} to {}: {:?}",
                    row.millis, row.check, row.from, row.to, row.outcome
                );
            }
            rows.push(row);
        }
    }
    there.leave()?;
    if arguments.format == Format::Table {
        print!("{}", Table(&rows));
    }
    Ok(!rows.iter().any(Row::failed))
}

/// Checks that the two devices can communicate.
fn fit(arguments: &Drive, facts: &[Facts; 2]) -> Result<()> {
    let [own, peer] = facts;
    for Facts { device, gid, mtu, .. } in facts {
        eprintln!("{device}: {gid}, a path MTU of up to {mtu}");
    }
    if own.ethernet != peer.ethernet {
        bail!("{} and {} are devices of different link layers", own.device, peer.device);
    }
    let (mtu, most) = (arguments.mtu, own.mtu.min(peer.mtu));
    let known = (256..=4096).contains(&mtu) && mtu.is_power_of_two();
    ensure!(known, "the MTU must be 256, 512, 1024, 2048 or 4096");
    ensure!(mtu <= most, "the MTU of {mtu} exceeds the ports' {most}");
    Ok(())
}

fn run(
    check: &Check,
    back: bool,
    here: &mut Station,
    there: &mut Remote,
    facts: &[Facts; 2],
    arguments: &Drive,
    n: u64,
) -> Result<Row> {
    let own = &arguments.own.device;
    let names = [format!("drive ({own})"), format!("serve ({})", facts[1].device)];
    let (mut hands, mut facts) = ([Hand::Here(here), Hand::There(there)], facts.clone());
    let mut names = names;
    if back {
        hands.reverse();
        facts.reverse();
        names.reverse();
    }
    let ([a, b], [from, to]) = (hands, names);
    // The seed depends only on `--seed`, the check and the direction, so the check uses the same
    // bytes whether it runs alone or with others.
    let seed = arguments.seed.wrapping_mul(1 << 32).wrapping_add(n << 20 | u64::from(back) << 19);
    let mut scene = Scene::new(a, b, facts, Options::of(arguments), seed);
    let begin = Instant::now();
    let done = (check.run)(&mut scene);
    let millis = begin.elapsed().as_millis();
    let mut differences = std::mem::take(&mut scene.differences);
    differences.sort();
    let outcome = match done {
        Ok(()) if differences.is_empty() => Outcome::Passed,
        Ok(()) => Outcome::Differs { differences },
        Err(error) => match error.downcast_ref::<Skip>() {
            Some(Skip(reason)) => Outcome::Skipped { reason: (*reason).to_owned() },
            None => Outcome::Failed { message: format!("{error:#}") },
        },
    };
    let (sent, arrived) = (scene.sent, scene.arrived);
    scene.drop_ends()?;
    Ok(Row { check: check.name, from, to, outcome, sent, arrived, millis })
}

impl Scene<'_> {
    /// Drops the ends of both stations, so that nothing of one check affects the next.
    fn drop_ends(self) -> Result<()> {
        self.into_hands().into_iter().try_for_each(|mut hand| hand.ask(Command::Drop).map(drop))
    }
}
