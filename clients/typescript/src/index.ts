// What the package offers: the operations and types of the interface document, the client that they are called with,
// and walks over all pages.
export * from './generated/index.js';
export { createClient, type Client, type Config } from './generated/client/index.js';
export { allOrders, allPets } from './lists.js';
export { PetstoreError, walk, type Page, type PageOptions } from './pages.js';
