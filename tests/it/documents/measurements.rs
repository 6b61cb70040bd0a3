//! Measured figures: those in the README are on the pages that describe the runs, and these name the run of each CSV.

use std::collections::BTreeSet;

use crate::support::repository::read;

/// The numbers of a text: `1,234` and `0.07` are one each.
fn figures(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_digit() && !".,".contains(c))
        .map(|word| word.trim_matches(['.', ',']))
        .filter(|word| !word.is_empty())
        .collect()
}

#[test]
fn every_result_in_the_readme_is_on_the_page_with_its_run() {
    let readme = read("README.md");
    let results = readme.split("\n## Results\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let pages = ["docs/performance.md", "docs/reliability.md"].map(read).concat();
    let shown = figures(results);
    assert!(shown.len() > 15, "{shown:?}");
    assert_eq!(shown.difference(&figures(&pages)).collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn the_pages_name_the_run_of_each_csv() {
    for (page, suite) in [("performance", "compare"), ("performance", "scale"), ("reliability", "failover")] {
        let csv = read(&format!("docs/measurements/{suite}.csv"));
        let run = |row: &str| {
            let mut cells = row.split(',');
            format!("Run of {}, recorded with commit `{}`", cells.next().unwrap(), cells.next().unwrap())
        };
        let runs: BTreeSet<_> = csv.lines().skip(1).map(run).collect();
        assert_eq!(runs.len(), 1, "{suite}.csv has rows of several runs");
        let page = read(&format!("docs/{page}.md")).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(runs.first().unwrap()), "{runs:?}");
    }
}
