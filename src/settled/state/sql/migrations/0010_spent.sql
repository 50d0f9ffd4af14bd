-- What a purge remembers for ever: how far the occurrences of an intent have been used. An idempotency key is made of the two, and the
-- remote side may know it for ever; and a call that began at a free occurrence again would not meet the later ones.

CREATE TABLE settled.spent (
    tenant     text    NOT NULL,
    intent     bytea   NOT NULL,
    occurrence integer NOT NULL,  -- the last one that was forgotten
    PRIMARY KEY (intent, tenant)
);

-- Nothing begins at a spent occurrence: whoever plans there meets a later action, or goes on to the next occurrence.
CREATE FUNCTION settled.is_spent(of_tenant text, of_intent bytea, at_occurrence integer) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM settled.spent WHERE intent = of_intent AND tenant = of_tenant AND occurrence >= at_occurrence)
$$;

CREATE FUNCTION settled.skip_spent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN settled.is_spent(NEW.tenant, NEW.intent, NEW.occurrence) THEN NULL ELSE NEW END;
END $$;
CREATE TRIGGER spent BEFORE INSERT ON settled.actions FOR EACH ROW EXECUTE FUNCTION settled.skip_spent();

-- The same once more, for an insertion that waited for the purge of just this occurrence: its statement is sent again.
CREATE FUNCTION settled.refuse_spent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF settled.is_spent(NEW.tenant, NEW.intent, NEW.occurrence) THEN
        RAISE EXCEPTION 'the occurrence % of this intent was purged at this moment', NEW.occurrence USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER spent_meanwhile AFTER INSERT ON settled.actions FOR EACH ROW EXECUTE FUNCTION settled.refuse_spent();
