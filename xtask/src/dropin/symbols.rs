//! The symbols that a library exports, as `nm` prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::nodes::Map;

/// The version and the name of a symbol.
type Symbol = (String, String);

/// The symbols of a library, without those that only old programs can link with.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Exports(BTreeMap<Symbol, Kind>);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Function,
    Variable,
}

impl fmt::Display for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((version, name), kind) in &self.0 {
            let letter = match kind {
                Kind::Function => 'T',
                Kind::Variable => 'B',
            };
            writeln!(f, "{letter} {name}@@{version}")?;
        }
        Ok(())
    }
}

impl Exports {
    pub(super) fn read(library: &Path) -> Result<Self> {
        let mut nm = Command::new("nm");
        nm.args(["--dynamic", "--defined-only", "--with-symbol-versions"]).arg(library);
        let output = nm.output().context("nm does not start; Debian: apt-get install binutils")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nm {}: {error}", library.display());
        Ok(Self::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Reads lines that end with a letter and a symbol. Omits symbols of a version that is not the default (`@`), except
    /// private ones, which have several versions at a time.
    pub(super) fn parse(text: &str) -> Self {
        let symbol = |line: &str| {
            let mut words = line.split_whitespace().rev();
            let (symbol, letter) = (words.next()?, words.next()?);
            let (name, version) = symbol.split_once('@')?;
            let is_default = version.starts_with('@');
            let version = version.trim_start_matches('@');
            let kind = match letter {
                "T" | "W" | "i" => Kind::Function,
                _ => Kind::Variable,
            };
            let counts = is_default || version.contains("PRIVATE");
            counts.then(|| ((version.to_owned(), name.to_owned()), kind))
        };
        Self(text.lines().filter_map(symbol).collect())
    }

    /// Returns the symbols that are missing here or have another kind, compared with `theirs`.
    pub(super) fn missing(&self, theirs: &Self, from: &str) -> Vec<String> {
        let line = |((version, name), kind): (&Symbol, &Kind)| {
            let ours = self.0.get(&(version.clone(), name.clone()));
            match ours {
                Some(ours) if ours == kind => None,
                Some(ours) => Some(format!("{name}@{version} is a {ours:?}, in {from} a {kind:?}")),
                None => Some(format!("{name}@{version} of {from} is missing")),
            }
        };
        theirs.0.iter().filter_map(line).collect()
    }

    /// Returns the symbols that are missing or that the version script does not have.
    pub(super) fn differences(&self, map: &Map) -> Vec<String> {
        let wanted: BTreeSet<_> = map.symbols().collect();
        let missing = wanted.iter().filter(|symbol| !self.0.contains_key(symbol));
        let other = self.0.keys().filter(|symbol| !wanted.contains(symbol));
        let missing = missing.map(|(node, name)| format!("{name}@{node} is not exported"));
        let other = other.map(|(node, name)| format!("{name}@{node} should not be exported"));
        missing.chain(other).collect()
    }
}

/// Returns the path of the distribution's library.
pub(super) fn distribution(soname: &str) -> Option<PathBuf> {
    let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = [&machine, "/usr/lib64", "/lib64", "/usr/lib"];
    folders.iter().map(|folder| Path::new(folder).join(soname)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NM: &str = "0000 A V_1\n0001 T a@@V_1\n0002 T old@V_1\n0003 B b@@IBVERBS_PRIVATE_34\n\
        0004 T a@IBVERBS_PRIVATE_57\n";

    #[test]
    fn old_symbols_do_not_count_but_private_ones_do() {
        let exports = Exports::parse(NM);
        let text = "B b@@IBVERBS_PRIVATE_34\nT a@@IBVERBS_PRIVATE_57\nT a@@V_1\n";
        assert_eq!(exports.to_string(), text);
        assert_eq!(Exports::parse(text), exports);
    }

    #[test]
    fn a_missing_symbol_and_another_kind_are_reported() {
        let ours = Exports::parse("T b@@IBVERBS_PRIVATE_34\nT a@@V_1\n");
        let found = ours.missing(&Exports::parse(NM), "theirs");
        assert_eq!(
            found,
            [
                "b@IBVERBS_PRIVATE_34 is a Function, in theirs a Variable",
                "a@IBVERBS_PRIVATE_57 of theirs is missing",
            ]
        );
    }
}
