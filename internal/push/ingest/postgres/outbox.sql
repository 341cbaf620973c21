-- The outbox that Weir reads (docs/howto/ingest.md). Run it once in the application's
-- database, in the schema that both the application and Weir have in their search_path.

CREATE TABLE IF NOT EXISTS weir_outbox (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  channel    text        NOT NULL,
  key        text        NOT NULL DEFAULT '',
  data       text        NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- weir_publish publishes data on a channel if the transaction that calls it commits. key is
-- the conflation key. It returns the id of the row.
CREATE OR REPLACE FUNCTION weir_publish(channel text, data jsonb, key text DEFAULT '')
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  row_id bigint;
BEGIN
  INSERT INTO weir_outbox (channel, key, data)
  VALUES (weir_publish.channel, weir_publish.key, weir_publish.data::text)
  RETURNING id INTO row_id;
  PERFORM pg_notify('weir_outbox', '');
  RETURN row_id;
END;
$$;
