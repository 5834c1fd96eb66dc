-- The install script of outbox, joined at build time from src/schema/*.sql.
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

