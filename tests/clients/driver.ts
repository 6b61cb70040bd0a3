// Calls the service with the TypeScript SDK, for run.py, which describes what a driver does.
import { text } from 'node:stream/consumers';
import { Petstore, PetstoreError, type Order, type PetWithEtag } from '@petstore/client';

interface Run {
  name: string;
  url: string;
  timeout: number;
  max_time: number;
  count?: number;
}

async function drive(run: Run): Promise<object> {
  const shop = new Petstore({ baseUrl: run.url, timeoutMs: 1000 * run.timeout, maxTimeMs: 1000 * run.max_time });
  const failures: string[] = [];

  /** Returns the result of a call, or undefined if it fails. */
  async function attempt<Result>(step: string, call: () => Promise<Result>): Promise<Result | undefined> {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof PetstoreError)) {
        throw error;
      }
      failures.push(`${step}: ${error.name} ${error.code}${error.outcomeUnknown ? ', outcome unknown' : ''}`);
      return undefined;
    }
  }

  const pets: PetWithEtag[] = [];
  for (const number of [0, 1, 2]) {
    const name = `${run.name} ${number}`;
    const pet = { name, categoryId: 1, status: 'available', reference: name } as const;
    const created = await attempt('create', () => shop.pets.create(pet));
    if (created) {
      pets.push(created);
    }
  }
  const [first, last] = [pets.at(0), pets.at(-1)];
  let order: Order | undefined;
  if (first && last) {
    await attempt('update', () => shop.pets.update(first.id, { categoryId: 2 }, { ifMatch: first.etag }));
    const placed = await attempt('place', () => shop.orders.place({ petId: last.id }));
    order = placed && (await attempt('complete', () => shop.orders.complete(placed.id)));
  }
  const listed: number[] = [];
  await attempt('list', async () => {
    for await (const pet of shop.pets.list({ limit: 50 })) {
      listed.push(pet.id);
    }
  });
  return {
    created: pets.map((pet) => pet.id),
    order: order ? { id: order.id, status: order.status } : null,
    listed,
    failures,
  };
}

async function takePosition(run: Run): Promise<string> {
  return new Petstore({ baseUrl: run.url, timeoutMs: 1000 * run.timeout }).events.position();
}

async function follow(run: Run, after: string): Promise<object> {
  const shop = new Petstore({ baseUrl: run.url, timeoutMs: 1000 * run.timeout, maxTimeMs: 1000 * run.max_time });
  const seen: [string, number][] = [];
  for await (const event of shop.events.follow({ after })) {
    seen.push([event.type, event.petId]);
    if (seen.length === run.count) {
      break;
    }
  }
  return seen;
}

const runs = JSON.parse(await text(process.stdin)) as Run[];
if (process.argv[2] === 'follow') {
  const positions = await Promise.all(runs.map(takePosition));
  console.log('ready');
  console.log(JSON.stringify(await Promise.all(runs.map((run, index) => follow(run, positions[index] ?? '')))));
} else {
  console.log(JSON.stringify(await Promise.all(runs.map(drive))));
}
