// The index shows every change, also one that is made while the index is being built, and builds itself again after a 410.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { Petstore, RequestAbortedError } from '@petstore/client';
import { SearchIndex } from './search-index.ts';

type Send = (url: string, init: RequestInit) => Promise<Response>;

const shop = new Petstore();
const EXPIRED_POSITION = 'AgAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAAc';

/** Returns a name that no other pet has. */
function newName(): string {
  return `Rex ${randomUUID()}`;
}

async function addPet(name: string): Promise<number> {
  return (await shop.pets.create({ name, categoryId: 3, status: 'available' })).id;
}

/** Runs a test with an index that follows the feed. `send` sends the requests of the index. */
async function withIndex(run: (index: SearchIndex, built: () => number) => Promise<void>, send: Send = fetch): Promise<void> {
  const [index, stop] = [new SearchIndex(), new AbortController()];
  let built = 0;
  const following = index.follow(new Petstore({ fetch: send }), () => (built += 1), stop.signal);
  const ended = assert.rejects(following, RequestAbortedError);
  try {
    await eventually(() => built > 0);
    await run(index, () => built);
  } finally {
    stop.abort();
    await ended;
  }
}

async function eventually(condition: () => boolean): Promise<void> {
  for (const deadline = Date.now() + 30_000; !condition(); ) {
    assert(Date.now() < deadline, 'the index does not show the change');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test('the index finds new pets, changed pets and no deleted pets', async () => {
  const name = newName();
  await withIndex(async (index) => {
    assert.deepEqual(index.search(name), []);
    const id = await addPet(name);
    await eventually(() => index.search(name.toUpperCase()).length === 1);
    const second = await addPet(`Old ${name}`);
    await eventually(() => index.search(name).map((pet) => pet.id).join() === `${second},${id}`);
    await shop.orders.place({ petId: id });
    await eventually(() => index.search(name)[1]?.status === 'pending');
    await shop.pets.delete(second).catch(() => {}); // a retry finds it deleted
    await eventually(() => index.search(name).length === 1);
  });
});

test('a change that is made while the pets are read is not missed', async () => {
  const [before, after] = [newName(), newName()];
  const id = await addPet(before);
  let changed = false;
  const send: Send = async (url, init) => {
    const response = await fetch(url, init);
    const isLastPage = url.includes('/pets?limit=') && response.ok && !response.headers.has('Link');
    if (isLastPage && !changed) {
      changed = true;
      await shop.pets.update(id, { name: after }); // the index has read the page, but not the new name
    }
    return response;
  };
  await withIndex(async (index) => {
    await eventually(() => index.search(after).length === 1);
    assert.deepEqual(index.search(before), []);
  }, send);
});

test('after a 410, the index is complete again and has no deleted pets', async () => {
  const [kept, deleted] = [newName(), newName()];
  await addPet(kept);
  const id = await addPet(deleted);
  let expired = false;
  const send: Send = async (url, init) => {
    if (!url.includes('wait=') || expired) {
      return await fetch(url, init);
    }
    await shop.pets.delete(id).catch(() => {}); // the index never sees the event
    const response = await fetch(url.replace(/after=[^&]+/, `after=${EXPIRED_POSITION}`), init);
    expired = response.status === 410;
    return response;
  };
  await withIndex(async (index, built) => {
    await eventually(() => built() === 2);
    assert.equal(index.search(kept).length, 1);
    assert.deepEqual(index.search(deleted), []);
    await addPet(`${kept} II`);
    await eventually(() => index.search(kept).length === 2);
  }, send);
});

test('the program answers a search', async () => {
  const name = newName();
  const id = await addPet(name);
  const program = new URL(import.meta.url.replace('-index.test', ''));
  const output = await new Promise((resolve, reject) => {
    const search = execFile(process.execPath, [program.pathname], (error, stdout) => (error ? reject(error) : resolve(stdout)));
    search.stdin?.end(`${name}\n`);
  });
  assert.equal(output, `${id} ${name} available\n`);
});
