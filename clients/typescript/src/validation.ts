// Checks what callers pass, before anything is sent. Plain JavaScript has no type checker, and a wrong value must not
// become another request: `GET /pets` without its `id` would return the first pet of the list.

/** The names of all options of a type. The compiler rejects a list that is not complete. */
export type Names<Options> = Record<keyof Options, true>;

/** Throws a `TypeError` if an option is misspelt. `of` says whose options they are. */
export function checkOptions(options: object, known: Record<string, true>, of: string): void {
  if (typeof options !== 'object' || options === null) {
    throw new TypeError(`The options of ${of} must be an object, not ${described(options)}.`);
  }
  const names = Object.keys(known);
  for (const name of Object.keys(options)) {
    if (!names.includes(name)) {
      const [nearest = ''] = [...names].sort((one, other) => distance(name, one) - distance(name, other));
      const isNear = distance(name, nearest) <= 1 + name.length / 3;
      const meant = names.find((one) => one.startsWith(name)) ?? (isNear ? nearest : undefined);
      const hint = meant === undefined ? '' : `Did you mean \`${meant}\`? `;
      const all = names.map((one) => `\`${one}\``).join(', ');
      throw new TypeError(`\`${name}\` is not an option of ${of}. ${hint}The options are ${all}.`);
    }
  }
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

/** Returns the id if it is one. */
export function checkedId(name: string, value: unknown, of: 'pet' | 'order'): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value > 0) {
    return value;
  }
  throw new TypeError(`\`${name}\` must be the id of a ${of}, a positive integer, not ${described(value)}. Pass \`${of}.id\`.`);
}

/** Returns the ids if all of them are. */
export function checkedIds(name: string, values: unknown, of: 'pet' | 'order'): number[] {
  if (!Array.isArray(values)) {
    throw new TypeError(`\`${name}\` must be an array of ids, not ${described(values)}.`);
  }
  return values.map((value, index) => checkedId(`${name}[${index}]`, value, of));
}

/** Describes a value for a message: a number as it is, anything else by its type. */
function described(value: unknown): string {
  if (typeof value === 'number' || value === undefined || value === null) {
    return String(value);
  }
  return Array.isArray(value) ? 'an array' : `a value of type ${typeof value}`;
}
