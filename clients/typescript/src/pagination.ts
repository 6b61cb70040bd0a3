// Pagination: iterates over all pages of a list. The service names the next page in the `Link` header with rel="next";
// the cursor in it is all that the next request needs, so no request goes to another host than the first.
import { PetstoreError } from './errors.js';
import type { Event, EventType } from './models.js';
import { CALL_OPTIONS, type CallOptions } from './options.js';
import type { ApiRequest, Transport } from './transport.js';
import { checkOptions } from './validation.js';

/** As many items as the service returns at once. */
export const PAGE_SIZE = 100;

/** The service accepts 8 KiB of path and query. The ids or references of a request leave room for the rest. */
const MAX_NAMES_BYTES = 6000;

/** The longest that the service holds back an empty page of events, in seconds. */
const MAX_WAIT_SECONDS = 25;

type ListQuery = NonNullable<ApiRequest['query']>;

/** One page of a list. */
export interface Page<Item> {
  items: Item[];
  /**
   * Where the next page starts: pass it as `cursor` to continue. Undefined on the last page. A page of events always has
   * one: pass it as `after`.
   */
  cursor: string | undefined;
}

/** Requests the next page, or returns undefined after the last one. If it fails, the next call requests the page again. */
export type PageSource<Item> = () => Promise<Page<Item> | undefined>;

/**
 * Iterates over the items of all pages, and requests a page when the previous one is used up.
 *
 * If a page cannot be read, the loop throws a `PetstoreError`. To resume, start another loop over the same list: it
 * requests that page again, and skips and repeats nothing. Several loops at once share the items.
 */
export class List<Item> implements AsyncIterableIterator<Item> {
  readonly #nextPage: PageSource<Item>;
  #items: Item[] = [];
  /** Settled when the previous step has ended, so that no page is requested twice. */
  #previous: Promise<unknown> = Promise.resolve();

  /** Lists are made by `pets.list`, `orders.list`, `events.list` and `events.follow`. */
  constructor(nextPage: PageSource<Item>) {
    this.#nextPage = nextPage;
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
}

/** Returns the pages of a list of pets or orders, up to the one without a link. */
export function listPages<Item>(
  transport: Transport,
  path: string,
  query: ListQuery,
  options: CallOptions,
): PageSource<Item> {
  checkOptions(options, CALL_OPTIONS, 'this call');
  let next: ListQuery | undefined = { limit: PAGE_SIZE, ...query };
  return async () => {
    if (!next) {
      return undefined;
    }
    const request: ApiRequest = { method: 'GET', path, expects: 'array', query: next };
    const { headers, body } = await transport.send<Item[]>(request, options);
    const cursor = nextPosition(headers, 'cursor');
    next = cursor === undefined ? undefined : { ...next, cursor };
    return { items: body, cursor };
  };
}

/** Returns a list with a single page. */
export function onePage<Item>(read: () => Promise<Item[]>): PageSource<Item> {
  let ended = false;
  return async () => {
    if (ended) {
      return undefined;
    }
    const items = await read();
    ended = true;
    return { items, cursor: undefined };
  };
}

/** Divides ids or references into parts that fit into one request each. */
export function partsOf(parameter: string, names: readonly string[]): string[][] {
  const parts: string[][] = [];
  let part: string[] = [];
  let size = 0;
  for (const name of names) {
    const nameSize = `&${new URLSearchParams({ [parameter]: name })}`.length;
    if (parts.length === 0 || part.length === PAGE_SIZE || size + nameSize > MAX_NAMES_BYTES) {
      part = [];
      size = 0;
      parts.push(part);
    }
    part.push(name);
    size += nameSize;
  }
  return parts;
}

/** Where to read the feed, for {@link feedPages}. A follower never ends; otherwise, the pages end with an empty one. */
export interface FeedQuery {
  after?: string | undefined;
  types?: EventType[] | undefined;
  limit?: number | undefined;
  waitSeconds?: number | undefined;
  follows?: boolean;
}

/** Returns the pages of the feed of events. */
export function feedPages(transport: Transport, query: FeedQuery, options: CallOptions): PageSource<Event> {
  checkOptions(options, CALL_OPTIONS, 'this call');
  const { types = [], limit = PAGE_SIZE, follows = false } = query;
  const longestWaitSeconds = follows ? MAX_WAIT_SECONDS : query.waitSeconds ?? 0;
  let { after } = query;
  let ended = false;
  return async () => {
    if (ended) {
      return undefined;
    }
    // `now` becomes a position at once: a retry would move it, and so skip what happened while the request waited.
    const waitSeconds = after === 'now' ? 0 : longestWaitSeconds;
    const { items, cursor } = await feedPage(transport, { after, types, limit, waitSeconds, follows }, options);
    // With `types`, a page can be empty although there are more events; then it leads further.
    const leadsFurther = items.length > 0 || (types.length > 0 && cursor !== after);
    after = cursor;
    ended = !leadsFurther && !follows && waitSeconds === longestWaitSeconds;
    return { items, cursor };
  };
}

/** Requests one page of the feed. */
export async function feedPage(
  transport: Transport,
  { after, types, limit, waitSeconds = 0, follows = false }: FeedQuery,
  options: CallOptions,
): Promise<{ items: Event[]; cursor: string }> {
  const { status, headers, body } = await transport.send<Event[]>(
    {
      method: 'GET',
      path: '/events',
      expects: 'array',
      query: { after, type: types, limit, wait: waitSeconds === 0 ? undefined : waitSeconds },
      waitMs: waitSeconds > 0 ? 1000 * waitSeconds : 0,
      outlivesOutages: follows,
    },
    options,
  );
  const cursor = nextPosition(headers, 'after');
  if (cursor === undefined) {
    // Every page has a link. Without it, the reader would skip or repeat events.
    const requestId = headers.get('X-Request-Id') ?? undefined;
    const problem = 'The response has no `Link` to the next events.';
    throw new PetstoreError(problem, { code: 'unexpected_response', status, requestId });
  }
  return { items: body, cursor };
}

/** Returns a parameter of the link with relation `next` in the `Link` header (RFC 8288): `<URL>; rel="next", …`. */
function nextPosition(headers: Headers, name: 'after' | 'cursor'): string | undefined {
  for (const [, url, parameters] of (headers.get('Link') ?? '').matchAll(/<([^>]*)>((?:[^",]|"[^"]*")*)/g)) {
    const relation = /;\s*rel\s*=\s*"?([^";]*)/i.exec(parameters ?? '')?.[1] ?? '';
    if (relation.toLowerCase().split(/\s+/).includes('next')) {
      return new URLSearchParams(url?.split('?')[1]).get(name) ?? undefined;
    }
  }
  return undefined;
}
