// Tests of the package through its public API, with a fake service and clock. The fault test of the repository has a real
// service and real faults.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import * as petstore from '@petstore/client';
import { Petstore, PetstoreError, type Attempt } from '@petstore/client';
import { BASE_URL, clientOf, failure, html, json, KEY, refused, rex, type Answer, type Sent } from './fakes.js';

const newPet = { name: 'Rex', categoryId: 3, status: 'available' } as const;

/** Returns the error that a call throws. */
async function errorOf(call: Promise<unknown>): Promise<PetstoreError> {
  const thrown = await call.then(
    () => assert.fail('the call succeeded'),
    (error: unknown) => error,
  );
  assert(thrown instanceof PetstoreError, String(thrown));
  return thrown;
}

/** Rejects when the signal is aborted. */
function ended(signal: AbortSignal | null | undefined): Promise<never> {
  return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(new Error('aborted'))));
}

const deleted = () => new Response(null, { status: 204 });

/** Every write, with the response to it. */
const WRITES: [write: (shop: Petstore, options?: petstore.WriteOptions) => Promise<unknown>, answer: () => Answer][] = [
  [(shop, options) => shop.pets.create(newPet, options), () => json(rex)],
  [(shop, options) => shop.pets.update(1, newPet, options), () => json(rex)],
  [(shop, options) => shop.pets.delete(1, options), deleted],
  [(shop, options) => shop.orders.place({ petId: 1 }, options), () => json(rex)],
  [(shop, options) => shop.orders.update(2, { holdSeconds: 600 }, options), () => json(rex)],
  [(shop, options) => shop.orders.complete(2, options), () => json(rex)],
  [(shop, options) => shop.orders.cancel(2, options), () => json(rex)],
  [(shop, options) => shop.request('POST', '/v1/vets', options), deleted],
  [(shop, options) => shop.request('PATCH', '/v1/vets/7', options), deleted],
  [(shop, options) => shop.request('PUT', '/v1/vets/7', options), deleted],
  [(shop, options) => shop.request('DELETE', '/v1/vets/7', options), deleted],
];

/** Returns the idempotency keys of requests. */
const keysOf = (sent: Sent[]) => sent.map(({ headers }) => headers.get('Idempotency-Key'));

test('every write carries an idempotency key', async () => {
  for (const [write, answer] of WRITES) {
    const { shop, sent } = clientOf([answer]);
    await write(shop);
    assert.equal(sent.length, 1);
    assert.match(keysOf(sent)[0] ?? '', /^[0-9a-f]{32}$/, `${sent[0]?.method} ${sent[0]?.target}`);
  }
});

test('the key is the same in all attempts of a call and differs between calls', async () => {
  for (const [write, answer] of WRITES) {
    const attempts = [refused, () => failure(503, 'unavailable'), () => failure(409, 'idempotency_in_progress'), answer];
    const { shop, sent } = clientOf([...attempts, ...attempts]);
    await write(shop);
    await write(shop);
    const keys = keysOf(sent);
    assert.deepEqual(keys, [...Array<unknown>(4).fill(keys[0]), ...Array<unknown>(4).fill(keys[4])]);
    assert.notEqual(keys[0], keys[4]);
  }
});

test('a key of the caller is sent as it is', async () => {
  for (const [write, answer] of WRITES) {
    const { shop, sent } = clientOf([refused, answer]);
    await write(shop, { idempotencyKey: 'mine:7' });
    assert.deepEqual(keysOf(sent), ['mine:7', 'mine:7']);
  }
});

test('reads carry no idempotency key', async () => {
  for (const [read, answer] of [
    [(shop) => shop.pets.get(1), () => json([rex])],
    [(shop) => shop.pets.getMany([1]), () => json([rex])],
    [(shop) => shop.pets.list().next(), () => json([rex])],
    [(shop) => shop.pets.list({ references: ['7'] }).next(), () => json([rex])],
    [(shop) => shop.orders.get(1), () => json(rex)],
    [(shop) => shop.orders.list().next(), () => json([rex])],
    [(shop) => shop.events.position(), () => events('A')],
    [(shop) => shop.events.list().next(), () => events('A')],
    [(shop) => shop.request('GET', '/v1/pets'), () => json([rex])],
  ] as [(shop: Petstore) => Promise<unknown>, () => Answer][]) {
    const { shop, sent } = clientOf([answer]);
    await read(shop);
    assert.deepEqual(keysOf(sent), [null]);
  }
});

test('calls send what the service documents', async () => {
  const { shop, sent } = clientOf([() => json(rex)]);
  assert.deepEqual(await shop.pets.create(newPet, { idempotencyKey: 'k' }), { ...rex, etag: '"1"' });
  await shop.pets.update(1, { status: 'sold' }, { ifMatch: '"7"', idempotencyKey: 'k' });
  await shop.pets.update(1, {}, { idempotencyKey: 'k' });
  await shop.orders.place({ petId: 1 }, { idempotencyKey: 'k' });
  await shop.orders.update(2, { holdSeconds: 600 }, { ifMatch: '"7"', idempotencyKey: 'k' });
  await shop.orders.get(2);
  await shop.orders.complete(2, { idempotencyKey: 'k' });
  await shop.orders.cancel(2, { idempotencyKey: 'k' });
  const headers = ['Idempotency-Key', 'If-Match', 'Content-Type'];
  assert.deepEqual(
    sent.map((one) => [one.method, one.target, one.body, ...headers.map((name) => one.headers.get(name))]),
    [
      ['POST', '/v1/pets', newPet, 'k', null, 'application/json'],
      ['PATCH', '/v1/pets/1', { status: 'sold' }, 'k', '"7"', 'application/json'],
      ['PATCH', '/v1/pets/1', {}, 'k', null, 'application/json'],
      ['POST', '/v1/store/orders', { petId: 1 }, 'k', null, 'application/json'],
      ['PATCH', '/v1/store/orders/2', { holdSeconds: 600 }, 'k', '"7"', 'application/json'],
      ['GET', '/v1/store/orders/2', undefined, null, null, null],
      ['POST', '/v1/store/orders/2/complete', undefined, 'k', null, null],
      ['POST', '/v1/store/orders/2/cancel', undefined, 'k', null, null],
    ],
  );
  assert(sent.every((one) => one.headers.get('Authorization') === `Bearer ${KEY}`));
});

test('the base URL may or may not end with /v1', async () => {
  const urls = {
    'http://localhost:8080': 'http://localhost:8080/v1/pets',
    'http://localhost:8080/': 'http://localhost:8080/v1/pets',
    'http://localhost:8080/v1': 'http://localhost:8080/v1/pets',
    'https://petstore.example/v1/': 'https://petstore.example/v1/pets',
    'https://example.com/shop': 'https://example.com/shop/v1/pets',
    'https://example.com/shop/v1//': 'https://example.com/shop/v1/pets',
  };
  for (const [baseUrl, expected] of Object.entries(urls)) {
    const fetched: string[] = [];
    const fetch = async (url: string) => (fetched.push(url), json(rex));
    await new Petstore({ apiKey: KEY, baseUrl, fetch }).pets.create(newPet);
    assert.deepEqual(fetched, [expected]);
  }
});

test('key and base URL come from the environment', () => {
  assert.throws(() => new Petstore({ apiKey: KEY, baseUrl: '' }), TypeError);
  const { PETSTORE_KEY, PETSTORE_URL } = process.env;
  try {
    delete process.env['PETSTORE_KEY'];
    delete process.env['PETSTORE_URL'];
    assert.throws(() => new Petstore({ baseUrl: BASE_URL }), { name: 'TypeError', message: /PETSTORE_KEY/ });
    assert.throws(() => new Petstore({ apiKey: KEY }), { name: 'TypeError', message: /PETSTORE_URL/ });
    Object.assign(process.env, { PETSTORE_KEY: KEY, PETSTORE_URL: BASE_URL });
    assert(new Petstore());
    Object.assign(process.env, { PETSTORE_KEY: ` ${KEY}\n`, PETSTORE_URL: `${BASE_URL}\n` });
    assert(new Petstore());
  } finally {
    Object.assign(process.env, { PETSTORE_KEY: PETSTORE_KEY ?? '', PETSTORE_URL: PETSTORE_URL ?? '' });
  }
});

test('invalid options are errors before anything is sent', async () => {
  for (const [options, name] of [
    [{ baseUrl: 'localhost:8080' }, 'TypeError'],
    [{ baseUrl: 'petstore' }, 'TypeError'],
    [{ apiKey: `${KEY}\n2` }, 'TypeError'],
    [{ apiKey: ' ' }, 'TypeError'],
    [{ timeoutMs: 0 }, 'RangeError'],
    [{ timeoutMs: NaN }, 'RangeError'],
    [{ maxTimeMs: -1 }, 'RangeError'],
    [{ maxTimeMs: NaN }, 'RangeError'],
  ] as const) {
    assert.throws(() => clientOf([], options), { name });
    assert.throws(() => clientOf([]).shop.withOptions(options), { name });
  }
  const { shop, sent } = clientOf([]);
  const { etag } = rex as { etag?: string };
  await assert.rejects(shop.pets.update(1, {}, { ifMatch: etag as string }), TypeError);
  await assert.rejects(shop.pets.delete(1, { ifMatch: etag as string }), TypeError);
  await assert.rejects(shop.orders.update(1, {}, { ifMatch: etag as string }), { name: 'TypeError', message: /orders\.get/ });
  for (const text of ['', 'ключ', 'a b', 'a\nb']) {
    for (const [write] of WRITES) {
      await assert.rejects(write(shop, { idempotencyKey: text }), TypeError);
    }
    await assert.rejects(shop.pets.update(1, {}, { ifMatch: text }), TypeError);
    await assert.rejects(shop.pets.delete(1, { ifMatch: text }), TypeError);
    await assert.rejects(shop.orders.update(1, {}, { ifMatch: text }), TypeError);
  }
  assert.equal(sent.length, 0);
});

test('an id that is not a positive integer is an error before anything is sent', async () => {
  const { shop, sent } = clientOf([() => json([rex])]);
  const wrong: unknown[] = [undefined, null, [], [1], '7', 'abc', '', true, {}, 0, -1, 1.5, NaN, Infinity, 2 ** 53];
  for (const value of wrong) {
    const id = value as number;
    for (const call of [
      async () => shop.pets.get(id),
      async () => shop.pets.getMany([1, id]),
      async () => shop.pets.update(id, { name: 'Rex' }),
      async () => shop.pets.delete(id),
      async () => shop.orders.get(id),
      async () => shop.orders.update(id, { holdSeconds: 600 }),
      async () => shop.orders.complete(id),
      async () => shop.orders.cancel(id),
      async () => shop.orders.place({ petId: id }),
      async () => shop.orders.list({ petId: id }).next(),
    ]) {
      await assert.rejects(call(), { name: 'TypeError', message: /must be the id of (a pet|an order), a positive integer/ });
    }
  }
  for (const value of [undefined, null, 1, '12', {}]) {
    await assert.rejects(shop.pets.getMany(value as unknown as number[]), TypeError);
  }
  assert.equal(sent.length, 0);
  await assert.rejects(shop.pets.get(undefined as unknown as number), {
    message: '`id` must be the id of a pet, a positive integer, not undefined. Pass `pet.id`.',
  });
});

test('get returns no other pet than the requested one', async () => {
  for (const pets of [[{ ...rex, id: 2 }], [rex, { ...rex, id: 2 }]]) {
    const error = await errorOf(clientOf([() => json(pets)]).shop.pets.get(1));
    assert.deepEqual([error.name, error.code, error.status], ['PetstoreError', 'unexpected_response', 200]);
  }
});

test('a misspelt option is an error before anything is sent, and names the nearest one', async () => {
  const { shop, sent } = clientOf([() => json(rex)]);
  const misspelt = (name: string) => ({ [name]: 'x' });
  for (const [call, wrong, nearest] of [
    [async () => new Petstore({ apiKey: KEY, baseUrl: BASE_URL, ...misspelt('timeout') }), 'timeout', 'timeoutMs'],
    [async () => shop.withOptions(misspelt('maxTime')), 'maxTime', 'maxTimeMs'],
    [async () => shop.withOptions(misspelt('apikey')), 'apikey', 'apiKey'],
    [() => shop.pets.create(newPet, misspelt('idempotencykey')), 'idempotencykey', 'idempotencyKey'],
    [() => shop.orders.place({ petId: 1 }, misspelt('idempotenceKey')), 'idempotenceKey', 'idempotencyKey'],
    [() => shop.pets.update(1, {}, misspelt('if_match')), 'if_match', 'ifMatch'],
    [() => shop.pets.update(1, {}, misspelt('etag')), 'etag', ''],
    [() => shop.pets.delete(1, misspelt('if_match')), 'if_match', 'ifMatch'],
    [() => shop.pets.get(1, misspelt('ifMatch')), 'ifMatch', ''],
    [() => shop.pets.get(1, misspelt('singal')), 'singal', 'signal'],
    [() => shop.pets.getMany([1], misspelt('singal')), 'singal', 'signal'],
    [() => shop.orders.get(1, misspelt('singal')), 'singal', 'signal'],
    [() => shop.orders.update(1, {}, misspelt('if_match')), 'if_match', 'ifMatch'],
    [() => shop.orders.complete(1, misspelt('singal')), 'singal', 'signal'],
    [() => shop.orders.cancel(1, misspelt('singal')), 'singal', 'signal'],
    [() => shop.events.position(misspelt('singal')), 'singal', 'signal'],
    [async () => shop.pets.list({}, misspelt('singal')), 'singal', 'signal'],
    [async () => shop.orders.list({}, misspelt('singal')), 'singal', 'signal'],
    [async () => shop.events.list({}, misspelt('singal')), 'singal', 'signal'],
    [async () => shop.events.follow({}, misspelt('singal')), 'singal', 'signal'],
    [async () => shop.pets.list(misspelt('state')), 'state', 'status'],
    [async () => shop.orders.list(misspelt('petid')), 'petid', 'petId'],
    [async () => shop.events.list(misspelt('wait')), 'wait', 'waitSeconds'],
    [async () => shop.events.follow(misspelt('aftre')), 'aftre', 'after'],
  ] as const) {
    const hint = nearest && `Did you mean \`${nearest}\`\\? `;
    const message = new RegExp(`^\`${wrong}\` is not an option of [^.]+\\. ${hint}The options are \``);
    await assert.rejects(call, { name: 'TypeError', message });
  }
  for (const options of [null, 7, 'signal']) {
    await assert.rejects(shop.pets.get(1, options as unknown as object), TypeError);
  }
  assert.equal(sent.length, 0);
  assert.throws(() => shop.pets.list(misspelt('lmit')), {
    message:
      '`lmit` is not an option of the filter of pets. Did you mean `limit`? ' +
      'The options are `status`, `categoryId`, `references`, `sort`, `limit`, `cursor`.',
  });
});

const TEMPORARY: Record<string, () => Answer> = {
  'no response': refused,
  silence: () => 'silence',
  '408': () => failure(408, 'request_timeout'),
  '409 idempotency_in_progress': () => failure(409, 'idempotency_in_progress'),
  '429': () => failure(429, 'rate_limited'),
  '429 in HTML': () => html(429),
  '502 in HTML': () => html(502),
  '503': () => failure(503, 'unavailable'),
  '503 in HTML': () => html(503),
  '503 without a body': () => new Response(null, { status: 503 }),
  '504 in HTML': () => html(504),
};

for (const [name, answer] of Object.entries(TEMPORARY)) {
  test(`${name} is retried with the same idempotency key and body`, async () => {
    const { shop, sent } = clientOf([answer, answer, () => json(rex)]);
    assert.equal((await shop.pets.create(newPet)).id, 1);
    assert.equal(sent.length, 3);
    assert.match(sent[0]?.headers.get('Idempotency-Key') ?? '', /^[0-9a-f]{32}$/);
    for (const { headers, body } of sent) {
      assert.deepEqual(body, newPet);
      assert.deepEqual([...headers], [...(sent[0]?.headers ?? [])]);
    }
    await shop.pets.create(newPet);
    assert.notEqual(sent[3]?.headers.get('Idempotency-Key'), sent[0]?.headers.get('Idempotency-Key'));
  });

  test(`${name} is retried for every operation`, async () => {
    for (const call of [
      (shop: Petstore) => shop.pets.update(1, newPet, { ifMatch: '"1"' }),
      (shop: Petstore) => shop.orders.place({ petId: 1 }),
      (shop: Petstore) => shop.orders.get(1),
      (shop: Petstore) => shop.orders.update(1, { holdSeconds: 600 }),
      (shop: Petstore) => shop.orders.complete(1),
      (shop: Petstore) => shop.orders.cancel(1),
    ]) {
      const { shop, sent } = clientOf([answer, () => json(rex)]);
      await call(shop);
      assert.equal(sent.length, 2);
    }
  });
}

const FINAL: [() => Answer, name: string, code: string][] = [
  [() => failure(400, 'invalid_field'), 'BadRequestError', 'invalid_field'],
  [() => failure(401, 'invalid_api_key'), 'AuthenticationError', 'invalid_api_key'],
  [() => failure(403, 'insufficient_scope'), 'PermissionDeniedError', 'insufficient_scope'],
  [() => failure(404, 'pet_not_found'), 'NotFoundError', 'pet_not_found'],
  [() => failure(404, 'order_not_found'), 'NotFoundError', 'order_not_found'],
  [() => failure(405, 'method_not_allowed'), 'BadRequestError', 'method_not_allowed'],
  [() => failure(409, 'pet_not_available'), 'ConflictError', 'pet_not_available'],
  [() => failure(410, 'operation_removed'), 'BadRequestError', 'operation_removed'],
  [() => failure(412, 'precondition_failed'), 'PreconditionFailedError', 'precondition_failed'],
  [() => failure(413, 'body_too_large'), 'BadRequestError', 'body_too_large'],
  [() => failure(418, 'a_new_code'), 'BadRequestError', 'a_new_code'],
  [() => failure(422, 'idempotency_key_reused'), 'BadRequestError', 'idempotency_key_reused'],
  [() => failure(500, 'internal_error'), 'InternalServerError', 'internal_error'],
  [() => failure(507, 'a_new_code'), 'InternalServerError', 'a_new_code'],
  [() => html(200), 'PetstoreError', 'unexpected_response'],
  [() => html(301, { Location: 'https://elsewhere.example/' }), 'PetstoreError', 'unexpected_response'],
  [() => html(403), 'PermissionDeniedError', 'unexpected_response'],
  [() => html(409), 'ConflictError', 'unexpected_response'],
  [() => html(500), 'InternalServerError', 'unexpected_response'],
  [() => json('a string', {}, 500), 'InternalServerError', 'unexpected_response'],
  [() => json([rex], {}, 400), 'BadRequestError', 'unexpected_response'],
  [() => json({ code: 7, message: null }, {}, 400), 'BadRequestError', 'unexpected_response'],
  [() => json([rex]), 'PetstoreError', 'unexpected_response'],
  [() => json(null), 'PetstoreError', 'unexpected_response'],
];

test('other responses are errors without a retry', async () => {
  for (const [answer, name, code] of FINAL) {
    const { shop, sent } = clientOf([answer]);
    const error = await errorOf(shop.pets.create(newPet));
    assert.deepEqual([error.name, error.code, sent.length], [name, code, 1]);
    assert.equal(error.constructor, petstore[name as 'PetstoreError']);
    assert.equal(error.message.length > 0, true);
  }
});

test('a 404 that is not about a pet or an order says to check the base URL', async () => {
  for (const answer of [
    () => failure(404, 'route_not_found'),
    () => failure(404, 'not_found'),
    () => html(404),
    () => json({ error: 'Not Found' }, {}, 404),
  ]) {
    for (const call of [(shop: Petstore) => shop.pets.get(1), (shop: Petstore) => shop.orders.get(5)]) {
      const error = await errorOf(call(clientOf([answer]).shop));
      assert.equal(error.constructor, petstore.RouteNotFoundError);
      assert(!(error instanceof petstore.NotFoundError));
      assert.match(error.message, /Check the base URL.*https:\/\/petstore\.example\/v1\//);
    }
  }
  const portal = await errorOf(clientOf([() => html(200)]).shop.pets.get(1));
  assert.match(portal.message, /Check the base URL/);
});

test('an error has what the response says', async () => {
  const { shop } = clientOf([() => failure(429, 'rate_limited', { 'Retry-After': '90' })]);
  const { message, status, requestId, retryAfterMs, stack } = await errorOf(shop.pets.get(1));
  assert.deepEqual([message, status, requestId, retryAfterMs], ['Because of rate_limited.', 429, 'r1', 90_000]);
  assert.match(stack ?? '', /^RateLimitError: Because of rate_limited\./);
});

test('no response is an APIConnectionError with its cause', async () => {
  const { shop } = clientOf([refused]);
  const error = await errorOf(shop.pets.get(1));
  assert(error instanceof petstore.APIConnectionError);
  assert.deepEqual([error.code, error.status], ['no_response', undefined]);
  assert.equal(error.message, 'No response from petstore.example: connect ECONNREFUSED');
  assert.equal((error.cause as Error).message, 'fetch failed');
});

test('pauses grow from 100 ms to 10 s, and half of each is random', async () => {
  const { shop, sent } = clientOf([refused]);
  await errorOf(shop.pets.get(1));
  const pauses = sent.map(({ at }, index) => at - (sent[index - 1]?.at ?? 0)).slice(1);
  assert.deepEqual(pauses, [75, 150, 300, 600, 1200, 2400, 4800, 7500, 7500, 7500, 7500, 7500, 7500]);
});

test('a call ends after maxTimeMs with the last error', async () => {
  const { shop, sent, time } = clientOf([refused, () => html(502)]);
  assert((await errorOf(shop.pets.get(1))) instanceof petstore.ServiceUnavailableError);
  assert(time.now() > 45_000 && time.now() <= 60_000);
  assert(sent.length > 10);
});

test('maxTimeMs ends a call and its last attempt', async () => {
  for (const [maxTimeMs, end, count] of [[12_000, 12_000, 2], [10_174, 10_000, 1], [5000, 5000, 1], [0, 10_000, 1]] as const) {
    const { shop, sent, time } = clientOf([() => 'silence'], { maxTimeMs });
    await errorOf(shop.pets.get(1));
    assert.deepEqual([time.now(), sent.length], [end, count]);
  }
});

test('an attempt that maxTimeMs ends does not hide the previous error', async () => {
  for (const [status, code] of [[503, 'unavailable'], [429, 'rate_limited']] as const) {
    const { shop, sent } = clientOf([() => failure(status, code), () => 'silence'], { maxTimeMs: 5000 });
    const error = await errorOf(shop.pets.create(newPet));
    assert.deepEqual([error.code, error.outcomeUnknown, sent.length], [code, true, 2]);
  }
});

test('maxTimeMs 0 means no retries', async () => {
  for (const answer of Object.values(TEMPORARY)) {
    const { shop, sent } = clientOf([answer]);
    await errorOf(shop.withOptions({ maxTimeMs: 0 }).pets.get(1));
    assert.equal(sent.length, 1);
  }
});

test('an attempt ends after the timeout, even in the middle of a body', async () => {
  const endless = (signal: AbortSignal) => {
    const start = (body: ReadableStreamDefaultController) =>
      signal.addEventListener('abort', () => body.error(new Error('aborted')));
    return new Response(new ReadableStream({ start }));
  };
  const { shop, sent, time } = clientOf([() => 'silence', () => json(rex)], { timeoutMs: 3000 });
  await shop.orders.get(1);
  assert.deepEqual([time.now(), sent.length, time.running], [3075, 2, 0]);
  const error = await errorOf(clientOf([() => 'silence'], { timeoutMs: 2000, maxTimeMs: 0 }).shop.orders.get(1));
  assert.equal(error.message, 'No response from petstore.example: none within 2000 ms');
  const stuck = clientOf([endless, () => json(rex)]);
  await stuck.shop.orders.get(1);
  assert.equal(stuck.sent.length, 2);
});

test('Retry-After is honoured, in seconds and as a date', async () => {
  const date = { 'Retry-After': 'Mon, 16 Nov 2026 08:00:05 GMT', Date: 'Mon, 16 Nov 2026 08:00:00 GMT' };
  for (const [headers, pause] of [
    [{ 'Retry-After': '7' }, 7000],
    [{ 'Retry-After': '0' }, 75],
    [date, 5000],
    [{ 'Retry-After': 'soon' }, 75],
    [{ 'Retry-After': '-1' }, 75],
  ] as const) {
    const { shop, sent } = clientOf([() => html(503, headers), () => json(rex)]);
    await shop.orders.get(1);
    assert.equal(sent[1]?.at, pause);
  }
});

test('a Retry-After beyond maxTimeMs fails at once', async () => {
  const { shop, sent, time } = clientOf([() => failure(429, 'rate_limited', { 'Retry-After': '60' })]);
  assert.equal((await errorOf(shop.pets.get(1))).retryAfterMs, 60_000);
  assert.deepEqual([time.now(), sent.length], [0, 1]);
});

test('an AbortSignal ends a call before, during and between attempts', async () => {
  const reason = new Error('enough');
  const early = clientOf([]);
  const error = await errorOf(early.shop.pets.create(newPet, { signal: AbortSignal.abort(reason) }));
  assert(error instanceof petstore.RequestAbortedError);
  assert.deepEqual([error.cause, error.code, error.outcomeUnknown, early.sent.length], [reason, 'aborted', false, 0]);

  for (const [answer, outcomeUnknown] of [['silence', true], [failure(429, 'rate_limited'), false]] as const) {
    const { shop, sent, time } = clientOf([() => answer]);
    const controller = new AbortController();
    void time.sleep(50).then(() => controller.abort(reason));
    const late = await errorOf(shop.pets.create(newPet, { signal: controller.signal }));
    assert(late instanceof petstore.RequestAbortedError);
    assert.deepEqual([late.cause, late.outcomeUnknown, time.now(), sent.length], [reason, outcomeUnknown, 50, 1]);
  }
});

test('on the real clock, timeouts and aborts end waits', async () => {
  const slow = clientOf([() => 'silence', () => json(rex)], { runtime: {}, timeoutMs: 20 });
  await slow.shop.orders.get(1);
  assert.equal(slow.sent.length, 2);
  const unlimited = { runtime: {}, timeoutMs: Infinity, maxTimeMs: 0 };
  const fetch = () => new Promise<Response>((resolve) => setTimeout(() => resolve(json(rex)), 50));
  const none = clientOf([], { ...unlimited, fetch: (_, { signal }) => Promise.race([fetch(), ended(signal)]) });
  await none.shop.orders.get(1);
  const start = performance.now();
  for (const when of [(abort: () => void) => abort(), (abort: () => void) => void setTimeout(abort, 20)]) {
    const controller = new AbortController();
    const later = () => failure(503, 'unavailable', { 'Retry-After': '30' });
    const { shop } = clientOf([later], { runtime: {}, onAttempt: () => when(() => controller.abort()) });
    assert.equal((await errorOf(shop.pets.get(1, controller))).code, 'aborted');
  }
  assert(performance.now() - start < 10_000);
});

test('an error says whether the change may have taken effect', async () => {
  const failed = () => failure(412, 'precondition_failed');
  for (const [answers, outcomeUnknown] of [
    [[failed], false],
    [[refused, failed], true],
    [[() => html(504), failed], true],
    [[() => failure(429, 'rate_limited'), failed], false],
    [[() => failure(409, 'idempotency_in_progress'), failed], true],
    [[() => failure(500, 'internal_error')], true],
    [[() => html(200)], true],
    [[refused], true],
    [[() => failure(503, 'unavailable'), failed], false],
    [[() => failure(503, 'outcome_unknown'), failed], true],
    [[() => failure(503, 'outcome_unknown'), () => failure(503, 'unavailable'), failed], true],
    // As deploy/haproxy answers.
    [[() => failure(502, 'unavailable'), failed], true],
    [[() => failure(504, 'unavailable'), failed], true],
    [[() => html(503), failed], true],
  ] as const) {
    const { shop } = clientOf([...answers]);
    const error = await errorOf(shop.pets.update(1, newPet, { ifMatch: '"1"' }));
    assert.equal(error.outcomeUnknown, outcomeUnknown);
    assert.equal((await errorOf(shop.orders.get(1))).outcomeUnknown, false);
  }
});

test('an unknown outcome of a server of version 1.0.0 is recognised', async () => {
  const known = 'The service cannot answer at the moment, and nothing was changed: send the request again later.';
  const lost =
    'The service lost its database while it stored the change, which may or may not have taken effect: send the ' +
    'request again with the same `Idempotency-Key`, or look first if you sent none.';
  for (const [message, outcomeUnknown] of [[known, false], [lost, true]] as const) {
    const answer = () => json({ code: 'unavailable', message, status: 503 }, {}, 503);
    const error = await errorOf(clientOf([answer], { maxTimeMs: 0 }).shop.pets.create(newPet));
    assert.equal(error.outcomeUnknown, outcomeUnknown);
  }
});

test('an error names the field that is wrong', async () => {
  const body = { code: 'invalid_field', message: '`/name` must not be blank.', status: 400 };
  for (const [member, expected] of [[{ field: 'name' }, 'name'], [{}, undefined], [{ field: 7 }, undefined]] as const) {
    const error = await errorOf(clientOf([() => json({ ...body, ...member }, {}, 400)]).shop.pets.create(newPet));
    const field: string | undefined = error.field;
    assert.deepEqual([error.code, field], ['invalid_field', expected]);
  }
});

test('codes and types of events that the SDK does not know are passed on', async () => {
  const groomed = { id: 'E1', type: 'pet.groomed', petId: 1, at: '2026-11-15T09:30:00.000Z' };
  const { shop } = clientOf([() => json([groomed], { Link: '</v1/events?after=A>; rel="next"' })]);
  for await (const event of shop.events.follow()) {
    const type: petstore.EventType = event.type;
    assert(type === 'pet.groomed');
    break;
  }
  const { code } = await errorOf(clientOf([() => failure(400, 'invalid_moon_phase')]).shop.pets.create(newPet));
  assert.equal(code, 'invalid_moon_phase');
});

test('get returns the pet with its etag, or throws a NotFoundError', async () => {
  const { shop, sent } = clientOf([() => json([rex], { ETag: '"7"' }), () => json([])]);
  assert.deepEqual(await shop.pets.get(1), { ...rex, etag: '"7"' });
  const error = await errorOf(shop.pets.get(2));
  assert(error instanceof petstore.NotFoundError);
  assert.deepEqual(
    [error.code, error.status, error.message, error.requestId],
    ['pet_not_found', 404, 'No pet has the id 2.', 'r1'],
  );
  assert.deepEqual(sent.map(({ target }) => target), ['/v1/pets?id=1', '/v1/pets?id=2']);
});

test('the etag of get works in ifMatch of update', async () => {
  const { shop, sent } = clientOf([() => json([rex], { ETag: '"7"' }), () => json(rex, { ETag: '"8"' })]);
  const { etag } = await shop.pets.get(1);
  assert.equal((await shop.pets.update(1, newPet, { ifMatch: etag })).etag, '"8"');
  assert.equal(sent[1]?.headers.get('If-Match'), '"7"');
});

test('a missing ETag becomes one that matches no pet', async () => {
  const { shop } = clientOf([() => Response.json(rex)]);
  assert.equal((await shop.pets.create(newPet)).etag, '""');
});

test('getMany asks for at most 100 pets at once, and returns them in the order of the ids', async () => {
  const ids = Array.from({ length: 250 }, (_, index) => 250 - index);
  const sizes: number[] = [];
  const fetch = async (url: string) => {
    const wanted = new URL(url).searchParams.getAll('id').map(Number);
    sizes.push(wanted.length);
    const found = wanted.filter((id) => id !== 7).sort((one, other) => one - other);
    return json(found.map((id) => ({ ...rex, id })));
  };
  const found = await clientOf([], { fetch }).shop.pets.getMany([...ids, 250, 1]);
  assert.deepEqual(found.map(({ id }) => id), ids.filter((id) => id !== 7));
  assert.deepEqual(sizes, [100, 100, 50]);
});

test('getMany of nothing sends nothing', async () => {
  const { shop, sent } = clientOf([]);
  assert.deepEqual(await shop.pets.getMany([]), []);
  assert.equal(sent.length, 0);
});

test('a pet has a reference', async () => {
  const [one, other] = [{ ...newPet, reference: 'stock-17' }, { reference: 'stock-18' }];
  const { shop, sent } = clientOf([() => json({ ...rex, ...one }), () => json({ ...rex, ...other }), () => json(rex)]);
  const created: string | undefined = (await shop.pets.create(one)).reference;
  assert.equal(created, 'stock-17');
  assert.equal((await shop.pets.update(1, other)).reference, 'stock-18');
  assert.equal((await shop.pets.create(newPet)).reference, undefined);
  assert.deepEqual(sent.map(({ body }) => body), [one, other, newPet]);
  const body = { code: 'reference_taken', message: 'Taken.', status: 409, field: 'reference' };
  const taken = clientOf([() => json(body, {}, 409)]);
  const error = await errorOf(taken.shop.pets.create(one));
  assert(error instanceof petstore.ConflictError);
  assert.deepEqual([error.code, error.field, taken.sent.length], ['reference_taken', 'reference', 1]);
});

test('a pet is deleted, and a retry says that it may have been before', async () => {
  const { shop, sent } = clientOf([() => failure(503, 'unavailable'), deleted]);
  assert.equal(await shop.pets.delete(1), undefined);
  await shop.pets.delete(1, { ifMatch: '"1"' });
  assert.deepEqual(
    sent.map((one) => [one.method, one.target, one.body, one.headers.get('If-Match')]),
    [null, null, '"1"'].map((etag) => ['DELETE', '/v1/pets/1', undefined, etag]),
  );
  for (const [answers, name, outcomeUnknown] of [
    [[() => failure(404, 'pet_not_found')], 'NotFoundError', false],
    [[refused, () => failure(404, 'pet_not_found')], 'NotFoundError', true],
    [[() => failure(409, 'pet_has_order')], 'ConflictError', false],
    [[() => failure(412, 'precondition_failed')], 'PreconditionFailedError', false],
    [[() => html(200)], 'PetstoreError', true],
    [[() => new Response(null, { status: 200 })], 'PetstoreError', true],
  ] as [(() => Answer)[], string, boolean][]) {
    const error = await errorOf(clientOf(answers).shop.pets.delete(1));
    assert.deepEqual([error.name, error.outcomeUnknown], [name, outcomeUnknown]);
  }
});

test('pets and orders have metadata', async () => {
  const metadata = { price: '129.00', photo: 'https://shop.example/rex.jpg' };
  const { shop, sent } = clientOf([() => json({ ...rex, metadata }), () => json({ ...rex, metadata }), () => json([rex])]);
  const price: string | undefined = (await shop.pets.create({ ...newPet, metadata })).metadata?.['price'];
  assert.equal(price, '129.00');
  assert.deepEqual((await shop.orders.place({ petId: 1, metadata })).metadata, metadata);
  assert.equal((await shop.pets.get(1)).metadata, undefined);
  assert.deepEqual(sent.map(({ body }) => body), [{ ...newPet, metadata }, { petId: 1, metadata }, undefined]);
});

test('a patch removes what is null, and leaves out what is undefined', async () => {
  for (const [patch, text] of [
    [{ reference: null }, '{"reference":null}'],
    [{ metadata: null }, '{"metadata":null}'],
    [{ metadata: { price: null, photo: 'rex.jpg' } }, '{"metadata":{"price":null,"photo":"rex.jpg"}}'],
    [{ reference: undefined, metadata: undefined }, '{}'],
    [{ metadata: { price: undefined, photo: 'rex.jpg' } }, '{"metadata":{"photo":"rex.jpg"}}'],
    [{ metadata: {} }, '{"metadata":{}}'],
  ] as [petstore.PetPatch & petstore.OrderPatch, string][]) {
    for (const update of [
      (shop: Petstore) => shop.pets.update(1, patch),
      (shop: Petstore) => shop.orders.update(1, patch),
    ]) {
      const bodies: unknown[] = [];
      const fetch = async (_: string, init: RequestInit) => (bodies.push(init.body), json(rex));
      await update(new Petstore({ apiKey: KEY, baseUrl: BASE_URL, fetch }));
      assert.deepEqual(bodies, [text]);
    }
  }
});

test('a value that JSON would turn into null or nothing is an error before anything is sent', async () => {
  const { shop, sent } = clientOf([]);
  const create = [
    (own: object) => shop.pets.create({ ...newPet, ...own }),
    (own: object) => shop.orders.place({ petId: 1, ...own }),
  ];
  const update = [(own: object) => shop.pets.update(1, own), (own: object) => shop.orders.update(1, own)];
  const object = "`metadata` must be a plain object, such as `{ price: '129.00' }`.";
  for (const [calls, own, message] of [
    [update, { reference: NaN }, '`reference` must be a string or null, not NaN.'],
    [update, { reference: new Date(NaN) }, '`reference` must be a string or null, not a value of type object.'],
    [update, { metadata: new Date(NaN) }, object],
    [update, { metadata: { toJSON: () => null } }, '`metadata.toJSON` must be a string or null, not a value of type function.'],
    [update, { metadata: { price: NaN } }, '`metadata.price` must be a string or null, not NaN.'],
    [create, { metadata: { price: 129 } }, '`metadata.price` must be a string, not 129.'],
    [create, { metadata: { price: null } }, '`metadata.price` must be a string, not null.'],
    [create, { metadata: null }, object],
    [[...create, ...update], { metadata: new Map([['price', '129.00']]) }, object],
    [[...create, ...update], { metadata: ['129.00'] }, object],
    [[...create, ...update], { metadata: 'price' }, object],
    [[...create, ...update], { metadata: NaN }, object],
  ] as [((own: object) => Promise<unknown>)[], object, string][]) {
    for (const call of calls) {
      await assert.rejects(call(own), { name: 'TypeError', message });
    }
  }
  assert.equal(sent.length, 0);
});

test('the etag of an order works in ifMatch of update', async () => {
  const order = { id: 5, petId: 1, status: 'placed' };
  const late = () => failure(412, 'precondition_failed');
  const { shop, sent } = clientOf([() => json(order, { ETag: '"7"' }), () => json(order, { ETag: '"8"' }), refused, late]);
  const { etag } = await shop.orders.get(5);
  const changed = await shop.orders.update(5, { metadata: { payment: 'pi_7' } }, { ifMatch: etag });
  assert.deepEqual([etag, changed.etag, changed.id], ['"7"', '"8"', 5]);
  const error = await errorOf(shop.orders.update(5, { holdSeconds: 600 }, { ifMatch: etag }));
  assert(error instanceof petstore.PreconditionFailedError);
  assert.equal(error.outcomeUnknown, true);
  assert.deepEqual(sent.slice(1).map(({ headers }) => headers.get('If-Match')), ['"7"', '"7"', '"7"']);
});

/** True if the type allows any name, so that the compiler cannot find a misspelt one. */
type AllowsAnyName<Type> = string extends keyof Type ? true : false;

test('the types allow only names that the service documents', () => {
  const allows: [
    AllowsAnyName<petstore.Pet>,
    AllowsAnyName<petstore.PetWithEtag>,
    AllowsAnyName<petstore.Order>,
    AllowsAnyName<petstore.OrderWithEtag>,
    AllowsAnyName<petstore.Event>,
    AllowsAnyName<petstore.NewPet>,
    AllowsAnyName<petstore.PetPatch>,
    AllowsAnyName<petstore.NewOrder>,
    AllowsAnyName<petstore.OrderPatch>,
  ] = [false, false, false, false, false, false, false, false, false];
  assert(allows.every((any) => !any));
  const metadata: AllowsAnyName<petstore.Metadata> = true;
  assert(metadata);
});

test('pets can be listed by category and references', async () => {
  for (const [filter, target] of [
    [{ categoryId: 3 }, '?limit=100&categoryId=3'],
    [{ categoryId: -7, status: 'sold' }, '?limit=100&categoryId=-7&status=sold'],
    [{ categoryId: 0, limit: 5, cursor: 'A' }, '?limit=5&categoryId=0&cursor=A'],
    [{ references: ['a&b', 'ü'] }, '?reference=a%26b&reference=%C3%BC&limit=100'],
    [{ references: ['a'], status: 'sold', categoryId: 3 }, '?reference=a&status=sold&categoryId=3&limit=100'],
  ] as const) {
    const { shop, sent } = clientOf([() => json([rex])]);
    assert.equal((await shop.pets.list(filter).next()).value?.id, 1);
    assert.deepEqual(sent.map((one) => one.target), [`/v1/pets${target}`]);
  }
});

test('a list asks for at most 100 references at once, and has one page', async () => {
  const references = Array.from({ length: 250 }, (_, index) => `stock-${index}`);
  const found = (...ids: number[]) => () => json(ids.map((id) => ({ ...rex, id })));
  const { shop, sent } = clientOf([found(8, 9), refused, found(1, 9), found(5)]);
  const pages: [number[], string | undefined][] = [];
  for await (const { items, cursor } of shop.pets.list({ references: [...references, 'stock-0'], categoryId: 3 }).pages()) {
    pages.push([items.map(({ id }) => id), cursor]);
  }
  assert.deepEqual(pages, [[[1, 5, 8, 9], undefined]]);
  const queries = sent.map(({ target }) => new URLSearchParams(target.split('?')[1]));
  const second = references.slice(100, 200);
  assert.deepEqual(
    queries.map((query) => query.getAll('reference')),
    [references.slice(0, 100), second, second, references.slice(200)],
  );
  assert(queries.every((query) => query.get('limit') === '100' && query.get('categoryId') === '3'));
});

test('the newest come first on every page', async () => {
  const ids = async (list: AsyncIterable<{ id: number }>) => {
    const found: number[] = [];
    for await (const { id } of list) {
      found.push(id);
    }
    return found;
  };
  const page = (...some: number[]) => some.map((id) => ({ ...rex, id }));
  const link = { Link: '</v1/pets?sort=-id&limit=2&cursor=A>; rel="next"' };
  const { shop, sent } = clientOf([() => json(page(9, 7), link), () => json(page(2)), () => json(page(5))]);
  assert.deepEqual(await ids(shop.pets.list({ sort: '-id', limit: 2 })), [9, 7, 2]);
  assert.deepEqual(await ids(shop.orders.list({ petId: 1, sort: '-id' })), [5]);
  assert.deepEqual(sent.map(({ target }) => target), [
    '/v1/pets?limit=2&sort=-id',
    '/v1/pets?limit=2&sort=-id&cursor=A',
    '/v1/store/orders?limit=100&petId=1&sort=-id',
  ]);
  // References that need several requests.
  const several = clientOf([() => json(page(8, 9)), () => json(page(10, 1))]);
  const references = Array.from({ length: 101 }, (_, index) => `stock-${index}`);
  assert.deepEqual(await ids(several.shop.pets.list({ references, sort: '-id' })), [10, 9, 8, 1]);
  assert(several.sent.every(({ target }) => target.includes('&sort=-id&')));
});

test('a list of no references is empty and sends nothing', async () => {
  const { shop, sent } = clientOf([]);
  assert.deepEqual(await shop.pets.list({ references: [] }).next(), { done: true, value: undefined });
  assert.equal(sent.length, 0);
});

test('a list of long references keeps each URL short', async () => {
  const references = Array.from({ length: 10 }, (_, index) => `${index}${'ü'.repeat(254)}`);
  const { shop, sent } = clientOf([() => json([])]);
  await shop.pets.list({ references }).next();
  const asked = sent.flatMap(({ target }) => new URLSearchParams(target.split('?')[1]).getAll('reference'));
  assert.deepEqual(asked, references);
  assert(sent.length < 10 && sent.every(({ target }) => target.length < 8192));
});

test('a list of references can be resumed after a failure', async () => {
  const found = (id: number) => () => json([{ ...rex, id }]);
  const { shop } = clientOf([found(1), () => failure(500, 'internal_error'), found(1), found(2)]);
  const pets = shop.pets.list({ references: Array.from({ length: 101 }, (_, index) => `stock-${index}`) });
  await errorOf(pets.next());
  const ids: number[] = [];
  for await (const { id } of pets) {
    ids.push(id);
  }
  assert.deepEqual(ids, [1, 2]);
});

test('invalid filters of pets are errors before anything is sent', async () => {
  const { shop, sent } = clientOf([]);
  for (const [filter, message] of [
    [{ references: 'stock-17' }, /^`references` must be an array of strings, not a value of type string\.$/],
    [{ references: null }, /^`references` must be an array of strings, not null\.$/],
    [{ references: ['a', undefined] }, /^`references\[1\]` must be a string, not undefined\.$/],
    [{ references: [7] }, /^`references\[0\]` must be a string, not 7\.$/],
    [{ references: ['a'], cursor: 'A' }, /cannot be set with `references`/],
    [{ references: ['a'], limit: 5 }, /cannot be set with `references`/],
    [{ reference: 'stock-17' }, /Did you mean `references`\?/],
    [{ categoryId: '3' }, /^`categoryId` must be an integer/],
    [{ categoryId: null }, /^`categoryId` must be an integer/],
    [{ categoryId: 1.5 }, /^`categoryId` must be an integer/],
    [{ categoryId: 2 ** 53 }, /^`categoryId` must be an integer/],
  ] as [petstore.PetFilter, RegExp][]) {
    assert.throws(() => shop.pets.list(filter), { name: 'TypeError', message });
  }
  const misspelt = { singal: 'x' } as petstore.CallOptions;
  assert.throws(() => shop.pets.list({ references: [] }, misspelt), { name: 'TypeError', message: /`signal`/ });
  assert.equal(sent.length, 0);
});

/** Pages of two pets each, on a host that names itself differently. */
const PAGES = [
  () => json([1, 2], { Link: '<https://other.example/v1/pets?limit=2&cursor=c%3D1>; rel="next"' }),
  () => json([3, 4], { Link: '</docs>; rel="help", </v1/pets?cursor=c2&limit=2>; title="a, b"; rel=next' }),
  () => json([5], { Link: '</docs>; rel="help"' }),
];

test('list yields all pages, from the same host, and retries inside', async () => {
  const [first, second, third] = PAGES as [() => Answer, () => Answer, () => Answer];
  const { shop, sent } = clientOf([first, refused, () => html(502), second, third]);
  const found: unknown[] = [];
  for await (const pet of shop.pets.list({ status: 'available', limit: 2 })) {
    found.push(pet);
  }
  assert.deepEqual(found, [1, 2, 3, 4, 5]);
  const filter = '/v1/pets?limit=2&status=available';
  assert.deepEqual(
    sent.map(({ target }) => target),
    [filter, ...Array<string>(3).fill(`${filter}&cursor=c%3D1`), `${filter}&cursor=c2`],
  );
});

test('list ends with the page that has no link, however short the others', async () => {
  const next = (cursor: string) => ({ Link: `</v1/pets?cursor=${cursor}>; rel="next"` });
  const { shop } = clientOf([
    () => json([], next('a')),
    () => json([1], next('b')),
    () => json([], next('c')),
    () => json([2]),
  ]);
  const found: unknown[] = [];
  for await (const pet of shop.pets.list()) {
    found.push(pet);
  }
  assert.deepEqual(found, [1, 2]);
});

test('list asks for pages of 100 by default, and stops with the loop', async () => {
  const { shop, sent } = clientOf(PAGES);
  for await (const order of shop.orders.list({ petId: 7 })) {
    assert(order);
    break;
  }
  assert.deepEqual(sent.map(({ target }) => target), ['/v1/store/orders?limit=100&petId=7']);
});

test('a list can be resumed from the cursor of a page', async () => {
  const { shop, sent } = clientOf(PAGES);
  const cursors: unknown[] = [];
  for await (const { items, cursor } of shop.pets.list().pages()) {
    cursors.push([items.length, cursor]);
  }
  assert.deepEqual(cursors, [[2, 'c=1'], [2, 'c2'], [1, undefined]]);
  const resumed = clientOf(PAGES.slice(1));
  const found: unknown[] = [];
  for await (const pet of resumed.shop.pets.list({ cursor: 'c=1' })) {
    found.push(pet);
  }
  assert.deepEqual(found, [3, 4, 5]);
  assert.equal(resumed.sent[0]?.target, '/v1/pets?limit=100&cursor=c%3D1');
  assert.equal(sent.length, 3);
});

test('a list continues where it failed, and after a break', async () => {
  const [first, second, third] = PAGES as [() => Answer, () => Answer, () => Answer];
  const { shop } = clientOf([first, () => failure(500, 'internal_error'), second, third]);
  const pets = shop.pets.list();
  const found: unknown[] = [];
  const collect = async (count: number) => {
    for await (const pet of pets) {
      found.push(pet);
      if (found.length === count) {
        break;
      }
    }
  };
  await collect(1);
  await errorOf(collect(9));
  await collect(9);
  assert.deepEqual(found, [1, 2, 3, 4, 5]);
  assert.deepEqual(await pets.next(), { done: true, value: undefined });
});

test('several loops share the items of a list', async () => {
  const { shop, sent } = clientOf(PAGES);
  const pets = shop.pets.list();
  const steps = await Promise.all(Array.from({ length: 6 }, () => pets.next()));
  assert.deepEqual(steps.map(({ value }) => value), [1, 2, 3, 4, 5, undefined]);
  assert.equal(sent.length, 3);
});

test('a list that is not an array is an error', async () => {
  for (const body of [rex, null, 'pets']) {
    const { shop } = clientOf([() => json(body)]);
    assert.equal((await errorOf(shop.pets.list().next())).code, 'unexpected_response');
    assert.equal((await errorOf(shop.pets.get(1))).code, 'unexpected_response');
  }
});

/** A page of events. The next one is after `position`. */
const events = (position: string, ...ids: string[]) =>
  json(
    ids.map((id) => ({ id, type: 'pet.created', petId: 1, at: '2026-11-15T09:30:00.000Z' })),
    { Link: `<https://other.example/v1/events?limit=100&after=${position}>; rel="next"` },
  );

/** Returns the ids of the events, at most `count` of them. */
async function idsOf(found: AsyncIterable<petstore.Event>, count = Infinity): Promise<string[]> {
  const ids: string[] = [];
  for await (const { id } of found) {
    ids.push(id);
    if (ids.length === count) {
      break;
    }
  }
  return ids;
}

test('a list of events ends with an empty page', async () => {
  const { shop, sent } = clientOf([
    () => events('A', 'E1', 'E2'),
    () => html(502),
    () => events('B', 'E3'),
    () => events('B'),
  ]);
  assert.deepEqual(await idsOf(shop.events.list({ after: 'E0', limit: 2 })), ['E1', 'E2', 'E3']);
  assert.deepEqual(
    sent.map(({ target }) => target.replace('/v1/events', '')),
    ['?after=E0&limit=2', '?after=A&limit=2', '?after=A&limit=2', '?after=B&limit=2'],
  );
  const other = clientOf([() => events('A', 'E1'), () => events('B')]);
  const pages: unknown[] = [];
  for await (const { items, cursor } of other.shop.events.list().pages()) {
    pages.push([items.map(({ id }) => id), cursor]);
  }
  assert.deepEqual(pages, [[['E1'], 'A'], [[], 'B']]);
  assert.equal(other.sent[0]?.target, '/v1/events?limit=100');
});

test('a list of events that waits has the time for it', async () => {
  const { shop, sent, time } = clientOf([() => 'silence'], { maxTimeMs: 15_000 });
  const error = await errorOf(shop.events.list({ waitSeconds: 20 }).next());
  assert.match(error.message, /none within 30000 ms/);
  // The first attempt ends after 30 s, and the last one when 35 s are over.
  assert.deepEqual([time.now(), sent.length], [35_000, 2]);
  assert.equal(sent[0]?.target, '/v1/events?limit=100&wait=20');
});

test('the position is the end of the feed', async () => {
  const { shop, sent } = clientOf([refused, () => events('A')]);
  assert.equal(await shop.events.position(), 'A');
  assert.equal(sent[1]?.target, '/v1/events?after=now&limit=1');
});

test('a page of events without a position is an error', async () => {
  const none: Record<string, string>[] = [
    {},
    { Link: '</v1/events?limit=1>; rel="next"' },
    { Link: '</v1/events?after=A>; rel="help"' },
  ];
  for (const headers of none) {
    const { shop } = clientOf([() => json([{ id: 'E1' }], headers)]);
    const error = await errorOf(shop.events.follow().next());
    assert.deepEqual([error.code, error.status, error.requestId], ['unexpected_response', 200, 'r1']);
  }
});

test('a follower waits for events and never ends', async () => {
  const { shop, sent, time } = clientOf([
    () => events('A', 'E1'),
    () => events('B'),
    () => 'silence',
    () => events('C'),
    () => events('D', 'E2', 'E3'),
  ]);
  assert.deepEqual(await idsOf(shop.events.follow({ after: 'E0' }), 3), ['E1', 'E2', 'E3']);
  const targets = ['E0', 'A', 'B', 'B', 'C'].map((after) => `/v1/events?after=${after}&limit=100&wait=25`);
  assert.deepEqual(sent.map(({ target }) => target), targets);
  // An attempt may take 10 s in addition to the 25 s.
  assert.equal(time.now(), 35_075);
});

test('a list of some types goes on after an empty page that leads further', async () => {
  const { shop, sent } = clientOf([() => events('A'), () => events('B', 'E1'), () => events('B')]);
  assert.deepEqual(await idsOf(shop.events.list({ types: ['order.placed', 'pet.sold'], limit: 1 })), ['E1']);
  const types = 'type=order.placed&type=pet.sold&limit=1';
  const targets = ['', 'after=A&', 'after=B&'].map((after) => `/v1/events?${after}${types}`);
  assert.deepEqual(sent.map(({ target }) => target), targets);
});

test('now becomes a position before the first wait', async () => {
  // If the response to a request that waits is lost, its retry must not start later.
  for (const found of [
    (shop: Petstore) => shop.events.follow({ after: 'now' }),
    (shop: Petstore) => shop.events.list({ after: 'now', waitSeconds: 25 }),
  ]) {
    const { shop, sent } = clientOf([() => events('A'), refused, () => events('B', 'E1')]);
    assert.deepEqual(await idsOf(found(shop), 1), ['E1']);
    const waiting = '/v1/events?after=A&limit=100&wait=25';
    assert.deepEqual(sent.map(({ target }) => target), ['/v1/events?after=now&limit=100', waiting, waiting]);
  }
  const { shop, sent } = clientOf([() => events('A')]);
  assert.deepEqual(await idsOf(shop.events.list({ after: 'now' })), []);
  assert.equal(sent.length, 1);
});

test('a follower outlives an outage', async () => {
  const outage = Array.from({ length: 1500 }, () => refused);
  const pauses: unknown[] = [];
  const { shop, sent } = clientOf(
    [
      () => events('A', 'E1'),
      ...outage,
      () => failure(503, 'unavailable'),
      () => failure(429, 'rate_limited', { 'Retry-After': '200' }),
      () => failure(429, 'rate_limited', { 'Retry-After': '100000' }),
      () => html(502),
      () => events('B', 'E2'),
    ],
    { maxTimeMs: 1000, onAttempt: ({ retryInMs }) => pauses.push(retryInMs) },
  );
  assert.deepEqual(await idsOf(shop.events.follow(), 2), ['E1', 'E2']);
  assert.deepEqual(pauses.slice(0, 4), [undefined, 75, 150, 300]);
  assert.deepEqual(pauses.slice(1500), [7500, 7500, 200_000, 300_000, 7500, undefined]);
  assert(sent.slice(1).every(({ target }) => target === '/v1/events?after=A&limit=100&wait=25'));
});

test('a follower throws other errors at once, and can be resumed', async () => {
  for (const [status, code, name] of [
    [401, 'invalid_api_key', 'AuthenticationError'],
    [403, 'insufficient_scope', 'PermissionDeniedError'],
    [410, 'cursor_expired', 'CursorExpiredError'],
    [410, 'operation_removed', 'BadRequestError'],
    [500, 'internal_error', 'InternalServerError'],
  ] as const) {
    const { shop, sent } = clientOf([
      () => events('A', 'E1'),
      () => failure(status, code),
      () => events('B', 'E2'),
    ]);
    const found = shop.events.follow();
    assert.deepEqual(await idsOf(found, 1), ['E1']);
    assert.equal((await errorOf(found.next())).name, name);
    assert.deepEqual(await idsOf(found, 1), ['E2']);
    assert.deepEqual(sent.map(({ at }) => at), [0, 0, 0]);
  }
  assert(new petstore.CursorExpiredError('', { code: '' }) instanceof PetstoreError);
  const { shop } = clientOf([() => failure(503, 'unavailable')], { maxTimeMs: 0 });
  assert.equal((await errorOf(shop.events.follow().next())).code, 'unavailable');
});

test('an AbortSignal ends a follower while it waits and between attempts', async () => {
  for (const answer of [() => 'silence' as const, refused]) {
    const { shop, time } = clientOf([() => events('A', 'E1'), answer]);
    const controller = new AbortController();
    const found = shop.events.follow({}, controller);
    assert.deepEqual(await idsOf(found, 1), ['E1']);
    void time.sleep(20_000).then(() => controller.abort('enough'));
    const error = await errorOf(found.next());
    assert(error instanceof petstore.RequestAbortedError);
    assert.deepEqual([error.cause, time.now()], ['enough', 20_000]);
  }
});

test('the hook gets every attempt', async () => {
  const attempts: Attempt[] = [];
  const { shop } = clientOf([refused, () => html(503), () => json(rex, { RateLimit: '"key";r=1;t=2' })], {
    onAttempt: (attempt) => attempts.push(attempt),
  });
  await shop.orders.get(7);
  const request = { method: 'GET', path: '/store/orders/7', durationMs: 0, requestId: undefined };
  assert.deepEqual(
    attempts.map(({ headers, error, ...rest }) => ({ ...rest, limit: headers.get('RateLimit'), code: error?.code })),
    [
      { ...request, number: 1, status: undefined, retryInMs: 75, limit: null, code: 'no_response' },
      { ...request, number: 2, status: 503, retryInMs: 150, limit: null, code: 'unexpected_response' },
      { ...request, number: 3, status: 200, requestId: 'r1', retryInMs: undefined, limit: '"key";r=1;t=2', code: undefined },
    ],
  );
});

test('nothing shows the API key', async () => {
  const seen: unknown[] = [];
  const { shop } = clientOf([refused, () => failure(401, 'invalid_api_key')], { onAttempt: (one) => seen.push(one) });
  seen.push(shop, shop.pets, shop.pets.list(), shop.withOptions({ timeoutMs: 1 }), await errorOf(shop.pets.get(1)));
  try {
    new Petstore({ apiKey: `${KEY}\r\nX: y`, baseUrl: BASE_URL });
  } catch (error) {
    seen.push(error);
  }
  assert.equal(seen.length, 8);
  for (const one of seen) {
    assert.doesNotMatch(inspect(one, { depth: null, showHidden: true, getters: true }), /secret/);
    assert.doesNotMatch(JSON.stringify(one), /secret/);
    assert.doesNotMatch(String(one), /secret/);
  }
});

test('withOptions changes only what it names', async () => {
  const { shop, sent, time } = clientOf([() => 'silence']);
  await errorOf(shop.withOptions({ timeoutMs: 1000, maxTimeMs: 2000 }).pets.get(1));
  assert.deepEqual([sent.length, time.now()], [2, 2000]);
  assert.equal(sent[0]?.headers.get('Authorization'), `Bearer ${KEY}`);
});

test('withOptions keeps a setting that is undefined, and adds headers', async () => {
  const { shop, sent, time } = clientOf([() => 'silence'], { timeoutMs: 1000, maxTimeMs: 0, headers: { 'X-Shop': '7' } });
  await errorOf(shop.withOptions({ timeoutMs: undefined, headers: { traceparent: '00-1' } }).pets.get(1));
  assert.equal(time.now(), 1000);
  assert.deepEqual([sent[0]?.headers.get('X-Shop'), sent[0]?.headers.get('traceparent')], ['7', '00-1']);
});

test('every call accepts its own times', async () => {
  const times = { timeoutMs: 1000, maxTimeMs: 2000 };
  for (const call of [
    (shop: Petstore) => shop.pets.get(1, times),
    (shop: Petstore) => shop.pets.create(newPet, times),
    (shop: Petstore) => shop.pets.list({}, times).next(),
    (shop: Petstore) => shop.request('GET', '/v1/pets', times),
  ]) {
    const { shop, sent, time } = clientOf([() => 'silence']);
    await errorOf(call(shop));
    assert.deepEqual([time.now(), sent.length], [2000, 2]);
  }
  const { shop, sent } = clientOf([refused]);
  await errorOf(shop.pets.get(1, { maxTimeMs: 0 }));
  assert.equal(sent.length, 1);
  await assert.rejects(shop.pets.get(1, { timeoutMs: 0 }), RangeError);
  await assert.rejects(shop.pets.get(1, { maxTimeMs: NaN }), RangeError);
  assert.equal(sent.length, 1);
});

test('headers of the client and of a call are sent with every attempt', async () => {
  const headers = { 'X-Shop': '7', tracestate: 'a=1, b=2' };
  for (const call of [
    (shop: Petstore) => shop.pets.update(1, {}, { headers: { Traceparent: '00-1', 'x-shop': '8' } }),
    (shop: Petstore) => shop.orders.list({}, { headers: { Traceparent: '00-1', 'x-shop': '8' } }).next(),
    (shop: Petstore) => shop.events.follow({}, { headers: { Traceparent: '00-1', 'x-shop': '8' } }).next(),
  ]) {
    const { shop, sent } = clientOf([refused, () => failure(400, 'invalid_field')], { headers });
    await errorOf(call(shop));
    assert.equal(sent.length, 2);
    for (const one of sent) {
      assert.deepEqual(
        ['traceparent', 'tracestate', 'x-shop', 'authorization'].map((name) => one.headers.get(name)),
        ['00-1', 'a=1, b=2', '8', `Bearer ${KEY}`],
      );
    }
  }
});

test('headers that the SDK needs for itself are rejected before anything is sent', async () => {
  const { shop, sent } = clientOf([]);
  const reserved = ['Authorization', 'idempotency-key', 'Content-Type', 'content-length', 'Transfer-Encoding', 'Host'];
  const wrong: unknown[] = [
    ...reserved.map((name) => ({ [name]: 'secret' })),
    { 'Bad Name': 'secret' },
    { 'X-Bad': 'secret\r\nInjected: 1' },
    { 'X-Bad': ' secret' },
    { 'X-Bad': 'sécret' },
    { 'X-Bad': '' },
    { 'X-Bad': undefined },
    new Headers({ 'X-Good': 'secret' }),
    [['X-Good', 'secret']],
    null,
  ];
  for (const value of wrong) {
    const options = { headers: value as Record<string, string> };
    const isExpected = (error: unknown) => error instanceof TypeError && !error.message.includes('secret');
    await assert.rejects(shop.pets.get(1, options), isExpected);
    await assert.rejects(async () => clientOf([], options), isExpected);
    await assert.rejects(async () => shop.withOptions(options), isExpected);
  }
  assert.equal(sent.length, 0);
  await assert.rejects(shop.pets.get(1, { headers: { Authorization: 'Bearer x' } }), {
    message: '`headers` must not contain `Authorization`: set the option `apiKey`.',
  });
});

test('withResponse returns the result with the status, headers and request id of its response', async () => {
  const attempts: Attempt[] = [];
  const { shop } = clientOf([refused, () => json(rex, { RateLimit: '"key";r=1;t=2' }, 201)], {
    onAttempt: (attempt) => attempts.push(attempt),
  });
  const { result, response } = await shop.withResponse((shop) => shop.pets.create(newPet));
  const name: string = result.name;
  assert.deepEqual([name, response.status, response.requestId], ['Rex', 201, 'r1']);
  assert.equal(response.headers.get('RateLimit'), '"key";r=1;t=2');
  assert.equal(attempts.length, 2);
  const failed = clientOf([() => failure(409, 'pet_not_available')]).shop;
  assert.equal((await errorOf(failed.withResponse((shop) => shop.orders.place({ petId: 1 })))).requestId, 'r1');
  await assert.rejects(shop.withResponse((shop) => shop.pets.getMany([])), TypeError);
});

test('request calls any path with the same authentication, retries and errors', async () => {
  const { shop, sent } = clientOf([refused, () => json([rex]), () => html(502), () => json({ id: 3 }, {}, 201)]);
  const query = { status: 'sold', id: [1, 2], limit: 5, deep: true };
  assert.deepEqual(await shop.request('GET', '/v1/pets', { query, headers: { 'X-Shop': '7' } }), [rex]);
  const created = await shop.request<{ id: number }>('POST', '/v1/vets', { body: { name: 'Ada' } });
  assert.equal(created.id, 3);
  assert.deepEqual(
    sent.map(({ method, target, body }) => [method, target, body]),
    [
      ...Array<unknown>(2).fill(['GET', '/v1/pets?status=sold&id=1&id=2&limit=5&deep=true', undefined]),
      ...Array<unknown>(2).fill(['POST', '/v1/vets', { name: 'Ada' }]),
    ],
  );
  assert.deepEqual(sent.map(({ headers }) => headers.get('X-Shop')), ['7', '7', null, null]);
  assert(sent.every(({ headers }) => headers.get('Authorization') === `Bearer ${KEY}`));
  const keys = sent.map(({ headers }) => headers.get('Idempotency-Key'));
  assert.deepEqual([keys[0], keys[2] === keys[3], keys[2]?.length], [null, true, 32]);

  const missing = await errorOf(clientOf([() => failure(404, 'vet_not_found')]).shop.request('GET', '/v1/vets/7'));
  assert(missing instanceof petstore.NotFoundError);
  const empty = clientOf([() => new Response(null, { status: 204 })]).shop;
  assert.equal(await empty.request('DELETE', '/v1/vets/7', { idempotencyKey: 'mine' }), undefined);
  assert.equal((await errorOf(clientOf([() => html(200)]).shop.request('GET', '/v1/vets'))).code, 'unexpected_response');
  const lost = await errorOf(clientOf([refused], { maxTimeMs: 0 }).shop.request('DELETE', '/v1/vets/7'));
  assert.equal(lost.outcomeUnknown, true);
});

test('request rejects a wrong method, path or option before anything is sent', async () => {
  const { shop, sent } = clientOf([]);
  for (const path of ['', 'v1/pets', '/pets', '/v1', 'https://other.example/v1/pets', '/v1/pets?limit=1', '/v1/a b', null]) {
    await assert.rejects(shop.request('GET', path as string), { name: 'TypeError', message: /must start with `\/v1\/`/ });
  }
  await assert.rejects(shop.request('get' as 'GET', '/v1/pets'), TypeError);
  await assert.rejects(shop.request('GET', '/v1/pets', { body: {} }), TypeError);
  await assert.rejects(shop.request('GET', '/v1/pets', { params: {} } as object), TypeError);
  assert.equal(sent.length, 0);
});
