// A tour of the SDK, from the first request to a rejected one. Reads PETSTORE_URL and PETSTORE_KEY. Fails if a response
// is not as documented.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { allPets, createClient, createPet, PetstoreError } from '@petstore/client';

const { PETSTORE_URL, PETSTORE_KEY } = process.env;
assert(PETSTORE_URL && PETSTORE_KEY, 'set PETSTORE_URL and PETSTORE_KEY');
const client = createClient({ baseUrl: `${PETSTORE_URL}/v1`, auth: PETSTORE_KEY });

// Add a pet once, although the request is sent twice.
const twice = {
  client,
  body: { name: 'Rex', categoryId: 3, status: 'pending' } as const,
  headers: { 'Idempotency-Key': randomUUID() },
};
const first = await createPet({ ...twice, throwOnError: true });
const again = await createPet({ ...twice, throwOnError: true });
assert.equal(again.data.id, first.data.id);
assert.equal(first.response.headers.get('Idempotent-Replayed'), null);
assert.equal(again.response.headers.get('Idempotent-Replayed'), 'true');
console.log(`added ${first.data.name}, once`);

// Iterate over all pages, and count the requests.
for (const name of ['Ada', 'Bo', 'Cy', 'Di']) {
  await createPet({ client, body: { name, categoryId: 3, status: 'pending' }, throwOnError: true });
}
let requests = 0;
client.interceptors.request.use((request) => {
  requests += 1;
  return request;
});
const names: string[] = [];
for await (const pet of allPets(client, { status: 'pending', limit: 2 })) {
  names.push(pet.name);
}
assert.deepEqual(names, ['Rex', 'Ada', 'Bo', 'Cy', 'Di']);
assert.equal(requests, 3);
console.log(`listed ${names.length} pets on ${requests} pages`);

// Operations return errors as values by default; iterators throw them.
const { error, response } = await createPet({ client, body: { name: ' ', categoryId: 3 } });
assert(error);
assert.equal(error.code, 'invalid_field');
assert.equal(error.status, response.status);
console.log(`rejected: ${error.message}`);
await assert.rejects(allPets(client, { limit: 0 }).next(), (thrown) => {
  assert(thrown instanceof PetstoreError);
  assert.equal(thrown.code, 'invalid_parameter');
  assert.match(thrown.requestId ?? '', /^[0-9a-f]{32}$/);
  return true;
});

// A link to another origin is not followed, so the key is not sent there.
const elsewhere = createClient({
  baseUrl: `${PETSTORE_URL}/v1`,
  auth: PETSTORE_KEY,
  fetch: () => Promise.resolve(Response.json([], { headers: { Link: '<http://elsewhere.example/>; rel="next"' } })),
});
await assert.rejects(allPets(elsewhere).next(), /elsewhere\.example/);
