-- `fresh_database` and `migrated_database` stand for names that settled.testing.databases makes: a name cannot be a
-- parameter.

-- name: create_migrated
-- The database that the others are copies of.
CREATE DATABASE migrated_database

-- name: create_fresh
-- A database for one test. Copying one that was migrated once takes a tenth of migrating it.
CREATE DATABASE fresh_database TEMPLATE migrated_database

-- name: drop_fresh
-- At the end of a test, whoever is still connected.
DROP DATABASE IF EXISTS fresh_database WITH (FORCE)

-- name: drop_migrated
-- At the end of the tests.
DROP DATABASE IF EXISTS migrated_database WITH (FORCE)
