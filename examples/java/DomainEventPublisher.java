import java.util.UUID;

/** The port: what the business code knows of publishing. It knows neither JDBC nor outbox. */
public interface DomainEventPublisher {

    /** Publishes the event as part of the business transaction; returns its id. */
    UUID publish(DomainEvent event);
}
