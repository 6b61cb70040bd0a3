// The settings of a client, the options of its calls, and what they report.
import type { PetstoreError } from './errors.js';
import {
  checkBody,
  checkedHeaders,
  checkedText,
  checkFunction,
  checkMaxTime,
  checkObject,
  checkQuery,
  checkSignal,
  checkTimeout,
  headerValue,
  optional,
  type Checks,
} from './validation.js';

/** Times and headers: of a client, or of one call. */
export interface SendOptions {
  /** The limit for one attempt, until its response is complete. Default: 10 seconds. */
  timeoutMs?: number | undefined;
  /**
   * The limit for a call with all attempts and the pauses between them. The last attempt gets only what is left of it. 0
   * turns retries off: `timeoutMs` alone limits the one attempt. Neither limit includes the time for which `events` asks
   * the service to wait. Default: 60 seconds.
   */
  maxTimeMs?: number | undefined;
  /**
   * Headers to send in addition, such as `traceparent`. Those of a call are added to those of the client. The headers that
   * the SDK needs for itself, such as `Authorization` and `Content-Type`, are rejected.
   */
  headers?: Readonly<Record<string, string>> | undefined;
}

/** The settings of a client. */
export interface PetstoreOptions extends SendOptions {
  /** The API key. Default: the environment variable `PETSTORE_KEY`. */
  apiKey?: string | undefined;
  /** The address of the service, with or without `/v1`. Default: the environment variable `PETSTORE_URL`. */
  baseUrl?: string | undefined;
  /** Called after every attempt, for logs and metrics. */
  onAttempt?: ((attempt: Attempt) => void) | undefined;
  /** Sends a request. Default: the global `fetch`. */
  fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
  /** Time and randomness, for tests. */
  runtime?: Partial<Runtime> | undefined;
}

const SEND_OPTIONS: Checks<SendOptions> = {
  timeoutMs: optional(checkTimeout),
  maxTimeMs: optional(checkMaxTime),
  headers: optional((_, value) => checkedHeaders(value)),
};

export const CLIENT_OPTIONS: Checks<PetstoreOptions> = {
  apiKey: optional(checkedText),
  baseUrl: optional(checkedText),
  ...SEND_OPTIONS,
  onAttempt: optional(checkFunction),
  fetch: optional(checkFunction),
  runtime: optional(checkObject),
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
  /** Identifies the request in the service's log. Undefined if there was no response. */
  requestId: string | undefined;
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

/** The response to a successful call. */
export interface ResponseInfo {
  status: number;
  headers: Headers;
  /** Identifies the request in the service's log: quote it when you report a problem. */
  requestId: string | undefined;
}

/** The options of every call. */
export interface CallOptions extends SendOptions {
  /** Ends the call: it throws a `RequestAbortedError`. */
  signal?: AbortSignal | undefined;
}

export const CALL_OPTIONS: Checks<CallOptions> = { ...SEND_OPTIONS, signal: optional(checkSignal) };

/** The options of a call that writes. */
export interface WriteOptions extends CallOptions {
  /**
   * Identifies the request for 24 hours: calls with the same key and body take effect once. Default: a random key for
   * each call. Set it if a retry must be possible after your program has crashed. A service before 1.3.0 ignores it in a
   * call that changes or deletes a pet, or changes an order. A key that is there but undefined is an error, because another
   * call could take effect again.
   */
  idempotencyKey?: string;
}

export const WRITE_OPTIONS: Checks<WriteOptions> = { ...CALL_OPTIONS, idempotencyKey: headerValue };

/** The options of a call that adds something. */
export type CreateOptions = WriteOptions;

/** The options of a call that changes or deletes a pet, or changes an order. */
export interface UpdateOptions extends WriteOptions {
  /** Make the change only if this is still the `etag` of the pet or order; otherwise, throw a `PreconditionFailedError`. */
  ifMatch?: string;
}

export const UPDATE_OPTIONS: Checks<UpdateOptions> = { ...WRITE_OPTIONS, ifMatch: headerValue };

/** The options of {@link Petstore.request}. */
export interface RequestOptions extends WriteOptions {
  /** The query parameters. An array repeats the parameter. */
  query?: Readonly<Record<string, QueryValue>> | undefined;
  /** Sent as JSON. */
  body?: object | undefined;
}

export type QueryValue = string | number | boolean | readonly (string | number)[];

export const REQUEST_OPTIONS: Checks<RequestOptions> = {
  ...WRITE_OPTIONS,
  query: optional(checkQuery),
  body: optional(checkBody),
};
