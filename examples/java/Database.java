import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/** Connections, and transactions on them. */
final class Database {

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

    /** All that the work does is committed, or nothing. */
    static <T> T inTransaction(DataSource source, Work<T> work) throws SQLException {
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
