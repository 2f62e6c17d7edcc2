//! A report that consists of facts and findings, as text or JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::facts::{Device, Facts, PortGid};
use super::finding::{Finding, Severity};
use crate::output::printable;

/// The version of the JSON format. It changes when a field is removed or changes its meaning.
const VERSION: u32 = 1;

/// The results of one run of `rdmatool doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: u32,
    rdmatool: &'static str,
    pub(crate) findings: Vec<Finding>,
    pub(crate) facts: Facts,
}

impl Report {
    pub(crate) fn new(facts: Facts, findings: Vec<Finding>) -> Self {
        Self { version: VERSION, rdmatool: env!("CARGO_PKG_VERSION"), findings, facts }
    }

    /// Returns the severity of the worst finding.
    pub(crate) fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for device in &self.facts.devices {
            describe(&mut text, device);
        }
        for Finding { check, severity, subject, text: found, cure } in &self.findings {
            let subject = subject.as_ref().map_or(String::new(), |subject| format!("{subject}: "));
            let _ = writeln!(text, "{:<8} {check:<17} {subject}{found}", severity.name());
            if let Some(cure) = cure.as_ref().filter(|_| *severity != Severity::Ok) {
                let _ = writeln!(text, "{:26} cure: {cure}", "");
            }
        }
        // Control characters are replaced, so that texts from peers or copied files cannot control
        // the terminal.
        printable(&(text + &self.summary()))
    }

    fn summary(&self) -> String {
        let severities = [Severity::Error, Severity::Warning, Severity::Unknown, Severity::Note];
        let counts = severities.map(|severity| {
            let count = self.findings.iter().filter(|it| it.severity == severity).count();
            format!("{}: {count}", severity.name())
        });
        counts.join(", ")
    }
}

fn describe(text: &mut String, device: &Device) {
    let _ = writeln!(text, "{}", device.name);
    for port in &device.ports {
        let _ = writeln!(text, "  port {}: {}, {}", port.number, port.link_layer, port.state);
        for gid in &port.gids {
            let interface = gid.interface.as_deref().unwrap_or("-");
            let network = gid.network().unwrap_or("-".to_owned());
            let PortGid { index, gid, gid_type, .. } = gid;
            let gid = gid.to_string();
            let _ = writeln!(
                text,
                "    GID {index:<3} {gid:<40} {gid_type:<8} {interface:<10} {network}"
            );
        }
    }
}
