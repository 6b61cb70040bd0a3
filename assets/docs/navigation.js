// The side navigation of every page: folds on a narrow screen, and searches operations, pages and headings.
//
// Keys: `/` goes to the search. The arrows move between it and the links that match, Enter follows the first one or the
// one in focus, and Escape ends the search.

const navigation = document.getElementById("navigation");
const search = navigation.querySelector(".search");
const result = navigation.querySelector(".search-result");
const menu = document.querySelector(".menu");
const links = [...navigation.querySelectorAll("a")];

const openMenu = (open) => {
  menu.setAttribute("aria-expanded", open);
  navigation.classList.toggle("open", open);
};

/** Shows the links that have every word of the search, and the pages of headings that do. */
const filter = () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  navigation.classList.toggle("searching", words.length > 0);
  let found = 0;
  for (const link of links) {
    const item = link.parentElement;
    const text = `${link.textContent} ${item.dataset.terms ?? ""}`.toLowerCase();
    const matches = words.every((word) => text.includes(word));
    found += matches;
    item.classList.toggle("mismatch", !matches);
  }
  result.textContent = words.length === 0 ? "" : found === 1 ? "1 result" : `${found || "No"} results`;
};

const endSearch = () => {
  search.value = "";
  filter();
};

menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
search.addEventListener("input", filter);

// A link within the page: show its target instead of the search.
navigation.addEventListener("click", (event) => {
  if (event.target.closest("a")) {
    endSearch();
    openMenu(false);
  }
});

navigation.addEventListener("keydown", (event) => {
  const stops = [search, ...links.filter((link) => link.checkVisibility() && !link.matches(".mismatch > a"))];
  const stop = stops.indexOf(document.activeElement);
  const moves = { ArrowDown: stops[stop + 1], ArrowUp: stops[stop - 1], Escape: search };
  if (event.key === "Escape") {
    endSearch();
  }
  if (event.key === "Enter" && event.target === search && search.value) {
    stops[1]?.click();
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
