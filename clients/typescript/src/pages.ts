// Walks over the pages of a list. The server says where the next page is, in the header `Link` with rel="next"; a
// walk follows it and builds no address of its own, so it works for every list of the service.
import type { Client } from './generated/client/index.js';
import type { Error as ErrorBody } from './generated/types.gen.js';

/** What a list operation returns for one page. */
export interface Page<Item> {
  data: Item[] | undefined;
  error: unknown;
  request: Request;
  /** Absent when there was no answer at all. */
  response: Response | undefined;
}

/** How a walk needs its first page: as fields, and without a throw, whatever the client is set to. */
export interface PageOptions {
  client: Client;
  responseStyle: 'fields';
  throwOnError: false;
}

/** An answer that is an error, with what its body says. Decide by `code`; show `message` to people. */
export class PetstoreError extends Error {
  override readonly name = 'PetstoreError';
  readonly code: string;
  readonly status: number;
  /** Names the request in the service's log: quote it when you ask for help. */
  readonly requestId: string | undefined;

  constructor(body: ErrorBody, requestId?: string) {
    super(body.message);
    this.code = body.code;
    this.status = body.status;
    this.requestId = requestId;
  }
}

/**
 * Every item of the page that `first` asks for, and of all pages after it. A page is asked for when the one before it
 * is used up, so leaving the loop ends the walk.
 *
 * Throws a {@link PetstoreError} when a page is answered with an error, and what `fetch` threw when there is no answer.
 * A link to another origin is not followed but thrown: the request would take the API key there.
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
    : { code: 'unexpected_answer', message: 'The answer is not one of this service.', status: page.response.status };
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
    throw new Error(`The next page is at ${next.origin}, not at ${here.origin}: use that address for the client.`);
  }
  return next;
}

/** The target of the link whose relations include `next`, in a header by RFC 8288: `<target>; rel="next", …`. */
function nextLink(header: string): string | undefined {
  for (const [, target, parameters] of header.matchAll(/<([^>]*)>((?:[^",]|"[^"]*")*)/g)) {
    const relations = /;\s*rel\s*=\s*(?:"([^"]*)"|([^\s;]+))/i.exec(parameters ?? '');
    if ((relations?.[1] ?? relations?.[2] ?? '').toLowerCase().split(/\s+/).includes('next')) {
      return target;
    }
  }
  return undefined;
}
