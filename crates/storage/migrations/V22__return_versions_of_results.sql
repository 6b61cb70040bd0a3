-- Lets a repeated createPet return the ETag of its first response: the transaction that added the pet also stored the result, so
-- both rows have the same xmin, which identifies the version. Also inlined, and also without settings: see V19.

-- The stored results of these digests, and the transaction that stored each.
CREATE FUNCTION stored_results_with_versions(digests uuid[])
RETURNS TABLE (digest uuid, fingerprint uuid, subject_id bigint, version xid)
LANGUAGE sql STABLE AS $$
  SELECT DISTINCT ON (digest) digest, fingerprint, subject_id, xmin
  FROM idempotency_keys
  WHERE digest = ANY (digests)
    AND used_at > now() - interval '24 hours 1 minute'
    AND kept_on >= (now() AT TIME ZONE 'UTC')::date - 1
  ORDER BY digest, used_at DESC
$$;
