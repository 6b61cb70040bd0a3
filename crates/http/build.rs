//! Renders the pages of `docs/` that the service serves below `/docs`, as fragments of HTML.
//!
//! **Guarantees:** a heading has the id that GitHub gives it. A link to another served page leads to it. A link to a file
//! that is not served becomes plain text, so no link is dead; a test checks all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

/// The pages that are served, in the groups and in the order of the navigation: `docs/quickstart.md` at `/docs/quickstart`.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Getting started", &["quickstart"]),
    ("Topics", &["orders", "events", "sandbox"]),
    ("Reference", &["errors", "conventions", "glossary"]),
    ("For operators", &["keys"]),
    ("How it works", &["tour"]),
];

/// What else can be linked to: the same relative path in the repository and from a served page.
const SERVED_FILES: [&str; 1] = ["../openapi.json"];

/// A part of a page: the id and the text of its heading, and its text for the search, one block per line. The first part is
/// the title and the introduction.
struct Section {
    id: String,
    heading: String,
    /// A page can have more sections than the navigation has room for, such as one per error code.
    is_in_navigation: bool,
    lines: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut articles = String::from("[\n");
    let mut pictures = BTreeSet::new();
    for (group, name) in pages() {
        let source = format!("../../docs/{name}.md");
        println!("cargo::rerun-if-changed={source}");
        let markdown = fs::read_to_string(&source)?;
        pictures.extend(pictures_of(&markdown));
        let (sections, html) = render(&markdown)?;
        let path = format!("/docs/{name}");
        writeln!(articles, "Article {{ path: {path:?}, group: {group:?}, html: {html:?}, sections: &[")?;
        for Section { id, heading, is_in_navigation, lines } in sections {
            write!(articles, "Section {{ id: {id:?}, heading: {heading:?}, ")?;
            writeln!(articles, "is_in_navigation: {is_in_navigation}, lines: &{lines:?} }},")?;
        }
        articles.push_str("] },\n");
    }
    articles.push(']');
    println!("cargo::rerun-if-changed=build.rs");
    let directory = env::var("OUT_DIR")?;
    fs::write(Path::new(&directory).join("articles.rs"), articles)?;
    fs::write(Path::new(&directory).join("pictures.rs"), picture_list(&pictures)?)?;
    Ok(())
}

/// The pictures that a page shows, relative to `docs/`.
fn pictures_of(markdown: &str) -> impl Iterator<Item = String> {
    let pictures = Parser::new(markdown).filter_map(|event| match event {
        Event::Start(Tag::Image { dest_url, .. }) => Some(dest_url.into_string()),
        _ => None,
    });
    pictures.flat_map(|name| [dark_variant(&name), Some(name)]).flatten()
}

/// The picture to show instead of this one in dark mode. An SVG adapts itself.
fn dark_variant(name: &str) -> Option<String> {
    let dark = format!("{}-dark.png", name.strip_suffix(".png")?);
    Path::new("../../docs").join(&dark).exists().then_some(dark)
}

/// The path, the media type and the content of each picture, as an expression.
fn picture_list(pictures: &BTreeSet<String>) -> Result<String, Box<dyn Error>> {
    let mut list = String::from("[\n");
    for name in pictures {
        let file = fs::canonicalize(format!("../../docs/{name}"))?;
        let file = file.to_str().ok_or("the path of the repository is not UTF-8")?;
        println!("cargo::rerun-if-changed={file}");
        let media_type = if name.strip_suffix(".png").is_some() { "image/png" } else { "image/svg+xml" };
        writeln!(list, "({:?}, {media_type:?}, include_bytes!({file:?})),", format!("/docs/{name}"))?;
    }
    list.push(']');
    Ok(list)
}

/// The pages with their groups.
fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    GROUPS.into_iter().flat_map(|(group, names)| names.iter().map(move |name| (group, *name)))
}

/// The sections of a page, which start at its title and at headings of the second to fourth level, and its HTML.
fn render(markdown: &str) -> Result<(Vec<Section>, String), std::fmt::Error> {
    let events: Vec<Event> = Parser::new_ext(markdown, Options::ENABLE_TABLES).collect();
    let (mut sections, mut used) = (Vec::<Section>::new(), BTreeMap::new());
    let (mut line, mut is_first_cell) = (String::new(), false);
    let mut in_plain_link = false;
    let mut served = Vec::new();
    for (index, event) in events.iter().cloned().enumerate() {
        match &event {
            Event::Text(text) | Event::Code(text) => line.push_str(text),
            Event::SoftBreak | Event::HardBreak => line.push(' '),
            Event::Start(Tag::TableRow) => is_first_cell = true,
            // A row is about its first cell.
            Event::End(TagEnd::TableCell) => {
                line.push_str(if is_first_cell { ": " } else { " " });
                is_first_cell = false;
            }
            Event::End(end) if ends_line(*end) => {
                let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
                line.clear();
                if let Some(section) = sections.last_mut().filter(|_| !words.is_empty()) {
                    section.lines.push(words);
                }
            }
            _ => {}
        }
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
                if level <= HeadingLevel::H4 {
                    let is_in_navigation = level <= HeadingLevel::H3;
                    sections.push(Section { id, heading: text, is_in_navigation, lines: Vec::new() });
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
            // So does a picture, which would be too small to read on a phone.
            Event::Start(Tag::Image { ref dest_url, .. }) => {
                let mut before =
                    r#"<span class="picture" tabindex="0" role="group" aria-label="Picture"><picture>"#
                        .to_owned();
                if let Some(dark) = dark_variant(dest_url) {
                    write!(before, r#"<source media="(prefers-color-scheme: dark)" srcset="{dark}">"#)?;
                }
                served.extend([Event::InlineHtml(before.into()), event]);
            }
            Event::End(TagEnd::Image) => {
                served.extend([event, Event::InlineHtml("</picture></span>".into())]);
            }
            Event::End(TagEnd::Table) => served.extend([event, Event::Html("</div>\n".into())]),
            other => served.push(other),
        }
    }
    let mut rendered = String::new();
    html::push_html(&mut rendered, served.into_iter());
    Ok((sections, rendered))
}

/// Whether a block that ends here is a line of its own for the search.
fn ends_line(end: TagEnd) -> bool {
    matches!(
        end,
        TagEnd::Paragraph
            | TagEnd::Heading(_)
            | TagEnd::Item
            | TagEnd::TableHead
            | TagEnd::TableRow
            | TagEnd::CodeBlock
    )
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
    let page = file.strip_suffix(".md").filter(|page| pages().any(|(_, name)| name == *page));
    match page {
        Some(page) => Some(format!("{page}{fragment}").into()),
        None if file.is_empty() || link.starts_with("https://") || SERVED_FILES.contains(&file) => {
            Some(link.to_owned().into())
        }
        None => None,
    }
}
