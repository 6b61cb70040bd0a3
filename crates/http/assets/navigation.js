// The side navigation of every page: shows where the reader is, folds on a narrow screen, and has the search.
//
// Keys: `/` goes to the search. The arrows move between it and the links, Enter follows the first result or the link in
// focus, and Escape ends the search.
import { readyIndex, resultItem, search as searchIndex } from "./search.js";

const navigation = document.getElementById("navigation");
const search = navigation.querySelector(".search");
const status = navigation.querySelector(".search-status");
const results = navigation.querySelector(".results");
const menu = document.querySelector(".menu");
const links = [...navigation.querySelectorAll("a")];

const openMenu = (open) => {
  menu.setAttribute("aria-expanded", open);
  navigation.classList.toggle("open", open);
};

/** The id of the element that a fragment leads to: a heading, or an operation (`#/animals/getPet`). */
export const elementIdOf = (fragment) =>
  decodeURIComponent(fragment.slice(1)).replace(/^\//, "operations/").replaceAll("/", "-");

const linksWithinPage = links.filter((link) => link.hash && link.pathname === location.pathname);

/** Scrolls the navigation, but not the page, to a link. */
const reveal = (link) => {
  const { top, bottom } = link.getBoundingClientRect();
  const frame = navigation.getBoundingClientRect();
  if (top < frame.top || bottom > Math.min(frame.bottom, innerHeight)) {
    navigation.scrollTop += top - frame.top - frame.height / 3;
  }
};

/** Marks the link to the place that the reader sees: the one in the URL while it is in view, or else the last one above. */
export const markCurrent = () => {
  const places = linksWithinPage
    .map((link) => ({ link, top: document.getElementById(elementIdOf(link.hash))?.getBoundingClientRect().top }))
    .filter(({ top }) => top !== undefined);
  const named = places.find(({ link, top }) => link.hash === location.hash && top > -1 && top < innerHeight);
  // At its end, the page cannot scroll further to bring a short section to the top.
  const isAtEnd = scrollY + innerHeight > document.documentElement.scrollHeight - 2;
  const limit = scrollY > 0 && isAtEnd ? innerHeight : innerHeight / 4;
  const above = places.filter(({ top }) => top < limit).sort((one, other) => one.top - other.top);
  const current = (named ?? above.at(-1))?.link;
  if (current?.ariaCurrent === "location") {
    return;
  }
  for (const link of linksWithinPage) {
    link.ariaCurrent = link === current ? "location" : null;
  }
  if (current) {
    reveal(current);
  }
};

let searches = 0;

/** Shows what is found instead of the links, while there is something to search for. */
const find = async () => {
  const current = (searches += 1);
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  navigation.classList.toggle("searching", words.length > 0);
  if (words.length === 0) {
    status.textContent = "";
    results.replaceChildren();
    return;
  }
  try {
    const { count, shown } = searchIndex(await readyIndex(), words);
    if (current === searches) {
      const more = count > shown.length ? `; the first ${shown.length} are shown` : "";
      status.textContent = count === 1 ? "1 result" : `${count || "No"} results${more}`;
      results.replaceChildren(...shown.map((found) => resultItem(found, words)));
    }
  } catch {
    status.textContent = "The search does not work: its index could not be loaded.";
  }
};

const endSearch = () => {
  search.value = "";
  find();
};

let willMark = false;
const markOnce = () => {
  if (!willMark) {
    willMark = true;
    requestAnimationFrame(() => {
      willMark = false;
      markCurrent();
    });
  }
};
addEventListener("scroll", markOnce, { passive: true });
addEventListener("hashchange", markOnce);
markOnce();

menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
search.addEventListener("input", find);

// A link within the page: show its target instead of the search.
navigation.addEventListener("click", (event) => {
  if (event.target.closest("a")) {
    endSearch();
    search.blur();
    openMenu(false);
  }
});

navigation.addEventListener("keydown", (event) => {
  const stops = [search, ...[...navigation.querySelectorAll("a")].filter((link) => link.checkVisibility())];
  const stop = stops.indexOf(document.activeElement);
  const moves = { ArrowDown: stops[stop + 1], ArrowUp: stops[stop - 1], Escape: search };
  if (event.key === "Escape") {
    endSearch();
  }
  if (event.key === "Enter" && event.target === search && search.value) {
    find().then(() => results.querySelector("a")?.click());
  } else if (!Object.hasOwn(moves, event.key)) {
    return;
  }
  moves[event.key]?.focus();
  event.preventDefault();
});

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    openMenu(true);
    search.focus();
    search.select();
    event.preventDefault();
  }
});
