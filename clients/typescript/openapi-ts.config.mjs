// Settings for `make generate NAME=clients`, which generates src/generated from the OpenAPI document named on the command
// line. Only types: the client in src is written by hand.
export default {
  output: { path: 'src/generated', entryFile: false },
  plugins: ['@hey-api/typescript'],
};
