import java.sql.Connection;
import java.sql.SQLException;
import java.util.UUID;

/**
 * The adapter for outbox. It is given the connection on which the business transaction is open, and neither commits nor
 * rolls back: the event is there exactly when that transaction is committed.
 */
public final class JdbcDomainEventPublisher implements DomainEventPublisher {

    private final Connection connection;

    public JdbcDomainEventPublisher(Connection connection) {
        this.connection = connection;
    }

    @Override
    public UUID publish(DomainEvent event) {
        // Arguments by name: those left out have defaults. JDBC sends strings as varchar, which
        // PostgreSQL does not take for jsonb by itself: hence the cast.
        var sql = """
                select outbox.publish(?,
                    payload => ?::jsonb,
                    aggregate_type => ?,
                    aggregate_id => ?,
                    event_key => ?)
                """;
        try (var statement = connection.prepareStatement(sql)) {
            statement.setString(1, event.type());
            statement.setString(2, event.payload());
            statement.setString(3, event.aggregateType());
            statement.setString(4, event.aggregateId());
            statement.setString(5, event.key());
            try (var rows = statement.executeQuery()) {
                rows.next();
                return rows.getObject(1, UUID.class);
            }
        } catch (SQLException e) {
            throw new IllegalStateException("cannot publish " + event.type(), e);
        }
    }
}
