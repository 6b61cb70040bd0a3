// The page at /docs: renders the OpenAPI document with Swagger UI, and calls the service with a key that is entered
// once. The key stays in this script's memory: it is never stored, and never part of a URL.
import { codeBlock, languageTabs } from "./languages.js";
import { elementIdOf, markCurrent } from "./navigation.js";
import { boundsOf, fieldsOf, operationsOf, parametersOf, resolveIn } from "./openapi.js";
import { samplesOf } from "./samples.js";

const STABILITIES = {
  beta: "May change with a minor release. The changelog says so first.",
  experimental: "May change or be removed at any time.",
};
const { serviceVersion } = document.getElementById("page").dataset;
let key = "";
const keyChanged = new Set(); // functions to call when the key changes
let openapi = {}; // the document as the page shows it

/** The operation in the OpenAPI document, even while it is collapsed and Swagger UI has not resolved it. */
const documented = (system, path, method) => system.specSelectors.specJson().getIn(["paths", path, method]);

/**
 * Appends to the description of each parameter what Swagger UI hides or fills in: its bounds, and the example of an optional
 * one, because a request should not send an example cursor or idempotency key.
 */
const withDescribedParameters = (document) => {
  // Parameters can be shared by operations.
  const parameters = operationsOf(document).flatMap(({ path, method }) => parametersOf(document, path, method));
  for (const parameter of new Set(parameters)) {
    const limits = boundsOf(document, parameter.schema).join(", ");
    const lines = [parameter.description, limits && `${limits[0].toUpperCase()}${limits.slice(1)}.`];
    if (!parameter.required && parameter.example !== undefined) {
      lines.push(`Example: \`${parameter.example}\``);
      delete parameter.example;
    }
    parameter.description = lines.filter(Boolean).join("\n\n");
  }
  return document;
};

/** Removes regular expressions, which are for programs: the descriptions say what is allowed. */
const withoutPatterns = (node) => {
  if (Array.isArray(node)) {
    return node.map(withoutPatterns);
  }
  if (node === null || typeof node !== "object") {
    return node;
  }
  // A field may have this name, too; then it is an object.
  const kept = Object.entries(node).filter(([name, value]) => name !== "pattern" || typeof value !== "string");
  return Object.fromEntries(kept.map(([name, value]) => [name, withoutPatterns(value)]));
};

/** A new `Idempotency-Key`. `crypto.randomUUID` is missing on pages without TLS. */
const newIdempotencyKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Indents JSON. Copies numbers verbatim, because JSON.parse would round 64-bit integers. */
const indented = (json) => {
  const found = json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let text = "";
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(depth)}`;
  found.forEach((token, index) => {
    const empty = ["{}", "[]"].includes(`${found[index - 1]}${token}`);
    if ("{[".includes(token)) {
      depth += 1;
      text += token + ("}]".includes(found[index + 1]) ? "" : newLine());
    } else if ("}]".includes(token)) {
      depth -= 1;
      text += (empty ? "" : newLine()) + token;
    } else {
      text += token === "," ? `,${newLine()}` : token === ":" ? ": " : token;
    }
  });
  return text;
};

const isJson = (text) => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

/** Splits JSON into [class, text] pairs for highlighting; the class of plain text is undefined. */
const tokens = (json) => {
  const token = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  const found = [];
  let end = 0;
  for (const match of json.matchAll(token)) {
    const [text, string, colon] = match;
    found.push([undefined, json.slice(end, match.index)]);
    if (string) {
      found.push([colon ? "json-name" : "json-string", string], [undefined, colon ?? ""]);
    } else {
      found.push(["json-value", text]);
    }
    end = match.index + text.length;
  }
  found.push([undefined, json.slice(end)]);
  return found.filter(([, text]) => text);
};

const plugin = ({ React }) => {
  const { createElement: h, useEffect, useRef, useState, useSyncExternalStore } = React;
  const nothing = () => null;

  /** Renders a sentence with `code` spans. */
  const sentence = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", { key: index }, part) : part));

  /** Shows an element that React does not make: `create` returns it, and perhaps how to `remove` it. */
  const Foreign = ({ className, create, text }) => {
    const place = useRef(null);
    useEffect(() => {
      const { element, remove } = create();
      place.current.replaceChildren(element);
      return remove;
    }, [text]);
    return h("div", { className, ref: place });
  };

  /** The URL of the chosen server, also after another is chosen. */
  const useServer = (system) =>
    useSyncExternalStore(
      (changed) => system.getStore().subscribe(changed),
      () => {
        const url = system.oas3Selectors.selectedServer() || system.specSelectors.servers().first()?.get("url") || "/";
        return new URL(url, document.baseURI).href.replace(/\/$/, "");
      },
    );

  /** The same call of an operation in each language. */
  const Samples = ({ system, path, method }) => {
    const samples = samplesOf(openapi, path, method, useServer(system));
    const create = () => {
      const panels = Object.entries(samples).map(([language, text]) => [language, codeBlock(text)]);
      return languageTabs(Object.fromEntries(panels), "Language of the sample");
    };
    return h(Foreign, { className: "samples", create, text: JSON.stringify(samples) });
  };

  /** The fields of a body, all of them visible. */
  const Fields = ({ specPath }) => {
    const fields = fieldsOf(openapi, resolveIn(openapi, specPath));
    return fields.length === 0
      ? null
      : h("div", { className: "fields" },
        h("h5", null, "Fields"),
        h("ul", null, fields.map(({ name, type, required, description }) =>
          h("li", { key: name },
            h("code", { className: "field-name" }, name),
            h("span", { className: "field-type" }, type),
            required ? h("span", { className: "field-required" }, "required") : null,
            h("p", null, sentence(description))))));
  };

  const useKey = () =>
    useSyncExternalStore(
      (changed) => {
        keyChanged.add(changed);
        return () => keyChanged.delete(changed);
      },
      () => key,
    );

  /** Asks for the key before the first request, which would fail without one. */
  const ExecuteWithKey = ({ children }) => {
    const [pressed, setPressed] = useState(false);
    const isMissing = useKey() === "";
    const onClickCapture = (event) => {
      setPressed(isMissing);
      if (isMissing) {
        event.stopPropagation();
      }
    };
    return h(React.Fragment, null,
      h("div", { className: "execute-with-key", onClickCapture }, children),
      pressed && isMissing
        ? h("p", { className: "warning", role: "alert" },
          "Nothing was sent: enter your API key first. ",
          h("button", { type: "button", className: "btn", onClick: () => document.getElementById("api-key").focus() },
            "Enter your API key"))
        : null);
  };

  const KeyField = () => {
    const [typed, setTyped] = useState("");
    const [visible, setVisible] = useState(false);
    const onChange = (event) => {
      key = event.target.value.trim();
      setTyped(key);
      keyChanged.forEach((changed) => changed());
    };
    const complete = /^psk_[A-Za-z0-9]{38}$/.test(typed);
    const hint = !typed
      ? "Sent with every request from this page, never stored. The operator of the service issues keys."
      : complete
        ? "Sent with every request from this page until you reload it."
        : "Incomplete: a key is psk_ followed by 38 characters.";
    return h("section", { className: "card" },
      h("h2", null, h("label", { htmlFor: "api-key" }, "Your API key")),
      h("div", { className: "key-field" },
        h("input", {
          id: "api-key",
          type: visible ? "text" : "password",
          placeholder: "psk_…",
          autoComplete: "off",
          autoCapitalize: "off",
          spellCheck: false,
          "aria-describedby": "api-key-hint",
          onChange,
        }),
        h("button", { type: "button", onClick: () => setVisible(!visible) }, visible ? "Hide" : "Show")),
      h("p", { id: "api-key-hint", className: "hint", role: "status" }, hint));
  };

  const FirstRequest = ({ system }) => {
    // The first read of the first tag, which the page also shows first. Paths are in alphabetical order.
    const tag = openapi.tags?.[0]?.name;
    const [path] = Object.entries(openapi.paths ?? {}).find(([, item]) => item.get?.tags?.includes(tag)) ?? [];
    return h("section", { className: "card first-request" },
      h("h2", null, "Your first request"),
      path ? h(Samples, { system, path, method: "get" }) : null,
      h("p", { className: "hint" },
        "Set PETSTORE_KEY to your key, or enter it on this page, open an operation and press Execute. For Python and TypeScript: ",
        h("a", { href: "docs/quickstart#install-an-sdk" }, "Install an SDK"), "."));
  };

  const PageLayout = (system) => {
    const { getComponent, specSelectors } = system;
    const status = specSelectors.loadingStatus();
    const Errors = getComponent("errors", true);
    if (status === "failed") {
      return h("div", null, h("p", { className: "status" }, "The OpenAPI document could not be loaded."), h(Errors));
    }
    if (status !== "success") {
      return h("p", { className: "status" }, "Loading the OpenAPI document…");
    }
    const Markdown = getComponent("Markdown", true);
    const Servers = getComponent("ServersContainer", true);
    const Operations = getComponent("operations", true);
    const Models = getComponent("Models", true);
    const servers = specSelectors.servers();
    return h("div", null,
      h("section", { className: "introduction" },
        h("p", { className: "version" }, `API version ${specSelectors.info().get("version")}, served by petstore ${serviceVersion}`),
        h(Markdown, { source: specSelectors.info().get("description") })),
      h("div", { className: "cards" },
        h(KeyField),
        h(FirstRequest, { system: system.getSystem() })),
      servers.size > 1 ? h("section", { className: "choice" }, h("h2", null, "Server"), h(Servers)) : null,
      h(Errors),
      h(Operations),
      h(Models));
  };

  /** Badges for the stability, the deprecation and the required scope of an operation. */
  const badges = (operation) => {
    const stability = operation.get("x-stability");
    const sunset = operation.get("x-deprecated-sunset");
    const scopes = (operation.get("security") ?? []).flatMap((needed) => needed.valueSeq().flatten());
    return h("span", { className: "badges" },
      STABILITIES[stability]
        ? h("span", { className: `badge badge-${stability}`, title: STABILITIES[stability] }, stability)
        : null,
      operation.get("deprecated")
        ? h("span", { className: "badge badge-deprecated" }, "deprecated")
        : null,
      operation.get("deprecated") && sunset
        ? h("span", { className: "badge badge-removal" }, `removal ${sunset}`)
        : null,
      scopes.map((scope) => h("span", { key: scope, className: "scope", title: "The scope that the key needs" }, scope)));
  };

  return {
    components: {
      PageLayout,
      // The key field replaces these.
      authorizeBtn: nothing,
      authorizeOperationBtn: nothing,
      CopyToClipboardBtn: nothing,
      // Plain text: a link inside the button that opens an operation confuses screen readers. The navigation has the links.
      DeepLink: ({ text }) => h("span", { className: "nostyle" }, h("span", null, text)),
      // Operations are always ready to try, so all that remains of this button is resetting the body to the example.
      TryItOutButton: ({ hasUserEditedBody, onResetClick }) => hasUserEditedBody
        ? h("button", { type: "button", className: "btn reset", onClick: onResetClick }, "Reset body")
        : null,
      // The request as it was sent, except for the key, so that you can run it and share it.
      curl: ({ request, fn }) => {
        const sent = request.getIn(["headers", "Authorization"]);
        const text = fn.requestSnippetGenerator_curl_bash(request);
        const shown = text.replace(`'Authorization: ${sent}'`, '"Authorization: Bearer $PETSTORE_KEY"');
        return h("div", { className: "curl-command" }, h("h4", null, "Command"),
          h(Foreign, { className: "curl", text: shown, create: () => ({ element: codeBlock(shown) }) }));
      },
      // Without it, Swagger UI falls back to the same component and logs a warning.
      JsonSchema_integer_int64: (props) => h(props.getComponent("JsonSchema_string"), props),
      // In place of the tabs "Example Value" and "Schema".
      modelExample: ({ example, specPath }) => h("div", { className: "model-example" },
        example, h(Fields, { specPath: specPath.toJS() })),
      // Colours by class and not by inline style, so that they follow the light and dark schemes.
      SyntaxHighlighter: ({ language, className, children }) => h("pre", { className },
        language === "json"
          ? tokens(String(children)).map(([kind, text], index) => h("span", { key: index, className: kind }, text))
          : children),
    },
    wrapComponents: {
      operation: (Operation, system) => (props) => {
        const { path, method } = props.operation.toObject();
        const hidden = documented(system, path, method)?.get("x-hideTryItPanel") === true;
        return h(Operation, hidden ? { ...props, operation: props.operation.set("allowTryItOut", false) } : props);
      },
      parameters: (Parameters, system) => (props) => {
        const [path, method] = props.pathMethod;
        const hidden = documented(system, path, method)?.get("x-hideTryItPanel") === true;
        return h(React.Fragment, null,
          h("div", { className: "opblock-section-header" }, h("h4", null, "Sample")),
          h(Samples, { system, path, method }),
          hidden
            ? h("p", { className: "hint" },
              "You cannot execute this operation on this page: the API's specification switches that off for it. ",
              "Run the sample instead.")
            : null,
          h(Parameters, props));
      },
      execute: (Execute) => (props) => h(ExecuteWithKey, null, h(Execute, props)),
      // Swagger UI splits a value at its commas, and drops the space after each.
      liveResponse: (LiveResponse) => (props) => {
        const headers = props.response.get("headers")?.map((value) => (value?.join ? value.join(", ") : value));
        return h(LiveResponse, { ...props, response: headers ? props.response.set("headers", headers) : props.response });
      },
      OperationSummaryPath: (Path, system) => (props) => {
        const { path, method } = props.operationProps.toObject();
        const operation = documented(system, path, method);
        return h(React.Fragment, null, h(Path, props), operation ? badges(operation) : null);
      },
      responseBody: (ResponseBody) => (props) => {
        const HighlightCode = props.getComponent("HighlightCode", true);
        if (!isJson(props.content)) {
          return h(ResponseBody, props);
        }
        const code = { language: "json", fileName: "response.json", downloadable: true, canCopy: true };
        return h("div", null, h("h5", null, "Response body"), h(HighlightCode, code, indented(props.content)));
      },
      // An operation has many error responses: each is collapsed to one line until it is opened.
      response: (Response) => (props) => {
        const [open, setOpen] = useState(props.code.startsWith("2"));
        if (open) {
          return h(Response, props);
        }
        return h("tr", { className: `response collapsed-response ${props.className ?? ""}`, "data-code": props.code },
          h("td", { className: "response-col_status" }, props.code),
          h("td", { className: "response-col_description" },
            h("button", { type: "button", "aria-expanded": false, onClick: () => setOpen(true) },
              h("span", null, sentence(props.response.get("description") ?? "")))));
      },
    },
    statePlugins: {
      layout: {
        wrapActions: {
          show: (show) => (shownKey, shown) => {
            const result = show(shownKey, shown);
            const [kind, ...names] = [shownKey].flat();
            if (kind === "operations") {
              nameInUrl(`#/${names.map(encodeURIComponent).join("/")}`, shown);
            }
            return result;
          },
        },
      },
      spec: {
        wrapActions: {
          updateJsonSpec: (update) => (document) => {
            openapi = withDescribedParameters(withoutPatterns(document));
            return update(openapi);
          },
        },
      },
    },
  };
};

// The fragment of the URL names an operation: `#/animals/getPet`. Swagger UI's own deep links are disabled, because they scroll
// only while the page loads, and add a second entry to the history for each link.
let wanted = ""; // the id of the element to scroll to as the page grows, until the reader does something else

const scrollToWanted = () => {
  if (wanted) {
    document.getElementById(wanted)?.scrollIntoView();
    markCurrent();
  }
};

/** Opens the operation that the URL names, and scrolls to it. */
const goToFragment = () => {
  const [, tag, name] = decodeURIComponent(location.hash).split("/");
  if (name) {
    page.layoutActions.show(["operations-tag", tag], true);
    page.layoutActions.show(["operations", tag, name], true);
    wanted = elementIdOf(location.hash);
    scrollToWanted();
  }
};

/** Names an operation in the URL when it is opened, and no longer when it is closed. */
const nameInUrl = (fragment, opened) => {
  if (opened && fragment !== location.hash) {
    history.pushState(null, "", fragment);
  } else if (!opened && fragment === location.hash) {
    history.replaceState(null, "", location.pathname);
  }
  markCurrent();
};

const page = SwaggerUIBundle({
  domNode: document.getElementById("page"),
  url: new URL("openapi.json", document.baseURI).href,
  plugins: [plugin],
  layout: "PageLayout",
  onComplete: () => goToFragment(),
  docExpansion: "list",
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (key && !request.loadSpec) {
      request.headers.Authorization = `Bearer ${key}`;
    }
    if (request.method === "POST") {
      request.headers["Idempotency-Key"] ??= newIdempotencyKey();
    }
    return request;
  },
});

/** Completes what Swagger UI renders: names fields that have no label, and lets the keyboard scroll long bodies. */
const makeAccessible = () => {
  for (const body of document.querySelectorAll(".opblock pre:not([tabindex])")) {
    body.tabIndex = 0;
  }
  for (const field of document.querySelectorAll(":is(.opblock, .choice) :is(input, select, textarea):not([aria-label])")) {
    const parameter = field.closest("[data-param-name]")?.dataset.paramName;
    const label = parameter ?? (field.matches("textarea") ? "Request body" : field.closest(".choice") ? "Server" : "Example");
    field.setAttribute("aria-label", label);
  }
};
new MutationObserver(() => {
  makeAccessible();
  scrollToWanted();
}).observe(document.getElementById("page"), { childList: true, subtree: true });

// The browser would restore a position on the page as it was before operations were opened.
history.scrollRestoration = "manual";
addEventListener("hashchange", () => {
  if (location.hash) {
    goToFragment();
  } else {
    scrollTo(0, 0);
  }
});
for (const type of ["keydown", "pointerdown", "touchmove", "wheel"]) {
  addEventListener(type, () => (wanted = ""), { passive: true });
}
// A link to where the reader has been does not change the URL.
document.getElementById("navigation").addEventListener("click", (event) => {
  if (location.hash && event.target.closest("a")?.hash === location.hash) {
    goToFragment();
  }
});
