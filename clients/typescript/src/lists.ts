// One function a list: every item of all its pages. What each list can be filtered by comes from the document.
import type { Client } from './generated/client/index.js';
import { listOrders, listPets } from './generated/sdk.gen.js';
import type { ListOrdersData, ListPetsData, Order, Pet } from './generated/types.gen.js';
import { walk } from './pages.js';

/** Where a page begins is the server's business: only its links say it. */
type Filter<Data extends { query?: object }> = Omit<NonNullable<Data['query']>, 'cursor'>;

/**
 * Every animal that matches, in the order of their identifiers; `limit` is the length of a page, not of the walk.
 * One that was there when the walk began comes exactly once. Throws as {@link walk} does.
 */
export function allPets(client: Client, filter: Filter<ListPetsData> = {}): AsyncGenerator<Pet, void, void> {
  return walk(client, (options) => listPets({ ...options, query: filter }));
}

/** Every order that matches, in the order in which they were placed, as {@link allPets} walks over animals. */
export function allOrders(client: Client, filter: Filter<ListOrdersData> = {}): AsyncGenerator<Order, void, void> {
  return walk(client, (options) => listOrders({ ...options, query: filter }));
}
