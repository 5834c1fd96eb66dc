import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/** Connections, and transactions on them. */
final class Database {

    private static final List<String> CONFLICTS = List.of("40001", "40P01"); // serialization failure, deadlock

    /** Something to do in a transaction. */
    interface Work<T> {
        T run(Connection connection) throws SQLException;
    }

    private Database() {
    }

    /** Opens a connection each time; an application has a pool here. Where: JDBC_URL, PGUSER, PGPASSWORD. */
    static DataSource fromEnvironment() {
        var source = new PGSimpleDataSource();
        source.setUrl(System.getenv().getOrDefault("JDBC_URL", "jdbc:postgresql://localhost/postgres"));
        source.setUser(System.getenv("PGUSER"));
        source.setPassword(System.getenv("PGPASSWORD"));
        return source;
    }

    /**
     * All that the work does is committed, or nothing. When the server ends one of two transactions that meet
     * (serialization failure, deadlock), the whole of it is done again.
     */
    static <T> T inTransaction(DataSource source, Work<T> work) throws SQLException {
        for (int tries = 3; ; tries--) {
            try {
                return tryInTransaction(source, work);
            } catch (SQLException | RuntimeException e) {
                if (tries == 1 || !isConflict(e)) {
                    throw e;
                }
            }
        }
    }

    private static boolean isConflict(Throwable thrown) {
        for (var e = thrown; e != null; e = e.getCause()) {
            if (e instanceof SQLException sql && CONFLICTS.contains(String.valueOf(sql.getSQLState()))) {
                return true;
            }
        }
        return false;
    }

    private static <T> T tryInTransaction(DataSource source, Work<T> work) throws SQLException {
        try (var connection = source.getConnection()) {
            connection.setAutoCommit(false);
            try {
                var result = work.run(connection);
                connection.commit();
                return result;
            } catch (SQLException | RuntimeException e) {
                try {
                    connection.rollback();
                } catch (SQLException lost) { // the server has rolled back by itself
                    e.addSuppressed(lost);
                }
                throw e;
            }
        }
    }
}
