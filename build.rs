//! Renders the pages of `docs/` that the service serves below `/docs`, as fragments of HTML, and finds the commit that is built.
//!
//! **Guarantees:** a heading has the id that GitHub gives it. A link to another served page leads to it. A link to a file
//! that is not served becomes plain text, so no link is dead; a test checks all of them.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

/// The pages that are served, in the order of the navigation: `docs/guide.md` at `/docs/guide`.
const PAGES: [&str; 7] = ["guide", "retries", "errors", "orders", "events", "interface", "keys"];

/// What else can be linked to: the same relative path in the repository and from a served page.
const SERVED_FILES: [&str; 1] = ["../openapi.json"];

/// A heading: its id and its text without markup.
type Heading = (String, String);

fn main() -> Result<(), Box<dyn Error>> {
    let mut articles = String::from("[\n");
    for name in PAGES {
        let source = format!("docs/{name}.md");
        println!("cargo::rerun-if-changed={source}");
        let (title, headings, html) = render(&fs::read_to_string(&source)?);
        let path = format!("/docs/{name}");
        writeln!(
            articles,
            "Article {{ path: {path:?}, title: {title:?}, headings: &{headings:?}, html: {html:?} }},"
        )?;
    }
    articles.push(']');
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit());
    fs::write(Path::new(&env::var("OUT_DIR")?).join("articles.rs"), articles)?;
    Ok(())
}

/// The commit that is built: `BUILD_COMMIT`, or that of the Git repository.
fn commit() -> String {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    if let Ok(commit) = env::var("BUILD_COMMIT") {
        return commit;
    }
    // It grows with every commit and every checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
}

/// The title of a page, its headings of the second and third level, and its HTML.
fn render(markdown: &str) -> (String, Vec<Heading>, String) {
    let events: Vec<Event> = Parser::new_ext(markdown, Options::ENABLE_TABLES).collect();
    let (mut title, mut headings, mut used) = (String::new(), Vec::new(), BTreeMap::new());
    let mut in_plain_link = false;
    let mut served = Vec::new();
    for (index, event) in events.iter().cloned().enumerate() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                let text = text_until(&events[index..], TagEnd::Heading(level));
                let id = unique_id(&text, &mut used);
                served.push(Event::Start(Tag::Heading {
                    level,
                    id: Some(id.clone().into()),
                    classes: Vec::new(),
                    attrs: Vec::new(),
                }));
                match level {
                    HeadingLevel::H1 => title = text,
                    HeadingLevel::H2 | HeadingLevel::H3 => headings.push((id, text)),
                    _ => {}
                }
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => match target(&dest_url) {
                Some(dest_url) => served.push(Event::Start(Tag::Link { link_type, dest_url, title, id })),
                None => in_plain_link = true,
            },
            Event::End(TagEnd::Link) if in_plain_link => in_plain_link = false,
            // A wide table scrolls by itself, also with the keyboard.
            Event::Start(Tag::Table(_)) => {
                let scrolling = r#"<div class="table" tabindex="0" role="group" aria-label="Table">"#;
                served.extend([Event::Html(scrolling.into()), event]);
            }
            Event::End(TagEnd::Table) => served.extend([event, Event::Html("</div>\n".into())]),
            other => served.push(other),
        }
    }
    let mut rendered = String::new();
    html::push_html(&mut rendered, served.into_iter());
    (title, headings, rendered)
}

/// The text of a heading, without markup.
fn text_until(events: &[Event], end: TagEnd) -> String {
    let inside = events.iter().take_while(|event| **event != Event::End(end));
    inside
        .filter_map(
            |event| if let Event::Text(text) | Event::Code(text) = event { Some(&**text) } else { None },
        )
        .collect()
}

/// The id that GitHub gives a heading: lower case, hyphens for spaces, no punctuation; a number if the id is in use.
fn unique_id(text: &str, used: &mut BTreeMap<String, usize>) -> String {
    let kept = text.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
    let id: String = kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
    let count = used.entry(id.clone()).or_default();
    *count += 1;
    if *count == 1 { id } else { format!("{id}-{}", *count - 1) }
}

/// Where a link of a file in `docs/` leads from its served page, or nothing if its target is not served.
fn target(link: &str) -> Option<CowStr<'static>> {
    let (file, fragment) = link.split_at(link.find('#').unwrap_or(link.len()));
    let page = file.strip_suffix(".md").filter(|page| PAGES.contains(page));
    match page {
        Some(page) => Some(format!("{page}{fragment}").into()),
        None if file.is_empty() || link.starts_with("https://") || SERVED_FILES.contains(&file) => {
            Some(link.to_owned().into())
        }
        None => None,
    }
}
