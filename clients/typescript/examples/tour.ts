// A tour of the package, from the first pet to a sold one. Reads PETSTORE_URL and PETSTORE_KEY. Fails if the service does
// not do what it says.
import assert from 'node:assert/strict';
import { ConflictError, NotFoundError, Petstore, PreconditionFailedError } from '@petstore/client';

let requests = 0;
const shop = new Petstore({ onAttempt: () => (requests += 1) });

// Add pets. With an idempotency key of your own, you can call twice, and the pet is added once.
const rex = { name: 'Rex', categoryId: 3, status: 'pending' } as const;
const first = await shop.pets.create(rex, { idempotencyKey: `tour-${process.pid}-${Date.now()}` });
for (const name of ['Ada', 'Bo', 'Cy', 'Di']) {
  await shop.pets.create({ ...rex, name });
}

// Iterate over all pages.
requests = 0;
const names: string[] = [];
for await (const pet of shop.pets.list({ status: 'pending', limit: 2 })) {
  names.push(pet.name);
}
assert.deepEqual(names, ['Rex', 'Ada', 'Bo', 'Cy', 'Di']);
assert.equal(requests, 3);
console.log(`listed ${names.length} pets on ${requests} pages`);

// The newest first.
const { value: newest } = await shop.pets.list({ sort: '-id' }).next();
assert.equal(newest?.name, 'Di');

// Fetch some of them.
assert.equal((await shop.pets.get(first.id)).name, 'Rex');
const found = await shop.pets.getMany([first.id + 1, 999_999, first.id]);
assert.deepEqual(found.map((pet) => pet.name), ['Ada', 'Rex']);
await assert.rejects(shop.pets.get(999_999), NotFoundError);

// Find one by your own number for it, which no other pet can have.
const reference = 'stock-4711';
await shop.pets.update(first.id, { reference });
for await (const pet of shop.pets.list({ references: [reference, 'stock-4712'] })) {
  assert.deepEqual([pet.id, pet.reference], [first.id, reference]);
  console.log(`found ${pet.name} by reference`);
}
await assert.rejects(shop.pets.create({ ...rex, reference }), { code: 'reference_taken', field: 'reference' });

// Iterate over a category.
const inCategory: number[] = [];
for await (const pet of shop.pets.list({ categoryId: 3, status: 'pending' })) {
  inCategory.push(pet.id);
}
assert.equal(inCategory.length, 5);

// Store with it what a buyer wants to see. Change one value, and remove another.
const photo = 'https://shop.example/rex.jpg';
await shop.pets.update(first.id, { metadata: { price: '129.00', photo, note: 'likes cats' } });
const { metadata } = await shop.pets.update(first.id, { metadata: { price: '99.00', note: null } });
assert.deepEqual(metadata, { price: '99.00', photo });
console.log(`${first.name} costs ${metadata?.['price']}`);

// Change one, unless another client was faster.
const { etag } = await shop.pets.get(first.id);
const changed = await shop.pets.update(first.id, { status: 'available' }, { ifMatch: etag });
await assert.rejects(shop.pets.update(first.id, { name: 'Max' }, { ifMatch: etag }), PreconditionFailedError);
assert.notEqual(changed.etag, etag);

// Sell it, and store the price with the order.
const order = await shop.orders.place({ petId: first.id, reference: 'basket 7', metadata: { price: '99.00' } });
const paid = await shop.orders.update(order.id, { reference: null, metadata: { payment: 'card' } });
assert.deepEqual([paid.reference, paid.metadata], [undefined, { payment: 'card', price: '99.00' }]);
await assert.rejects(shop.orders.place({ petId: first.id }), (error) => {
  assert(error instanceof ConflictError);
  assert.equal(error.code, 'pet_not_available');
  assert.match(error.requestId ?? '', /^[0-9a-f]{32}$/);
  console.log(`rejected: ${error.message}`);
  return true;
});
assert.equal((await shop.orders.complete(order.id)).status, 'completed');
assert.equal((await shop.pets.get(first.id)).status, 'sold');
for await (const placed of shop.orders.list({ petId: first.id })) {
  console.log(`order ${placed.status}`);
}

// Delete a pet that was added by mistake. One that is or was in an order stays.
const mistake = await shop.pets.create(rex);
await shop.pets.delete(mistake.id);
assert.deepEqual(await shop.pets.getMany([mistake.id]), []);
await assert.rejects(shop.pets.delete(first.id), { code: 'pet_has_order' });
