// What the page at /docs does: shows the interface document with Swagger UI, and calls the service with a key that
// is typed once. The key stays in this script's memory: it is never stored, and never part of an address.
"use strict";

(() => {
  const METHODS = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
  const STABILITIES = {
    beta: "May change, with notice: it is removed at the earliest 90 days after that was announced.",
    experimental: "May change or go at any time.",
  };
  let key = "";

  /** The operation as the document has it, also while it is folded and Swagger UI has not looked into it. */
  const described = (system, path, method) => system.specSelectors.specJson().getIn(["paths", path, method]);

  /**
   * An example of an optional parameter is shown, not filled in: nobody wants to begin at somebody's cursor, or to
   * send somebody's idempotency key.
   */
  const withoutOptionalExamples = (document) => {
    for (const item of Object.values(document.paths ?? {})) {
      for (const method of METHODS) {
        for (const parameter of item[method]?.parameters ?? []) {
          if (!parameter.required && parameter.example !== undefined) {
            const description = parameter.description ? `${parameter.description}\n\n` : "";
            parameter.description = `${description}Example: \`${parameter.example}\``;
            delete parameter.example;
          }
        }
      }
    }
    return document;
  };

  /** JSON with indentation. Its numbers stay as they are written: JavaScript would round those of 64 bits. */
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

  /** Splits JSON into [class, text] pairs; the class of what needs no colour is undefined. */
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
    const { createElement: h, useState, useCallback } = React;
    const nothing = () => null;

    /** A sentence with `code` in it. */
    const sentence = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", { key: index }, part) : part));

    /** Copies a text; absent where the browser does not let a page do so. */
    const CopyButton = ({ text }) => {
      const [copied, setCopied] = useState(false);
      const copy = useCallback(async () => {
        await navigator.clipboard.writeText(text);
        setCopied(true);
        setTimeout(() => setCopied(false), 1500);
      }, [text]);
      return navigator.clipboard
        ? h("button", { type: "button", className: "copy", onClick: copy }, copied ? "Copied" : "Copy")
        : null;
    };

    const Command = ({ className, text }) =>
      h("div", { className: "code" }, h("pre", { className }, text), h(CopyButton, { text }));

    const KeyField = () => {
      const [typed, setTyped] = useState("");
      const [visible, setVisible] = useState(false);
      const onChange = (event) => {
        key = event.target.value.trim();
        setTyped(key);
      };
      const complete = /^psk_[A-Za-z0-9]{38}$/.test(typed);
      const hint = !typed
        ? "Sent with every call from this page and kept nowhere. Whoever runs the service gives out keys."
        : complete
          ? "Sent with every call from this page, until you reload it."
          : "Not a whole key yet: it is psk_ and 38 more characters.";
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

    const FirstCall = ({ server }) => {
      const command = `curl -H "Authorization: Bearer $KEY" \\\n  ${server}/pets`;
      return h("section", { className: "card" },
        h("h2", null, "Your first call"),
        h(Command, { className: "first-call", text: command }),
        h("p", { className: "hint" }, "Or open an operation below and press Execute."));
    };

    const PageLayout = ({ getComponent, specSelectors, oas3Selectors }) => {
      const status = specSelectors.loadingStatus();
      const Errors = getComponent("errors", true);
      if (status === "failed") {
        return h("div", null, h("p", { className: "status" }, "The interface document could not be loaded."), h(Errors));
      }
      if (status !== "success") {
        return h("p", { className: "status" }, "Loading the interface document…");
      }
      const Markdown = getComponent("Markdown", true);
      const Servers = getComponent("ServersContainer", true);
      const Operations = getComponent("operations", true);
      const Models = getComponent("Models", true);
      const servers = specSelectors.servers();
      const server = oas3Selectors.selectedServer() || servers.first()?.get("url") || "/";
      return h("div", null,
        h("section", { className: "introduction" },
          h("p", { className: "version" }, `Version ${specSelectors.info().get("version")}`),
          h(Markdown, { source: specSelectors.info().get("description") })),
        h("div", { className: "cards" },
          h(KeyField),
          h(FirstCall, { server: new URL(server, location.href).href.replace(/\/$/, "") })),
        servers.size > 1 ? h("section", { className: "choice" }, h("h2", null, "Server"), h(Servers)) : null,
        h(Errors),
        h(Operations),
        h(Models));
    };

    /** Stability and removal of an operation, and the scope that it needs. */
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
        scopes.map((scope) => h("span", { key: scope, className: "scope", title: "The scope that a key needs" }, scope)));
    };

    return {
      components: {
        PageLayout,
        // The key field stands for these.
        authorizeBtn: nothing,
        authorizeOperationBtn: nothing,
        CopyToClipboardBtn: nothing,
        // Every operation can be tried at once; what is left of this button is the way back to the example.
        TryItOutButton: ({ hasUserEditedBody, onResetClick }) => hasUserEditedBody
          ? h("button", { type: "button", className: "btn reset", onClick: onResetClick }, "Reset body")
          : null,
        // As it was sent, but for the key: it can be run and shown to others.
        curl: ({ request, fn }) => {
          const sent = request.getIn(["headers", "Authorization"]);
          const text = fn.requestSnippetGenerator_curl_bash(request);
          return h("div", { className: "curl-command" }, h("h4", null, "Command"),
            h(Command, { className: "curl", text: text.replace(`'Authorization: ${sent}'`, '"Authorization: Bearer $KEY"') }));
        },
        // Without it Swagger UI finds a way, and complains about it.
        JsonSchema_integer_int64: (props) => h(props.getComponent("JsonSchema_string"), props),
        // Colours by class and not by style, so that they follow light and dark.
        SyntaxHighlighter: ({ language, className, children }) => h("pre", { className },
          language === "json"
            ? tokens(String(children)).map(([kind, text], index) => h("span", { key: index, className: kind }, text))
            : children),
      },
      wrapComponents: {
        operation: (Operation, system) => (props) => {
          const { path, method } = props.operation.toObject();
          const hidden = described(system, path, method)?.get("x-hideTryItPanel") === true;
          return h(Operation, hidden ? { ...props, operation: props.operation.set("allowTryItOut", false) } : props);
        },
        OperationSummaryPath: (Path, system) => (props) => {
          const { path, method } = props.operationProps.toObject();
          const operation = described(system, path, method);
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
        // There are many ways to fail: each is one line until it is opened.
        response: (Response) => (props) => {
          const [open, setOpen] = useState(props.code.startsWith("2"));
          if (open) {
            return h(Response, props);
          }
          return h("tr", { className: `response folded ${props.className ?? ""}`, "data-code": props.code },
            h("td", { className: "response-col_status" }, props.code),
            h("td", { className: "response-col_description" },
              h("button", { type: "button", "aria-expanded": false, onClick: () => setOpen(true) },
                h("span", null, sentence(props.response.get("description") ?? "")))));
        },
      },
      statePlugins: {
        spec: {
          wrapActions: {
            updateJsonSpec: (update) => (document) => update(withoutOptionalExamples(document)),
          },
        },
      },
    };
  };

  const page = SwaggerUIBundle({
    domNode: document.getElementById("page"),
    url: new URL("openapi.json", document.baseURI).href,
    plugins: [plugin],
    layout: "PageLayout",
    deepLinking: true,
    docExpansion: "list",
    tryItOutEnabled: true,
    displayRequestDuration: true,
    defaultModelsExpandDepth: 1,
    defaultModelExpandDepth: 2,
    validatorUrl: null,
    requestInterceptor: (request) => {
      if (key && !request.loadSpec) {
        request.headers.Authorization = `Bearer ${key}`;
      }
      return request;
    },
  });

  // Swagger UI looks at the address only once; links within the page and the way back change it later.
  window.addEventListener("hashchange", () => page.layoutActions.parseDeepLinkHash(decodeURI(location.hash)));
})();
