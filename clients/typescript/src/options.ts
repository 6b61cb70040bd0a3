// The settings of a client, the options of its calls, and what its hook gets. Times are in milliseconds.
import type { PetstoreError } from './errors.js';
import type { Names } from './validation.js';

/** The settings of a client. */
export interface PetstoreOptions {
  /** The API key. Default: the environment variable `PETSTORE_KEY`. */
  apiKey?: string | undefined;
  /** The address of the service, with or without `/v1`. Default: the environment variable `PETSTORE_URL`. */
  baseUrl?: string | undefined;
  /** The limit for one attempt, until its response is complete. Default: 10 seconds. */
  timeoutMs?: number | undefined;
  /**
   * The limit for a call with all attempts and the pauses between them. The last attempt gets only what is left of it. 0
   * turns retries off: `timeoutMs` alone limits the one attempt. Neither limit includes the time for which `events` asks the
   * service to wait. Default: 60 seconds.
   */
  maxTimeMs?: number | undefined;
  /** Called after every attempt, for logs and metrics. */
  onAttempt?: ((attempt: Attempt) => void) | undefined;
  /** Sends a request. Default: the global `fetch`. */
  fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
  /** Time and randomness, for tests. */
  runtime?: Partial<Runtime> | undefined;
}

export const CLIENT_OPTIONS: Names<PetstoreOptions> = {
  apiKey: true,
  baseUrl: true,
  timeoutMs: true,
  maxTimeMs: true,
  onAttempt: true,
  fetch: true,
  runtime: true,
};

/** One attempt of a call. Contains nothing secret. */
export interface Attempt {
  /** 1 for the first attempt of a call. */
  number: number;
  method: string;
  /** The path below the base URL. */
  path: string;
  durationMs: number;
  /** Undefined if there was no response. */
  status: number | undefined;
  /** The headers of the response, such as `RateLimit` and `Deprecation`. Empty if there was none. */
  headers: Headers;
  /** Undefined if the attempt succeeded. */
  error: PetstoreError | undefined;
  /** The pause before the next attempt. Undefined if this one was the last. */
  retryInMs: number | undefined;
}

/** What the client needs from its surroundings, besides `fetch`. */
export interface Runtime {
  /** Returns the milliseconds since any fixed instant. */
  now(): number;
  /** Returns a number from 0 to 1, but not 1. */
  random(): number;
  /** Waits between attempts, until the time is over or the signal is aborted. */
  sleep(timeMs: number, signal?: AbortSignal): Promise<void>;
  /** Calls `end` after the time, for the timeout of an attempt. Returns what cancels it. */
  startTimer(timeMs: number, end: () => void): () => void;
}

/** The options of every call. */
export interface CallOptions {
  /** Ends the call: it throws a `RequestAbortedError`. */
  signal?: AbortSignal | undefined;
}

export const CALL_OPTIONS: Names<CallOptions> = { signal: true };

/** The options of a call that adds something. */
export interface CreateOptions extends CallOptions {
  /**
   * Identifies the request for 24 hours: calls with the same key and body take effect once. Default: a random key for
   * each call. Set it if a retry must be possible after your program has crashed.
   */
  idempotencyKey?: string | undefined;
}

export const CREATE_OPTIONS: Names<CreateOptions> = { ...CALL_OPTIONS, idempotencyKey: true };

/** The options of a call that changes a pet. */
export interface UpdateOptions extends CallOptions {
  /** Change the pet only if this is still its `etag`; otherwise, throw a `PreconditionFailedError`. */
  ifMatch?: string;
}

export const UPDATE_OPTIONS: Names<UpdateOptions> = { ...CALL_OPTIONS, ifMatch: true };
