// The client: pets, orders and events, one method per operation.
import { NotFoundError, PetstoreError } from './errors.js';
import type {
  ListEventsData,
  ListOrdersData,
  ListPetsData,
  NewOrder,
  NewPet,
  Order,
  OrderPatch,
  Pet,
  PetPatch,
} from './generated/types.gen.js';
import type { Event, EventType } from './models.js';
import {
  CALL_OPTIONS,
  CLIENT_OPTIONS,
  REQUEST_OPTIONS,
  UPDATE_OPTIONS,
  WRITE_OPTIONS,
  type Attempt,
  type CallOptions,
  type CreateOptions,
  type PetstoreOptions,
  type RequestOptions,
  type ResponseInfo,
  type UpdateOptions,
  type WriteOptions,
} from './options.js';
import { feedPage, feedPages, List, listPages, onePage, PAGE_SIZE, partsOf } from './pagination.js';
import { METHODS, Transport, type ApiResponse, type Method } from './transport.js';
import {
  checkedHeaders,
  checkedId,
  checkedIds,
  checkedInteger,
  checkedStrings,
  checkedText,
  checkedTypes,
  checkFilter,
  checkMetadata,
  checkObject,
  checkOptions,
  checkRemovable,
  optional,
  type Checks,
} from './validation.js';

/** A pet, and the version of it that was read. */
export type PetWithEtag = Pet & {
  /** Changes with the pet: pass it as `ifMatch` to change the pet only if no one else has. */
  readonly etag: string;
};

/** An order, and the version of it that was read. */
export type OrderWithEtag = Order & {
  /** Changes with the order: pass it as `ifMatch` to change the order only if no one else has. */
  readonly etag: string;
};

/**
 * Filters a list of pets. A filter that is there but undefined is an error, because it would select all pets. `limit` is the
 * page size; `cursor` is that of a page, to continue after it.
 *
 * `references` selects the pets with these references, any number of them, and leaves out those that no pet has. All of
 * these pets are on one page, so `limit` and `cursor` cannot be set.
 */
export type PetFilter = Omit<NonNullable<ListPetsData['query']>, 'id' | 'reference'> & {
  references?: readonly string[];
};

const PET_FILTER: Checks<PetFilter> = {
  status: checkedText,
  categoryId: checkedInteger,
  references: checkedStrings,
  sort: checkedText,
  limit: checkedInteger,
  cursor: checkedText,
};

/** Filters a list of orders. Otherwise like {@link PetFilter}. */
export type OrderFilter = NonNullable<ListOrdersData['query']>;

const ORDER_FILTER: Checks<OrderFilter> = {
  status: checkedText,
  petId: (name, value) => checkedId(name, value, 'pet'),
  reference: checkedText,
  sort: checkedText,
  limit: checkedInteger,
  cursor: checkedText,
};

/**
 * Chooses events. `after` is the `id` of an event, a position, or `now`; by default, the oldest event that is kept comes
 * first. `types` leaves out all other types of events. `limit` is the page size. With `waitSeconds`, the list ends only when
 * nothing has happened for so many seconds, at most 25.
 */
export type EventFilter = Omit<NonNullable<ListEventsData['query']>, 'after' | 'wait' | 'type'> & {
  after?: string | undefined;
  types?: EventType[];
  waitSeconds?: number;
};

const EVENT_FILTER: Checks<EventFilter> = {
  after: optional(checkedText),
  types: checkedTypes,
  limit: checkedInteger,
  waitSeconds: checkedInteger,
};

/** Where to start to follow the events. */
export interface FollowStart {
  /** The `id` of an event, a position, or `now`. Default: the oldest event that is kept comes first. */
  after?: string | undefined;
  /** Leaves out all other types of events. At least one. */
  types?: EventType[];
}

const FOLLOW_START: Checks<FollowStart> = { after: optional(checkedText), types: checkedTypes };

/**
 * A client of the service. Its calls are retried until they succeed or `maxTimeMs` is over, and take effect once. A call
 * that fails throws a `PetstoreError`. An invalid option, of the client or of a call, is a bug in your program: it throws
 * a `TypeError` or, for a number, a `RangeError`, before anything is sent.
 */
export class Petstore {
  readonly pets: Pets;
  readonly orders: Orders;
  readonly events: Events;
  readonly #options: PetstoreOptions;
  readonly #transport: Transport;

  constructor(options: PetstoreOptions = {}) {
    this.#transport = new Transport(options);
    this.pets = new Pets(this.#transport);
    this.orders = new Orders(this.#transport);
    this.events = new Events(this.#transport);
    this.#options = options;
  }

  /** Returns a client with some settings changed. `headers` are added to those of this client. */
  withOptions(options: PetstoreOptions): Petstore {
    checkOptions(options, CLIENT_OPTIONS, 'the client');
    const changed = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
    const headers = { ...this.#options.headers, ...Object.fromEntries(checkedHeaders(options.headers)) };
    return new Petstore({ ...this.#options, ...changed, headers });
  }

  /**
   * Makes a call, and returns its result together with the status, the headers and the request id of its response:
   * `withResponse((shop) => shop.pets.get(1))`. If the call sends several requests, the response is the last one.
   */
  async withResponse<Result>(
    call: (shop: Petstore) => Promise<Result>,
  ): Promise<{ result: Result; response: ResponseInfo }> {
    const attempts: Attempt[] = [];
    const onAttempt = (attempt: Attempt) => {
      attempts.push(attempt);
      this.#options.onAttempt?.(attempt);
    };
    const result = await call(this.withOptions({ onAttempt }));
    const { status, headers, requestId } = attempts.at(-1) ?? {};
    if (status === undefined || headers === undefined) {
      throw new TypeError('The call sent no request, so it has no response.');
    }
    return { result, response: { status, headers, requestId } };
  }

  /**
   * Sends a request to any path under `/v1/`, for operations that this version of the SDK does not have. It has the same
   * authentication, retries and errors as all calls. Every method except `GET` has an `Idempotency-Key`. Returns the JSON
   * of the response, or undefined if the response is empty. Its type is not checked.
   */
  async request<Body = unknown>(method: Method, path: string, options: RequestOptions = {}): Promise<Body> {
    if (!METHODS.includes(method)) {
      throw new TypeError(`\`method\` must be one of ${METHODS.join(', ')}.`);
    }
    if (typeof path !== 'string' || !/^\/v1\/[^?#\s]*$/.test(path)) {
      throw new TypeError('`path` must start with `/v1/`. Pass parameters as `query`.');
    }
    checkOptions(options, REQUEST_OPTIONS, 'this call');
    const { query, body } = options;
    if (method === 'GET' && body !== undefined) {
      throw new TypeError('A `GET` has no `body`. Pass parameters as `query`.');
    }
    const headers = method === 'GET' && options.idempotencyKey === undefined ? {} : keyOf(options);
    const request = { method, path: path.slice('/v1'.length), expects: 'anything', query, headers, body } as const;
    return (await this.#transport.send<Body>(request, options, REQUEST_OPTIONS)).body;
  }
}

/** The operations on pets. */
export class Pets {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Adds a pet, once. If another pet has its `reference`, throws a `ConflictError` with the code `reference_taken`. */
  async create(pet: NewPet, options: CreateOptions = {}): Promise<PetWithEtag> {
    const headers = keyOf(options);
    checkObject('pet', pet);
    checkMetadata(pet.metadata, 'a string');
    const request = { method: 'POST', path: '/pets', headers, body: pet } as const;
    return tagged(await this.#transport.send<Pet>(request, options, WRITE_OPTIONS));
  }

  /** Returns a pet, or throws a `NotFoundError`. */
  async get(id: number, options: CallOptions = {}): Promise<PetWithEtag> {
    const query = { id: checkedId('id', id, 'pet') };
    const { status, headers, body } = await this.#transport.send<Pet[]>(
      { method: 'GET', path: '/pets', expects: 'array', query },
      options,
    );
    const requestId = headers.get('X-Request-Id') ?? undefined;
    const [pet] = body;
    if (pet === undefined) {
      throw new NotFoundError(`No pet has the id ${id}.`, { code: 'pet_not_found', status: 404, requestId });
    }
    if (pet.id !== id || body.length > 1) {
      const found = body.slice(0, 5).map((other) => other.id);
      const problem = `The response does not have the pet ${id}, but the pets [${found.join(', ')}].`;
      throw new PetstoreError(problem, { code: 'unexpected_response', status, requestId });
    }
    return tagged({ headers, body: pet });
  }

  /**
   * Returns the pets with these ids, in the order of the ids. Ids that do not exist are left out, and repeated ones
   * returned once.
   */
  async getMany(ids: readonly number[], options: CallOptions = {}): Promise<Pet[]> {
    const wanted = [...new Set(checkedIds('ids', ids, 'pet'))];
    const found = await this.#named('id', wanted.map(String), {}, options);
    return wanted.flatMap((id) => found.get(id) ?? []);
  }

  /**
   * Iterates over all matching pets, in ascending order of id. With `sort: '-id'`, the newest is first. A pet that exists
   * at the start, and still matches, appears exactly once.
   */
  list(filter: PetFilter = {}, options: CallOptions = {}): List<Pet> {
    checkFilter(filter, PET_FILTER, 'the filter of pets');
    const { references, ...query } = filter;
    if (references === undefined) {
      return new List(listPages<Pet>(this.#transport, '/pets', query, options));
    }
    if (query.limit !== undefined || query.cursor !== undefined) {
      throw new TypeError('`limit` and `cursor` cannot be set with `references`: all of these pets are on one page.');
    }
    checkOptions(options, CALL_OPTIONS, 'this call');
    const wanted = [...new Set(references)];
    return new List(
      onePage(async () => {
        const found = await this.#named('reference', wanted, query, options);
        const sorted = [...found.values()].sort((one, other) => one.id - other.id);
        return query.sort === '-id' ? sorted.reverse() : sorted;
      }),
    );
  }

  /** Returns the pets with these ids or references, by id. Sends as many requests as that takes. */
  async #named(
    parameter: 'id' | 'reference',
    names: string[],
    filter: Pick<PetFilter, 'status' | 'categoryId' | 'sort'>,
    options: CallOptions,
  ): Promise<Map<number, Pet>> {
    const found = new Map<number, Pet>();
    for (const part of partsOf(parameter, names)) {
      const query = { [parameter]: part, ...filter, limit: PAGE_SIZE };
      const { body } = await this.#transport.send<Pet[]>({ method: 'GET', path: '/pets', expects: 'array', query }, options);
      body.forEach((pet) => found.set(pet.id, pet));
    }
    return found;
  }

  /**
   * Changes a pet, once: fields that are left out keep their values, and `null` removes a `reference`, a member of the
   * `metadata`, or all of it. Without `ifMatch`, the last change wins. With a service before 1.3.0, a retry can also
   * replace a change that another client made after the first attempt took effect.
   */
  async update(id: number, patch: PetPatch, options: UpdateOptions = {}): Promise<PetWithEtag> {
    const whereFrom = 'the pets of a list have no `etag`. Get the pet first.';
    const headers = { ...keyOf(options), ...ifMatchOf(options, whereFrom) };
    checkObject('patch', patch);
    checkRemovable(patch);
    const request = { method: 'PATCH', path: `/pets/${checkedId('id', id, 'pet')}`, headers, body: patch } as const;
    return tagged(await this.#transport.send<Pet>(request, options, UPDATE_OPTIONS));
  }

  /**
   * Deletes a pet, or throws a `NotFoundError`. A pet that is or was in an order stays: throws a `ConflictError` with the
   * code `pet_has_order`. With a service before 1.3.0, if an attempt whose response was lost has deleted the pet, its retry
   * throws a `NotFoundError` with a true `outcomeUnknown`.
   */
  async delete(id: number, options: UpdateOptions = {}): Promise<void> {
    const whereFrom = 'the pets of a list have no `etag`. Get the pet first.';
    const headers = { ...keyOf(options), ...ifMatchOf(options, whereFrom) };
    const path = `/pets/${checkedId('id', id, 'pet')}`;
    await this.#transport.send({ method: 'DELETE', path, expects: 'nothing', headers }, options, UPDATE_OPTIONS);
  }
}

/** The operations on orders, which are beta: they may change with a minor release of the service. */
export class Orders {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Reserves an available pet, once. */
  async place(order: NewOrder, options: CreateOptions = {}): Promise<Order> {
    const headers = keyOf(options);
    checkObject('order', order);
    checkedId('petId', order.petId, 'pet');
    checkMetadata(order.metadata, 'a string');
    const request = { method: 'POST', path: '/store/orders', headers, body: order } as const;
    return (await this.#transport.send<Order>(request, options, WRITE_OPTIONS)).body;
  }

  /** Returns an order, or throws a `NotFoundError`. */
  async get(id: number, options: CallOptions = {}): Promise<OrderWithEtag> {
    return tagged(await this.#transport.send<Order>({ method: 'GET', path: orderPath(id) }, options));
  }

  /**
   * Changes an order, like {@link Pets.update}. With `holdSeconds`, the order expires so many seconds from now; with a
   * service before 1.3.0, a retry starts the time again. If the order is no longer `placed`, throws a `ConflictError` with
   * the code `invalid_transition`.
   */
  async update(id: number, patch: OrderPatch, options: UpdateOptions = {}): Promise<OrderWithEtag> {
    const whereFrom = 'only `orders.get` and `orders.update` return the `etag` of an order.';
    const headers = { ...keyOf(options), ...ifMatchOf(options, whereFrom) };
    checkObject('patch', patch);
    checkRemovable(patch);
    const request = { method: 'PATCH', path: orderPath(id), headers, body: patch } as const;
    return tagged(await this.#transport.send<Order>(request, options, UPDATE_OPTIONS));
  }

  /** Iterates over all matching orders, in the order in which they were placed. With `sort: '-id'`, the newest is first. */
  list(filter: OrderFilter = {}, options: CallOptions = {}): List<Order> {
    checkFilter(filter, ORDER_FILTER, 'the filter of orders');
    return new List(listPages<Order>(this.#transport, '/store/orders', filter, options));
  }

  /** Sells the pet of a placed order. Completing an order again changes nothing. */
  complete(id: number, options: WriteOptions = {}): Promise<Order> {
    return this.#end(id, 'complete', options);
  }

  /** Makes the pet of a placed order available again. Cancelling an order again changes nothing. */
  cancel(id: number, options: WriteOptions = {}): Promise<Order> {
    return this.#end(id, 'cancel', options);
  }

  async #end(id: number, how: 'complete' | 'cancel', options: WriteOptions): Promise<Order> {
    const request = { method: 'POST', path: `${orderPath(id)}/${how}`, headers: keyOf(options) } as const;
    return (await this.#transport.send<Order>(request, options, WRITE_OPTIONS)).body;
  }
}

/** The feed of changes of pets and orders, which is beta: it may change with a minor release of the service. */
export class Events {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Returns the current end of the feed: the `after` with which to read everything that happens from now on. */
  async position(options: CallOptions = {}): Promise<string> {
    return (await feedPage(this.#transport, { after: 'now', limit: 1 }, options)).cursor;
  }

  /**
   * Iterates over the events so far, and ends when there are no more. The last page of `pages` is empty, and its `cursor`
   * is the `after` with which to continue.
   */
  list(filter: EventFilter = {}, options: CallOptions = {}): List<Event> {
    checkFilter(filter, EVENT_FILTER, 'the filter of events');
    return new List(feedPages(this.#transport, filter, options));
  }

  /**
   * Iterates over the events, and waits for the next one instead of ending. Store the `id` of each event that you have
   * handled: to resume in another process, pass it as `after`. To stop, leave the loop or abort the `signal`.
   *
   * `maxTimeMs` does not apply: a missing response and the other failures that calls retry are retried until the service
   * responds again, unless `maxTimeMs` is 0. Throws a `CursorExpiredError` if the events after `after` are no longer kept,
   * and other errors at once. To resume after an error, start another loop over the same list.
   */
  follow(start: FollowStart = {}, options: CallOptions = {}): List<Event> {
    checkFilter(start, FOLLOW_START, '`follow`');
    return new List(feedPages(this.#transport, { ...start, follows: true }, options));
  }
}

function orderPath(id: number): string {
  return `/store/orders/${checkedId('id', id, 'order')}`;
}

/** Returns the header that lets a write take effect once, however many attempts it takes. */
function keyOf(options: WriteOptions): { 'Idempotency-Key': string } {
  return { 'Idempotency-Key': options.idempotencyKey ?? randomKey() }; // `send` rejects a key that is there but undefined
}

/** Returns the header for a change. `whereFrom` says how to get an `etag`. */
function ifMatchOf(options: UpdateOptions, whereFrom: string): { 'If-Match'?: string } {
  if ('ifMatch' in options && (options.ifMatch ?? undefined) === undefined) {
    throw new TypeError(`\`ifMatch\` is ${options.ifMatch}: ${whereFrom}`);
  }
  return options.ifMatch === undefined ? {} : { 'If-Match': options.ifMatch };
}

/** Returns what a response has with its `ETag`. For a pet, the service accepts that of a list with this one pet as well. */
function tagged<Item>({ headers, body }: Pick<ApiResponse<Item>, 'headers' | 'body'>): Item & { etag: string } {
  // A proxy may have removed the tag. The empty one matches nothing, so a change with it is rejected.
  return { ...body, etag: headers.get('ETag') ?? '""' };
}

/** Returns a new idempotency key: 128 random bits. */
function randomKey(): string {
  const bytes = new Uint8Array(16);
  if (typeof crypto === 'undefined') {
    bytes.forEach((_, index) => (bytes[index] = 256 * Math.random())); // Node.js 18
  } else {
    crypto.getRandomValues(bytes);
  }
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
