//! The version script of the library, and the later names of the version with the private symbols.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// The prefix of versions with private symbols. A number follows.
const PRIVATE: &str = "IBVERBS_PRIVATE_";
/// The function whose name contains this number too.
const REGISTER: &str = "verbs_register_driver_";

/// The versions of a version script, and the symbols of each.
#[derive(Debug)]
pub(super) struct Map(BTreeMap<String, Vec<String>>);

impl Map {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        Ok(Self::parse(&text.with_context(|| format!("reading {}", path.display()))?))
    }

    fn parse(text: &str) -> Self {
        let mut nodes = BTreeMap::<String, Vec<String>>::new();
        let mut node = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_suffix(" {") {
                name.clone_into(&mut node);
                nodes.entry(node.clone()).or_default();
            } else if let Some(symbol) = line.strip_suffix(';')
                && !symbol.starts_with('}')
                && symbol != "*"
            {
                nodes.entry(node.clone()).or_default().push(symbol.to_owned());
            }
        }
        Self(nodes)
    }

    /// Returns all symbols with their versions, including those of [`aliases`](Self::aliases).
    pub(super) fn symbols(&self) -> impl Iterator<Item = (String, String)> {
        let own = self.0.iter().flat_map(|(node, symbols)| {
            symbols.iter().map(move |symbol| (node.clone(), symbol.clone()))
        });
        own.chain(self.repeated().map(|(node, symbol)| (node.to_owned(), renamed(symbol, node))))
    }

    /// Returns each private symbol once for each version that has no symbols of its own.
    fn repeated(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_private = |node: &&String| node.starts_with(PRIVATE);
        let (empty, full): (Vec<_>, Vec<_>) =
            self.0.keys().filter(is_private).partition(|node| self.0[*node].is_empty());
        let symbols: Vec<_> = full.into_iter().flat_map(|node| &self.0[node]).collect();
        empty.into_iter().flat_map(move |node| {
            symbols.clone().into_iter().map(move |symbol| (node.as_str(), symbol.as_str()))
        })
    }

    /// Returns assembly with a function for each repeated symbol. A version script alone cannot give one function
    /// several versions.
    pub(super) fn aliases(&self) -> Result<String> {
        let jump = match std::env::consts::ARCH {
            "x86_64" => "jmp",
            "aarch64" => "b",
            other => bail!("the library cannot be linked for {other}"),
        };
        let mut text = String::from(".section .note.GNU-stack,\"\",%progbits\n");
        for (node, symbol) in self.repeated() {
            let name = renamed(symbol, node);
            let local = format!("{node}_{symbol}");
            match symbol {
                // The only variable. No code of this library reads it.
                "verbs_allow_disassociate_destroy" => writeln!(
                    text,
                    ".bss\n.globl {local}\n.type {local}, %object\n.size {local}, 1\n{local}: .zero 1"
                ),
                _ => writeln!(
                    text,
                    ".text\n.globl {local}\n.type {local}, %function\n{local}: {jump} {symbol}\n\
                     .size {local}, . - {local}"
                ),
            }?;
            writeln!(text, ".symver {local}, {name}@{node}, remove")?;
        }
        Ok(text)
    }
}

fn renamed(symbol: &str, node: &str) -> String {
    match (symbol.strip_prefix(REGISTER), node.strip_prefix(PRIVATE)) {
        (Some(_), Some(number)) => format!("{REGISTER}{number}"),
        _ => symbol.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "/* a comment; */\nV_1 {\n    global:\n        a;\n    local:\n        *;\n};\n\
        IBVERBS_PRIVATE_34 {\n    global:\n        b;\n        verbs_register_driver_34;\n} V_1;\n\
        IBVERBS_PRIVATE_57 {\n};\n";

    #[test]
    fn the_private_symbols_have_all_private_versions() {
        let map = Map::parse(MAP);
        let symbols = map.symbols();
        let symbols: Vec<_> = symbols.map(|(node, symbol)| format!("{node} {symbol}")).collect();
        assert_eq!(
            symbols,
            [
                "IBVERBS_PRIVATE_34 b",
                "IBVERBS_PRIVATE_34 verbs_register_driver_34",
                "V_1 a",
                "IBVERBS_PRIVATE_57 b",
                "IBVERBS_PRIVATE_57 verbs_register_driver_57",
            ]
        );
    }

    #[test]
    fn an_alias_jumps_to_the_function() {
        let aliases = Map::parse(MAP).aliases().unwrap();
        assert!(
            aliases.contains(".symver IBVERBS_PRIVATE_57_b, b@IBVERBS_PRIVATE_57"),
            "{aliases}"
        );
        assert!(aliases.contains("verbs_register_driver_57@IBVERBS_PRIVATE_57"), "{aliases}");
    }
}
