//! Figures that a page repeats are those of their source: README's results are in the sections that it links to, with the date and
//! the commit of their run, which are those of the CSV, and the changelog has the latest schema version.

use std::collections::BTreeSet;

use crate::support::repository::{heading_id, read};
use petstore_storage::SCHEMA_LATEST;

/// The level and the text of a heading.
fn heading(line: &str) -> Option<(usize, &str)> {
    let (marks, text) = line.split_once(' ')?;
    let is_heading = !marks.is_empty() && marks.bytes().all(|byte| byte == b'#');
    is_heading.then_some((marks.len(), text))
}

/// The section of a page with this id: from its heading to the next one of the same level or a higher one.
fn section(page: &str, id: &str) -> Option<String> {
    let mut lines =
        page.lines().skip_while(|line| heading(line).is_none_or(|(_, text)| heading_id(text) != id));
    let (level, title) = heading(lines.next()?)?;
    let content = lines.take_while(|line| heading(line).is_none_or(|(other, _)| other > level));
    Some([title].into_iter().chain(content).collect::<Vec<_>>().join("\n"))
}

/// The numbers of a text: `1,234` and `0.07` are one each.
fn figures(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_digit() && !".,".contains(c))
        .map(|word| word.trim_matches(|c: char| ".,".contains(c)))
        .filter(|word| !word.is_empty())
        .collect()
}

/// A text without the targets of its links, and these targets.
fn without_links(text: &str) -> (String, Vec<&str>) {
    let mut parts = text.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    let mut targets = Vec::new();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap();
        targets.push(target);
        plain.push_str(rest);
    }
    (plain, targets)
}

/// The date and the commit of each run that a section names: "Run of 2026-11-16, recorded with commit `aed1881`".
fn runs(section: &str) -> Vec<(String, String)> {
    let text = section.split_whitespace().collect::<Vec<_>>().join(" ");
    let run = |run: &str| {
        let (date, rest) = run.split_once(", recorded with commit `")?;
        let is_date = date.len() == "2026-11-16".len()
            && date.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
        is_date.then_some((date.to_owned(), rest.split_once('`')?.0.to_owned()))
    };
    text.split("Run of ").skip(1).filter_map(run).collect()
}

#[test]
fn the_readme_shows_the_figures_of_the_sections_that_it_links_to() {
    let results = section(&read("README.md"), "results").unwrap();
    // Each row of the table is a statement, and so is each paragraph.
    let statements = results.replace("\n| ", "\n\n| ");
    let mut checked = 0;
    for statement in statements.split("\n\n") {
        let (text, targets) = without_links(statement);
        let figures = figures(&text);
        if figures.is_empty() {
            continue;
        }
        let sections: Vec<String> = targets
            .iter()
            .filter_map(|target| target.split_once('#'))
            .map(|(page, id)| {
                section(&read(page), id).unwrap_or_else(|| panic!("{page} has no section {id}"))
            })
            .collect();
        assert!(!sections.is_empty(), "figures without a link to a section: {statement}");
        for section in &sections {
            assert!(
                !runs(section).is_empty(),
                "no date and commit in the section that is linked by: {statement}"
            );
        }
        let source = sections.join("\n");
        let known = self::figures(&source);
        let other: Vec<_> = figures.difference(&known).collect();
        assert!(other.is_empty(), "{other:?} are not in the section that is linked by: {statement}");
        checked += 1;
    }
    assert!(checked >= 3, "only {checked} statements have figures");
}

/// The date and the commit of a suite's CSV, which all of its rows have.
fn run_of_csv(suite: &str) -> (String, String) {
    let csv = read(&format!("docs/measurements/{suite}.csv"));
    let mut lines = csv.lines();
    assert!(lines.next().unwrap().starts_with("date,commit,machine,"), "{suite}");
    let runs: BTreeSet<_> = lines
        .map(|line| {
            let mut cells = line.split(',').map(ToOwned::to_owned);
            (cells.next().unwrap(), cells.next().unwrap())
        })
        .collect();
    assert_eq!(runs.len(), 1, "{suite} has rows of several runs");
    runs.into_iter().next().unwrap()
}

#[test]
fn the_pages_state_the_runs_of_the_csvs() {
    let page = read("docs/performance.md");
    for suite in ["compare", "scale"] {
        let (_, figures) = page.split_once(&format!("<!-- {suite} -->")).unwrap();
        let (figures, _) = figures.split_once(&format!("<!-- /{suite} -->")).unwrap();
        assert!(figures.contains("\n|---|"), "the tables of {suite} are elsewhere");
        assert_eq!(runs(figures), [run_of_csv(suite)], "{suite}");
    }
    let failovers = section(&read("docs/reliability.md"), "reads-without-a-primary").unwrap();
    assert!(runs(&failovers).contains(&run_of_csv("failover")), "the run of the chart of a failover");
}

#[test]
fn the_changelog_has_the_latest_schema_version() {
    let changelog = read("CHANGELOG.md");
    let newest = changelog.split("\n## [").nth(1).unwrap();
    let stated = newest
        .split("schema version is ")
        .nth(1)
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    // A release that changes no schema need not say so.
    assert!(stated.is_none_or(|stated| stated == SCHEMA_LATEST.to_string()));
}

#[test]
fn the_parts_of_a_page_are_found() {
    let page = "# A\n\n## One, two\n\nRun of 2026-11-16, recorded\nwith commit `a`: 1,234.\n\n### B\n\n0.07\n\n## C\n\n5\n";
    let found = section(page, "one-two").unwrap();
    assert_eq!(figures(&found), BTreeSet::from(["2026", "11", "16", "1,234", "0.07"]));
    assert_eq!(runs(&found), [("2026-11-16".to_owned(), "a".to_owned())]);
    assert_eq!(runs(&section(page, "c").unwrap()), []);
    assert_eq!(section(page, "two"), None);
    assert_eq!(without_links("[a](docs/b.md#c-1) 2"), ("[a 2".to_owned(), vec!["docs/b.md#c-1"]));
}
