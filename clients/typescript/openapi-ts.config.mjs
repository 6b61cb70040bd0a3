// Settings for `make generate NAME=clients`, which generates src/generated from the OpenAPI document named on the command
// line. Only types: the client in src is written by hand. A response may gain members, but a type that allows any name would
// hide a misspelt one.
export default {
  output: { path: 'src/generated', entryFile: false },
  parser: {
    patch: {
      schemas: (_, schema) => {
        if (schema.additionalProperties === true) {
          delete schema.additionalProperties;
        }
      },
    },
  },
  plugins: ['@hey-api/typescript'],
};
