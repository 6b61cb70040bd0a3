// A first program: takes a delivery of pets, sells one of them, and renames the other. Reads PETSTORE_URL and
// PETSTORE_KEY. `petstore demo` starts a service and prints both.
import { ConflictError, Petstore } from '@petstore/client';

const shop = new Petstore();

// Your own idempotency keys make it safe to run the program again after a crash: the pets are added once.
const [max, eve] = await Promise.all([
  shop.pets.create({ name: 'Max', categoryId: 3, status: 'available' }, { idempotencyKey: 'tuesday-Max' }),
  shop.pets.create({ name: 'Eve', categoryId: 3, status: 'available' }, { idempotencyKey: 'tuesday-Eve' }),
]);

try {
  const order = await shop.orders.place({ petId: max.id });
  console.log((await shop.orders.complete(order.id)).status);
} catch (error) {
  if (!(error instanceof ConflictError)) {
    throw error; // Node.js prints it and ends
  }
  console.log('another buyer was faster');
}

// The name changes only if no one has changed the pet since it was read.
const current = await shop.pets.get(eve.id);
console.log((await shop.pets.update(eve.id, { name: 'Evelyn' }, { ifMatch: current.etag })).name);

let available = 0;
for await (const _ of shop.pets.list({ status: 'available' })) {
  available += 1;
}
console.log(`${available} available`);
