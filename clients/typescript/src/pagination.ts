// Pagination: iterates over all pages of a list. The service names the next page in the `Link` header with rel="next";
// the cursor in it is all that the next request needs, so no request goes to another host than the first.
import type { CallOptions } from './options.js';
import type { ApiRequest, Transport } from './transport.js';

/** As many items as the service returns at once. */
export const PAGE_SIZE = 100;

type ListQuery = NonNullable<ApiRequest['query']>;

/** One page of a list. */
export interface Page<Item> {
  items: Item[];
  /** Where the next page starts: pass it as `cursor` to continue. Undefined on the last page. */
  cursor: string | undefined;
}

/**
 * Iterates over the items of all pages, and requests a page when the previous one is used up.
 *
 * If a page cannot be read, the loop throws a `PetstoreError`. To resume, start another loop over the same list: it
 * requests that page again, and skips and repeats nothing. Several loops at once share the items.
 */
export class List<Item> implements AsyncIterableIterator<Item> {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #options: CallOptions;
  #query: ListQuery;
  #items: Item[] = [];
  #ended = false;
  /** Settled when the previous step has ended, so that no page is requested twice. */
  #previous: Promise<unknown> = Promise.resolve();

  /** Lists are made by `pets.list` and `orders.list`. */
  constructor(transport: Transport, path: string, query: ListQuery, options: CallOptions) {
    this.#transport = transport;
    this.#path = path;
    this.#query = { limit: PAGE_SIZE, ...query };
    this.#options = options;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<Item, undefined>> {
    const step = this.#previous.then(() => this.#nextItem());
    this.#previous = step.catch(() => {});
    return step;
  }

  /** Iterates over the pages instead, each with the cursor from which a later list can continue. */
  async *pages(): AsyncGenerator<Page<Item>, void, void> {
    for (let page = await this.#nextPage(); page; page = await this.#nextPage()) {
      yield page;
    }
  }

  async #nextItem(): Promise<IteratorResult<Item, undefined>> {
    for (;;) {
      const [item] = this.#items.splice(0, 1);
      if (item !== undefined) {
        return { done: false, value: item };
      }
      const page = await this.#nextPage();
      if (!page) {
        return { done: true, value: undefined };
      }
      this.#items = page.items;
    }
  }

  async #nextPage(): Promise<Page<Item> | undefined> {
    if (this.#ended) {
      return undefined;
    }
    const request: ApiRequest = { method: 'GET', path: this.#path, list: true, query: this.#query };
    const { headers, body } = await this.#transport.send<Item[]>(request, this.#options);
    const cursor = nextCursor(headers.get('Link') ?? '');
    this.#query = { ...this.#query, cursor };
    this.#ended = cursor === undefined;
    return { items: body, cursor };
  }
}

/** Returns the cursor in the link with relation `next` of a `Link` header (RFC 8288): `<URL>; rel="next", …`. */
function nextCursor(header: string): string | undefined {
  for (const [, url, parameters] of header.matchAll(/<([^>]*)>((?:[^",]|"[^"]*")*)/g)) {
    const relation = /;\s*rel\s*=\s*"?([^";]*)/i.exec(parameters ?? '')?.[1] ?? '';
    if (relation.toLowerCase().split(/\s+/).includes('next')) {
      return new URLSearchParams(url?.split('?')[1]).get('cursor') ?? undefined;
    }
  }
  return undefined;
}
