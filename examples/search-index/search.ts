// Answers each line of its input with the pets whose name contains it:
//
//     node search.ts
import { createInterface } from 'node:readline';
import { Petstore } from '@petstore/client';
import { SearchIndex } from './search-index.ts';

const index = new SearchIndex();
await new Promise<void>((ready) => void index.follow(new Petstore(), ready)); // if it fails, Node.js prints why and exits
for await (const line of createInterface(process.stdin)) {
  for (const { id, name, status } of index.search(line)) {
    console.log(id, name, status ?? '');
  }
}
process.exit();
