// A service and a clock for tests: no network, no waiting.
import assert from 'node:assert/strict';
import { Petstore, type PetstoreOptions, type Runtime } from '@petstore/client';

export const KEY = 'psk_secret';
export const BASE_URL = 'https://petstore.example';
export const rex = { id: 1, name: 'Rex', categoryId: 3, status: 'available' } as const;

/** A request as it was sent. */
export interface Sent {
  /** When it was sent, on the fake clock. */
  at: number;
  method: string;
  /** The path and query, from `/v1` on. */
  target: string;
  headers: Headers;
  body: unknown;
}

/** What the service does with a request: a response, an exception, or never anything. */
export type Answer = Response | Error | 'silence';

/** Time passes only when everything else waits, and then at once. */
export class FakeTime implements Runtime {
  #now = 0;
  readonly #timers = new Set<{ at: number; end: () => void }>();

  /** How many timers are running. */
  get running(): number {
    return this.#timers.size;
  }

  now = (): number => this.#now;

  random = (): number => 0.5;

  sleep = (time: number, signal?: AbortSignal): Promise<void> =>
    new Promise((resolve) => {
      this.startTimer(time, resolve);
      signal?.addEventListener('abort', () => resolve());
    });

  startTimer = (time: number, end: () => void): (() => void) => {
    const timer = { at: this.#now + time, end };
    this.#timers.add(timer);
    void this.#pass();
    return () => this.#timers.delete(timer);
  };

  async #pass(): Promise<void> {
    for (let turn = 0; turn < 10; turn += 1) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    const [next] = [...this.#timers].sort((one, other) => one.at - other.at);
    if (next) {
      this.#timers.delete(next);
      this.#now = next.at;
      next.end();
    }
  }
}

/** A client of a service that answers each request with the next answer, and repeats the last one. */
export function clientOf(answers: ((signal: AbortSignal) => Answer)[], options: PetstoreOptions = {}) {
  const time = new FakeTime();
  const sent: Sent[] = [];
  const shop = new Petstore({
    apiKey: KEY,
    baseUrl: BASE_URL,
    runtime: time,
    fetch: async (url, init) => {
      const body = typeof init.body === 'string' ? (JSON.parse(init.body) as unknown) : undefined;
      const { method = '', signal = null } = init;
      assert(signal);
      assert.equal(init.redirect, 'manual');
      const headers = new Headers(init.headers);
      sent.push({ at: time.now(), method, target: url.replace(BASE_URL, ''), headers, body });
      const answer = (answers[sent.length - 1] ?? answers.at(-1) ?? (() => json(rex)))(signal);
      if (answer === 'silence') {
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('aborted'))));
      }
      if (answer instanceof Error) {
        throw answer;
      }
      return answer;
    },
    ...options,
  });
  return { shop, sent, time };
}

export function json(body: unknown, headers: Record<string, string> = {}, status = 200): Response {
  return Response.json(body, { status, headers: { ETag: '"1"', 'X-Request-Id': 'r1', ...headers } });
}

export function failure(status: number, code: string, headers: Record<string, string> = {}): Response {
  return json({ code, message: `Because of ${code}.`, status }, headers, status);
}

export function html(status: number, headers: Record<string, string> = {}): Response {
  return new Response('<h1>Oops</h1>', { status, headers: { 'Content-Type': 'text/html', ...headers } });
}

/** What `fetch` throws if there is no response. */
export function refused(): TypeError {
  return new TypeError('fetch failed', { cause: new Error('connect ECONNREFUSED') });
}
