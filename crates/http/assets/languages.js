// Code in several languages, as tabs. The choice applies to all tabs on the page, and this browser remembers it.

export const LANGUAGES = { curl: "curl", python: "Python", typescript: "TypeScript" };

const STORED = "petstore.language";
const showAll = new Set(); // one function for each group of tabs: shows the panel of the chosen language
let count = 0;

const storage = () => {
  try {
    return window.localStorage;
  } catch {
    return undefined; // the browser is set to store nothing
  }
};

let chosen = storage()?.getItem(STORED) ?? "curl";

const choose = (language) => {
  chosen = language;
  storage()?.setItem(STORED, language);
  for (const show of showAll) {
    show();
  }
};

/**
 * Creates tabs. `panels` has an element for each language, by its name in LANGUAGES. If the chosen language has no panel,
 * the first one is shown. Call `remove` of the result when `element` is no longer used.
 */
export const languageTabs = (panels, label) => {
  const languages = Object.keys(LANGUAGES).filter((language) => panels[language]);
  const id = `code-${(count += 1)}`;
  const list = document.createElement("div");
  list.className = "languages";
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", label);
  const element = document.createElement("div");
  element.append(list);

  const tabs = languages.map((language) => {
    const tab = document.createElement("button");
    Object.assign(tab, { type: "button", id: `${id}-${language}`, textContent: LANGUAGES[language] });
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", `${id}-${language}-panel`);
    tab.addEventListener("click", () => choose(language));
    list.append(tab);

    const panel = panels[language];
    panel.id = `${id}-${language}-panel`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    panel.tabIndex = 0;
    element.append(panel);
    return tab;
  });

  list.addEventListener("keydown", (event) => {
    const current = tabs.indexOf(event.target);
    const last = tabs.length - 1;
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: last };
    if (Object.hasOwn(moves, event.key)) {
      const next = (moves[event.key] + tabs.length) % tabs.length;
      choose(languages[next]);
      tabs[next].focus();
      event.preventDefault();
    }
  });

  const show = () => {
    const shown = languages.includes(chosen) ? chosen : languages[0];
    languages.forEach((language, index) => {
      tabs[index].setAttribute("aria-selected", language === shown);
      tabs[index].tabIndex = language === shown ? 0 : -1;
      panels[language].hidden = language !== shown;
    });
  };
  show();
  showAll.add(show);
  return { element, remove: () => showAll.delete(show) };
};

/** Creates a block of code with a button that copies it; without the button where the browser does not allow it. */
export const codeBlock = (text) => {
  const element = document.createElement("div");
  element.className = "code";
  const code = document.createElement("pre");
  code.textContent = text;
  element.append(code);
  if (navigator.clipboard) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "copy", textContent: "Copy" });
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    element.append(button);
  }
  return element;
};
