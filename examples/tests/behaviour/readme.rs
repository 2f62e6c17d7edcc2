//! The README shows parts of the programs unchanged, and the table of examples has all of them.

use crate::common::process::programs;

#[test]
fn the_readme_shows_both_ends_of_hello_unchanged() {
    let readme = include_str!("../../../README.md");
    for (program, begin) in [
        (include_str!("../../hello/src/main.rs"), "fn listen("),
        (include_str!("../../examples/async_hello.rs"), "async fn listen("),
    ] {
        let end = program.find("\n\n#[tokio::main]").or(program.find("\n\nfn main("));
        let shown = &program[program.find(begin).unwrap()..end.unwrap()];
        assert!(readme.contains(shown), "copy these lines into README.md:\n{shown}");
    }
}

#[test]
fn the_table_of_examples_has_each_with_its_command() {
    let readme = include_str!("../../README.md");
    let table = readme.split("| example | subject | command |\n").nth(1).unwrap_or_default();
    let rows = table.lines().skip(1).map_while(|row| row.strip_prefix("| `"));
    let mut shown = Vec::new();
    for row in rows {
        let name = row.split('`').next().unwrap_or_default();
        let command = row.rsplit("| `cargo run ").next().unwrap_or_default();
        assert!(command.contains(&format!("--example {name}")), "{row}");
        shown.push(name.to_owned());
    }
    shown.sort();
    assert_eq!(shown, programs());
}
