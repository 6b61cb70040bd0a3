//! The pages below `/docs`: articles from `docs/*.md`, rendered by `build.rs`, and the navigation that all pages share.

use petstore_config::version::VERSION;
use serde_json::{Value, json};

/// A page of documentation.
pub(crate) struct Article {
    /// Where it is served, such as `/docs/quickstart`.
    pub(crate) path: &'static str,
    /// The group of articles in the navigation that it belongs to.
    group: &'static str,
    html: &'static str,
    /// The first has the title.
    sections: &'static [Section],
}

/// A part of an article that can be linked to.
struct Section {
    id: &'static str,
    heading: &'static str,
    is_in_navigation: bool,
    /// Its text for the search, one block per line.
    lines: &'static [&'static str],
}

/// The articles in the order of the navigation.
pub(crate) const ARTICLES: &[Article] = &include!(concat!(env!("OUT_DIR"), "/articles.rs"));

/// What all pages have in common, with a place for what differs.
const PAGE: &str = include_str!("../../assets/page.html");
const OPERATIONS: &str = include_str!("../../assets/operations.html");

/// What differs between pages.
struct ArticlePage<'a> {
    path: &'a str,
    /// Leads from the page to the root of the service: links are relative, so that they also work behind a proxy that adds a
    /// path prefix.
    root: &'a str,
    title: &'a str,
    scripts: &'a str,
    brand: &'a str,
    content: &'a str,
}

/// Renders the page at `/docs`, with the operations of this OpenAPI document in its navigation.
pub(crate) fn operations_page(document: &Value) -> String {
    let page = ArticlePage {
        path: "/docs",
        root: "",
        title: "Pet Store API",
        scripts: "    <link rel=\"modulepreload\" href=\"docs/samples.js\">\n    \
            <script src=\"docs/swagger-ui-bundle.js\" defer></script>\n    \
            <script src=\"docs/page.js\" type=\"module\"></script>",
        brand: "<h1 class=\"brand\"><img src=\"docs/icon.svg\" alt=\"\" width=\"28\" height=\"28\">Pet Store API</h1>",
        content: &OPERATIONS.replace("{version}", VERSION),
    };
    page.render(document)
}

/// The text of the articles as JSON, for the search: an object for each section.
pub(crate) fn search_index() -> String {
    let sections = ARTICLES.iter().flat_map(|article| {
        article.sections.iter().map(|section| {
            let url = format!("{}#{}", &article.path[1..], section.id);
            json!({"url": url, "page": article.title(), "title": section.heading, "lines": section.lines})
        })
    });
    sections.collect::<Value>().to_string()
}

impl Article {
    fn title(&self) -> &'static str {
        self.sections[0].heading
    }

    /// Renders the page of this article.
    pub(crate) fn page(&self, document: &Value) -> String {
        let page = ArticlePage {
            path: self.path,
            root: "../",
            title: &format!("{} – Pet Store API", escaped(self.title())),
            scripts: "    <script src=\"article.js\" type=\"module\"></script>",
            brand: "<p class=\"brand\"><a href=\"../docs\"><img src=\"icon.svg\" alt=\"\" width=\"28\" height=\"28\">\
                Pet Store API</a></p>",
            content: &format!(
                "      <main class=\"column article\" id=\"page\">\n{}\n      </main>",
                self.html
            ),
        };
        page.render(document)
    }
}

impl ArticlePage<'_> {
    fn render(&self, document: &Value) -> String {
        // The content last: it may contain any text.
        [
            ("{root}", self.root),
            ("{title}", self.title),
            ("{scripts}", self.scripts),
            ("{brand}", self.brand),
            ("{navigation}", &navigation(document, self.root, self.path)),
            ("{content}", self.content),
        ]
        .iter()
        .fold(PAGE.to_owned(), |page, (place, text)| page.replace(place, text))
    }
}

/// The links to every page, heading and operation.
fn navigation(document: &Value, root: &str, current: &str) -> String {
    let reference = page_link(root, "/docs", "API reference", current, "");
    let articles: String = ARTICLES
        .chunk_by(|one, next| one.group == next.group)
        .map(|group| article_links(group, root, current))
        .collect();
    let tags = document["tags"].as_array().into_iter().flatten().filter_map(|tag| tag["name"].as_str());
    let operations: String = tags.map(|tag| operation_links(document, root, tag)).collect();
    format!("<ul>\n{reference}</ul>\n{articles}{operations}")
}

/// A list of links with a heading.
fn link_group(id: &str, heading: &str, links: &str) -> String {
    format!("<p id=\"{id}\">{}</p>\n<ul aria-labelledby=\"{id}\">\n{links}</ul>\n", escaped(heading))
}

fn article_links(articles: &[Article], root: &str, current: &str) -> String {
    let heading = articles[0].group;
    let id = format!("group-{}", heading.to_lowercase().replace(' ', "-"));
    let links: String = articles
        .iter()
        .map(|article| page_link(root, article.path, article.title(), current, &heading_links(root, article)))
        .collect();
    link_group(&id, heading, &links)
}

fn page_link(root: &str, path: &str, title: &str, current: &str, headings: &str) -> String {
    let mark = if path == current { " aria-current=\"page\"" } else { "" };
    format!("<li><a href=\"{root}{}\"{mark}>{}</a>{headings}</li>\n", &path[1..], escaped(title))
}

fn heading_links(root: &str, article: &Article) -> String {
    let link = |Section { id, heading, .. }: &Section| {
        format!("<li><a href=\"{root}{}#{id}\">{}</a></li>\n", &article.path[1..], escaped(heading))
    };
    let headings = article.sections[1..].iter().filter(|section| section.is_in_navigation);
    let links: String = headings.map(link).collect();
    if links.is_empty() { links } else { format!("\n<ul>\n{links}</ul>") }
}

fn operation_links(document: &Value, root: &str, tag: &str) -> String {
    let tagged = operations(document).filter(|(_, operation)| operation["tags"][0] == tag);
    let links: String =
        tagged.map(|(method, operation)| operation_link(root, tag, method, operation)).collect();
    link_group(&format!("tag-{tag}"), tag, &links)
}

/// The operations of a document, with their methods.
fn operations(document: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let paths = document["paths"].as_object().into_iter().flatten();
    paths.flat_map(|(_, item)| {
        let methods = item.as_object().into_iter().flatten();
        let operations = methods.filter(|(_, operation)| operation["operationId"].is_string());
        operations.map(|(method, operation)| (method.as_str(), operation))
    })
}

fn operation_link(root: &str, tag: &str, method: &str, operation: &Value) -> String {
    let id = operation["operationId"].as_str().unwrap_or_default();
    let summary = escaped(operation["summary"].as_str().unwrap_or(id));
    let deprecated = match operation["deprecated"] {
        Value::Bool(true) => " <span class=\"badge badge-deprecated\">deprecated</span>",
        _ => "",
    };
    format!(
        "<li><a href=\"{root}docs#/{tag}/{id}\">\
         <span class=\"method method-{method}\">{method}</span> {summary}{deprecated}</a></li>\n"
    )
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("a < b & \"c\" > d"), "a &lt; b &amp; &quot;c&quot; &gt; d");
    }
}
