//! The README's example is the program of its name. That it runs is shown in `two_processes`.

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let (readme, hello) = (include_str!("../../README.md"), include_str!("../examples/hello.rs"));
    let shown = readme.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(shown, Some(hello), "copy examples/examples/hello.rs into README.md");
}
