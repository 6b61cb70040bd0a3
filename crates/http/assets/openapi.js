// Reads the OpenAPI document: follows references, and lists operations, parameters, fields and their bounds.

const METHODS = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/** Returns the node, or what its `$ref` refers to. References lead to places in the same document. */
export const resolve = (openapi, node) => {
  let found = node;
  while (found?.$ref !== undefined) {
    const names = found.$ref.replace(/^#\//, "").split("/");
    found = names.reduce((inside, name) => inside?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], openapi);
  }
  return found;
};

/** Returns what is at a path of names, through references. */
export const resolveIn = (openapi, names) =>
  names.reduce((inside, name) => resolve(openapi, inside)?.[name], openapi);

/** Returns every operation, with its path and method. */
export const operationsOf = (openapi) =>
  Object.entries(openapi.paths ?? {}).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, operation: item[method] })));

/** Returns the parameters of an operation, those of its path included. */
export const parametersOf = (openapi, path, method) => {
  const item = openapi.paths[path];
  return [...(item.parameters ?? []), ...(item[method].parameters ?? [])].map((parameter) => resolve(openapi, parameter));
};

/** Returns the first media type of a body or response, and what the document says about it. */
export const contentOf = (openapi, described) =>
  Object.entries(resolve(openapi, described)?.content ?? {})[0] ?? [undefined, undefined];

/** What a schema allows, in words: `1 to 100`, `default 20`. Leaves out patterns: the description says what they mean. */
export const boundsOf = (openapi, described) => {
  const schema = resolve(openapi, described) ?? {};
  const range = (least, most, unit = "") => {
    if (least === undefined && most === undefined) {
      return [];
    }
    const text = most === undefined ? `at least ${least}` : least === undefined ? `at most ${most}` : `${least} to ${most}`;
    return [`${text}${unit}`];
  };
  return [
    ...range(schema.minimum, schema.maximum),
    ...range(schema.minLength, schema.maxLength, " characters"),
    ...range(schema.minItems, schema.maxItems, " items"),
    ...(schema.items ? boundsOf(openapi, schema.items).map((text) => `each ${text}`) : []),
    ...(schema.default === undefined ? [] : [`default ${schema.default}`]),
  ];
};

/** Returns the fields of a body, or of the items of a list. `description` includes the bounds. */
export const fieldsOf = (openapi, described) => {
  const body = resolve(openapi, described) ?? {};
  const schema = body.type === "array" ? resolve(openapi, body.items) : body;
  return Object.entries(schema?.properties ?? {}).map(([name, field]) => {
    // A field that can be null has a list of types or, if it is a reference, a choice between it and null.
    const choices = field.oneOf ?? [field];
    const own = choices.find(({ type }) => type !== "null");
    const { type: types, format, enum: values, description } = { ...resolve(openapi, own), ...own, ...field };
    const type = [types, choices.length > 1 ? "null" : []].flat().join(" or ");
    const limits = boundsOf(openapi, own).join(", ");
    const lines = [
      description,
      values && `One of ${values.map((value) => `\`${value}\``).join(", ")}.`,
      limits && `${limits[0].toUpperCase()}${limits.slice(1)}.`,
    ];
    return {
      name,
      type: format ? `${type} (${format})` : type,
      required: schema.required?.includes(name) ?? false,
      description: lines.filter(Boolean).join(" "),
    };
  });
};
