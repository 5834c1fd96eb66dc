// database.js - the pool, and transactions on it.
import pg from 'pg';

// Where: PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD.
export const pool = new pg.Pool({ max: 4 });

// The server has closed a connection that nobody was using: the pool opens another one.
pool.on('error', (error) => console.error(`idle connection: ${error.message}`));

// Runs work(client) in a transaction; all that it does is committed, or nothing. When the server ends one of
// two transactions that meet (serialization failure, deadlock), the whole of it is done again.
export async function transaction(work, tries = 3) {
  const client = await pool.connect();
  let broken;
  try {
    await client.query('begin');
    const result = await work(client);
    await client.query('commit');
    return result;
  } catch (error) {
    await client.query('rollback').catch((lost) => { broken = lost; });
    if (broken || tries <= 1 || !['40001', '40P01'].includes(error.code)) throw error;
  } finally {
    client.release(broken); // a broken connection does not go back into the pool
  }
  return transaction(work, tries - 1);
}
