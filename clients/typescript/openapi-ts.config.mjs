// How `make generate NAME=clients` turns the interface document, named on the command line, into src/generated.
export default {
  output: { path: 'src/generated', module: { extension: '.js' } },
  plugins: ['@hey-api/client-fetch', '@hey-api/typescript', '@hey-api/sdk'],
};
