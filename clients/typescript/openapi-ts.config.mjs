// Settings for `make generate NAME=clients`, which generates src/generated from the OpenAPI document named on the command line.
export default {
  output: { path: 'src/generated', module: { extension: '.js' } },
  plugins: ['@hey-api/client-fetch', '@hey-api/typescript', '@hey-api/sdk'],
};
