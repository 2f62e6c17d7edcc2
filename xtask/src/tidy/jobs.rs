//! Checks that each job of CI runs on GitHub, in its long form only, and that its purpose and
//! duration are documented.

use super::Finding;
use crate::ci::{JOBS, Job, Tier};
use crate::tree::Tree;

const WORKFLOW: &str = ".github/workflows/ci.yml";
const PAGE: &str = "CONTRIBUTING.md";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found: Vec<_> = JOBS.iter().flat_map(|job| check_job(tree, job)).collect();
    found.extend(unknown(tree));
    found
}

fn check_job(tree: &Tree, job: &Job) -> Vec<Finding> {
    let (name, row) = (job.name, job.row());
    let mut found = Vec::new();
    match (job.tier, runs_on_github(tree, name)) {
        (Tier::Short(long), true) => {
            let what = format!("job `{name}` is a short form of `{long}`; remove its row");
            found.push(Finding::new(WORKFLOW, 1, what));
        }
        (Tier::Both | Tier::Full, false) => {
            let what = format!("CI job `{name}` is missing; add a row with job: {name}");
            found.push(Finding::new(WORKFLOW, 1, what));
        }
        _ => {}
    }
    if !tree.text(PAGE).unwrap_or_default().lines().any(|line| line == row) {
        let line = line_of_row(tree, name).unwrap_or(1);
        found.push(Finding::new(PAGE, line, format!("write the row of job `{name}` as: {row}")));
    }
    found
}

/// Returns true if the workflow contains the job. Its name there is followed by the end of the line
/// or by the rest of the row.
fn runs_on_github(tree: &Tree, name: &str) -> bool {
    let text = tree.text(WORKFLOW).unwrap_or_default();
    let wanted = format!("job: {name} ");
    text.lines().any(|line| format!("{} ", line.replace([',', '}'], " ")).contains(&wanted))
}

fn line_of_row(tree: &Tree, name: &str) -> Option<usize> {
    let start = format!("| `{name}` |");
    let text = tree.text(PAGE).unwrap_or_default();
    text.lines().position(|line| line.starts_with(&start)).map(|at| at + 1)
}

/// Finds rows of the page for jobs that no longer exist.
fn unknown(tree: &Tree) -> Vec<Finding> {
    let text = tree.text(PAGE).unwrap_or_default();
    let rows = text.lines().enumerate().skip_while(|(_, line)| !line.starts_with("| job |"));
    let rows = rows.skip(2).take_while(|(_, line)| line.starts_with('|'));
    let gone = rows.filter(|(_, line)| !JOBS.iter().any(|job| *line == job.row()));
    let gone = gone.filter(|(_, line)| {
        !JOBS.iter().any(|job| line.starts_with(&format!("| `{}` |", job.name)))
    });
    let what = "no job has this name; remove the row";
    gone.map(|(at, _)| Finding::new(PAGE, at + 1, what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &'static str, tier: Tier) -> Job {
        Job { name, about: "what breaks", tier, minutes: 1.5, needs: &[], steps: &[] }
    }

    #[test]
    fn a_job_that_github_or_the_page_lacks_fails() {
        let yml = "          - { job: loom-long, setup: x }\n          - job: fmt\n";
        let page = "| `fmt` | both | 1.5 | what breaks |  |\n";
        let tree = Tree::of([(WORKFLOW, yml), (PAGE, page)]);
        assert_eq!(check_job(&tree, &job("fmt", Tier::Both)), []);
        let found = check_job(&tree, &job("loom", Tier::Both));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].to_string().starts_with(".github/workflows/ci.yml:1: CI job `loom`"));
        assert_eq!(check_job(&tree, &job("loom-long", Tier::Full)).len(), 1, "the page lacks it");
    }

    #[test]
    fn a_row_with_other_minutes_or_another_tier_fails_at_its_line() {
        for row in
            ["| `fmt` | both | 2 | what breaks |  |", "| `fmt` | full | 1.5 | what breaks |  |"]
        {
            let page = format!("# Jobs\n\n{row}\n");
            let tree = Tree::of([(WORKFLOW, "- job: fmt\n"), (PAGE, &page)]);
            let found = check_job(&tree, &job("fmt", Tier::Both));
            assert_eq!(found.len(), 1, "{row}");
            let text = found[0].to_string();
            assert!(text.starts_with("CONTRIBUTING.md:3: write the row"), "{text}");
            assert!(text.ends_with("| `fmt` | both | 1.5 | what breaks |  |"), "{text}");
        }
    }

    #[test]
    fn a_short_form_beside_its_long_form_fails() {
        let row = "| `asan` | gate | 1.5 | what breaks |  |\n";
        let short = job("asan", Tier::Short("asan-full"));
        let tree = Tree::of([(WORKFLOW, "- { job: asan-full }\n"), (PAGE, row)]);
        assert_eq!(check_job(&tree, &short), []);
        let tree = Tree::of([(WORKFLOW, "- { job: asan }\n- { job: asan-full }\n"), (PAGE, row)]);
        let found = check_job(&tree, &short);
        assert!(found.len() == 1 && found[0].to_string().contains("a short form of"), "{found:?}");
    }

    #[test]
    fn a_row_of_a_job_that_is_gone_fails() {
        let page = format!("| job |\n|---|\n{}\n| `gone` | both |\n\n| `x` |\n", JOBS[0].row());
        let found = unknown(&Tree::of([(PAGE, &page)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("CONTRIBUTING.md:4: no job"), "{found:?}");
    }
}
