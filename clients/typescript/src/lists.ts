// One generator per list operation: every item of all pages. The filters are those of the OpenAPI document.
import type { Client } from './generated/client/index.js';
import { listOrders, listPets } from './generated/sdk.gen.js';
import type { ListOrdersData, ListPetsData, Order, Pet } from './generated/types.gen.js';
import { walk } from './pages.js';

/** The query without `cursor`, which comes only from the server's links. */
type Filter<Data extends { query?: object }> = Omit<NonNullable<Data['query']>, 'cursor'>;

/**
 * Yields every matching pet, in ascending order of id. `limit` is the page size, not the total. A pet that exists at
 * the start, and still matches, appears exactly once. Throws the same errors as {@link walk}.
 */
export function allPets(client: Client, filter: Filter<ListPetsData> = {}): AsyncGenerator<Pet, void, void> {
  return walk(client, (options) => listPets({ ...options, query: filter }));
}

/** Yields every matching order, in the order of placement. Otherwise like {@link allPets}. */
export function allOrders(client: Client, filter: Filter<ListOrdersData> = {}): AsyncGenerator<Order, void, void> {
  return walk(client, (options) => listOrders({ ...options, query: filter }));
}
