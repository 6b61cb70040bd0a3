// Sample calls of an operation, derived from the OpenAPI document: path, parameters, body and their examples.
//
// A sample reads the API key from the environment variable PETSTORE_KEY. `tests/browser/test_samples.py` runs all of them.

import { contentOf, fieldsOf, parametersOf, resolve } from "./openapi.js";

/** The method of the SDKs for each operation. An operation that is not here has a sample for curl only. */
const SDK_METHODS = {
  createPet: "pets.create",
  listPets: "pets.list",
  getPet: "pets.get",
  updatePet: "pets.update",
  deletePet: "pets.delete",
  placeOrder: "orders.place",
  listOrders: "orders.list",
  getOrder: "orders.get",
  updateOrder: "orders.update",
  completeOrder: "orders.complete",
  cancelOrder: "orders.cancel",
  listEvents: "events.list",
};

/** Returns the example of a parameter or of a body, its own or that of its schema. */
const exampleOf = (openapi, described) => {
  const schema = resolve(openapi, described.schema) ?? {};
  const [named] = Object.values(described.examples ?? {}).map((example) => resolve(openapi, example)?.value);
  return described.example ?? named ?? schema.example ?? schema.examples?.[0] ?? schema.enum?.[0] ?? schema.default;
};

/** Collects what a call of the operation needs. Of the optional parameters, it has enumerations that have no default: filters. */
const callOf = (openapi, path, method) => {
  const operation = openapi.paths[path][method];
  const parameters = parametersOf(openapi, path, method);
  const isFilter = ({ enum: values, default: usual } = {}) => values !== undefined && usual === undefined;
  const wanted = parameters.filter(
    (parameter) => parameter.required || (parameter.in === "query" && isFilter(resolve(openapi, parameter.schema))),
  );
  const values = (place) =>
    wanted
      .filter((parameter) => parameter.in === place)
      .map((parameter) => [parameter.name, exampleOf(openapi, parameter)]);
  const [mediaType, content] = contentOf(openapi, operation.requestBody);
  const [, success] = Object.entries(operation.responses).find(([status]) => status.startsWith("2")) ?? [];
  const [, answer] = contentOf(openapi, success);
  const body = content && exampleOf(openapi, content);
  return {
    method: method.toUpperCase(),
    path,
    inPath: values("path"),
    query: values("query"),
    headers: values("header"),
    isRetriedWithKey: parameters.some((parameter) => parameter.name === "Idempotency-Key"),
    mediaType,
    body,
    leftOut: fieldsOf(openapi, content?.schema).map(({ name }) => name).filter((name) => !Object.hasOwn(body ?? {}, name)),
    returnsNothing: answer === undefined,
    returnsList: resolve(openapi, answer?.schema)?.type === "array",
  };
};

/** Names the fields that the body of a sample does not have, in a comment: none or one line, which starts with `mark`. */
const leftOutComment = (mark, names) => (names.length > 0 ? [`${mark} Optional fields: ${names.join(", ")}`] : []);

const curl = (call, server) => {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const path = call.inPath.reduce(
    (filled, [name, value]) => filled.replace(`{${name}}`, encodeURIComponent(value)),
    call.path,
  );
  const query = call.query.length > 0 ? `?${new URLSearchParams(call.query)}` : "";
  const lines = [`curl ${call.method === "GET" ? "" : `-X ${call.method} `}${quoted(server + path + query)}`];
  lines.push('-H "Authorization: Bearer $PETSTORE_KEY"');
  lines.push(...call.headers.map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`));
  // The SDKs send one with every attempt.
  if (call.isRetriedWithKey) {
    lines.push('-H "Idempotency-Key: $(openssl rand -hex 16)"');
  }
  if (call.mediaType) {
    lines.push(`-H ${quoted(`Content-Type: ${call.mediaType}`)}`, `-d ${quoted(JSON.stringify(call.body))}`);
  }
  return [...leftOutComment("#", call.leftOut), lines.join(" \\\n  ")].join("\n");
};

const pythonValue = (value) => {
  if (Array.isArray(value)) {
    return `[${value.map(pythonValue).join(", ")}]`;
  }
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, inside]) => `${JSON.stringify(name)}: ${pythonValue(inside)}`).join(", ")}}`;
  }
  return { true: "True", false: "False", null: "None" }[value] ?? JSON.stringify(value);
};

const pythonName = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

const python = (call, server, sdkMethod, noun) => {
  const values = [...Object.entries(call.body ?? {}), ...call.query];
  const named = values.map(([name, value]) => `${pythonName(name)}=${pythonValue(value)}`);
  const parameters = [...call.inPath.map(([, value]) => pythonValue(value)), ...named].join(", ");
  const expression = `shop.${sdkMethod}(${parameters})`;
  const printed = call.returnsList
    ? [`for ${noun} in ${expression}:`, `    print(${noun})`]
    : [`${noun} = ${expression}`, `print(${noun})`];
  return [
    "from petstore_client import Petstore",
    "",
    `shop = Petstore(base_url=${pythonValue(server)})  # reads the key from PETSTORE_KEY`,
    ...leftOutComment("#", call.leftOut.map(pythonName)),
    ...(call.returnsNothing ? [expression] : printed),
  ].join("\n");
};

const typescriptValue = (value) => {
  if (typeof value === "string") {
    return `'${JSON.stringify(value).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`;
  }
  if (Array.isArray(value)) {
    return `[${value.map(typescriptValue).join(", ")}]`;
  }
  if (value !== null && typeof value === "object") {
    return `{ ${Object.entries(value).map(([name, inside]) => `${name}: ${typescriptValue(inside)}`).join(", ")} }`;
  }
  return String(value);
};

const typescript = (call, server, sdkMethod, noun) => {
  const named = call.body ?? (call.query.length > 0 ? Object.fromEntries(call.query) : undefined);
  const parameters = [...call.inPath.map(([, value]) => value), ...(named ? [named] : [])].map(typescriptValue).join(", ");
  const expression = `shop.${sdkMethod}(${parameters})`;
  const printed = call.returnsList
    ? [`for await (const ${noun} of ${expression}) {`, `  console.log(${noun});`, "}"]
    : [`const ${noun} = await ${expression};`, `console.log(${noun});`];
  return [
    "import { Petstore } from '@petstore/client';",
    "",
    `const shop = new Petstore({ baseUrl: ${typescriptValue(server)} }); // reads the key from PETSTORE_KEY`,
    ...leftOutComment(`//`, call.leftOut),
    ...(call.returnsNothing ? [`await ${expression};`] : printed),
  ].join("\n");
};

/** Returns the code of a sample call in each language, by its name in languages.js. `server` is an absolute URL. */
export const samplesOf = (openapi, path, method, server) => {
  const call = callOf(openapi, path, method);
  const sdkMethod = SDK_METHODS[openapi.paths[path][method].operationId];
  const noun = sdkMethod?.split("s.")[0]; // pets.create returns a pet
  return {
    curl: curl(call, server),
    ...(sdkMethod && {
      python: python(call, server, sdkMethod, noun),
      typescript: typescript(call, server, sdkMethod, noun),
    }),
  };
};
