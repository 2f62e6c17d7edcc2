//! The README's example is a program that runs.

use std::process::Command;

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let (readme, hello) = (include_str!("../../README.md"), include_str!("../examples/hello.rs"));
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(shown, Some(hello), "copy examples/examples/hello.rs into README.md");
}

#[test]
fn the_example_says_hello() {
    // Cargo builds examples with the tests, beside the folder of the test binaries.
    let test = std::env::current_exe().unwrap();
    let hello = test.ancestors().nth(2).unwrap().join("examples/hello");
    let output = Command::new(hello).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n", "{output:?}");
}
