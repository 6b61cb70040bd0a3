// The public API of the package: the operations and types of the OpenAPI document, the client to call them with, and
// iterators over all pages.
export * from './generated/index.js';
export { createClient, type Client, type Config } from './generated/client/index.js';
export { allOrders, allPets } from './lists.js';
export { PetstoreError, walk, type Page, type PageOptions } from './pages.js';
