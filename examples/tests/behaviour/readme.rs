//! The README's example is the program of its name, and its table has all. That it runs is shown in `two_processes`.

use crate::common::process::programs;

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let (readme, hello) =
        (include_str!("../../../README.md"), include_str!("../../examples/hello.rs"));
    let shown = readme.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(shown, Some(hello), "copy examples/examples/hello.rs into README.md");
}

#[test]
fn the_table_of_the_readme_has_each_example_with_its_command() {
    let readme = include_str!("../../../README.md");
    let table = readme.split("| example | what it shows | command |\n").nth(1).unwrap_or_default();
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
