-- Which rows of which source were imported, so that importing again adds only what is not there yet.
--
-- A row a chunk, not a row an animal: ten million keys are a thousand rows of compressed arrays (some 35 MB), where a
-- table and an index of single keys would have the size of the animals themselves. Nothing but an import reads them.

CREATE TABLE imported_chunks (
  id bigint GENERATED ALWAYS AS IDENTITY,
  -- What the operator calls the source: the name of a file, most often.
  source text NOT NULL,
  imported_at timestamptz NOT NULL DEFAULT now(),
  -- The source's own keys of the animals that were added together. None is there twice in all chunks of a source.
  keys text[] NOT NULL,
  CONSTRAINT imported_chunks_pkey PRIMARY KEY (source, id),
  CONSTRAINT imported_chunks_source_length CHECK (char_length(source) BETWEEN 1 AND 200),
  CONSTRAINT imported_chunks_keys CHECK (cardinality(keys) >= 1 AND array_position(keys, NULL) IS NULL)
);
