// Tests what every argument and option of every method does with undefined, null and empty values: never another request.
// The compiler rejects the table below if it lacks a method, an argument or an option.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type * as petstore from '@petstore/client';
import { Petstore, type Events, type Orders, type Pets } from '@petstore/client';
import { BASE_URL, json, KEY, rex } from './fakes.js';

/** The arguments of a method: the members of an object, and the name of anything else. */
type Arguments<List extends readonly unknown[]> = {
  [Index in keyof List]: List[Index] extends string | number | readonly unknown[] | ((...some: never[]) => unknown)
    ? string
    : Record<keyof List[Index], true>;
};

type Methods<Type> = {
  [Name in keyof Type as Type[Name] extends (...some: never[]) => unknown ? Name : never]: Type[Name] extends (
    ...list: infer List
  ) => unknown
    ? Arguments<Required<List>>
    : never;
};

const CALL: Record<keyof petstore.CallOptions, true> = { timeoutMs: true, maxTimeMs: true, headers: true, signal: true };
const WRITE: Record<keyof petstore.WriteOptions, true> = { ...CALL, idempotencyKey: true };
const UPDATE: Record<keyof petstore.UpdateOptions, true> = { ...WRITE, ifMatch: true };
const CLIENT: Record<keyof petstore.PetstoreOptions, true> = {
  apiKey: true,
  baseUrl: true,
  timeoutMs: true,
  maxTimeMs: true,
  headers: true,
  onAttempt: true,
  fetch: true,
  runtime: true,
};
const PET = { name: true, categoryId: true, status: true, reference: true, metadata: true } as const;
const PAGE = { sort: true, limit: true, cursor: true } as const;

const ARGUMENTS: {
  pets: Methods<Pets>;
  orders: Methods<Orders>;
  events: Methods<Events>;
  shop: Omit<Methods<Petstore>, 'withResponse'>;
} = {
  pets: {
    create: [PET, WRITE],
    get: ['id', CALL],
    getMany: ['ids', CALL],
    list: [{ status: true, categoryId: true, references: true, ...PAGE }, CALL],
    update: ['id', PET, UPDATE],
    delete: ['id', UPDATE],
  },
  orders: {
    place: [{ petId: true, reference: true, holdSeconds: true, metadata: true }, WRITE],
    get: ['id', CALL],
    update: ['id', { reference: true, holdSeconds: true, metadata: true }, UPDATE],
    list: [{ status: true, petId: true, reference: true, ...PAGE }, CALL],
    complete: ['id', WRITE],
    cancel: ['id', WRITE],
  },
  events: {
    position: [CALL],
    list: [{ after: true, types: true, limit: true, waitSeconds: true }, CALL],
    follow: [{ after: true, types: true }, CALL],
  },
  shop: {
    withOptions: [CLIENT],
    request: ['method', 'path', { ...WRITE, query: true, body: true }],
  },
};

/** What a call cannot do without. */
const REQUIRED: Record<string, unknown[]> = {
  'pets.create': [{ name: 'Rex', categoryId: 3 }, {}],
  'pets.list': [{}, {}],
  'pets.getMany': [[1], {}],
  'orders.place': [{ petId: 1 }, {}],
  'orders.list': [{}, {}],
  'events.position': [{}],
  'events.list': [{}, {}],
  'events.follow': [{}, {}],
  'shop.withOptions': [{}],
  'shop.request': ['POST', '/v1/vets', {}],
};

const EMPTY = [undefined, null, '', []];

/** These members of a body are sent as they are, and the service checks them. */
const BODY = ['name', 'categoryId', 'status', 'reference', 'holdSeconds', 'metadata'];

function replaced(list: unknown[], index: number, value: unknown): unknown[] {
  return list.map((one, at) => (at === index ? value : one));
}

/** Makes a call, and returns what was sent. */
async function requestsOf(call: string, values: unknown[]): Promise<unknown[]> {
  const sent: unknown[] = [];
  const send = async (url: string, init: RequestInit) => {
    const headers = new Headers(init.headers);
    sent.push([init.method, url.replace(BASE_URL, ''), init.body, headers.get('If-Match')]);
    if (init.method === 'DELETE') {
      return new Response(null, { status: 204 });
    }
    const isList = init.method === 'GET' && !/orders\/\d/.test(url);
    return json(isList ? [rex] : rex, { Link: url.includes('/events') ? '</v1/events?after=A>; rel="next"' : '' });
  };
  try {
    const shop = new Petstore({ apiKey: KEY, baseUrl: BASE_URL, fetch: send });
    const [resource, method] = call.split('.') as [string, string];
    const target = (resource === 'shop' ? shop : shop[resource as 'pets']) as unknown as Record<string, Function>;
    const made: unknown = target[method]!(...values);
    if (made instanceof Petstore) {
      await made.orders.get(1);
    } else {
      await (typeof made === 'object' && made !== null && 'next' in made ? (made as petstore.List<unknown>).next() : made);
    }
  } catch (error) {
    throw Object.assign(error as Error, { sent });
  }
  return sent;
}

async function assertRejected(call: string, values: unknown[], name: string): Promise<void> {
  const what = `${call}(${JSON.stringify(values)}), ${name}`;
  await requestsOf(call, values).then(
    (sent) => assert.fail(`${what} was accepted: ${JSON.stringify(sent)}`),
    (error: Error & { sent: unknown[] }) => {
      assert(error instanceof TypeError || error instanceof RangeError, `${what}: ${error}`);
      assert(error.message.includes(`\`${name}`), `${what}: ${error.message}`);
      assert.deepEqual(error.sent, [], what);
    },
  );
}

/** Checks one value of an argument, or of a member of one. */
async function check(call: string, values: unknown[], name: string, value: unknown): Promise<void> {
  const required = REQUIRED[call] ?? [1, {}, {}];
  const same = async (expected: unknown) => assert.deepEqual(await requestsOf(call, values), expected, `${call}: ${name}`);
  const isOption = name in CALL || name === 'query' || name === 'body' || call === 'shop.withOptions';
  if (value === undefined && (isOption || name === 'after')) {
    return same(await requestsOf(call, required)); // documented as the default
  }
  if (Array.isArray(value) && (name === 'ids' || name === 'references')) {
    return same([]); // a list of nothing
  }
  const isPatch = call.endsWith('.update');
  const isRemoved = isPatch && value === null;
  const isChecked = (name === 'reference' && isPatch && Array.isArray(value)) || (name === 'metadata' && value !== undefined);
  const isBody = /create|place|update/.test(call) && BODY.includes(name) && (isRemoved || !isChecked);
  if (isBody || (name === 'body' && Array.isArray(value))) {
    const [request] = (await requestsOf(call, values)) as [[string, string, string]];
    const body = JSON.parse(request[2]) as Record<string, unknown>;
    assert.deepEqual(name === 'body' ? body : body[name], value, `${call}: ${name}`);
    return;
  }
  await assertRejected(call, values, name);
}

test('no empty value of an argument becomes another request', async () => {
  let checked = 0;
  for (const [resource, methods] of Object.entries(ARGUMENTS)) {
    for (const [method, list] of Object.entries(methods) as [string, (string | Record<string, true>)[]][]) {
      const call = `${resource}.${method}`;
      const required = REQUIRED[call] ?? [1, {}, {}];
      for (const [index, argument] of list.entries()) {
        const names = typeof argument === 'string' ? [argument] : Object.keys(argument);
        for (const name of names) {
          for (const value of EMPTY) {
            const given = typeof argument === 'string' ? value : { ...(required[index] as object), [name]: value };
            await check(call, replaced(required, index, given), name, value);
            checked += 1;
          }
        }
      }
    }
  }
  assert(checked > 400);
});

test('an object that is missing or of another kind is rejected', async () => {
  for (const [resource, methods] of Object.entries(ARGUMENTS)) {
    for (const [method, list] of Object.entries(methods) as [string, (string | Record<string, true>)[]][]) {
      const call = `${resource}.${method}`;
      const required = REQUIRED[call] ?? [1, {}, {}];
      for (const [index, argument] of list.entries()) {
        for (const value of typeof argument === 'string' ? [] : [null, '', [], 7]) {
          const rejected = requestsOf(call, replaced(required, index, value));
          await assert.rejects(rejected, (error: Error & { sent: unknown[] }) => {
            assert.deepEqual(error.sent, []);
            return error instanceof TypeError;
          }, `${call}: ${JSON.stringify(value)}`);
        }
      }
    }
  }
  // Their entries are not properties, so each would be an empty filter.
  for (const filter of [new Map([['reference', 'a']]), new URLSearchParams({ reference: 'a' })]) {
    for (const call of ['pets.list', 'orders.list', 'events.list', 'events.follow']) {
      await assert.rejects(requestsOf(call, [filter, {}]), TypeError);
    }
    await assert.rejects(requestsOf('shop.request', ['GET', '/v1/pets', { query: filter }]), TypeError);
  }
});

test('an empty item of a list is rejected', async () => {
  for (const value of EMPTY) {
    await assertRejected('pets.getMany', [[1, value], {}], 'ids[1]');
    await assertRejected('pets.list', [{ references: ['a', value] }, {}], 'references[1]');
    await assertRejected('events.list', [{ types: ['pet.created', value] }, {}], 'types[1]');
    await assertRejected('events.follow', [{ types: ['pet.created', value] }, {}], 'types[1]');
    if (value !== '') {
      await assertRejected('shop.request', ['GET', '/v1/pets', { query: { id: value } }], 'query.id');
      await assertRejected('shop.request', ['GET', '/v1/pets', { query: { id: [1, value] } }], 'query.id');
    }
  }
});

test('no empty setting of a client is taken for another one', async () => {
  for (const name of Object.keys(CLIENT)) {
    for (const value of [null, '', []]) {
      const settings = { apiKey: KEY, baseUrl: BASE_URL, [name]: value } as petstore.PetstoreOptions;
      assert.throws(() => new Petstore(settings), { name: /^(Type|Range)Error$/, message: new RegExp(`\`${name}`) });
    }
  }
});
