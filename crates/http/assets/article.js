// An article: shows examples that follow each other in several languages as tabs. Without this script, all are shown.
import { codeBlock, languageTabs } from "./languages.js";

/** The languages of code blocks, by their mark in Markdown. A block marked `text` is the output of the one before it. */
const LANGUAGE_OF = { "language-sh": "curl", "language-python": "python", "language-ts": "typescript" };
const OUTPUT = "language-text";

const markOf = (block) => block.firstElementChild?.className ?? "";

/** Groups code blocks that directly follow each other. */
const runs = (blocks) => {
  const found = [];
  for (const block of blocks) {
    if (found.length > 0 && block.previousElementSibling === found.at(-1).at(-1)) {
      found.at(-1).push(block);
    } else {
      found.push([block]);
    }
  }
  return found;
};

for (const run of runs(document.querySelectorAll(".article > pre"))) {
  const languages = new Set(run.filter((block) => markOf(block) !== OUTPUT).map((block) => LANGUAGE_OF[markOf(block)]));
  if (languages.size > 1 && !languages.has(undefined)) {
    const panels = {};
    const place = document.createElement("div");
    run[0].before(place);
    let panel;
    for (const block of run) {
      if (markOf(block) === OUTPUT) {
        panel.append(block);
      } else {
        panel = panels[LANGUAGE_OF[markOf(block)]] ??= document.createElement("div");
        panel.append(codeBlock(block.textContent.trimEnd()));
        block.remove();
      }
    }
    place.replaceWith(languageTabs(panels, "Language of the example").element);
  }
}

// The page is shorter now: scroll to the heading in the URL again.
document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
