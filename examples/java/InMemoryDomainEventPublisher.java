import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/** The adapter for tests of business code: keeps the events, so that a test can look at them without a database. */
public final class InMemoryDomainEventPublisher implements DomainEventPublisher {

    private final List<DomainEvent> published = new ArrayList<>();

    @Override
    public UUID publish(DomainEvent event) {
        published.add(event);
        return UUID.randomUUID();
    }

    public List<DomainEvent> published() {
        return List.copyOf(published);
    }
}
