// Sends requests, and retries those that may succeed later. Guarantees:
//
// - All attempts of one call are the same request, with the same `Idempotency-Key`.
// - Only these are retried: no response, 408, 409 `idempotency_in_progress`, 429, 502, 503 and 504.
// - No attempt takes longer than `timeoutMs`. No call takes longer than `maxTimeMs`, unless that is 0: then there is one
//   attempt. Neither includes the time for which a request asks the service to wait. A follower's call is retried without a limit.
// - A failed call throws a `PetstoreError`, and an invalid option a `TypeError` or a `RangeError`, before anything is sent.
//   Nothing that is thrown or reported contains the API key.
//
// Uses nothing that browsers lack.
import { APIConnectionError, errorClass, RequestAbortedError, RouteNotFoundError, type PetstoreError } from './errors.js';
import {
  CALL_OPTIONS,
  CLIENT_OPTIONS,
  type CallOptions,
  type PetstoreOptions,
  type QueryValue,
  type Runtime,
} from './options.js';
import { checkedHeaders, checkOptions, headerValue, type Checks } from './validation.js';

const DEFAULT_TIMEOUT_MS = 10_000;
const DEFAULT_MAX_TIME_MS = 60_000;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 10_000;
/** An attempt is not worth starting with less time than this. */
const SHORTEST_TIMEOUT_MS = 100;
/** A follower sends a request at least this often, whatever `Retry-After` says. */
const LONGEST_FOLLOWER_PAUSE_MS = 300_000;
/** A longer timer would fire immediately. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Part of the message of a server of version 1.0.0 that does not know the outcome. */
const OUTCOME_UNKNOWN_IN_1_0_0 = 'may or may not have taken effect';

const SYSTEM: Runtime = {
  now: () => performance.now(),
  random: () => Math.random(),
  sleep: (timeMs, signal) =>
    new Promise((resolve) => {
      const end = () => {
        cancelTimer();
        signal?.removeEventListener('abort', end);
        resolve();
      };
      const cancelTimer = SYSTEM.startTimer(timeMs, end);
      signal?.addEventListener('abort', end);
      if (signal?.aborted) {
        end();
      }
    }),
  startTimer: (timeMs, end) => {
    const timer = setTimeout(end, Math.min(timeMs, LONGEST_TIMER_MS));
    return () => clearTimeout(timer);
  },
};

export const METHODS = ['GET', 'POST', 'PATCH', 'PUT', 'DELETE'] as const;

export type Method = (typeof METHODS)[number];

/** The request of an operation. */
export interface ApiRequest {
  method: Method;
  path: string;
  /** What the response is: a JSON object by default, an array for a list, nothing, or anything, also nothing. */
  expects?: 'array' | 'nothing' | 'anything';
  /** A parameter that is undefined is not sent. */
  query?: Readonly<Record<string, QueryValue | undefined>> | undefined;
  headers?: Record<string, string>;
  body?: object | undefined;
  /** How long the service may hold back the response. `timeoutMs` and `maxTimeMs` do not include it. */
  waitMs?: number;
  /** Whether `maxTimeMs` does not limit the retries. */
  outlivesOutages?: boolean;
}

/** A successful response. `Body` is what the OpenAPI document says; only whether it is an array was checked. */
export interface ApiResponse<Body> {
  status: number;
  headers: Headers;
  body: Body;
}

/** What an attempt led to. */
type Result = (ApiResponse<unknown> & { error?: never }) | { status?: number; headers?: Headers; error: PetstoreError };

export class Transport {
  readonly #apiKey: string;
  readonly #baseUrl: string;
  readonly #timeoutMs: number;
  readonly #maxTimeMs: number;
  readonly #headers: [name: string, value: string][];
  readonly #onAttempt: NonNullable<PetstoreOptions['onAttempt']>;
  readonly #fetch: NonNullable<PetstoreOptions['fetch']>;
  readonly #runtime: Runtime;

  constructor(options: PetstoreOptions) {
    checkOptions(options, CLIENT_OPTIONS, 'the client');
    this.#apiKey = headerValue('apiKey', required('apiKey', options.apiKey, 'PETSTORE_KEY'));
    this.#baseUrl = versionedUrl(required('baseUrl', options.baseUrl, 'PETSTORE_URL'));
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.#maxTimeMs = options.maxTimeMs ?? DEFAULT_MAX_TIME_MS;
    this.#headers = checkedHeaders(options.headers);
    this.#onAttempt = options.onAttempt ?? (() => {});
    this.#fetch = options.fetch ?? ((url, init) => fetch(url, init));
    this.#runtime = { ...SYSTEM, ...options.runtime };
  }

  /**
   * Sends a request until it succeeds, fails for good, or its time is over. `Body` is an array for a list. `checks` are
   * those of the options of the call.
   */
  async send<Body>(
    request: ApiRequest,
    options: CallOptions,
    checks: Checks<CallOptions> = CALL_OPTIONS,
  ): Promise<ApiResponse<Body>> {
    checkOptions(options, checks, 'this call');
    const { signal, timeoutMs: attemptMs = this.#timeoutMs, maxTimeMs = this.#maxTimeMs } = options;
    const { now, sleep } = this.#runtime;
    const { method, path, waitMs = 0, outlivesOutages = false } = request;
    const url = this.#baseUrl + path + queryString(request.query ?? {});
    const init = this.#init(request, checkedHeaders(options.headers));
    const longestMs = attemptMs + waitMs;
    const deadline = outlivesOutages ? Infinity : now() + (maxTimeMs || attemptMs) + waitMs;
    let outcomeUnknown = false;
    let previous: PetstoreError | undefined;

    for (let number = 1; ; number += 1) {
      if (signal?.aborted) {
        throw Object.assign(aborted(signal), { outcomeUnknown });
      }
      const start = now();
      const timeoutMs = Math.min(longestMs, deadline - start);
      const result = await this.#attempt(url, init, request.expects, timeoutMs, signal);
      const { status, headers = new Headers(), error } = result;
      const retryInMs = error && maxTimeMs > 0 ? this.#retryInMs(error, number, deadline) : undefined;
      const requestId = headers.get('X-Request-Id') ?? undefined;
      if (error) {
        // Stays true for the 404 or 412 of a retry: a service before 1.3.0 ignores the key of a PATCH or DELETE, so an
        // earlier attempt of this call may have caused it.
        outcomeUnknown ||= method !== 'GET' && !isRejection(error);
        error.outcomeUnknown = outcomeUnknown;
      }
      const durationMs = now() - start;
      this.#onAttempt({ number, method, path, durationMs, status, headers, requestId, error, retryInMs });
      if (!error) {
        return result as ApiResponse<Body>;
      }
      if (retryInMs === undefined) {
        // If the attempt had little time, the previous error says more than that there was no response.
        const cause = timeoutMs < longestMs && error instanceof APIConnectionError ? previous : undefined;
        throw Object.assign(cause ?? error, { outcomeUnknown });
      }
      previous = error;
      await sleep(retryInMs, signal);
    }
  }

  #init({ method, headers, body }: ApiRequest, extraHeaders: [name: string, value: string][]): RequestInit {
    const all = new Headers();
    for (const [name, value] of [...this.#headers, ...extraHeaders]) {
      all.set(name, value);
    }
    for (const [name, value] of Object.entries(headers ?? {})) {
      all.set(name, headerValue(name, value));
    }
    all.set('Authorization', `Bearer ${this.#apiKey}`);
    // A redirect is never followed: it would turn a POST into a GET, and could send the key elsewhere.
    const init: RequestInit = { method, headers: all, redirect: 'manual' };
    if (body) {
      all.set('Content-Type', 'application/json');
      init.body = JSON.stringify(body);
    }
    return init;
  }

  /** Sends the request once, and reads the response to its end. */
  async #attempt(
    url: string,
    init: RequestInit,
    expects: ApiRequest['expects'],
    timeoutMs: number,
    signal: AbortSignal | undefined,
  ): Promise<Result> {
    const exchange = new AbortController();
    const abort = () => exchange.abort();
    const cancelTimer = this.#runtime.startTimer(timeoutMs, abort);
    signal?.addEventListener('abort', abort);
    try {
      const response = await this.#fetch(url, { ...init, signal: exchange.signal });
      return read(response, await response.text(), expects, url);
    } catch (cause) {
      if (signal?.aborted) {
        return { error: aborted(signal) };
      }
      const problem = exchange.signal.aborted ? `none within ${Math.round(timeoutMs)} ms` : reason(cause);
      const message = `No response from ${new URL(url).host}: ${problem}`;
      return { error: new APIConnectionError(message, { code: 'no_response', cause }) };
    } finally {
      cancelTimer();
      signal?.removeEventListener('abort', abort);
    }
  }

  /** Returns the pause after a failed attempt, or undefined if the call has failed. */
  #retryInMs(error: PetstoreError, number: number, deadline: number): number | undefined {
    if (!isRetryable(error)) {
      return undefined;
    }
    const pause = Math.min(FIRST_PAUSE_MS * 2 ** (number - 1), LONGEST_PAUSE_MS);
    const wait = Math.max(error.retryAfterMs ?? 0, (pause / 2) * (1 + this.#runtime.random()));
    if (deadline === Infinity) {
      return Math.min(wait, LONGEST_FOLLOWER_PAUSE_MS);
    }
    return this.#runtime.now() + wait + SHORTEST_TIMEOUT_MS <= deadline ? wait : undefined;
  }
}

function aborted(signal: AbortSignal): PetstoreError {
  return new RequestAbortedError('The call was aborted.', { code: 'aborted', cause: signal.reason });
}

/** Returns whether the request certainly changed nothing. */
function isRejection({ code, message, status = 0 }: PetstoreError): boolean {
  // `unavailable` means that nothing was changed, and `outcome_unknown` that it is not known. A server of version 1.0.0
  // sends `unavailable` for both. To claim that nothing was changed would be unsafe there: the caller could repeat the
  // change with another idempotency key. The text that 1.0.0 sends in this case is fixed, because that version is
  // released, and later versions never send it with this code.
  if (status === 503 && code === 'unavailable') {
    return !message.includes(OUTCOME_UNKNOWN_IN_1_0_0);
  }
  return status >= 300 && status < 500 && code !== 'idempotency_in_progress';
}

function isRetryable({ code, status }: PetstoreError): boolean {
  switch (status) {
    case undefined:
      return code !== 'aborted';
    case 409:
      return code === 'idempotency_in_progress';
    default:
      return [408, 429, 502, 503, 504].includes(status);
  }
}

/** Returns the body of a success, or the error that the response stands for, whoever sent it. */
function read({ status, headers, ok }: Response, text: string, expects: ApiRequest['expects'], url: string): Result {
  const body = parsed(text);
  if (ok && isExpected(body, text, status, expects)) {
    return { status, headers, body };
  }
  return { status, headers, error: errorOf(status, headers, ok ? undefined : body, url) };
}

function isExpected(body: object | undefined, text: string, status: number, expects: ApiRequest['expects']): boolean {
  switch (expects) {
    case 'anything':
      return body !== undefined || text === '';
    case 'nothing':
      return status === 204;
    default:
      return body !== undefined && Array.isArray(body) === (expects === 'array');
  }
}

function errorOf(status: number, headers: Headers, body: object | undefined, url: string): PetstoreError {
  const said = (body ?? {}) as { code?: unknown; message?: unknown; field?: unknown };
  const known = typeof said.code === 'string' && typeof said.message === 'string';
  const code = known ? String(said.code) : 'unexpected_response';
  const type = headers.get('Content-Type') ?? 'no content type';
  const problem = known ? String(said.message) : `The response is not from the service (status ${status}, ${type}).`;
  const kind = errorClass(status, code);
  const hint =
    kind === RouteNotFoundError || (!known && status < 400)
      ? ` Check the base URL and the path: the request was sent to ${url.split('?')[0]}.`
      : '';
  return new kind(problem + hint, {
    code,
    status,
    requestId: headers.get('X-Request-Id') ?? undefined,
    retryAfterMs: retryAfterMs(headers),
    field: known && typeof said.field === 'string' ? said.field : undefined,
  });
}

/** Returns the JSON object or array that the text is, or undefined. */
function parsed(text: string): object | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Returns the time in `Retry-After`. A date is compared with that of the response, so no clock has to be right. */
function retryAfterMs(headers: Headers): number | undefined {
  const value = headers.get('Retry-After') ?? '';
  const time = /^\d+$/.test(value)
    ? 1000 * Number(value)
    : Date.parse(value) - Date.parse(headers.get('Date') ?? '');
  return time >= 0 ? time : undefined;
}

/** Returns what `fetch` reported. Node.js hides it in the cause. */
function reason(thrown: unknown): string {
  const { message, cause } = thrown as { message?: string; cause?: { message?: string } };
  return cause?.message || message || String(thrown);
}

function queryString(query: NonNullable<ApiRequest['query']>): string {
  const parameters = new URLSearchParams();
  for (const [name, values] of Object.entries(query)) {
    for (const value of [values ?? []].flat()) {
      parameters.append(name, String(value));
    }
  }
  const text = parameters.toString();
  return text && `?${text}`;
}

/** Returns an option, or else the environment variable, which only servers have. */
function required(name: string, value: string | undefined, variable: string): string {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  const found = (value ?? process?.env?.[variable])?.trim();
  if (!found) {
    throw new TypeError(`Set the option \`${name}\` or the environment variable \`${variable}\`.`);
  }
  return found;
}

/** Returns the URL with `/v1` as the end of its path. */
function versionedUrl(baseUrl: string): string {
  try {
    const { protocol, host, pathname } = new URL(baseUrl);
    if (/^https?:$/.test(protocol)) {
      return `${protocol}//${host}${pathname.replace(/(\/v1)?\/*$/, '')}/v1`;
    }
  } catch {
    // Not a URL.
  }
  throw new TypeError('`baseUrl` must be a URL, such as `http://127.0.0.1:8080`.');
}
