// Checks what callers pass, before anything is sent. Plain JavaScript has no type checker, and a wrong value must not
// become another request: `GET /pets` without its `id` would return the first pet of the list.

/** Throws a `TypeError` or a `RangeError` if a value is not what the option with this name accepts. */
type Check = (name: string, value: unknown) => unknown;

/** How to check each option of a type. The compiler rejects a list that is not complete. */
export type Checks<Options> = Record<keyof Options, Check>;

/** Accepts undefined, which stands for the default. Everywhere else, a property that is there must have a value. */
export function optional(check: Check): Check {
  return (name, value) => value === undefined || check(name, value);
}

/** Throws an error if an option is misspelt, or has a wrong value. `of` says whose options they are. */
export function checkOptions(options: object, checks: Record<string, Check>, of: string): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new TypeError(`The options of ${of} must be an object, not ${described(options)}.`);
  }
  const names = Object.keys(checks);
  for (const [name, value] of Object.entries(options)) {
    const check = names.includes(name) ? checks[name] : undefined;
    if (check) {
      check(name, value);
    } else {
      const [nearest = ''] = [...names].sort((one, other) => distance(name, one) - distance(name, other));
      const isNear = distance(name, nearest) <= 1 + name.length / 3;
      const meant = names.find((one) => one.startsWith(name)) ?? (isNear ? nearest : undefined);
      const hint = meant === undefined ? '' : `Did you mean \`${meant}\`? `;
      const all = names.map((one) => `\`${one}\``).join(', ');
      throw new TypeError(`\`${name}\` is not an option of ${of}. ${hint}The options are ${all}.`);
    }
  }
}

/**
 * Throws an error if a filter has a wrong value. A filter that was forgotten is often undefined, and a `Map` has no properties:
 * neither must select everything.
 */
export function checkFilter(filter: object, checks: Record<string, Check>, of: string): void {
  if (!isPlainObject(filter)) {
    throw new TypeError(`The options of ${of} must be a plain object, not ${described(filter)}.`);
  }
  checkOptions(filter, checks, of);
}

/** Returns how many letters have to be added, removed or replaced to get from one name to the other, whatever the case. */
function distance(one: string, other: string): number {
  const [from, to] = [one.toLowerCase(), other.toLowerCase()];
  let row = Array.from({ length: to.length + 1 }, (_, index) => index);
  for (const [index, letter] of [...from].entries()) {
    const next = [index + 1];
    for (const [column, wanted] of [...to].entries()) {
      const replaced = (row[column] ?? 0) + (letter === wanted ? 0 : 1);
      next.push(Math.min(replaced, (row[column + 1] ?? 0) + 1, (next[column] ?? 0) + 1));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}

/** The headers that callers cannot set, and what to do instead. */
const RESERVED_HEADERS = new Map([
  ['authorization', 'set the option `apiKey`'],
  ['idempotency-key', 'set the option `idempotencyKey`'],
  ['content-type', 'bodies are always sent as JSON'],
  ...'connection content-encoding content-length expect host keep-alive te trailer transfer-encoding upgrade'
    .split(' ')
    .map((name) => [name, 'it belongs to the connection'] as const),
]);

/** Returns the headers if callers can set them. No message contains a value, which may be a secret. */
export function checkedHeaders(headers: unknown = {}): [name: string, value: string][] {
  if (typeof headers !== 'object' || headers === null || Symbol.iterator in headers) {
    throw new TypeError('`headers` must be a plain object, such as `{ traceparent: … }`.');
  }
  return Object.entries(headers).map(([name, value]) => {
    const instead = RESERVED_HEADERS.get(name.toLowerCase());
    if (instead !== undefined) {
      throw new TypeError(`\`headers\` must not contain \`${name}\`: ${instead}.`);
    }
    const isVisible = typeof value === 'string' && /^[\x20-\x7e]+$/.test(value) && value.trim() === value;
    if (!/^[\w!#$%&'*+.^`|~-]+$/.test(name) || !isVisible) {
      throw new TypeError(`The header ${JSON.stringify(name)} must have a valid name, and a value of visible ASCII characters.`);
    }
    return [name, value];
  });
}

/** Returns a value that goes into a header. `fetch` would check it, too, but its message would contain it. */
export function headerValue(name: string, value: unknown): string {
  if (typeof value !== 'string' || !/^[\x21-\x7e]+$/.test(value)) {
    throw new TypeError(`\`${name}\` must be a string of visible ASCII characters, and not empty.`);
  }
  return value;
}

/** Throws an error unless the value is a time for an attempt. Written so that NaN is rejected as well. */
export function checkTimeout(name: string, value: unknown): void {
  if (!(checkedNumber(name, value) > 0)) {
    throw new RangeError(`\`${name}\` must be a number above 0, not ${value}.`);
  }
}

/** Throws an error unless the value is a time for a call. */
export function checkMaxTime(name: string, value: unknown): void {
  if (!(checkedNumber(name, value) >= 0)) {
    throw new RangeError(`\`${name}\` must be a number, at least 0, not ${value}.`);
  }
}

function checkedNumber(name: string, value: unknown): number {
  if (typeof value !== 'number') {
    throw new TypeError(`\`${name}\` must be a number of milliseconds, not ${described(value)}.`);
  }
  return value;
}

export function checkFunction(name: string, value: unknown): void {
  if (typeof value !== 'function') {
    throw new TypeError(`\`${name}\` must be a function, not ${described(value)}.`);
  }
}

export function checkSignal(name: string, value: unknown): void {
  if (!(typeof value === 'object' && value !== null && 'aborted' in value)) {
    throw new TypeError(`\`${name}\` must be an AbortSignal, not ${described(value)}.`);
  }
}

/** Throws a `TypeError` unless the value is an object that can have members. */
export function checkObject(name: string, value: unknown): void {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new TypeError(`\`${name}\` must be an object, not ${described(value)}.`);
  }
}

/** Throws a `TypeError` unless the value can be sent as JSON. */
export function checkBody(name: string, value: unknown): void {
  if (!Array.isArray(value)) {
    checkObject(name, value);
  }
}

/** Throws a `TypeError` unless each parameter has a value. One that is left out could have been the filter. */
export function checkQuery(name: string, value: unknown): void {
  if (!isPlainObject(value)) {
    throw new TypeError(`\`${name}\` must be a plain object, such as \`{ status: 'sold' }\`, not ${described(value)}.`);
  }
  for (const [parameter, values] of Object.entries(value)) {
    const all = Array.isArray(values) ? values : [values];
    if (all.length === 0 || !all.every((one) => ['string', 'number', 'boolean'].includes(typeof one))) {
      const found = all.length === 0 ? 'an empty array' : described(values);
      throw new TypeError(`\`${name}.${parameter}\` must be a string or a number, or an array of them, not ${found}.`);
    }
  }
}

/** Returns the id if it is one. */
export function checkedId(name: string, value: unknown, of: 'pet' | 'order'): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value > 0) {
    return value;
  }
  const what = of === 'order' ? 'an order' : 'a pet';
  throw new TypeError(`\`${name}\` must be the id of ${what}, a positive integer, not ${described(value)}. Pass \`${of}.id\`.`);
}

/** Returns the ids if all of them are. */
export function checkedIds(name: string, values: unknown, of: 'pet' | 'order'): number[] {
  if (!Array.isArray(values)) {
    throw new TypeError(`\`${name}\` must be an array of ids, not ${described(values)}.`);
  }
  return values.map((value, index) => checkedId(`${name}[${index}]`, value, of));
}

/** Returns the integer if it is one that JavaScript represents exactly. */
export function checkedInteger(name: string, value: unknown): number {
  if (typeof value === 'number' && Number.isSafeInteger(value)) {
    return value;
  }
  throw new TypeError(`\`${name}\` must be an integer between -2^53 and 2^53, not ${described(value)}.`);
}

/** Returns the text if it is one, and not empty. */
export function checkedText(name: string, value: unknown): string {
  if (typeof value !== 'string' || value === '') {
    throw new TypeError(`\`${name}\` must be a string, not ${value === '' ? 'an empty one' : described(value)}.`);
  }
  return value;
}

/** Returns the types of events if there are any. An empty array would match no event. */
export function checkedTypes(name: string, values: unknown): string[] {
  if (Array.isArray(values) && values.length === 0) {
    throw new TypeError(`\`${name}\` is empty. Leave it out to get events of all types.`);
  }
  return checkedStrings(name, values);
}

/** Returns the strings if all of them are, and none is empty. */
export function checkedStrings(name: string, values: unknown): string[] {
  if (!Array.isArray(values)) {
    throw new TypeError(`\`${name}\` must be an array of strings, not ${described(values)}.`);
  }
  return values.map((value: unknown, index) => checkedText(`${name}[${index}]`, value));
}

/**
 * Throws a `TypeError` if a patch has a value that JSON could turn into `null`, which would remove something: NaN, for
 * example. A member that is undefined is not sent.
 */
export function checkRemovable({ reference, metadata }: { reference?: unknown; metadata?: unknown }): void {
  if (typeof reference !== 'string' && reference !== undefined && reference !== null) {
    throw new TypeError(`\`reference\` must be a string or null, not ${described(reference)}.`);
  }
  if (metadata !== null) {
    checkMetadata(metadata, 'a string or null');
  }
}

/**
 * Throws a `TypeError` unless the metadata is a plain object, and its members are as expected or undefined. Anything else, such
 * as a `Date`, can become `null` in JSON, which would remove all metadata.
 */
export function checkMetadata(metadata: unknown, expected: 'a string' | 'a string or null'): void {
  if (metadata === undefined) {
    return;
  }
  if (!isPlainObject(metadata)) {
    throw new TypeError("`metadata` must be a plain object, such as `{ price: '129.00' }`.");
  }
  for (const [name, value] of Object.entries(metadata)) {
    const isRemoved = value === null && expected === 'a string or null';
    if (typeof value !== 'string' && value !== undefined && !isRemoved) {
      throw new TypeError(`\`metadata.${name}\` must be ${expected}, not ${described(value)}.`);
    }
  }
}

/** Also an object of another realm, such as a frame, whose `Object` is not ours. */
function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** Describes a value for a message: a number as it is, anything else by its type. */
function described(value: unknown): string {
  if (typeof value === 'number' || value === undefined || value === null) {
    return String(value);
  }
  return Array.isArray(value) ? 'an array' : `a value of type ${typeof value}`;
}
