// Checks what callers pass, before anything is sent. Plain JavaScript has no type checker, and a wrong value must not
// become another request: `GET /pets` without its `id` would return the first pet of the list.

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
