// Pagination: iterates over all pages of a list. The next page is the URL in the `Link` header with rel="next". `walk`
// follows it and builds no URL itself, so it works for every list operation of the service.
import type { Client } from './generated/client/index.js';
import type { Error as ErrorBody } from './generated/types.gen.js';

/** The result of a list operation for one page. */
export interface Page<Item> {
  data: Item[] | undefined;
  error: unknown;
  request: Request;
  /** Undefined if there was no response. */
  response: Response | undefined;
}

/** The options with which {@link walk} requests a page: errors are returned, never thrown. */
export interface PageOptions {
  client: Client;
  responseStyle: 'fields';
  throwOnError: false;
}

/** An error response of the service. Branch on `code`; show `message` to people. */
export class PetstoreError extends Error {
  override readonly name = 'PetstoreError';
  readonly code: string;
  readonly status: number;
  /** Identifies the request in the service's log: quote it when you report a problem. */
  readonly requestId: string | undefined;

  constructor(body: ErrorBody, requestId?: string) {
    super(body.message);
    this.code = body.code;
    this.status = body.status;
    this.requestId = requestId;
  }
}

/**
 * Yields every item of the page that `first` requests and of all later pages. Requests a page when the previous one is
 * used up, so leaving the loop stops the requests.
 *
 * Throws a {@link PetstoreError} for an error response, and what `fetch` threw if there is no response. Throws an
 * `Error` for a link to another origin instead of following it: the request would send the API key there.
 */
export async function* walk<Item>(
  client: Client,
  first: (options: PageOptions) => Promise<Page<Item>>,
): AsyncGenerator<Item, void, void> {
  const options: PageOptions = { client, responseStyle: 'fields', throwOnError: false };
  let page = await first(options);
  for (;;) {
    yield* items(page);
    const next = nextPage(page);
    if (next === undefined) {
      return;
    }
    page = await client.get<{ 200: Item[] }, unknown>({
      ...options,
      baseUrl: next.origin,
      url: next.pathname + next.search,
      security: [{ scheme: 'bearer', type: 'http' }],
    });
  }
}

function items<Item>(page: Page<Item>): Item[] {
  if (Array.isArray(page.data)) {
    return page.data;
  }
  if (page.response === undefined) {
    throw page.error;
  }
  const body = isErrorBody(page.error)
    ? page.error
    : {
        code: 'unexpected_answer',
        message: 'The response is neither a page nor an error of this service.',
        status: page.response.status,
      };
  throw new PetstoreError(body, page.response.headers.get('X-Request-Id') ?? undefined);
}

function isErrorBody(value: unknown): value is ErrorBody {
  return typeof value === 'object' && value !== null && 'code' in value && 'message' in value && 'status' in value;
}

function nextPage(page: Page<unknown>): URL | undefined {
  const link = nextLink(page.response?.headers.get('Link') ?? '');
  if (link === undefined) {
    return undefined;
  }
  const here = new URL(page.request.url);
  const next = new URL(link, here);
  if (next.origin !== here.origin) {
    throw new Error(`The next page is at ${next.origin}, not at ${here.origin}: set the base URL to that origin.`);
  }
  return next;
}

/** Returns the target of the link with relation `next` in a `Link` header (RFC 8288): `<target>; rel="next", …`. */
function nextLink(header: string): string | undefined {
  for (const [, target, parameters] of header.matchAll(/<([^>]*)>((?:[^",]|"[^"]*")*)/g)) {
    const relations = /;\s*rel\s*=\s*(?:"([^"]*)"|([^\s;]+))/i.exec(parameters ?? '');
    if ((relations?.[1] ?? relations?.[2] ?? '').toLowerCase().split(/\s+/).includes('next')) {
      return target;
    }
  }
  return undefined;
}
