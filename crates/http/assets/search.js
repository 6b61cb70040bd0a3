// The search: finds every word in the articles, and in the operations, parameters, fields, headers, statuses and error codes of
// the OpenAPI document. Loads both when the reader first searches.
import { contentOf, fieldsOf, operationsOf, parametersOf, resolve } from "./openapi.js";

const MOST_RESULTS = 20;
const SNIPPET_CHARS = 110;
const ROOT = new URL("..", import.meta.url);

// An entry of the index: a place that a result leads to. `lines` is its text; a line about a name starts with `name: `.

const linesOfResponse = (openapi, status, described) => {
  const response = resolve(openapi, described);
  const [, content] = contentOf(openapi, response);
  const codes = Object.keys(content?.examples ?? {}).join(", ");
  const headers = Object.entries(response.headers ?? {}).map(([name, header]) => [name, resolve(openapi, header)]);
  return [
    `Response ${status}: ${response.description}${codes && ` Codes: ${codes}`}`,
    ...(status.startsWith("2") ? headers.map(([name, header]) => `${name}: ${header.description}`) : []),
    ...(status.startsWith("2") ? fieldsOf(openapi, content?.schema) : []).map(({ name, description }) => `${name}: ${description}`),
  ];
};

const entryOf = (openapi, { path, method, operation }) => {
  const [, body] = contentOf(openapi, operation.requestBody);
  const named = [...parametersOf(openapi, path, method), ...fieldsOf(openapi, body?.schema)];
  return {
    url: `docs#/${operation.tags[0]}/${operation.operationId}`,
    method,
    title: operation.summary ?? operation.operationId,
    page: operation.deprecated ? "deprecated" : "",
    lines: [
      `${operation.operationId}: ${method.toUpperCase()} ${path}`,
      operation.description ?? "",
      ...named.map(({ name, description }) => `${name}: ${description ?? ""}`),
      ...Object.entries(operation.responses).flatMap(([status, response]) => linesOfResponse(openapi, status, response)),
    ],
  };
};

const load = async (path) => {
  const response = await fetch(new URL(path, ROOT));
  if (!response.ok) {
    throw new Error(`${path}: ${response.status}`);
  }
  return response.json();
};

const loadIndex = async () => {
  const [articles, openapi] = await Promise.all([load("docs/search.json"), load("openapi.json")]);
  const operations = operationsOf(openapi).map((operation) => entryOf(openapi, operation));
  return [...articles, ...operations].map((entry) => {
    const lines = entry.lines.map((line) => line.replaceAll("`", "").replace(/\s+/g, " "));
    return { ...entry, lines, lowerTitle: entry.title.toLowerCase(), lowerLines: lines.map((line) => line.toLowerCase()) };
  });
};

let index;

/** Loads the index once, and again after a failure. */
export const readyIndex = () =>
  (index ??= loadIndex().catch((error) => {
    index = undefined;
    throw error;
  }));

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** How well a word matches: in a title, as the name that a line is about, at its start, as a whole word, or as a part of one. */
const inTitle = (text, { word, whole }) => (whole.test(text) ? 9 : text.includes(word) ? 6 : 0);
const inLine = (text, { word, whole }) =>
  text.startsWith(`${word}: `) ? 5 : whole.test(text) ? (text.startsWith(word) ? 4 : 3) : text.includes(word) ? 1 : 0;

/** Finds the entries that have every word, the best ones first: at most MOST_RESULTS, and how many there are. */
export const search = (entries, words) => {
  const wanted = words.map((word) => ({ word, whole: new RegExp(`(?<![\\p{L}\\p{N}_])${escaped(word)}(?![\\p{L}\\p{N}_])`, "u") }));
  const found = entries.flatMap((entry) => {
    const scores = entry.lowerLines.map((line) => wanted.map((word) => inLine(line, word)));
    const sums = scores.map((row) => row.reduce((sum, score) => sum + score, 0));
    const best = Math.max(0, ...sums);
    const each = wanted.map((word, column) => Math.max(inTitle(entry.lowerTitle, word), ...scores.map((row) => row[column])));
    const line = entry.lines[Math.max(0, sums.indexOf(best))] ?? "";
    return each.every(Boolean) ? [{ entry, line, score: best + each.reduce((sum, score) => sum + score, 0) }] : [];
  });
  found.sort((one, other) => other.score - one.score);
  return { count: found.length, shown: found.slice(0, MOST_RESULTS) };
};

const element = (name, className, ...children) => {
  const created = document.createElement(name);
  created.className = className;
  created.append(...children);
  return created;
};

/** The part of a line around the first word that is found, with every word marked. */
const snippet = (line, words) => {
  const pattern = new RegExp(`(${words.map(escaped).join("|")})`, "iu");
  const position = Math.max(0, line.search(pattern));
  const start = position < SNIPPET_CHARS / 2 ? 0 : line.lastIndexOf(" ", position - SNIPPET_CHARS / 4) + 1;
  const text = `${start > 0 ? "…" : ""}${line.slice(start, start + SNIPPET_CHARS)}${start + SNIPPET_CHARS < line.length ? "…" : ""}`;
  return text.split(new RegExp(pattern, "giu")).map((part, number) => (number % 2 ? element("mark", "", part) : part));
};

/** Creates a list item with a link to the place that was found. */
export const resultItem = ({ entry, line }, words) => {
  const link = element("a", "", element("span", "result-title", entry.title));
  link.href = new URL(entry.url, ROOT).href;
  if (entry.method) {
    link.firstChild.prepend(element("span", `method method-${entry.method}`, entry.method), " ");
  }
  if (entry.page && entry.page !== entry.title) {
    link.append(element("span", "result-page", entry.page));
  }
  link.append(element("span", "result-text", ...snippet(line, words)));
  return element("li", "", link);
};
